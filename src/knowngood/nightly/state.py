"""The folder of reports: those of earlier nights, and how far the present one is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from knowngood.atomic import write_text
from knowngood.nightly import markdown
from knowngood.nightly.model import SCHEMA, Report, Result

_STATE = "knowngood/nightly-state/1"


def load(folder: Path) -> tuple[list[Report], list[str]]:
    """The reports of a folder, oldest first, and why others were left out."""
    reports, left_out = [], []
    for path in sorted(folder.glob("[0-9]*-[0-9]*-[0-9]*.json")):
        try:
            document = json.loads(path.read_bytes())
            if document["schema"] != SCHEMA:
                left_out.append(f"{path.name}: schema {document['schema']!r}, this program reads {SCHEMA}")
                continue
            report = Report.model_validate(document)
        except (OSError, ValidationError, ValueError, KeyError, TypeError) as error:
            left_out.append(f"{path.name}: not readable as a report ({type(error).__name__})")
            continue
        if report.date == path.stem:
            reports.append(report)
        else:
            left_out.append(f"{path.name}: it is of {report.date}")
    return reports, left_out


def save(report: Report, folder: Path) -> Path:
    """Write the report, as JSON and as Markdown; returns the latter's path."""
    write_text(folder / f"{report.date}.json", report.text())
    page = folder / f"{report.date}.md"
    write_text(page, markdown.page(report))
    return page


class Progress:
    """What is finished of a date: written after each check, so that a run that is killed goes on there."""

    def __init__(self, folder: Path, date: str) -> None:
        self.path = folder / f".{date}.state.json"
        self.started: str | None = None
        self.done: dict[str, Result] = {}
        try:
            stored = json.loads(self.path.read_bytes())
            if stored["schema"] == _STATE:
                self.done = {item.task: item for item in map(Result.model_validate, stored["done"])}
                self.started = stored["started"]
        except (OSError, ValidationError, ValueError, KeyError, TypeError):
            self.done = {}  # there is none, or half of one: the night begins anew
        for other in folder.glob(".[0-9]*.state.json"):
            if other.name < self.path.name:
                other.unlink(missing_ok=True)

    def keep(self, result: Result, started: str) -> None:
        """One more is finished."""
        self.done[result.task] = result
        self.started = started
        document = {"schema": _STATE, "started": started, "done": _documents(list(self.done.values()))}
        write_text(self.path, json.dumps(document, indent=1) + "\n")


def _documents(results: Sequence[Result]) -> list[object]:
    return [item.model_dump(mode="json") for item in results]
