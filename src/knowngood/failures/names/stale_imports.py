"""A release that a message demands, and that the log shows to be installed: the process still runs an older one. Pure.

A notebook goes on with the modules that it imported before pip installed another release.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from knowngood.compat.incident import Incident
from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.core.package_names import canonical_name
from knowngood.failures.logs.last_errors import LastError
from knowngood.failures.names.name_situation import advise

_DEMAND = lazy_pattern(
    r"(?:requires?|needs?|please (?:install|upgrade|update)(?: to)?) "
    r"[`'\"]?(?P<name>[A-Za-z][\w.-]*?)(?:\[\w+\])?[`'\"]? ?(?:version )?(?P<range>>=? ?\d[\w.]*\w)",
    re.IGNORECASE,
)
RESTART = (
    "Restart the notebook's kernel (the runtime), or the process, and run it again from its first cell: pip changes "
    "files, and not what is imported already"
)


def note_installed_release(
    incident: Incident, error: LastError | None, versions: Mapping[str, Sequence[str]]
) -> Incident:
    """Return a failure whose message demands a release, with the restart first where the log has that release.

    Args:
        incident: a known failure whose signature is in the log.
        error: the last error of the log.
        versions: package -> the versions in the log.
    """
    stated = _DEMAND.search(error.message) if error is not None else None
    name = canonical_name(stated["name"]) if stated else ""
    if stated is None or name != incident.component or not versions.get(name):
        return incident
    wanted = stated["range"].replace(" ", "")
    try:
        is_enough = all(SpecifierSet(wanted).contains(Version(text), prereleases=True) for text in versions[name])
    except (InvalidSpecifier, InvalidVersion):
        return incident
    if not is_enough:
        return incident
    installed = versions[name][-1]
    module = name.replace("-", "_")
    return replace(
        incident,
        title=f"{name} {installed} is installed and new enough ({wanted}): the process runs what it imported before",
        because=(
            f"The message demands {name}{wanted}, and the log states {installed}. So the Python that runs looked at "
            "another one: a notebook that imported the packages before pip installed this release, or a program of "
            "another environment than the one that was listed."
        ),
        fix=(
            advise(RESTART),
            advise(
                f"After that, python -c 'import {module}, sys; print({module}.__version__, sys.executable)' shows "
                "which release and which Python run; python -m pip install for that very Python, when it is another"
            ),
        ),
    )
