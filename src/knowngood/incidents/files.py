"""The files of `incidents/`: the edge of `knowngood.incidents.reading`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from knowngood import resources
from knowngood.errors import InputError, MissingError, Problem, UsageError

if TYPE_CHECKING:
    from knowngood.incidents.model import Incident
    from knowngood.incidents.reading import Names


def read(folder: Path | None = None, *, names: bool = False) -> list[Incident]:
    """The incidents of a folder, knowngood's own without one; `InputError` with every defect.

    With `names` what they refer to must be there, which takes longer.
    """
    from knowngood.incidents import reading

    return reading.parse_all(texts(folder), _names() if names else None)


def texts(folder: Path | None = None) -> dict[str, str]:
    """File's name for people -> text, of all incidents of a folder; `InputError` for what is not UTF-8."""
    place = folder or resources.root() / "incidents"
    paths = sorted(place.glob("*.yaml"))
    if not paths:
        raise (
            MissingError(f"there are no incidents in {place}")
            if folder is None
            else UsageError(f"{folder} has no incidents (*.yaml)")
        )
    found, problems = {}, []
    for path in paths:
        label = f"{folder or 'incidents'}/{path.name}"
        try:
            found[label] = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            problems.append(Problem(file=label, line=1, column=1, text=f"not UTF-8: {error.reason}; save it as UTF-8"))
    if problems:
        raise InputError(problems)
    return found


def _names() -> Names:
    """The rules, contracts and reproductions that there are."""
    from knowngood.incidents.reading import Names
    from knowngood.solving import knowledge

    root = resources.root()
    return Names(
        rules=frozenset(rule.id for rule in knowledge.read_rules(root / "rules")),
        contracts=frozenset(path.stem for path in (root / "contracts").glob("*.yaml")),
        reproductions=frozenset(path.name for path in (root / "reproductions").glob("*/")),
    )
