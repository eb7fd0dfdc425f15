"""The cell in which a program runs: the best one that `pick` offers for a GPU, among all cells or the selected ones.

Pure, but for the evidence that the published cells read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from knowngood.compat.cell_answer import describe_tier
from knowngood.compat.knowledge import CompatKnowledge
from knowngood.compat.pick_answer import CellChoice, pick_cells
from knowngood.compat.query import Query
from knowngood.compat.rule_relations import parse_capability
from knowngood.core.cell import Cell
from knowngood.core.errors import KnowngoodError, UsageError
from knowngood.doctor.system_state import NvidiaState

ANY_GPU = "auto"
"""The value of `--gpu` that means the GPU of this machine."""


@dataclass(frozen=True, kw_only=True)
class RunChoice:
    """The cell in which a program runs, and why."""

    cell: Cell
    tier: str
    because: str
    """What decided: the GPU that is here, the one that was named, or the cell that was."""
    setting: str = ""
    """What is known of the attention setting that was asked for."""

    @property
    def text(self) -> str:
        """The cell, how far it is proven and why it was chosen, in one line."""
        setting = f"; {self.setting}" if self.setting else ""
        return f"{self.cell} ({describe_tier(self.tier)}{setting}), {self.because}"


def choose_run_cell(
    known: CompatKnowledge, nvidia: NvidiaState, cells: Sequence[Cell], *, gpu: str, attn: str | None
) -> RunChoice:
    """Return the best cell for a program.

    Args:
        known: facts, rules, and the cells of matrix.yaml.
        nvidia: the driver and the GPUs of this machine.
        cells: the cells that were selected; none when the user selected none.
        gpu: the GPU that was named, or `auto` for that of this machine.
        attn: the attention setting that must train.

    Raises:
        UsageError: the name of the GPU is not known, or several cells were selected for no GPU.
        KnowngoodError: no cell fits; the message has the command that explains why.
    """
    query, because = _query_for_machine(nvidia, gpu, attn)
    if len(cells) == 1:  # the user has decided; what speaks against it on this GPU is told by the doctor's lines
        query, because = Query(attn=attn), "as selected"
    elif not cells and query.gpu is None:
        default = known.published.aliases.get("default")
        cells = [cell for cell in known.published.cells if str(cell) == default]
        if not cells and attn is None:
            raise UsageError("this machine has no GPU, and matrix.yaml has no alias default; name a GPU with --gpu")
    published = replace(known.published, cells=tuple(cells)) if cells else known.published
    answer = pick_cells(known.for_query(query, cells=True), query, published, count=1)
    choice = next((choice for choice in answer.choices if choice.published), None)
    if choice is None:
        words = [f"--gpu {query.gpu}" if query.gpu else "", f"--driver {query.axes['driver']}" if query.axes else ""]
        words += [f"--attn {attn}" if attn else ""]
        reasons = [f"{name}: {reason}" for name, reason in answer.left_out.items()]
        reasons += [finding.because for finding in answer.findings if finding.severity == "error"]
        raise KnowngoodError(
            "; ".join(["no cell of matrix.yaml fits", *reasons])
            + f"; `{' '.join(['knowngood', 'pick', *filter(None, words)])}` says what would"
        )
    return RunChoice(cell=choice.cell, tier=choice.tier, because=because, setting=_setting_text(choice, attn))


def _setting_text(choice: CellChoice, attn: str | None) -> str:
    return f"{attn}: {choice.setting.text}" if choice.setting else ""


def _query_for_machine(nvidia: NvidiaState, gpu: str, attn: str | None) -> tuple[Query, str]:
    """Return the query for `pick`, and its reason in words. Of several kinds of GPU here the oldest counts."""
    axes = {"driver": nvidia.driver} if nvidia.driver and nvidia.gpus else {}
    if gpu != ANY_GPU:
        return Query(gpu=gpu, axes=axes, attn=attn), f"for {gpu}"
    if not nvidia.gpus:
        return Query(attn=attn), "the default, since this machine has no GPU"
    oldest = min(nvidia.capabilities, key=parse_capability)
    name = next(item.name for item in nvidia.gpus if item.sm == oldest)
    return Query(gpu=oldest, axes=axes, attn=attn), f"for the {name} of this machine"
