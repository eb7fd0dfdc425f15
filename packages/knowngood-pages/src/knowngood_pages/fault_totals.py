"""The totals above the tables of `docs/faults.md`, counted from their rows. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from knowngood_pages.readme_parts import replace_marked_part

_COLUMNS = ("fault", "what happens", "what is lost", "exit", "shown by")


@dataclass(frozen=True, kw_only=True)
class FaultRow:
    """One fault that a test makes."""

    fault: str
    lost: str
    """What is lost by it; `nothing` when everything that was finished is kept."""
    code: str
    """The exit code of the command that notices it, or `killed`."""
    tests: str


def parse_fault_rows(text: str) -> list[FaultRow]:
    """Return the rows of all tables of faults in a page of Markdown; other tables are left out."""
    rows = []
    for line in text.splitlines():
        columns = [column.strip() for column in line.strip("|").split(" | ")]
        if line.startswith("| ") and len(columns) == len(_COLUMNS) and tuple(columns) != _COLUMNS:
            fault, _, lost, code, tests = columns
            rows.append(FaultRow(fault=fault, lost=lost, code=code, tests=tests))
    return rows


def renew_fault_totals(text: str) -> str:
    """Return the page with its totals counted anew; `UsageError` when it has no markers for them."""
    rows = parse_fault_rows(text)
    kept = sum(row.lost == "nothing" for row in rows)
    ended = sum(row.code not in ("0", "killed") for row in rows)
    body = (
        f"**Numbers.** Faults made: {len(rows)}. Nothing that was finished is lost in {kept} of them; in the others,\n"
        f"what the third column says. {ended} of them end a command, with a message that names the file, the place or\n"
        "the server at fault and with the exit code of its kind; the others are cured on the way, or the process is\n"
        "killed."
    )
    return replace_marked_part(text, "totals", body)
