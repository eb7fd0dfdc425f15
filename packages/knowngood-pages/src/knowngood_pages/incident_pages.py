"""The pages of docs/incidents/, rendered from the incidents, for people who search for an error message."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from knowngood.core.errors import KnowngoodError
from knowngood_diagnose.reproductions import reproduction_run
from knowngood_facts.compat.incident import IncidentSeverity, RangeOrigin
from knowngood_facts.compat.rule import rule_from_incident
from knowngood_facts.facts import fact_store
from knowngood_facts.facts.package_metadata import read_package_metadata

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

    from knowngood_facts.compat.incident import Fix, Incident

ReleaseLister = Callable[[str], Sequence[str]]
"""Returns the known releases of a package, oldest first; none when the facts do not cover it."""

_BANNER = "<!-- Generated from incidents/ by `knowngood render`; do not edit. -->\n"
_SEVERITIES = {
    IncidentSeverity.FAILURE: "It stops the run.",
    IncidentSeverity.SILENT: "It does not stop the run: nothing fails, but something is silently not as requested.",
    IncidentSeverity.SLOW: "It does not stop the run, and what is computed is right, but it takes longer.",
    IncidentSeverity.HARMLESS: "It is a warning that needs no action.",
}
_CONFIDENCES = {
    "measured": "observed in this project's own runs",
    "artefact": "read from the published artefacts",
    "maintainer": "stated by a maintainer in the thread",
    "reported": "reported in the thread, not checked further",
}
_RANGES = {
    RangeOrigin.ARTEFACTS: "The range was read from the published artefacts.",
    RangeOrigin.THREAD: "The range is that of the thread; nobody compared every release.",
    RangeOrigin.ENVIRONMENT: "The machine decides it more than versions do.",
}


@dataclass(frozen=True, kw_only=True)
class IncidentContext:
    """What the pages show beside the incidents themselves."""

    releases: ReleaseLister
    reproduction: Callable[[str], Sequence[str]] = lambda _: ()
    """Takes a reproduction's name; returns what its newest runs observed, as lines of Markdown."""


def render_incident_page(incident: Incident, context: IncidentContext) -> str:
    """Return the page of one incident as Markdown."""
    parts = [
        _BANNER,
        f"# {incident.title}",
        "## As it appears",
        _render_signatures(incident),
        _SEVERITIES[incident.severity],
    ]
    if incident.context:
        shown = " or ".join(f"`{_readable_signature(signature.text)}`" for signature in incident.context)
        parts.append(f"Only when the log has {shown} too.")
    parts += ["## Am I affected", *_render_affected(incident, context)]
    parts += ["## Why", f"{incident.because} At fault: {incident.component}."]
    parts += ["## What helps", "\n".join(f"{number}. {_render_fix(fix)}" for number, fix in enumerate(incident.fix, 1))]
    if incident.report_erred:
        parts += ["## Where the report erred", "\n".join(f"- {text}" for text in incident.report_erred)]
    sources = "\n".join(f"- {text}" for text in incident.source)
    parts += ["## How we know", f"{_CONFIDENCES[incident.confidence].capitalize()}.\n\n{sources}"]
    observations = context.reproduction(incident.reproduction) if incident.reproduction else ()
    if observations:
        parts += ["### Reproduced", "\n".join(observations)]
    if incident.signatures:
        parts.append(f"`knowngood diagnose LOG` recognises it as `{incident.id}`.")
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _render_affected(incident: Incident, context: IncidentContext) -> list[str]:
    parts = [_render_combinations(incident.affected, context.releases)]
    only, spared = _render_conditions(incident.when, " and "), _render_conditions(incident.unless, ", nor when ")
    conditions = [*([f"only when {only}"] if only else []), *([f"not when {spared}"] if spared else [])]
    if conditions:
        words = "in the words of [check](../check.md#conditions-of-use)"
        parts.append(f"And {', and '.join(conditions)} ({words}).")
    command = render_check_command(incident, context.releases)
    if command:
        parts.append(f"For example:\n\n```sh\n{command}\n```")
    if incident.uses:
        parts.append(
            f"The range is that in which {incident.uses.caller}'s own use breaks, computed from the sources of every "
            f"release ([atlas](../atlas.md)); `knowngood api --breaks {incident.uses.caller}` lists its pairs."
        )
    elif incident.rule:
        parts.append(f"`knowngood check` reports it by its rule `{incident.rule}`.")
    elif incident.range_from is not None and incident.affected:
        parts.append(_RANGES[incident.range_from])
    return parts


