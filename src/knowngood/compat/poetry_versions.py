"""Poetry's dependencies as requirements of the standard (PEP 508): `^2.1`, `~2.1`, tables with extras. Pure."""

from __future__ import annotations

import re
from typing import Any

from knowngood.core.errors import UsageError


def poetry_requirement(name: str, value: Any) -> str:
    """Return the requirement that one entry of Poetry's dependencies means, as in `torch[opt] >=2.1,<3; marker`.

    Raises:
        UsageError: the entry has neither of Poetry's forms.
    """
    table = {"version": value} if isinstance(value, str) else value
    if not isinstance(table, dict):
        raise UsageError(f'{name}: a dependency of Poetry is a version or a table, as in {name} = "^2.1"')
    extras = f"[{','.join(map(str, table['extras']))}]" if table.get("extras") else ""
    markers = [f"({table['markers']})"] if table.get("markers") else []
    if table.get("python"):
        clauses = poetry_specifier(str(table["python"])).split(",")
        markers += [re.sub(r"^(\W+)\s*(.*)$", r"python_version \1 '\2'", clause) for clause in clauses]
    marker = f" ; {' and '.join(markers)}" if markers else ""
    if table.get("git"):
        revision = table.get("tag") or table.get("rev") or table.get("branch")
        return f"{name}{extras} @ git+{table['git']}{f'@{revision}' if revision else ''}{marker}"
    if table.get("url"):
        return f"{name}{extras} @ {table['url']}{marker}"
    return f"{name}{extras}{poetry_specifier(str(table.get('version', '*')))}{marker}"


def poetry_specifier(text: str) -> str:
    """Return Poetry's constraint as a specifier (PEP 440); the empty text allows everything.

    Raises:
        UsageError: the constraint is a choice (`||`), which no specifier can say, or cannot be parsed.
    """
    if "|" in text:
        raise UsageError(f"{text!r} is a choice of ranges, which is not read; give one range")
    clauses = [_clause(part) for part in re.split(r"\s*,\s*|(?<=[\w*])\s+(?=[\^~<>=!\d])", text.strip()) if part]
    return ",".join(clause for clause in clauses if clause)


def _clause(part: str) -> str:
    match = re.fullmatch(r"(\^|~=|~|===?|!=|<=|>=|<|>)?\s*v?([0-9][\w.!+*-]*|\*)", part.strip())
    if match is None:
        raise UsageError(f"{part!r} is not a version constraint of Poetry, as in ^2.1")
    operator, version = match[1] or "==", match[2]
    if version == "*":
        return ""
    if operator not in ("^", "~"):
        return f"{operator}{version}"
    numbers = [int(number) for number in re.match(r"[0-9.]*[0-9]", version)[0].split(".")]  # type: ignore[index]
    if operator == "~":
        kept = min(2, len(numbers))
    else:
        kept = next((place for place, number in enumerate(numbers, start=1) if number), len(numbers))
    upper = [*numbers[: kept - 1], numbers[kept - 1] + 1]
    return f">={version},<{'.'.join(map(str, upper))}"
