"""Checkpoints of divided tensors by ``torch.distributed.checkpoint``: every rank writes what it has."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def save_shards(folder: Path, model: Any, optimizer: Any) -> None:
    """Write weights and optimizer states into a folder. All ranks call it."""
    from torch.distributed import checkpoint

    checkpoint.save(_state(model, optimizer), checkpoint_id=str(folder))


def load_shards(folder: Path, model: Any, optimizer: Any) -> None:
    """Read what ``save_shards`` wrote into a model and its optimizer. All ranks call it."""
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import set_state_dict

    state = _state(model, optimizer)
    checkpoint.load(state, checkpoint_id=str(folder))
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def _state(model: Any, optimizer: Any) -> dict[str, Any]:
    from torch.distributed.checkpoint.state_dict import get_state_dict

    weights, states = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": states}
