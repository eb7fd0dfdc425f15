"""What is known of a cell: whether `check` finds an error in it, and what each attention setting does on its GPU.

Every list, page and gate asks here, so that all of them say the same: `cells`, `pick`, `lock`, `build`, `publish`, the
site and its catalog. Runs say what was observed. What rules and facts say is a `CellJudgement`, which the distribution
that knows them computes, and which is kept in `docker/judgements.json`. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from knowngood.core.attention import ATTENTION
from knowngood.core.cell import Cell
from knowngood.core.errors import KnowngoodError, UnknownError
from knowngood.evidence.cell_standing import CellStanding
from knowngood.evidence.observed_run import RecordedRun
from knowngood.evidence.run_evidence import RunPlace, SettingObservation, Tier


@dataclass(frozen=True, kw_only=True)
class CellError:
    """Something that rules or facts say is wrong with a cell."""

    id: str
    because: str
    finding: Mapping[str, Any]
    """The whole finding, as `check --json` prints it."""


@dataclass(frozen=True, kw_only=True)
class CellWarning:
    """Something to mind when a cell is used, by rules and incidents."""

    id: str
    because: str
    when: Mapping[str, str] = field(default_factory=dict)
    """The conditions of use under which it holds: `{"packing": "true"}`; empty for any use."""

    @property
    def is_unknown(self) -> bool:
        """Whether it says that a package or a release of the cell is unknown, so that only `lock` can find it."""
        return self.id.startswith("unknown:")


@dataclass(frozen=True, kw_only=True)
class PredictedRefusal:
    """Why a rule says that an attention setting is refused."""

    rule: str
    because: str


@dataclass(frozen=True, kw_only=True)
class CellJudgement:
    """What rules and facts say of a cell; its defaults are those of a cell about which they say nothing."""

    errors: tuple[CellError, ...] = ()
    refusals: Mapping[str, PredictedRefusal] = field(default_factory=dict)
    """Attention setting -> the refusal that rules over known facts predict."""
    doubts: Mapping[str, PredictedRefusal] = field(default_factory=dict)
    """The same by rules about packages without facts; they count where no run has tried the setting."""
    warnings: tuple[CellWarning, ...] = ()
    """What is to be minded when it is used."""
    drivers: str = ""
    """The drivers that run the cell on its GPU, as a specifier (`>=525.60.13,<590`); empty for any."""


_UNJUDGED_TEXT = (
    "no rule and no fact was asked about it: docker/judgements.json does not have it, and knowngood-facts, which "
    "judges cells, is not installed"
)
UNJUDGED = CellError(
    id="not-judged",
    because=_UNJUDGED_TEXT,
    finding={"id": "not-judged", "kind": "fact", "severity": "error", "packages": {}, "because": _UNJUDGED_TEXT},
)
"""The error of a cell that nobody judged: whether it works is unknown, so nothing is made of it."""


class SettingStateKind(StrEnum):
    """What is known of an attention setting in a cell."""

    SEEN_ON_GPU = "seen-on-gpu"
    """It was seen training on a GPU of the cell's architecture."""
    SEEN_ON_CPU = "seen-on-cpu"
    """It was seen training on a CPU only: unseen on a GPU."""
    SEEN_EMULATED = "seen-emulated"
    """It was seen training under emulation only: unseen on a processor of its host, and on a GPU."""
    PREDICTED = "predicted"
    """No run decided it; the rules say whether it trains."""
    REFUSED = "refused"
    """A run on the GPU refused it with an error."""
    WRONG = "wrong"
    """A run saw it train wrongly, or fail."""
    NOT_RUN = "not-run"
    """A run could not try it: its package or its code is not in the image."""


_WORDS: Mapping[SettingStateKind, str] = {
    SettingStateKind.SEEN_ON_GPU: "seen training on a GPU of this architecture",
    SettingStateKind.SEEN_ON_CPU: "seen training on a CPU only; unseen on a GPU",
    SettingStateKind.SEEN_EMULATED: "seen training on an emulated CPU only; unseen on its own CPU and on a GPU",
    SettingStateKind.REFUSED: "refused on the GPU",
    SettingStateKind.WRONG: "wrong",
    SettingStateKind.NOT_RUN: "not in the image",
}


