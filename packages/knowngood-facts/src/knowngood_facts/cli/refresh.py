"""`--refresh` of `check` and `pick`: what an answer lacks of releases' metadata is read from the index first."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from knowngood.core.local_files import FACTS_FOLDER, data_folder

if TYPE_CHECKING:
    import argparse

    from knowngood_facts.compat.knowledge import CompatKnowledge
    from knowngood_facts.compat.query import Query

_ROUNDS = 8
"""So many times what is read shows that more is needed; a new package requires others that are new too."""


def add_refresh_argument(parser: argparse.ArgumentParser) -> None:
    """Add `--refresh`, which reads from the package index before the question is answered."""
    parser.add_argument(
        "--refresh",
        action="store_true",
        help="first read from the index what the answer needs and nobody read (kept for this user)",
    )


def load_fitting_knowledge(request: Query, *, refresh: bool) -> tuple[CompatKnowledge, Query]:
    """Return what is known, with what this user refreshed; where `refresh` is set, what a request lacks is read first.

    The request comes back with a note of what was read, or that the index did not answer.
    """
    from knowngood_facts.compat import knowledge

    known = knowledge.load_knowledge(refreshed=True)
    if not refresh:
        return known, request
    from knowngood.cli.progress import report_progress
    from knowngood_facts.compat.check_answer import find_query_coverage
    from knowngood_facts.facts.broken_use_table import refreshed_names_folder
    from knowngood_facts.facts.metadata_harvest import refresh_metadata
    from knowngood_facts.facts.package_metadata import refreshed_folder
    from knowngood_facts.facts.release_names import read_pairs_of_releases

    folder = data_folder() / FACTS_FOLDER / "metadata"
    # Of a package without a pin, a newer release may be the one that is installed.
    due = [package.name for package in (*request.packages, *request.constraints) if not package.version]
    done: set[str] = set()
    new: dict[str, int] = {}
    failed = ""
    with report_progress("refresh") as notify:
        for _ in range(_ROUNDS):
            due += find_query_coverage(known.for_query(request), request).names_to_read
            due = [name for name in dict.fromkeys(due) if name not in done]
            if not due or failed:
                break
            report = refresh_metadata(due, folder=folder, own=refreshed_folder(), notify=notify)
            done |= set(due)
            for text in report.new:
                name = text.partition(" ")[0]
                new[name] = new.get(name, 0) + 1
            failed = next(iter(report.failed.values()), "") if report.unanswered else ""
            due = []
            known = knowledge.load_knowledge(refreshed=True)
        if not failed and (pairs := find_query_coverage(known.for_query(request), request).pairs_to_read):
            atlas = data_folder() / FACTS_FOLDER / "atlas"
            names = read_pairs_of_releases(pairs, shipped=atlas, own=refreshed_names_folder(), notify=notify)
            known = knowledge.load_knowledge(refreshed=True)
            new |= {f"the names in {release}": 1 for release in names.new}
            failed = names.failed.get("", "")
    read = ", ".join(f"{name} ({count} new)" for name, count in new.items())
    notes = [f"read from the index now: {read or 'nothing that is new'}"]
    notes += [f"{failed}; this is answered from what was read before"] if failed else []
    return known, replace(request, notes=(*request.notes, *notes))
