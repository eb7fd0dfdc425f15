"""What the checks of a model suite's report say of each attention setting, by kind of data. Pure."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LAYOUTS = {
    "dense": ("dense",),
    "padded": ("right-padded", "left-padded"),
    "packed": ("packed", "packed-varlen"),
}
"""The kinds of data that people train on, and the suite's layouts of each."""
UNDECIDED = "undecided"
"""The state of a setting of which a check failed at its bound; `is_at_bound` says when."""
_UNEXPLAINED = (
    "silently-wrong: attention is right in every layer",
    "silently-wrong: attention's ",
    "silently-wrong: the loss is off by",
)
"""How the reasons begin that name no fault."""
_ATTENTION_ERROR = re.compile(r"has an error of ([\d.e+-]+) \(([\d.e+-]+) is allowed\)")
_ONE_SIDED = re.compile(r" is off by [+-]")
"""An error of attention that has a direction, which rounding has not."""
_AT_BOUND = 1.5


@dataclass(frozen=True, kw_only=True)
class RunIncident:
    """A known failure that a run of the model suite shows by what it names as broken."""

    id: str
    models: frozenset[str]
    """The models that it is about, as `model_name_of_type` writes them; empty for any."""
    reasons: tuple[str, ...]
    """Words of the suite's reasons."""


def model_name_of_type(model_type: str) -> str:
    """Return the name by which conditions of use know a model type: `gemma3` for `gemma3_text`."""
    return model_type.replace("_", "-").removesuffix("-text")


@dataclass(frozen=True, kw_only=True)
class SettingJudgement:
    """What the run observed of one attention setting."""

    setting: str
    states: Mapping[str, str]
    """Kind of data -> `right`, `silently wrong`, `fails`, `undecided`, `refused` or `not run`."""
    dtypes: Mapping[str, tuple[str, ...]]
    """Kind of data -> the precisions in which it was right."""
    step_ms: float | None
    reasons: tuple[str, ...]
    """Why it is not right, each reason once."""

    @property
    def silent(self) -> bool:
        """Whether a wrong number or another kernel was observed, which no error shows."""
        return "silently wrong" in self.states.values()

    def find_incidents(self, model_type: str, known: Iterable[RunIncident]) -> list[str]:
        """Return the ids of the known incidents about what is wrong with it in models of this type."""
        name = model_name_of_type(model_type)
        return [
            incident.id
            for incident in known
            if (not incident.models or name in incident.models)
            and any(words in reason for words in incident.reasons for reason in self.reasons)
        ]


def judge_settings(checks: Sequence[Mapping[str, Any]]) -> list[SettingJudgement]:
    """Return what the checks of a report say of each attention setting, in the report's order."""
    trained = [check for check in checks if check["topic"] == "model" and not check["detail"]]
    times = {check["setting"]: check["figures"]["step_ms"] for check in checks if check.get("figures")}
    judgements = []
    for setting in dict.fromkeys(check["setting"] for check in trained):
        own = [check for check in trained if check["setting"] == setting]
        of_kind = {kind: [c for c in own if c["layout"] in layouts] for kind, layouts in LAYOUTS.items()}
        # What may be rounding comes last, so that the first reason is that of the state.
        wrong = sorted((check for check in own if check["outcome"] != "pass"), key=is_at_bound)
        reasons = dict.fromkeys(_reason_of(check) for check in wrong)
        judgements.append(
            SettingJudgement(
                setting=setting,
                states={kind: _judge_state(some) for kind, some in of_kind.items() if some},
                dtypes={kind: _right_dtypes(some) for kind, some in of_kind.items() if some},
                step_ms=times.get(setting),
                reasons=tuple(reasons),
            )
        )
    return judgements


def _reason_of(check: Mapping[str, Any]) -> str:
    """Return the reason of a check that is not right; with an error that nobody refuses with, its words."""
    reason = str(check["reason"])
    if check["outcome"] != "fail" or not check.get("exception"):
        return reason
    words = " ".join(str(check.get("message") or "").split())
    return f"{reason}: {check['exception']}: {textwrap.shorten(words, 200, placeholder=' ...')}"


def _judge_state(checks: Sequence[Mapping[str, Any]]) -> str:
    outcomes = {check["outcome"] for check in checks if not is_at_bound(check)}
    if any(check["silent"] and not is_at_bound(check) for check in checks):
        return "silently wrong"
    if "fail" in outcomes:
        return "fails"
    if any(is_at_bound(check) for check in checks):
        return UNDECIDED
    if "pass" in outcomes:
        return "right"
    return "refused" if "refused" in outcomes else "not run"


def is_at_bound(check: Mapping[str, Any]) -> bool:
    """Return whether a check failed by so little that rounding may be the cause.

    No fault is named then, and the loss, the worst gradient and each error of attention are off by less than 1.5 times
    what is allowed. The faults in evidence are off by 12.7 times the gradient's bound and more, or in one direction.
    """
    reason = str(check["reason"])
    if not (check["silent"] and reason.startswith(_UNEXPLAINED)):
        return False
    errors = check.get("errors") or {}
    if not {"loss", "loss_allowed", "gradient", "gradient_allowed"} <= errors.keys():
        return False
    sizes = [(float(size), float(allowed)) for size, allowed in _ATTENTION_ERROR.findall(reason)]
    sizes += [(errors[part], errors[f"{part}_allowed"]) for part in ("loss", "gradient")]
    return not _ONE_SIDED.search(reason) and all(size < _AT_BOUND * allowed for size, allowed in sizes)


def _right_dtypes(checks: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    dtypes = dict.fromkeys(str(check["dtype"]) for check in checks if check["outcome"] == "pass")
    failed = {check["dtype"] for check in checks if check["outcome"] == "fail"}
    return tuple(dtype for dtype in dtypes if dtype not in failed)


def shorten_reason(reason: str) -> str:
    """Return a reason of the suite up to its numbers."""
    return reason.partition("; the loss is off")[0].removeprefix("silently-wrong: ")
