"""The cell in which a program runs: the best of the matrix, or of those selected, for a GPU. Pure.

It is a filter over the cells of the matrix and what is known of each: no solver, and no facts of other packages.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from knowngood.core.cell import Cell
from knowngood.core.errors import KnowngoodError, UsageError
from knowngood.core.gpus import GpuCatalog, parse_capability
from knowngood.core.hosts import DEFAULT_HOST, HostArchitecture, detect_host_architecture
from knowngood.core.matrix import Matrix
from knowngood.core.package_names import parse_requirement_text
from knowngood.engine.probe_gpus import NvidiaState
from knowngood.evidence.cell_answer import CellAnswer, describe_tier
from knowngood.evidence.run_evidence import Tier
from knowngood.project.cell_answers import CellAnswers

ANY_GPU = "auto"
"""The value of `--gpu` that means the GPU of this machine."""


@dataclass(frozen=True, kw_only=True)
class RunChoice:
    """The cell in which a program runs, and why."""

    cell: Cell
    tier: str
    because: str
    """What decided: the GPU that is here, the one that was named, or the cell that was."""
    signed: bool
    """Whether the project names a key that its evidence must be signed with."""
    setting: str = ""
    """What is known of the attention setting that was asked for."""

    @property
    def text(self) -> str:
        """The cell, how far it is proven and why it was chosen, in one line."""
        setting = f"; {self.setting}" if self.setting else ""
        unsigned = "" if self.signed or not self.tier.startswith("trains") else ", by unsigned evidence"
        return f"{self.cell} ({describe_tier(self.tier)}{unsigned}{setting}), {self.because}"


@dataclass(frozen=True, kw_only=True)
class RunDemands:
    """What a cell must fulfil."""

    capabilities: tuple[str, ...]
    """The architectures of the GPU, any of which a cell may be for; empty where no GPU was named and none is here."""
    driver: str | None
    host: HostArchitecture
    attn: str | None


@dataclass(frozen=True)
class RunChooser:
    """Chooses among the cells of a project."""

    matrix: Matrix
    catalog: GpuCatalog
    answers: CellAnswers

    def list_choices(
        self,
        nvidia: NvidiaState,
        cells: Sequence[Cell],
        *,
        gpu: str = ANY_GPU,
        attn: str | None = None,
        wanted: Sequence[str] = (),
    ) -> list[RunChoice]:
        """Return the cells for a program, the best first; at least one.

        Args:
            nvidia: the driver and the GPUs of this machine.
            cells: the cells that were selected; none when the user selected none.
            gpu: the GPU that was named, or `auto` for that of this machine.
            attn: the attention setting that must train.
            wanted: requirements; a locked cell that has a trainer among them comes first, also one on a selected cell,
                and last come stacks on the others, since what they have may let a requirement in.

        Raises:
            UsageError: the name of the GPU is not known, or several cells were selected for no GPU.
            KnowngoodError: no cell fits; the message has the command that explains why.
        """
        demands, because = self._demands_of_machine(nvidia, gpu, attn)
        maintained = [cell for cell in self.matrix.cells if str(cell) not in self.matrix.retired]
        if len(cells) == 1:  # the user has decided; what speaks against it on this GPU is told before it runs
            demands = RunDemands(capabilities=(), driver=None, host=cells[0].host, attn=attn)
            because = "as selected"
        elif not cells and not demands.capabilities:
            default = self.matrix.aliases.get("default")
            cells = [cell for cell in maintained if str(cell.on_host(DEFAULT_HOST)) == default]
            cells = [cell for cell in cells if cell.host == demands.host]
            if not cells and attn is None:
                raise UsageError("this machine has no GPU, and matrix.yaml has no alias default; name a GPU with --gpu")
        locked = self.answers.project.tree.locked()
        having = list(_cells_with_trainer((cell for cell in maintained if str(cell) in locked), wanted))
        if cells:
            having = [cell for cell in having if cell.without_framework() in cells]
        plain = cells or [cell for cell in maintained if not cell.framework_pin]
        stacks = [cell for cell in maintained if wanted and not cells and self.matrix.entry(cell).below]
        reasons: dict[str, str] = {}
        fitting = [*self._rank(having, demands, {}), *self._rank(plain, demands, reasons)]
        fitting += self._rank(stacks, demands, {})
        if not fitting:
            raise _nothing_fits(gpu, demands, reasons)
        signed = self.answers.project.seal is not None
        return [
            RunChoice(
                cell=item.cell,
                tier=item.tier,
                because=because
                + (f", with {' '.join(item.cell.framework_pin or ())}" if item.cell in (*having, *stacks) else ""),
                signed=signed,
                setting=f"{attn}: {item.settings[attn].text}" if attn else "",
            )
            for item in {item.cell: item for item in fitting}.values()
        ]

    def _demands_of_machine(self, nvidia: NvidiaState, gpu: str, attn: str | None) -> tuple[RunDemands, str]:
        """Return the demands, and their reason in words. Of several kinds of GPU here the oldest counts."""
        host = detect_host_architecture() or DEFAULT_HOST
        driver = nvidia.driver if nvidia.gpus else None
        if gpu != ANY_GPU:
            capabilities = tuple(self.catalog.find_capabilities(gpu))
            if self.catalog.has_arm_host(gpu):
                host = HostArchitecture.AARCH64
            return RunDemands(capabilities=capabilities, driver=driver, host=host, attn=attn), f"for {gpu}"
        if not nvidia.gpus:
            nothing = RunDemands(capabilities=(), driver=None, host=host, attn=attn)
            return nothing, "the default, since this machine has no GPU"
        oldest = min(nvidia.capabilities, key=parse_capability)
        name = next(item.name for item in nvidia.gpus if item.sm == oldest)
        demands = RunDemands(capabilities=(oldest,), driver=driver, host=host, attn=attn)
        return demands, f"for the {name} of this machine"

    def _rank(self, cells: Iterable[Cell], demands: RunDemands, reasons: dict[str, str]) -> list[CellAnswer]:
        """Return the cells that fit, best proven and then by merit; `reasons` gets why others do not."""
        fitting = []
        for cell in dict.fromkeys(cells):
            if demands.host != cell.host or (demands.capabilities and cell.gpu not in demands.capabilities):
                continue
            answer = self.answers.answer(cell)
            if reason := self._reason_against(answer, demands):
                reasons[str(cell)] = reason
            else:
                fitting.append(answer)
        order = list(Tier)
        return sorted(fitting, key=lambda answer: (order.index(answer.tier), answer.cell.merit), reverse=True)

    def _reason_against(self, answer: CellAnswer, demands: RunDemands) -> str:
        """Return why a cell for this GPU does not fit; empty when it does."""
        if answer.errors:
            return answer.errors[0].because
        drivers = self.answers.judgement(answer.cell).drivers
        if demands.driver and not SpecifierSet(drivers).contains(demands.driver):
            return f"on {answer.cell.gpu} it needs a driver {drivers}, and {demands.driver} is here"
        if demands.attn and not (state := answer.settings[demands.attn]).trains:
            return f"{demands.attn}: {state.text}: {state.reason}"
        return ""


def _cells_with_trainer(cells: Iterable[Cell], wanted: Sequence[str]) -> Iterator[Cell]:
    """Yield the cells whose framework is one of the requirements, in a release that it takes."""
    requirements = {}
    for text in wanted:
        with suppress(InvalidRequirement):  # what is none is told when it is added
            requirement = parse_requirement_text(text)
            requirements[canonicalize_name(requirement.name)] = requirement
    for cell in cells:
        pinned, version = cell.framework_pin or ("", "")
        name = canonicalize_name(pinned)
        if name in requirements and requirements[name].specifier.contains(version, prereleases=True):
            yield cell


def _nothing_fits(gpu: str, demands: RunDemands, reasons: Mapping[str, str]) -> KnowngoodError:
    named = gpu if gpu != ANY_GPU else demands.capabilities[0] if demands.capabilities else ""
    options = {"--gpu": named, "--driver": demands.driver, "--attn": demands.attn}
    words = [word for name, value in options.items() if value for word in (name, value)]
    lines = [f"{name}: {reason}" for name, reason in reasons.items()]
    lines = lines or [f"it has none for {' or '.join(demands.capabilities) or 'a CPU'} on {demands.host.machine}"]
    return KnowngoodError(
        "; ".join(["no cell of matrix.yaml fits", *lines])
        + f"; `{shlex.join(['knowngood', 'pick', *words])}` says what would"
    )
