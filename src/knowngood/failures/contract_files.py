"""The files around contracts: their tables in `facts/contracts/`, and the incidents whose range follows from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path

from knowngood.compat.incident_file import parse_incidents
from knowngood.core.data_files import read_data_text
from knowngood.core.errors import InputError, InputProblem
from knowngood.core.local_files import write_atomically
from knowngood.facts.contract_definition import parse_contract
from knowngood.facts.contract_document import load_contract_document
from knowngood.facts.contract_table import ContractTable, table_from_document
from knowngood.failures.contract_texts import RangeDrift, find_range_drift, render_contract_page, replace_affected


def read_contract_tables(root: Path) -> dict[str, ContractTable]:
    """Read the tables of a project by contract; raises `InputError` for a file that is not a table."""
    return {path.stem: read_contract_table(path) for path in sorted((root / "facts" / "contracts").glob("*.json"))}


def read_contract_table(path: Path) -> ContractTable:
    """Read the table in a file; raises `InputError` when the file is not a table."""
    return _read_unchanged(path, path.stat().st_mtime_ns)


@cache
def _read_unchanged(path: Path, _: int) -> ContractTable:
    """Read a table; the time of the last change is an argument, so that a changed file is read again."""
    document = load_contract_document(path)
    try:
        return table_from_document(document)
    except ValueError as error:
        text = f"not a table of a contract ({error}); `knowngood harvest --contracts {path.stem}` writes it again"
        raise InputError([InputProblem(file=str(path), line=1, column=1, text=text)]) from None


def render_contract_tables(root: Path) -> str:
    """Render docs/contract-tables.md from the contracts of a project and their tables."""
    labels = {path: f"contracts/{path.name}" for path in sorted((root / "contracts").glob("*.yaml"))}
    texts = {path: read_data_text(path, label) for path, label in labels.items()}
    contracts = {path.stem: parse_contract(text, labels[path]) for path, text in texts.items()}
    return render_contract_page(contracts, read_contract_tables(root))


def find_range_drifts(root: Path) -> list[RangeDrift]:
    """Return the incidents of a project whose range is not the one that follows from their contract's table."""
    tables = read_contract_tables(root)
    paths = sorted((root / "incidents").glob("*.yaml"))
    labels = {path: f"incidents/{path.name}" for path in paths}
    incidents = parse_incidents({label: read_data_text(path, label) for path, label in labels.items()})
    drifts = (find_range_drift(item, tables[item.contract]) for item in incidents if item.contract in tables)
    return [drift for drift in drifts if drift is not None]


def rewrite_incident_ranges(root: Path) -> list[str]:
    """Write the range that follows from its contract into each incident with another one; returns the changed files."""
    changed = []
    for drift in find_range_drifts(root):
        path = root / "incidents" / f"{drift.incident}.yaml"
        if drift.generated:
            text = replace_affected(read_data_text(path), drift.generated)
            if write_atomically(path, text):
                changed.append(str(path.relative_to(root)))
    return changed


def find_stale_contracts(root: Path, texts: Mapping[str, str], place: Callable[[str], Path]) -> list[str]:
    """Return what is out of date, a sentence each.

    That is a contract (file -> text) without a table in the folder `place(file)`, or with the table of another text;
    and an incident whose range does not follow from its contract's table.
    """
    problems = []
    for file, text in texts.items():
        name = file.rsplit("/", 1)[-1].removesuffix(".yaml")
        path = place(file) / f"{name}.json"
        command = f"`knowngood harvest --contracts {name if file.startswith('contracts/') else file}`"
        if not path.exists():
            problems.append(f"{file}: it has no table yet; {command} writes it")
        elif load_contract_document(path)["digest"] != sha256(text.encode()).hexdigest():
            problems.append(f"{file}: its table is of another text of this file; {command} writes it again")
    return problems + [str(drift) for drift in find_range_drifts(root)]
