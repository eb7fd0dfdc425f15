"""The pages of docs/incidents/, rendered from the incidents, for those who search for an error message. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from knowngood.incidents.model import Kind, RangeFrom, Severity

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

    from knowngood.incidents.model import Fix, Incident

Releases = Callable[[str], Sequence[str]]
"""The known releases of a package, oldest first; none when the facts do not cover it."""

_BANNER = "<!-- Generated from incidents/ by `knowngood render`; do not edit. -->\n"
_SEVERITIES = {
    Severity.FAILURE: "It stops the run.",
    Severity.SILENT: "It does not stop the run: nothing fails, something is quietly not what was asked for.",
    Severity.HARMLESS: "It is a warning that needs nothing.",
}
_MARKS = {Severity.FAILURE: "", Severity.SILENT: " (silent)", Severity.HARMLESS: " (harmless)"}
_CONFIDENCES = {
    "measured": "seen by this project's own runs",
    "artefact": "read from the published artefacts",
    "maintainer": "said by a maintainer in the thread",
    "reported": "reported in the thread, not checked further",
}
_RANGES = {
    RangeFrom.ARTEFACTS: "The range was read from the published artefacts.",
    RangeFrom.THREAD: "The range is the thread's; nobody compared every release.",
    RangeFrom.ENVIRONMENT: "The machine decides it more than versions do.",
}
MOST_ROWS = 60
"""Of a contract's table on a page; a longer one is linked only."""
_KINDS = {
    Kind.API_REMOVED: "A name was removed",
    Kind.SIGNATURE_CHANGED: "A signature changed",
    Kind.UNDEFINED_SYMBOL: "Binaries of another torch, C++ ABI or NumPy",
    Kind.NO_KERNEL_IMAGE: "No code for this GPU",
    Kind.ARCH_REFUSED: "The GPU is refused",
    Kind.CUDA_MISMATCH: "CUDA releases that differ",
    Kind.SOURCE_BUILD: "Building from source",
    Kind.TRITON_COMPILE: "Triton compiles at run time",
    Kind.DTYPE: "Dtypes",
    Kind.PADDING: "Padding",
    Kind.PACKING: "Packing",
    Kind.MISSING_EXTENSION: "A missing extension",
    Kind.BOUNDS: "Packages that exclude each other",
    Kind.GLIBC: "The C library",
    Kind.DRIVER: "The driver",
    Kind.PYTHON: "Python",
    Kind.MEMORY: "Memory",
    Kind.NUMERICS: "Numerics",
    Kind.CONFIG: "Configuration",
}


@dataclass(frozen=True, kw_only=True)
class Around:
    """What else is known about incidents, by name."""

    releases: Releases
    contract: Callable[[str], str] = lambda _: ""
    """A contract's table of pairs as Markdown; empty when there is none."""
    reproduction: Callable[[str], Sequence[str]] = lambda _: ()
    """What the newest runs of a reproduction saw, as lines of Markdown."""


def pages(known: Sequence[Incident], around: Around) -> dict[str, str]:
    """File name to Markdown: the list, and a page an incident."""
    return {"README.md": _list(known), **{f"{incident.id}.md": page(incident, around) for incident in known}}


def page(incident: Incident, around: Around) -> str:
    """The page of one incident."""
    parts = [_BANNER, f"# {incident.title}", "## As it appears", _appears(incident), _SEVERITIES[incident.severity]]
    if incident.context:
        shown = " or ".join(f"`{_shown(signature.text)}`" for signature in incident.context)
        parts.append(f"Only when the log has {shown} too.")
    parts += ["## Am I affected", *_concerned(incident, around)]
    parts += ["## Why", f"{incident.because} At fault: {incident.component}."]
    parts += ["## What helps", "\n".join(f"{number}. {_fix(fix)}" for number, fix in enumerate(incident.fix, 1))]
    if incident.report_erred:
        parts += ["## Where the report erred", "\n".join(f"- {text}" for text in incident.report_erred)]
    sources = "\n".join(f"- {text}" for text in incident.source)
    parts += ["## How we know", f"{_CONFIDENCES[incident.confidence].capitalize()}.\n\n{sources}"]
    seen = around.reproduction(incident.reproduction) if incident.reproduction else ()
    if seen:
        parts += ["### Reproduced", "\n".join(seen)]
    if incident.signatures:
        parts.append(f"`knowngood diagnose LOG` recognises it as `{incident.id}`.")
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _concerned(incident: Incident, around: Around) -> list[str]:
    parts = [_affected(incident.affected, around.releases)]
    only, spared = _conditions(incident.when, " and "), _conditions(incident.unless, ", nor when ")
    said = [*([f"only when {only}"] if only else []), *([f"not when {spared}"] if spared else [])]
    if said:
        words = "in the words of [check](../check.md#conditions-of-use)"
        parts.append(f"And {', and '.join(said)} ({words}).")
    asked = question(incident, around.releases)
    if asked:
        parts.append(f"For example:\n\n```sh\n{asked}\n```")
    if incident.contract:
        told = f"The range follows from the contract [{incident.contract}](../contract-tables.md#{incident.contract})"
        table = around.contract(incident.contract)
        if table and table.count("\n") <= MOST_ROWS:
            parts += [f"{told}, judged on every published pair:", table]
        else:
            parts.append(f"{told}, judged on every published pair.")
    elif incident.rule:
        parts.append(f"`knowngood check` says it by its rule `{incident.rule}`.")
    elif incident.range_from is not None and incident.affected:
        parts.append(_RANGES[incident.range_from])
    return parts


