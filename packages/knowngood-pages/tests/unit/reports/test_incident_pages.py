"""The pages of the incidents: what stands in them."""

from __future__ import annotations

from knowngood_facts.compat import incident_file
from knowngood_pages.incident_pages import (
    IncidentContext,
    load_known_releases,
    render_incident_page,
)

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


def test_a_page_contains_all_of_an_incident():
    incident = incident_file.parse_incident(TEXT, "thing.yaml")
    made = render_incident_page(
        incident, IncidentContext(releases=lambda name: ["1.0", "2.0", "2.1", "3.0", "4.0"] if name == "thing" else [])
    )
    for wanted in (
        "# A thing that was taken away",
        "call to *args of ... in <version> failed",
        "Only when the log has `some/other/module.py` too.",
        "silently",
        "| thing | `<3,>=2` | 2.0 to 2.1 |",
        "| other | `any` |  |",
        "| *or* | | |",
        "| thing | `>=4` | 4.0 |",
        "1. `thing<2`: the last that has it. Costs: a pin.",
        "2. do nothing.",
        "- The report was wrong.",
        "Stated by a maintainer in the thread.",
        "- owner/name#1",
    ):
        assert wanted in made


def test_a_page_states_conditions_and_how_it_is_known():
    more = "when: {context-parallel: '>1', attn: fa2|fa3}\nunless: {model: '!qwen2'}\n"
    more += "uses: {caller: app, target: 'thing:other'}\nreproduction: thing\n"
    incident = incident_file.parse_incident(TEXT.replace('other: "*"', 'other: ">=1"') + more, "thing.yaml")
    around = IncidentContext(
        releases=lambda _: ["1.0", "2.0", "2.1", "3.0"],
        reproduction=lambda name: [f"`knowngood reproduce {name}`: reproduced."],
    )
    made = render_incident_page(incident, around)
    for wanted in (
        "only when `context-parallel` is `>1` and `attn` is `fa2` or `fa3`, and not when `model` is other than `qwen2`",
        "knowngood check thing==2.1 other==3.0 --with context-parallel=2 --attn fa2",
        "`knowngood api --breaks app` lists its pairs",
        "### Reproduced\n\n`knowngood reproduce thing`: reproduced.",
    ):
        assert wanted in made
    assert "### Reproduced" not in render_incident_page(incident, IncidentContext(releases=lambda _: []))


def test_a_page_of_an_incident_without_a_log():
    text = TEXT[: TEXT.index("signatures:")] + TEXT[TEXT.index("affected:") :] + "when: {packing: 'true'}\n"
    made = render_incident_page(
        incident_file.parse_incident(text + "range_from: thread\n", "thing.yaml"),
        IncidentContext(releases=lambda _: ["2.0"]),
    )
    assert "No log shows it." in made
    assert "The range is that of the thread" in made
    assert "recognises" not in made


def test_a_package_without_facts_has_no_releases():
    assert load_known_releases("glibc") == ()
    assert "4.44.2" in load_known_releases("transformers")
