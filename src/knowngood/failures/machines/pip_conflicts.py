"""The packages that do not fit each other, as pip names them after an installation. Pure."""

from __future__ import annotations

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from knowngood.compat.incident import Fix, Incident, IncidentKind, IncidentSeverity
from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.core.package_names import canonical_name
from knowngood.failures.logs.last_errors import LastError
from knowngood.failures.names.message_causes import MessageCause
from knowngood.failures.names.name_situation import advise

_CONFLICT = lazy_pattern(
    r"(?P<who>[A-Za-z][\w.-]*) (?P<version>\d[\w.+]*) (?:requires|has requirement) "
    r"(?P<name>[A-Za-z][\w.-]*)(?:\[[\w,-]+\])?(?P<range>[<>=!~][^\s;]*?(?:, ?[<>=!~][^\s;]*?)*)?"
    r"(?:; [^,]{1,80})?, (?:but you(?:'ll)? have (?P<other>[A-Za-z][\w.-]*) (?P<installed>\d[\w.+]*)"
    r"|which is not installed)"
)


def explain_pip_conflict(error: LastError) -> MessageCause | None:
    """Return what the first line of pip's list of conflicts says; `None` for another error."""
    line = _CONFLICT.search(error.message)
    if line is None:
        return None
    name, who = canonical_name(line["name"]), canonical_name(line["who"])
    wanted = (line["range"] or "").replace(" ", "")
    try:
        SpecifierSet(wanted)
    except InvalidSpecifier:
        wanted = ""
    demand = f"{who} {line['version']} requires {name}{wanted}"
    there = f"{line['installed']} is installed" if line["installed"] else "it is not installed"
    fixes = [
        Fix(change={name: wanted or "*"}, note=f"as {who} {line['version']} requires"),
        advise(
            f"Or a newer {who}, made for the {name} that is there; or, when nothing uses {who}: pip uninstall {who}"
        ),
        advise("knowngood check -r requirements.txt names releases of all that go together; one environment a project"),
    ]
    incident = Incident(
        id=f"pip-conflict:{who}:{name}",
        title=f"{demand}, and {there}",
        kind=IncidentKind.BOUNDS,
        severity=IncidentSeverity.FAILURE,
        component=name,
        because="pip has installed what it was asked for, and names what does not fit it any more.",
        fix=tuple(fixes),
        source=("pip's own list of conflicts",),
        confidence="reported",
    )
    return MessageCause(incident=incident, line=error.line, package=name, version=line["installed"] or "")
