"""The pages of docs/incidents/, rendered from the incidents, for those who search for an error message. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from knowngood.incidents import Kind, Severity

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

    from knowngood.incidents import Fix, Incident

Releases = Callable[[str], Sequence[str]]
"""The known releases of a package, oldest first; none when the facts do not cover it."""

_BANNER = "<!-- Generated from incidents/ by `knowngood render`; do not edit. -->\n"
_SEVERITIES = {
    Severity.FAILURE: "It stops the run.",
    Severity.SILENT: "It does not stop the run: nothing fails, something is quietly not what was asked for.",
    Severity.HARMLESS: "It is a warning that needs nothing.",
}
_CONFIDENCES = {
    "measured": "seen by this project's own runs",
    "artefact": "read from the published artefacts",
    "maintainer": "said by a maintainer in the thread",
    "reported": "reported in the thread, not checked further",
}
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


def pages(known: Sequence[Incident], releases: Releases) -> dict[str, str]:
    """File name to Markdown: the list, and a page an incident."""
    return {"README.md": _list(known), **{f"{incident.id}.md": page(incident, releases) for incident in known}}


def page(incident: Incident, releases: Releases) -> str:
    """The page of one incident."""
    parts = [
        _BANNER,
        f"# {incident.title}",
        "## As it appears",
        "```text\n" + "\n".join(_shown(signature.text) for signature in incident.signatures) + "\n```",
        _SEVERITIES[incident.severity],
    ]
    if incident.context:
        shown = " or ".join(f"`{_shown(signature.text)}`" for signature in incident.context)
        parts.append(f"Only when the log has {shown} too.")
    parts += ["## Am I affected", _affected(incident.affected, releases)]
    parts += ["## Why", f"{incident.because} At fault: {incident.component}."]
    parts += ["## What helps", "\n".join(f"{number}. {_fix(fix)}" for number, fix in enumerate(incident.fix, 1))]
    if incident.report_erred:
        parts += ["## Where the report erred", "\n".join(f"- {text}" for text in incident.report_erred)]
    parts += [
        "## How we know",
        f"{_CONFIDENCES[incident.confidence].capitalize()}.\n\n" + "\n".join(f"- {text}" for text in incident.source),
        f"`knowngood diagnose LOG` recognises it as `{incident.id}`.",
    ]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


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
        "What each looks like in a log, who is affected, why, and what helps. `knowngood diagnose LOG` finds them.\n",
    ]
    for kind in Kind:
        of_kind = [incident for incident in known if incident.kind == kind]
        if of_kind:
            lines.append(f"\n## {_KINDS[kind]}\n")
            lines += [f"- [{incident.title}]({incident.id}.md)" for incident in of_kind]
    return "\n".join(lines) + "\n"


def known_releases(package: str) -> Sequence[str]:
    """The releases that facts cover; the edge for `pages`."""
    from knowngood import facts
    from knowngood.errors import KnowngoodError

    try:
        return list(facts.load(package))
    except KnowngoodError:
        return ()