@dataclass(frozen=True, kw_only=True)
class SettingState:
    """What is known of one attention setting in one cell."""

    kind: SettingStateKind
    trains: bool
    """Whether it is offered: it was seen training, or nothing speaks against it."""
    reason: str = ""
    """The words of the refusal, the fault or the rule."""
    rule: str | None = None
    """The id of the rule that predicts a refusal."""
    limits: tuple[str, ...] = ()
    """The plain checks (`fp32/dense`) that the GPU refused although another one trained."""
    defects: tuple[str, ...] = ()
    """The ids of the checks that failed as predicted."""

    @property
    def text(self) -> str:
        """The state in words, without the reason."""
        if self.kind is SettingStateKind.PREDICTED:
            return "predicted to train; unseen" if self.trains else "predicted to be refused; unseen"
        return _WORDS[self.kind]

    def document(self) -> dict[str, Any]:
        """The state as `--json` prints it."""
        return {
            "state": str(self.kind),
            "trains": self.trains,
            "reason": self.reason,
            "rule": self.rule,
            "limits": list(self.limits),
            "defects": list(self.defects),
        }


@dataclass(frozen=True, kw_only=True)
class CellAnswer:
    """What is known of a cell."""

    cell: Cell
    tier: Tier
    errors: tuple[CellError, ...] = ()
    """What is wrong with it by rules and facts, without what matrix.yaml waives."""
    warnings: tuple[CellWarning, ...] = ()
    """What is to be minded when it is used."""
    settings: Mapping[str, SettingState] = field(default_factory=dict)
    """Attention setting -> its state, for every setting."""
    run: RecordedRun | None = None
    """The run that proves the most."""

    @property
    def broken(self) -> bool:
        """Whether the rules forbid the cell."""
        return bool(self.errors)

    @property
    def tier_text(self) -> str:
        """How far the cell is proven, in words."""
        return describe_tier(self.tier)


class BrokenCellError(KnowngoodError):
    """A cell that the rules forbid (exit 1); it is neither locked, built nor published."""

    def __init__(self, cell: Cell, errors: tuple[CellError, ...]) -> None:
        reasons = "; ".join(f"{finding.because} [{finding.id}]" for finding in errors)
        super().__init__(
            f"{cell} is broken: {reasons}. Correct the cell, or waive the finding in matrix.yaml's amendments: "
            f"{{when: ..., waive: {errors[0].id}, on: DAY, because: ...}}"
        )
        self.errors = errors


class UnjudgedCellError(UnknownError):
    """A cell of which nobody knows whether it works (exit 3); it is neither locked, built nor published."""

    def __init__(self, cell: Cell) -> None:
        super().__init__(f"{cell} is not judged: {UNJUDGED.because}; `pip install knowngood-facts` and try again")


_TIER_WORDS: Mapping[Tier, str] = {
    Tier.NONE: "not locked",
    Tier.RESOLVED: "locked, never built",
    Tier.BUILT: "built, not seen training",
    Tier.TRAINS_EMULATED: "seen training on an emulated CPU only; unseen on its own CPU and on a GPU",
    Tier.TRAINS_ON_CPU: "seen training on a CPU only; unseen on a GPU",
    Tier.TRAINS_ON_GPU: "seen training on a GPU",
}


def describe_tier(tier: Tier | str) -> str:
    """Return a tier in words."""
    return _TIER_WORDS[Tier(tier)]


