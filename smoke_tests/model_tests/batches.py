"""The sequences of a check, laid out as the smoke suite lays them out, and who belongs to whom in each row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from smoke_tests import data, layouts

if TYPE_CHECKING:
    from model_tests.pictures import Pictures

LENGTHS = data.RAGGED
LAYOUTS = ("dense", "right-padded", "left-padded", "packed", "packed-varlen")
POSITIONED = "+positions"
PADDING = -1


@dataclass
class ModelBatch:
    """What a model is called with, what it must predict, and the sequence of each place (-1 for padding)."""

    inputs: dict[str, Any]
    targets: torch.Tensor
    owners: torch.Tensor
    """Rows x places: the number of the sequence that a token belongs to."""


def lengths_of(layout: str) -> tuple[int, ...]:
    """The lengths of the sequences in a layout."""
    return data.DENSE if layout == "dense" else LENGTHS


def sequences_of(layout: str, number: int, pictures: Pictures | None = None) -> list[list[int]]:
    """The sequences of the batch with this number; each batch has others. An image's tokens come first."""
    lengths, prefix = lengths_of(layout), pictures.prefix if pictures else []
    return [prefix + data.sequence(len(lengths) * number + place, length) for place, length in enumerate(lengths)]


def lay_out(
    layout: str, number: int, device: torch.device, pictures: Pictures | None = None, model: Any = None
) -> ModelBatch:
    """Lay out the sequences of a batch; with ``pictures``, the inputs that ``model`` wants for its images too.

    After ``POSITIONED``, a padded layout states the position of each token too, which trainers do for packed rows only.
    """
    layout, positioned, _ = layout.partition(POSITIONED)
    rows = sequences_of(layout, number, pictures)
    build = layouts._packed if layout.startswith("packed") else layouts._padded
    made = build(layout, rows, torch.float32)
    inputs = {
        name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in made.inputs.items()
    }
    if pictures is not None:
        inputs.update(pictures.inputs(model, rows, inputs["input_ids"]))
        if layout.startswith("packed"):
            inputs["position_ids"] = torch.cat([pictures.positions(len(row)) for row in rows], 1)[:, None].to(device)
    owners = _owners(layout, rows).to(device)
    if positioned:
        inputs["position_ids"] = ((owners != PADDING).cumsum(-1) - 1).clamp(min=0)
    return ModelBatch(inputs, made.targets.to(device), owners)


def _owners(layout: str, rows: list[list[int]]) -> torch.Tensor:
    if layout.startswith("packed"):
        return torch.tensor([[place for place, row in enumerate(rows) for _ in row]])
    longest = max(map(len, rows))
    owners = torch.full((len(rows), longest), PADDING)
    for place, row in enumerate(rows):
        owners[place, longest - len(row) :] = place
        if layout != "left-padded":
            owners[place] = torch.tensor([place] * len(row) + [PADDING] * (longest - len(row)))
    return owners


def places_of(owners: torch.Tensor) -> torch.Tensor:
    """The places of all real tokens in the flattened batch, ordered by sequence and position in it."""
    flat = owners.flatten()
    real = (flat != PADDING).nonzero().flatten()
    return real[torch.sort(flat[real], stable=True).indices]
