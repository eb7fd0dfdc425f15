"""What a run of the model suite says to the user of a model: which setting to use, and which is wrong. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LAYOUTS = {
    "dense": ("dense",),
    "padded": ("right-padded", "left-padded"),
    "packed": ("packed", "packed-varlen"),
}
"""The kinds of data that people train on, and the suite's layouts of each."""
PREFERENCE = ("fa4", "fa3", "fa2", "flex", "sdpa", "sdpa-flash", "sdpa-cudnn", "sdpa-efficient", "sdpa-math", "eager")
"""The order of settings where no time was measured."""
_IMPLEMENTATIONS = {"flex": "flex_attention", "fa2": "flash_attention_2", "fa3": "flash_attention_3"}
_IMPLEMENTATIONS["fa4"] = "flash_attention_4"
_BACKENDS = {"math": "MATH", "flash": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION", "cudnn": "CUDNN_ATTENTION"}
INCIDENTS = (
    ("the soft-cap of the scores is dropped", ("gemma2",), "sdpa-drops-softcap"),
    (
        "do not stop between the sequences of a row",
        ("qwen3_next", "falcon_h1", "granitemoehybrid"),
        "packed-rows-leak-in-linear-layers",
    ),
    ("attention does not stop between the sequences of a row", ("gpt_oss",), "gpt-oss-packed-rows-leak"),
)
"""What the suite names as broken, in which model types, and the incident about it."""


@dataclass(frozen=True, kw_only=True)
class SettingJudgement:
    """What the run observed of one attention setting."""

    setting: str
    states: Mapping[str, str]
    """Kind of data -> `right`, `silently wrong`, `fails`, `refused` or `not run`."""
    dtypes: Mapping[str, tuple[str, ...]]
    """Kind of data -> the precisions in which it was right."""
    step_ms: float | None
    reasons: tuple[str, ...]
    """Why it is not right, each reason once."""

    @property
    def silent(self) -> bool:
        """Whether a wrong number or another kernel was observed, which no error shows."""
        return "silently wrong" in self.states.values()

    def find_incidents(self, model_type: str) -> list[str]:
        """Return the ids of the incidents about what is wrong with it in models of this type."""
        return [
            name
            for words, types, name in INCIDENTS
            if model_type in types and any(words in reason for reason in self.reasons)
        ]


def judge_settings(checks: Sequence[Mapping[str, Any]]) -> list[SettingJudgement]:
    """Return what the checks of a report say of each attention setting, in the report's order."""
    trained = [check for check in checks if check["topic"] == "model" and not check["detail"]]
    times = {check["setting"]: check["figures"]["step_ms"] for check in checks if check.get("figures")}
    judgements = []
    for setting in dict.fromkeys(check["setting"] for check in trained):
        own = [check for check in trained if check["setting"] == setting]
        of_kind = {kind: [c for c in own if c["layout"] in layouts] for kind, layouts in LAYOUTS.items()}
        reasons = dict.fromkeys(str(check["reason"]) for check in own if check["outcome"] != "pass")
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


def _judge_state(checks: Sequence[Mapping[str, Any]]) -> str:
    outcomes = {check["outcome"] for check in checks}
    if any(check["silent"] for check in checks):
        return "silently wrong"
    if "fail" in outcomes:
        return "fails"
    if "pass" in outcomes:
        return "right"
    return "refused" if "refused" in outcomes else "not run"


def _right_dtypes(checks: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    dtypes = dict.fromkeys(str(check["dtype"]) for check in checks if check["outcome"] == "pass")
    failed = {check["dtype"] for check in checks if check["outcome"] == "fail"}
    return tuple(dtype for dtype in dtypes if dtype not in failed)


def choose_setting(judgements: Sequence[SettingJudgement], kind: str) -> SettingJudgement | None:
    """Return the setting to use for a kind of data: right in it and nowhere silently wrong, then the fastest.

    Without times the first of `PREFERENCE` is chosen. `None` where no setting was right.
    """
    right = [item for item in judgements if item.states.get(kind) == "right" and "bf16" in item.dtypes[kind]]
    right = right or [item for item in judgements if item.states.get(kind) == "right"]
    sound = [item for item in right if not item.silent] or right

    def order(item: SettingJudgement) -> tuple[float, int]:
        place = PREFERENCE.index(item.setting) if item.setting in PREFERENCE else len(PREFERENCE)
        return (float("inf") if item.step_ms is None else item.step_ms, place)

    return min(sound, key=order, default=None)


def describe_setting(setting: str) -> str:
    """Return what a user writes to get a setting."""
    backend = _BACKENDS.get(setting.removeprefix("sdpa-")) if setting.startswith("sdpa-") else None
    if backend:
        return f'attn_implementation="sdpa" within torch.nn.attention.sdpa_kernel(SDPBackend.{backend})'
    return f'attn_implementation="{_IMPLEMENTATIONS.get(setting, setting)}"'


def certificate_document(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer of `knowngood certify` as JSON, without the path of its evidence."""
    judgements = judge_settings(report["checks"])
    chosen = {kind: choose_setting(judgements, kind) for kind in LAYOUTS if any(kind in j.states for j in judgements)}
    environment = report["environment"]
    formulas = next((check for check in report["checks"] if check["topic"] == "formulas"), None)
    model_type = next(iter(report["given"].values()))["model_type"]
    return {
        "model_type": model_type,
        "torch": environment.get("torch"),
        "transformers": environment.get("transformers"),
        "gpu": environment.get("gpu"),
        "speed_measured": any(item.step_ms is not None for item in judgements),
        "use": {
            kind: None if item is None else {"setting": item.setting, "write": describe_setting(item.setting)}
            for kind, item in chosen.items()
        },
        "settings": [
            {
                "setting": item.setting,
                "states": dict(item.states),
                "right_in": {kind: list(dtypes) for kind, dtypes in item.dtypes.items()},
                "step_ms": item.step_ms,
                "reasons": list(item.reasons),
                "incidents": item.find_incidents(model_type),
            }
            for item in judgements
        ],
        "silently_wrong": [item.setting for item in judgements if item.silent],
        "disagreements": [
            f"{check['id']}: {check['outcome']}, predicted {check['predicted']['outcome']}"
            for check in report["checks"]
            if check.get("agreement") == "disagree"
        ],
        "eager_by_formulas": None if formulas is None else formulas["outcome"],
        "miniature": list(report.get("changes") or ()),
        "notes": list(report.get("notes") or ()),
    }


def certificate_rows(document: Mapping[str, Any]) -> list[list[str]]:
    """Return the table that people read, its header first: a setting, its state for each kind of data, its time."""
    kinds = list(document["use"])
    rows = [["setting", *kinds, *(["a step"] if document["speed_measured"] else [])]]
    for item in document["settings"]:
        cells = [_cell_text(item, kind) for kind in kinds]
        time = (
            [] if not document["speed_measured"] else ["" if item["step_ms"] is None else f"{item['step_ms']:.1f} ms"]
        )
        rows.append([item["setting"], *cells, *time])
    return rows


def _cell_text(item: Mapping[str, Any], kind: str) -> str:
    state = item["states"].get(kind, "")
    if state == "right":
        return f"right ({', '.join(item['right_in'][kind])})"
    return "SILENTLY WRONG" if state == "silently wrong" else str(state)


def certificate_sentences(document: Mapping[str, Any]) -> list[str]:
    """Return what stands below the table: what to use, what is wrong and why, and what was not measured."""
    lines = []
    for kind, use in document["use"].items():
        lines.append(f"{kind} data: " + (use["write"] if use else "no setting that was tried is right"))
    if not document["speed_measured"]:
        lines.append("Speed was not measured, because there is no GPU here; what is named is the usual choice.")
    alike: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for item in document["settings"]:
        if item["setting"] in document["silently_wrong"]:
            wrong = tuple(_shorten(reason) for reason in item["reasons"] if reason.startswith(("silently", "kernel")))
            alike.setdefault(tuple(dict.fromkeys(wrong))[:1], []).append(item)
    for reasons, items in alike.items():
        names = ", ".join(item["setting"] for item in items)
        pages = dict.fromkeys(page for item in items for page in item["incidents"])
        links = f" (incident {', '.join(pages)})" if pages else ""
        lines.append(f"{names}: {reasons[0] if reasons else 'wrong'}{links}")
    if document["eager_by_formulas"] == "fail":
        lines.append("Eager attention itself differs from the formulas of the configuration; trust no setting here.")
    lines += [f"not as predicted: {sentence}" for sentence in document["disagreements"]]
    return [*lines, *document["notes"]]


def _shorten(reason: str) -> str:
    """Return a reason up to its numbers."""
    return reason.partition("; the loss is off")[0].removeprefix("silently-wrong: ")