def _conditions(uses: Mapping[str, str], between: str) -> str:
    return between.join(f"`{key}` is {_spoken(value)}" for key, value in uses.items())


def _spoken(condition: str) -> str:
    """`>1`, `bf16 or fp16`, `other than fa2`"""
    if condition.startswith("!") and not condition.startswith("!="):
        return f"other than {_spoken(condition[1:])}"
    return " or ".join(f"`{text}`" for text in condition.split("|"))


def question(incident: Incident, releases: Releases) -> str:
    """A question to `check` that this incident answers; empty when it tells of no combination."""
    from knowngood.incidents.rules import of

    told = of(incident)
    if told is None or incident.rule:
        return ""
    words = []
    for name, specifier in incident.affected[0].items():
        inside = [version for version in releases(name) if specifier.contains(version)]
        if name == "python":
            words.append(f"--python {_named(specifier)}")
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


def _named(specifier: SpecifierSet) -> str:
    """The version that a range names."""
    return next(clause.version for clause in specifier)


def _appears(incident: Incident) -> str:
    if not incident.signatures:
        return "In no log: nothing is said. `knowngood check` tells it from the versions and from how they are used."
    lines = [_shown(signature.text) for signature in incident.signatures if not signature.beside]
    parts = ["```text\n" + "\n".join(lines) + "\n```"] if lines else []
    for signature in incident.signatures:
        if signature.beside:
            where = " or ".join(f"`{_shown(item.text)}`" for item in signature.beside)
            parts.append(f"Or, where {where} stands in the log too:\n\n```text\n{_shown(signature.text)}\n```")
    return "\n\n".join(parts)


def _shown(signature: str) -> str:
    """A signature as a reader would write it."""
    shown = signature.replace("\\*", "\0").replace("\\{", "{").replace("*", "...")
    for name in ("version", "number", "name"):
        shown = shown.replace(f"{{{name}}}", f"<{name}>")
    return shown.replace("\0", "*")


def _affected(combinations: Sequence[Mapping[str, SpecifierSet]], releases: Releases) -> str:
    if not combinations:
        return "No release alone decides it; the text above does."
    lines = ["| when all of | versions | of the releases we know |", "| --- | --- | --- |"]
    for number, combination in enumerate(combinations):
        if number:
            lines.append("| *or* | | |")
        for name, specifier in combination.items():
            written = ",".join(sorted(map(str, specifier))) or "any"
            lines.append(f"| {name} | `{written}` | {_covered(specifier, releases(name))} |")
    return "\n".join(lines)


def _covered(specifier: SpecifierSet, known: Sequence[str]) -> str:
    """`4.43.0 to 4.44.2`: runs of known releases that a range holds."""
    runs = [list(group) for inside, group in groupby(known, key=specifier.contains) if inside]
    if not known:
        return ""
    return ", ".join(run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs) or "none"


def _fix(fix: Fix) -> str:
    change = ", ".join(f"`{name}{'' if text == '*' else text}`" for name, text in fix.change.items())
    cost = f" Costs: {fix.cost}." if fix.cost else ""
    return f"{change}: {fix.note}.{cost}" if change else f"{fix.note}.{cost}"


def _list(known: Sequence[Incident]) -> str:
    lines = [
        _BANNER,
        "# Known failures\n",
        "What each looks like in a log, who is affected, why, and what helps. `knowngood diagnose LOG` finds them;",
        "`knowngood check` tells those that follow from versions and use. *Silent* ones stop nothing.\n",
    ]
    for kind in Kind:
        of_kind = [incident for incident in known if incident.kind == kind]
        if of_kind:
            lines.append(f"\n## {_KINDS[kind]}\n")
            lines += [f"- [{incident.title}]({incident.id}.md){_MARKS[incident.severity]}" for incident in of_kind]
    return "\n".join(lines) + "\n"


def around_here() -> Around:
    """What this project knows; the edge for `pages`."""
    from knowngood import project
    from knowngood.contracts import files
    from knowngood.contracts import table as contract_table
    from knowngood.reproducing import reproductions

    tables = files.tables(project.find().root)
    return Around(
        releases=known_releases,
        contract=lambda name: contract_table.markdown(tables[name]) if name in tables else "",
        reproduction=lambda name: reproductions.summary(name).lines(),
    )


def known_releases(package: str) -> Sequence[str]:
    """The releases that facts cover; the edge for `pages`."""
    from knowngood import facts
    from knowngood.errors import KnowngoodError

    try:
        return list(facts.load(package))
    except KnowngoodError:
        return ()
