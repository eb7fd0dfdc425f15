"""The files around contracts: their tables in `facts/contracts/`, and the incidents whose range follows from them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from knowngood.contracts import ranges
from knowngood.contracts import table as contract_table
from knowngood.errors import InputError, Problem

if TYPE_CHECKING:
    from knowngood.contracts.ranges import Drift
    from knowngood.incidents.model import Incident


def tables(root: Path) -> dict[str, contract_table.Table]:
    """The tables of a project by contract; `InputError` for a file that is none."""
    return {path.stem: table(path) for path in sorted((root / "facts" / "contracts").glob("*.json"))}


def table(path: Path) -> contract_table.Table:
    """The table in a file; `InputError` when it is none."""
    return _parsed(path, path.stat().st_mtime_ns)


@cache
def _parsed(path: Path, _: int) -> contract_table.Table:
    try:
        return contract_table.from_document(json.loads(path.read_bytes()))
    except (ValueError, KeyError, TypeError) as error:
        text = f"this is not a table of a contract ({error}); `knowngood harvest --contracts {path.stem}` makes it anew"
        raise InputError([Problem(file=str(path), line=1, column=1, text=text)]) from None


def rendered(root: Path) -> str:
    """docs/contract-tables.md as it has to be."""
    from knowngood.contracts import pages, reading

    paths = sorted((root / "contracts").glob("*.yaml"))
    read = {path.stem: reading.parse(path.read_text(encoding="utf-8"), f"contracts/{path.name}") for path in paths}
    return pages.page(read, tables(root))


def drifts(root: Path) -> list[Drift]:
    """The incidents whose range is not what the table of their contract says."""
    known = tables(root)
    return [
        found
        for incident in _incidents(root)
        if incident.contract in known and (found := ranges.drift(incident, known[incident.contract]))
    ]


def _incidents(root: Path) -> list[Incident]:
    from knowngood.incidents import reading

    folder = root / "incidents"
    return reading.parse_all(
        {f"incidents/{path.name}": path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.yaml"))}
    )


def rewritten(root: Path) -> list[str]:
    """Write the generated range into each incident that has another; returns their files."""
    from knowngood.atomic import write_text

    changed = []
    for found in drifts(root):
        path = root / "incidents" / f"{found.incident}.yaml"
        if found.generated and write_text(path, ranges.replaced(path.read_text(encoding="utf-8"), found.generated)):
            changed.append(str(path.relative_to(root)))
    return changed


def stale(root: Path, texts: Mapping[str, str], place: Callable[[str], Path]) -> list[str]:
    """What does not fit together: a contract without its table or with that of another text, an incident's range."""
    problems = []
    for file, text in texts.items():
        name = file.rsplit("/", 1)[-1].removesuffix(".yaml")
        path = place(file) / f"{name}.json"
        again = f"`knowngood harvest --contracts {name if file.startswith('contracts/') else file}`"
        if not path.exists():
            problems.append(f"{file}: it has no table yet; {again} makes it")
        elif json.loads(path.read_bytes()).get("digest") != sha256(text.encode()).hexdigest():
            problems.append(f"{file}: its table is of another text of this file; {again} makes it anew")
    return problems + [str(found) for found in drifts(root)]
