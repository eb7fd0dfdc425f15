"""The cell in which a program runs: the best one that `pick` offers for a GPU, among all cells or the selected ones.

Pure, but for the evidence that the published cells read.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from knowngood.compat.cell_answer import describe_tier
from knowngood.compat.matrix_cells import PublishedCells, find_wanted_trainers, has_wanted_framework
from knowngood.compat.pick_answer import CellChoice, PickAnswer, pick_cells
from knowngood.compat.query import MACHINE, PackageSpec, Query, parse_requirement
from knowngood.compat.rule_relations import parse_capability
from knowngood.core.errors import KnowngoodError, UsageError
from knowngood.core.hosts import DEFAULT_HOST, detect_host_architecture

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from knowngood.compat.knowledge import CompatKnowledge
    from knowngood.core.cell import Cell
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


def choose_run_cell(  # noqa: PLR0913 - what a program needs of its cell
    known: CompatKnowledge,
    nvidia: NvidiaState,
    cells: Sequence[Cell],
    *,
    gpu: str,
    attn: str | None,
    wanted: Sequence[str] = (),
) -> RunChoice:
    """Return the best cell for a program.

    Args:
        known: facts, rules, and the cells of matrix.yaml.
        nvidia: the driver and the GPUs of this machine.
        cells: the cells that were selected; none when the user selected none.
        gpu: the GPU that was named, or `auto` for that of this machine.
        attn: the attention setting that must train.
        wanted: requirements; a locked cell that has a trainer among them comes first, also one on a selected cell.

    Raises:
        UsageError: the name of the GPU is not known, or several cells were selected for no GPU.
        KnowngoodError: no cell fits; the message has the command that explains why.
    """
    query, because = _query_for_machine(nvidia, gpu, attn)
    host = detect_host_architecture() or DEFAULT_HOST
    if host != DEFAULT_HOST:
        query = replace(query, conditions={MACHINE: host.machine})
    if len(cells) == 1:  # the user has decided; what speaks against it on this GPU is told by the doctor's lines
        query = Query(attn=attn, conditions={MACHINE: cells[0].host.machine})
        because = "as selected"
    elif not cells and query.gpu is None:
        default = known.published.aliases.get("default")
        cells = [cell for cell in known.published.cells if str(cell.on_host(DEFAULT_HOST)) == default]
        cells = [cell for cell in cells if cell.host == host]
        if not cells and attn is None:
            raise UsageError("this machine has no GPU, and matrix.yaml has no alias default; name a GPU with --gpu")
    locked = [cell for cell in known.published.cells if str(cell) in known.published.locked]
    trainers = find_wanted_trainers(_parse_requirements(wanted), locked)
    having = [cell for cell in locked if has_wanted_framework(cell, trainers)]
    if cells:
        having = [cell for cell in having if cell.without_framework() in cells]
    plain = cells or [cell for cell in known.published.cells if not cell.framework_pin]
    published = replace(known.published, cells=tuple(dict.fromkeys((*plain, *having))))
    answer = _pick_one(known, replace(query, packages=tuple(trainers.values())), published)
    choice = next((choice for choice in answer.choices if choice.published), None)
    if choice is None and trainers:
        # What speaks against adding them to a cell without them is told when they are added.
        answer = _pick_one(known, query, published)
        choice = next((choice for choice in answer.choices if choice.published), None)
    if choice is not None and choice.cell in having:
        because += f", with {' '.join(choice.cell.framework_pin or ())}"
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


def _parse_requirements(texts: Sequence[str]) -> Iterator[PackageSpec]:
    """Yield the requirements among these texts; one that is none is told when it is added."""
    for text in texts:
        with suppress(UsageError):
            if package := parse_requirement(text):
                yield package


def _pick_one(known: CompatKnowledge, query: Query, published: PublishedCells) -> PickAnswer:
    return pick_cells(known.for_query(query, cells=True), query, published, count=1)


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
