"""docs/models.md: what the runs of the model suite observed, by model, attention setting and transformers. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from packaging.version import Version

from knowngood.evidence.model_judgement import LAYOUTS, UNDECIDED, RunIncident, shorten_reason
from knowngood.evidence.model_runs import ModelRun, SeenSetting, SeenSettings, merge_model_runs
from knowngood_pages.attention_page import EVIDENCE_BANNER, NOT_LISTED
from knowngood_pages.site_pages import OUTCOME_GLYPHS

STATE_SIGNS = {
    "right": OUTCOME_GLYPHS["pass"],
    "silently wrong": OUTCOME_GLYPHS["fail"],
    "fails": "!",
    UNDECIDED: "?",
    "refused": OUTCOME_GLYPHS["refused"],
    "not run": OUTCOME_GLYPHS["not-run"],
}
"""The sign of each state of a setting for a kind of data."""
_UNTRIED = {STATE_SIGNS["refused"], STATE_SIGNS["not run"], NOT_LISTED}
_MEANINGS = (
    "| right | **silently wrong** | fails with an error | at the bound: rounding, or a small fault "
    "| refused in words | cannot run here | not tried |"
)
_KINDS = ("padded", "packed")
_INTRODUCTION = (
    "A miniature of each model, trained one step under every attention setting by `certify`: the loss, every "
    "gradient and every call of attention against an fp64 reference. [certify.md](certify.md) says how to ask for a "
    "model of your own, [model_tests/README.md](../smoke_tests/model_tests/README.md) how a check works. `check "
    "--with model=NAME --attn SETTING` answers from the same runs."
)


_ON_CPU = (
    "Eager attention and SDPA, each family with the defaults of its configuration class; some fields were set where "
    "these make no model. What is right here can still meet a kernel of a GPU that is not; what is silently wrong lies "
    "in the model's own code. Settings that are refused or cannot run are left out."
)


def render_model_page(runs: Sequence[ModelRun], incidents: Sequence[RunIncident]) -> str:
    """Return the text of docs/models.md from runs in any order."""
    table = merge_model_runs(runs)
    with_gpu = {run.model_type for run in runs if run.gpu} or {run.model_type for run in runs}
    on_gpu = {key: item for key, item in table.items() if key[0] in with_gpu}
    on_cpu = {key: item for key, item in table.items() if key[0] not in with_gpu}
    hosts = sorted({run.gpu or "a CPU" for run in runs})
    return "\n".join(
        [
            EVIDENCE_BANNER,
            "# Models and attention settings, as seen",
            "",
            _INTRODUCTION,
            "",
            f"All of this was seen on {' and '.join(hosts)}."
            + (" Settings whose kernels need a GPU did not run." if hosts == ["a CPU"] else ""),
            "",
            f"| {' | '.join(f'`{sign}`' for sign in STATE_SIGNS.values())} | `{NOT_LISTED}` |",
            "|---|---|---|---|---|---|---|",
            _MEANINGS,
            "",
            f"Two signs a cell: {' and '.join(_KINDS)} data. Columns are releases of transformers.",
            "",
            *_render_models(on_gpu),
            *(["", "## Seen on a CPU only", _ON_CPU, "", *_render_alike_models(on_cpu)] if on_cpu else []),
            "",
            "## What is silently wrong",
            *_render_reasons(table, incidents, "silently wrong", ("silently-wrong", "kernel-swapped")),
            "",
            "## What is at the bound",
            *_render_reasons(table, incidents, UNDECIDED, ("silently-wrong",)),
            "",
            "## What is refused",
            "On a CPU this says little of a GPU, but for what transformers itself refuses.",
            "",
            *_render_reasons(table, incidents, "refused", ("",)),
            "",
            "## Where this comes from",
            *_render_model_sources(runs),
            "",
        ]
    )


def _render_models(table: SeenSettings) -> list[str]:
    """Return a table of models and settings by releases; settings of a model with equal rows share one."""
    releases = sorted({release for _, release, _ in table}, key=Version)
    rows: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for model, setting in dict.fromkeys((model, setting) for model, _, setting in sorted(table, key=_row_order)):
        cells = tuple(_state_signs(table.get((model, release, setting))) for release in releases)
        rows.setdefault((model, cells), []).append(setting)
    lines = [f"| model | setting | {' | '.join(releases)} |", "|---|---|" + "---|" * len(releases)]
    for (model, cells), settings in rows.items():
        lines.append(f"| {model} | {', '.join(settings)} | " + " | ".join(f"`{cell}`" for cell in cells) + " |")
    return lines


def _render_alike_models(table: SeenSettings) -> list[str]:
    """Return a table of settings by releases, models of which the same was seen together."""
    releases = sorted({release for _, release, _ in table}, key=Version)
    signs: dict[str, dict[tuple[str, ...], list[str]]] = {}
    for model, setting in dict.fromkeys((model, setting) for model, _, setting in sorted(table, key=_row_order)):
        cells = tuple(_state_signs(table.get((model, release, setting))) for release in releases)
        rows = signs.setdefault(model, {})
        if set("".join(cells)) - _UNTRIED:
            rows.setdefault(cells, []).append(setting)
    alike: defaultdict[tuple[tuple[str, tuple[str, ...]], ...], list[str]] = defaultdict(list)
    for model, rows in signs.items():
        alike[tuple((", ".join(settings), cells) for cells, settings in rows.items())].append(model)
    lines = [f"| models | setting | {' | '.join(releases)} |", "|---|---|" + "---|" * len(releases)]
    for rows_alike, models in sorted(alike.items(), key=lambda item: (-len(item[1]), item[1])):
        for settings, cells in rows_alike:
            lines.append(f"| {', '.join(models)} | {settings} | " + " | ".join(f"`{cell}`" for cell in cells) + " |")
    return lines


def _row_order(key: tuple[str, str, str]) -> str:
    return key[0]  # settings stay in the suite's order


def _state_signs(item: SeenSetting | None) -> str:
    states: Mapping[str, str] = {} if item is None else item.judgement.states
    return "".join(STATE_SIGNS[states[kind]] if kind in states else NOT_LISTED for kind in _KINDS)


def _render_reasons(
    table: SeenSettings, incidents: Sequence[RunIncident], state: str, beginnings: tuple[str, ...]
) -> list[str]:
    """Return a list of the reasons of a state that begin so, each with its models, releases and settings."""
    places: defaultdict[tuple[str, str, str], set[str]] = defaultdict(set)
    for (model, release, setting), item in table.items():
        judgement = item.judgement
        kinds = [kind for kind in LAYOUTS if judgement.states.get(kind) == state]
        reason = next((text for text in judgement.reasons if text.startswith(beginnings)), "")
        if kinds:
            pages = judgement.find_incidents(model, incidents)
            links = "".join(f" ([incident](../packages/knowngood-diagnose/incidents/{page}.yaml))" for page in pages)
            what = f"{shorten_reason(reason)}{links}"
            places[what, model, f"{setting} ({', '.join(kinds)})"].add(release)
    grouped: defaultdict[str, defaultdict[tuple[str, ...], list[str]]] = defaultdict(lambda: defaultdict(list))
    for (what, model, setting), releases in places.items():
        grouped[what][model, *sorted(releases, key=Version)].append(setting)
    lines = []
    for what, models in sorted(grouped.items()):
        lines.append(f"- **{what}**")
        alike: defaultdict[str, list[str]] = defaultdict(list)
        for (model, *names), settings in sorted(models.items()):
            alike[f"with transformers {', '.join(names)}: {', '.join(settings)}"].append(model)
        lines += [f"  - {', '.join(names)} {where}" for where, names in alike.items()]
    return lines or ["Nothing."]


def _render_model_sources(runs: Sequence[ModelRun]) -> list[str]:
    lines = ["| model | transformers | torch | where | when | suite | as predicted |", "|---|---|---|---|---|---|---|"]
    for run in sorted(runs, key=lambda run: (run.model_type, Version(run.transformers), str(run.content["when"]))):
        agreed, predicted = run.compared
        torch, when = run.report["environment"]["torch"], run.content["when"]
        compared = f"{agreed} of {predicted}" if predicted else ""
        where = run.gpu or "CPU"
        where += ", quick" if run.report["selection"] == "quick" else ""
        suite = run.report["suite_hash"][:12]
        lines.append(f"| {run.model_type} | {run.transformers} | {torch} | {where} | {when} | `{suite}` | {compared} |")
    return lines