def _render_conditions(uses: Mapping[str, str], between: str) -> str:
    return between.join(f"`{key}` is {_render_condition(value)}" for key, value in uses.items())


def _render_condition(condition: str) -> str:
    """Return a condition in words: `>1`, `bf16` or `fp16`, other than `fa2`."""
    if condition.startswith("!") and not condition.startswith("!="):
        return f"other than {_render_condition(condition[1:])}"
    return " or ".join(f"`{text}`" for text in condition.split("|"))


def render_check_command(incident: Incident, releases: ReleaseLister) -> str:
    """Return a `knowngood check` command that this incident answers; empty when it affects no combination."""
    if rule_from_incident(incident) is None or incident.rule:
        return ""
    words = []
    for name, specifier in incident.affected[0].items():
        inside = [version for version in releases(name) if specifier.contains(version)]
        if name == "python":
            words.append(f"--python {_exact_version(specifier)}")
        elif inside:
            words.append(f"{name}=={inside[-1]}")
        else:
            return ""
    for key, wanted in incident.when.items():
        value = wanted.split("|")[0]
        number = re.fullmatch(r">(\d+)", value)
        value = str(int(number[1]) + 1) if number else value
        words.append(f"--attn {value}" if key == "attn" else f"--with {key}={value}")
    return f"knowngood check {' '.join(words)}"


def _exact_version(specifier: SpecifierSet) -> str:
    """Return the version that a range names."""
    return next(clause.version for clause in specifier)


def _render_signatures(incident: Incident) -> str:
    if not incident.signatures:
        return "No log shows it. `knowngood check` reports it, from the versions and how they are used."
    lines = [_readable_signature(signature.text) for signature in incident.signatures if not signature.beside]
    parts = ["```text\n" + "\n".join(lines) + "\n```"] if lines else []
    for signature in incident.signatures:
        if signature.beside:
            where = " or ".join(f"`{_readable_signature(item.text)}`" for item in signature.beside)
            parts.append(f"Or, where {where} is in the log too:\n\n```text\n{_readable_signature(signature.text)}\n```")
    return "\n\n".join(parts)


def _readable_signature(signature: str) -> str:
    """Return a signature in the notation of the pages."""
    shown = signature.replace("\\*", "\0").replace("\\{", "{").replace("*", "...")
    for name in ("version", "number", "name"):
        shown = shown.replace(f"{{{name}}}", f"<{name}>")
    return shown.replace("\0", "*")


def _render_combinations(combinations: Sequence[Mapping[str, SpecifierSet]], releases: ReleaseLister) -> str:
    if not combinations:
        return "No release alone decides it; the text above does."
    lines = ["| when all of | versions | of the releases we know |", "| --- | --- | --- |"]
    for number, combination in enumerate(combinations):
        if number:
            lines.append("| *or* | | |")
        for name, specifier in combination.items():
            written = ",".join(sorted(map(str, specifier))) or "any"
            lines.append(f"| {name} | `{written}` | {_known_ranges(specifier, releases(name))} |")
    return "\n".join(lines)


def _known_ranges(specifier: SpecifierSet, known: Sequence[str]) -> str:
    """Return the known releases in a range, joined to `4.43.0 to 4.44.2` where they follow one another."""
    runs = [list(group) for inside, group in groupby(known, key=specifier.contains) if inside]
    if not known:
        return ""
    return ", ".join(run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs) or "none"


def _render_fix(fix: Fix) -> str:
    change = ", ".join(f"`{name}{'' if text == '*' else text}`" for name, text in fix.change.items())
    cost = f" Costs: {fix.cost}." if fix.cost else ""
    return f"{change}: {fix.note}.{cost}" if change else f"{fix.note}.{cost}"


def load_incident_context() -> IncidentContext:
    """Load facts and reproductions of this project for the pages."""
    return IncidentContext(
        releases=load_known_releases,
        reproduction=lambda name: reproduction_run.summarize_reproduction(name).markdown_lines(),
    )


def load_known_releases(package: str) -> Sequence[str]:
    """Return the releases of a package that facts cover, else those whose metadata is known, oldest first."""
    try:
        return fact_store.list_versions(package)
    except KnowngoodError:
        metadata = read_package_metadata(package)
        return tuple(metadata.releases) if metadata else ()
