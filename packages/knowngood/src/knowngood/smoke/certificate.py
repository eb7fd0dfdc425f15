"""What a run of the model suite says to the user of a model: which setting to use, and which is wrong. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from knowngood.evidence.model_judgement import LAYOUTS, RunIncident, SettingJudgement, judge_settings, shorten_reason

PREFERENCE = ("fa4", "fa3", "fa2", "flex", "sdpa", "sdpa-flash", "sdpa-cudnn", "sdpa-efficient", "sdpa-math", "eager")
"""The order of settings where no time was measured."""
_IMPLEMENTATIONS = {"flex": "flex_attention", "fa2": "flash_attention_2", "fa3": "flash_attention_3"}
_IMPLEMENTATIONS["fa4"] = "flash_attention_4"
_BACKENDS = {"math": "MATH", "flash": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION", "cudnn": "CUDNN_ATTENTION"}


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


def certificate_document(report: Mapping[str, Any], incidents: Sequence[RunIncident]) -> dict[str, Any]:
    """Return the answer of `knowngood certify` as JSON, without the path of its evidence; it links to `incidents`."""
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
                "incidents": item.find_incidents(model_type, incidents),
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
    lines += _fault_sentences(document)
    if document["eager_by_formulas"] == "fail":
        lines.append("Eager attention itself differs from the formulas of the configuration; trust no setting here.")
    lines += [f"not as predicted: {sentence}" for sentence in document["disagreements"]]
    return [*lines, *document["notes"]]


def _fault_sentences(document: Mapping[str, Any]) -> list[str]:
    """Return why settings are wrong, fail, or change nothing: one reason each, settings with the same together."""
    alike: dict[str, list[Mapping[str, Any]]] = {}
    for item in document["settings"]:
        wrong = [shorten_reason(reason) for reason in item["reasons"] if reason.startswith(_said_of(item))]
        if wrong:
            alike.setdefault(wrong[0], []).append(item)
    lines = []
    for reason, items in alike.items():
        pages = dict.fromkeys(page for item in items for page in item["incidents"])
        links = f" (incident {', '.join(pages)})" if pages else ""
        lines.append(f"{', '.join(item['setting'] for item in items)}: {reason}{links}")
    return lines


def _said_of(item: Mapping[str, Any]) -> tuple[str, ...]:
    """Return how the reasons begin that are worth a sentence for a setting."""
    if "silently wrong" in item["states"].values():
        return ("silently", "kernel")
    return ("an error", "out of memory") if "fails" in item["states"].values() else ("no layer",)