def explain_tier(tier: Tier | str, gpu: str) -> str:
    """Return what a tier means for the image of a cell for this GPU architecture, in whole sentences."""
    if Tier(tier) is Tier.TRAINS_ON_GPU:
        return (
            "The suite trained a small model in this image on a GPU. What each attention setting did there is in the "
            "evidence of that run."
        )
    if Tier(tier) is Tier.TRAINS_ON_CPU:
        return (
            "Unseen on a GPU: the suite trained a small model in this image on a CPU only. Its packages import, go "
            f"together and compute right there. That its kernels for {gpu} load, run and are right is predicted by "
            "facts and rules; no run has observed it."
        )
    if Tier(tier) is Tier.TRAINS_EMULATED:
        return (
            "Emulated: the suite trained a small model in this image on an emulated CPU (QEMU), with eager attention "
            "and SDPA in fp32. Its packages import, go together and compute right there. No run has observed it on a "
            f"CPU of its own host. That its kernels for {gpu} load, run and are right is predicted by facts and rules."
        )
    return f"Unseen on a GPU: no run has observed this image training, on a CPU or on a GPU of architecture {gpu}."


def answer_about_cell(
    judgement: CellJudgement, cell: Cell, standing: CellStanding, *, locked: bool, recorded: bool = False
) -> CellAnswer:
    """Return what is known of a cell.

    Args:
        judgement: what rules and facts say of it, without what matrix.yaml waives.
        cell: the cell.
        standing: what its runs prove.
        locked: whether it has a lock.
        recorded: whether an image of it was built and recorded.
    """
    return CellAnswer(
        cell=cell,
        tier=standing.tier(locked=locked, recorded=recorded),
        errors=judgement.errors,
        warnings=judgement.warnings,
        settings={setting: setting_state(judgement, cell, setting, standing) for setting in ATTENTION},
        run=standing.run,
    )


def setting_state(judgement: CellJudgement, cell: Cell, setting: str, standing: CellStanding) -> SettingState:
    """Return what is known of an attention setting in a cell."""
    observation, run = standing.settings.get(setting), standing.run
    if observation and run and run.sm is not None and run.sm == cell.gpu:
        return _state_on_gpu(observation)
    if refusal := judgement.refusals.get(setting):
        return _predicted_state(refusal)
    if observation and run and run.where is not RunPlace.BARE and run.sm is None:
        emulated = run.where is RunPlace.CONTAINER_EMULATED
        return _state_on_cpu(
            observation, trained=SettingStateKind.SEEN_EMULATED if emulated else SettingStateKind.SEEN_ON_CPU
        )
    if refusal := judgement.doubts.get(setting):
        return _predicted_state(refusal)
    if UNJUDGED in judgement.errors:
        return SettingState(kind=SettingStateKind.NOT_RUN, trains=False, reason=UNJUDGED.because)
    return SettingState(kind=SettingStateKind.PREDICTED, trains=True, reason="no rule forbids it")


def _predicted_state(refusal: PredictedRefusal) -> SettingState:
    return SettingState(kind=SettingStateKind.PREDICTED, trains=False, reason=refusal.because, rule=refusal.rule)


def _state_on_gpu(observation: SettingObservation) -> SettingState:
    state = _observed_state(observation, trained=SettingStateKind.SEEN_ON_GPU)
    return replace(state, kind=SettingStateKind.REFUSED) if observation.outcome == "refused" else state


def _state_on_cpu(observation: SettingObservation, *, trained: SettingStateKind) -> SettingState:
    """A CPU's refusal says nothing about the GPU: most kernels of settings exist for GPUs alone."""
    if observation.outcome == "refused" or (observation.outcome == "fail" and observation.defects):
        return SettingState(
            kind=SettingStateKind.PREDICTED, trains=True, reason="no rule forbids it; a CPU cannot try it"
        )
    return _observed_state(observation, trained=trained)


def _observed_state(observation: SettingObservation, *, trained: SettingStateKind) -> SettingState:
    """Return the state that a run shows; `trained` is the kind for a setting that trained in it."""
    kinds = {"pass": trained, "fail": SettingStateKind.WRONG}
    return SettingState(
        kind=kinds.get(observation.outcome, SettingStateKind.NOT_RUN),
        trains=observation.outcome == "pass",
        reason=observation.message,
        limits=observation.limits,
        defects=observation.defects,
    )
