"""The pages of docs/trainers/: how to train with a trainer on a card, how far it was seen, and with what configuration.

Pure: cells and runs in, Markdown out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from knowngood.evidence.cell_answer import describe_tier
from knowngood.evidence.run_evidence import RunPlace, Tier
from knowngood_pages.trainer_options import Options, SeenOptions, find_seen_options, format_options

if TYPE_CHECKING:
    from knowngood.core.cell import Cell
    from knowngood.core.gpus import GpuMachine
    from knowngood.evidence.run_evidence import Evidence

_BANNER = "<!-- Generated from matrix.yaml and evidence/ by `knowngood render`; do not edit. -->\n"

_OPTIONS_WORDS = (
    "**The options that were seen training.** They are the run's own. Batches and steps are small, for the comparison, "
    "and paths are in a folder with a tiny model and a file of rows; put your own in their place."
)


@dataclass(frozen=True, kw_only=True)
class TrainerCell:
    """A cell with a trainer, and what is known of it."""

    cell: Cell
    machine: GpuMachine
    """The kind of machine, an architecture and a host, that the cell is for."""
    tier: Tier
    size: str
    """Of its image in a registry, for people; empty where none is recorded."""
    image: str
    """The digest of that image; empty where none is recorded."""
    runs: Sequence[Evidence]
    """Its runs, the oldest first."""
    suite: str
    """The hash of the suite that would run for it today."""


def render_trainer_pages(cells: Sequence[TrainerCell]) -> dict[str, str]:
    """Return the list of trainers and a page for each, as Markdown by file name, for the maintained cells with one."""
    by_name: dict[str, list[TrainerCell]] = {}
    for item in cells:
        by_name.setdefault(_trainer_of(item)[0], []).append(item)
    pages = {f"{name}.md": _render_page(name, items) for name, items in by_name.items()}
    return {"README.md": _render_list(by_name), **dict(sorted(pages.items()))}


def _trainer_of(item: TrainerCell) -> tuple[str, str]:
    return item.cell.framework_pin or ("", "")


def _render_list(by_name: Mapping[str, Sequence[TrainerCell]]) -> str:
    lines = [
        _BANNER,
        "# Trainers",
        "Each has a page with its images, how far it was seen training, and the configuration that was seen.",
        "",
        "| trainer | release | cards | the trainer itself |",
        "|---|---|---|---|",
    ]
    for name, items in sorted(by_name.items()):
        for item in items:
            cards = item.machine.label
            lines.append(f"| [{name}]({name}.md) | {_trainer_of(item)[1]} | {cards} | {_proof_words(item)} |")
    return "\n".join(lines) + "\n"


def _proof_words(item: TrainerCell) -> str:
    run = _newest_proof(item)
    if run is None:
        return "not seen training"
    return "seen training on a GPU" if run.where is RunPlace.CONTAINER_GPU else "seen training on a CPU only"


def _newest_proof(item: TrainerCell) -> Evidence | None:
    """Return the newest good run in a container in which the trainer's own checks passed, before all one on a GPU."""
    proofs = [
        run
        for run in item.runs
        if run.ok
        and run.where is not RunPlace.BARE
        and any(check["outcome"] == "pass" for check in _own_checks(run, _trainer_of(item)[0]))
    ]
    return max(proofs, key=lambda run: (run.where is RunPlace.CONTAINER_GPU, run.when), default=None)


def _own_checks(run: Evidence, name: str) -> list[Mapping[str, Any]]:
    """Return the checks of a run that are about a trainer: `trainer/trl-sft/...`, `framework/xtuner/...`."""
    checks: Sequence[Mapping[str, Any]] = run.report["checks"]
    starts = (f"trainer/{name}", f"framework/{name}")
    return [check for check in checks if check["id"].startswith(starts) and check["outcome"] != "not-run"]


def _render_page(name: str, items: Sequence[TrainerCell]) -> str:
    cards = list(dict.fromkeys(card for item in items for card in item.machine.known_cards))
    places = " or ".join(filter(None, [", ".join(cards[:-1]), cards[-1]]))
    parts = [_BANNER, f"# Train with {name} on {places}", *(_render_cell(name, item) for item in items)]
    return "\n".join(parts)


