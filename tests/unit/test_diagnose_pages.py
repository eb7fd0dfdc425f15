"""The pages of the incidents: what stands in them, and that the committed ones are current."""

from __future__ import annotations

from pathlib import Path

import pytest

from knowngood import incidents
from knowngood.commands.diagnose import read
from knowngood.diagnose_pages import known_releases, page, pages

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "incidents"
TEXT = r"""
title: A thing that was taken away
kind: api-removed
severity: silent
component: thing
signatures:
  - "call to \\*args of * in {version} failed"
context:
  - "some/other/module.py"
affected:
  - {thing: ">=2,<3", other: "*"}
  - {thing: ">=4"}
because: It was taken away.
fix:
  - {change: {thing: "<2"}, note: the last that has it, cost: a pin}
  - {note: do nothing}
source: owner/name#1
confidence: maintainer
report_erred:
  - The report was wrong.
"""


def test_a_page_says_all_of_it():
    incident = incidents.parse(TEXT, "thing.yaml")
    made = page(incident, lambda name: ["1.0", "2.0", "2.1", "3.0", "4.0"] if name == "thing" else [])
    for wanted in (
        "# A thing that was taken away",
        "call to *args of ... in <version> failed",
        "Only when the log has `some/other/module.py` too.",
        "quietly",
        "| thing | `<3,>=2` | 2.0 to 2.1 |",
        "| other | `any` |  |",
        "| *or* | | |",
        "| thing | `>=4` | 4.0 |",
        "1. `thing<2`: the last that has it. Costs: a pin.",
        "2. do nothing.",
        "- The report was wrong.",
        "Said by a maintainer in the thread.",
        "- owner/name#1",
    ):
        assert wanted in made


def test_the_committed_pages_are_current():
    wanted = pages(read(), known_releases)
    assert sorted(path.name for path in FOLDER.iterdir()) == sorted(wanted)
    for name, text in wanted.items():
        assert (FOLDER / name).read_text(encoding="utf-8") == text, f"{name} is stale; run `knowngood render`"


@pytest.mark.parametrize("incident", read(), ids=lambda incident: incident.id)
def test_each_page_is_in_the_list(incident):
    assert f"({incident.id}.md)" in (FOLDER / "README.md").read_text(encoding="utf-8")


def test_what_the_facts_do_not_cover_has_no_releases():
    assert known_releases("glibc") == ()
    assert "4.44.2" in known_releases("transformers")