def _render_cell(name: str, item: TrainerCell) -> str:
    cell, version = item.cell, _trainer_of(item)[1]
    flash = f", {cell.flash_attn_package} {cell.flash_attn}" if cell.flash_attn_package else ""
    size = f", {item.size} in a registry" if item.size else ""
    has = (
        f"{name} {version} with transformers {cell.transformers}{flash}, CUDA {cell.cuda}, Python {cell.python}{size}."
    )
    run = _newest_proof(item)
    checks = _own_checks(run, name) if run else []
    kinds = find_seen_options(checks)
    command = next((kind.command for kind in kinds if kind.command), "python train.py")
    lines = [
        f"## {item.machine.label}: torch {cell.torch}, transformers {cell.transformers}",
        f"{has} It is for {', '.join(item.machine.cards)} ({cell.gpu}) in a machine with a CPU of {item.machine.host}.",
        "```sh",
        f"knowngood run {cell} -- {command}",
        "```",
        f"**How far it is proven.** The image: {describe_tier(item.tier)}. {_describe_proof(name, item)}",
        "",
    ]
    if checks:
        lines += [*_render_checks(checks), ""]
    if kinds:
        lines += [_OPTIONS_WORDS, "", *(line for kind in kinds for line in _render_options(kind))]
    return "\n".join(lines)


def _describe_proof(name: str, item: TrainerCell) -> str:
    run = _newest_proof(item)
    if run is None:
        ran = " What ran in it is the suite of every cell, which trains torch and transformers beside it."
        return f"**No run has seen {name} itself train in it.**{ran if item.runs else ''}"
    gpu = run.report.get("environment", {}).get("gpu")
    on_gpu = run.where is RunPlace.CONTAINER_GPU
    where = f"on a GPU ({gpu})" if on_gpu and gpu else "on a GPU" if on_gpu else "on a CPU only"
    digest = f", in the image {run.image[:19]}" if run.image else ""
    older = "" if run.suite == item.suite else " The checks have changed since."
    older += " The image has been made anew since." if item.image and run.image != item.image else ""
    return f"{name} itself: seen training {where} on {run.when[:10]}{digest}, suite {run.suite[:12]}.{older}"


def _render_checks(checks: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what the trainer's checks saw, as a table; faults that were put in on purpose are counted."""
    planted = [check for check in checks if (check.get("figures") or {}).get("noticed")]
    rows = [
        "Loss and gradient: how far the loss and the worst gradient are from an fp64 reference, as parts of one.",
        "",
        "| check | outcome | loss | gradient |",
        "|---|---|---|---|",
    ]
    for check in checks:
        if check in planted:
            continue
        errors = check.get("errors") or {}
        loss, gradient = (_small(errors.get(key)) for key in ("loss", "gradient"))
        rows.append(f"| `{check['id'].partition('/')[2]}` | {check['outcome']} | {loss} | {gradient} |")
    if compared := _describe_comparison([check for check in checks if check.get("whole_training")]):
        rows += ["", compared]
    if planted:
        rows += ["", f"{len(planted)} faults that were put into the trainer's path on purpose were noticed."]
    return rows


def _describe_comparison(checks: Sequence[Mapping[str, Any]]) -> str:
    """Return what was compared of whole trainings, and how long they took; nothing where a run is older than that."""
    if not checks:
        return ""
    steps = sum(check["whole_training"]["steps"] for check in checks)
    seconds = sum(check.get("seconds") or 0.0 for check in checks)
    text = (
        f"In {len(checks)} of these checks each of the {steps} steps was compared: loss and gradients with the"
        " reference, weights and moments with what the optimizer's formula makes of the gradients."
    )
    if any(check.get("saved") for check in checks):
        text += (
            " What was saved has the trained weights to the bit; loaded by `from_pretrained`, with and without a cache,"
            " it has the reference's logits and generates the reference's tokens."
        )
    return f"{text} That took {seconds:.0f} s."


def _small(value: object) -> str:
    return f"{value:.0e}" if isinstance(value, int | float) else ""


def _render_options(options: SeenOptions) -> list[str]:
    start = f"Started as `{options.command}`." if options.command else "Given to these classes in Python."
    lines = [f"### {options.kind}: `{options.check}`", start, "", *_render_parts(options.parts)]
    for variant in options.variants:
        names = ", ".join(f"`{check}`" for check in variant.checks)
        absent = f" without {', '.join(f'`{key}`' for key in variant.absent)}" if variant.absent else ""
        lines += [f"{names}: the same{absent}{', and' if variant.changed else '.'}", ""]
        lines += _render_parts(variant.changed)
    return lines


def _render_parts(parts: Options) -> list[str]:
    blocks = ((f"`{name}`:", "```yaml", f"{format_options(options)}```", "") for name, options in parts.items())
    return [line for block in blocks for line in block]
