"""Each line by which a variant shows itself gets the answer of that variant, with what stands in its slots."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from knowngood_facts.compat.rule_files import load_incidents

SAMPLES = {"name": "thing", "number": "7", "version": "1.2.3", "word": "/srv/place", "text": "what it says"}
LINES = [
    (incident.id, text) for incident in load_incidents() for variant in incident.variants for text in variant.shows
]


@pytest.mark.parametrize(("incident", "text"), LINES)
def test_a_shown_line_is_answered_with_its_slots_filled(
    answer: Callable[[str], dict[str, Any]], incident: str, text: str
) -> None:
    """The incident is among the answers, and no slot of the line's own is left in capitals."""
    slots = re.findall(r"\{((\w+?)\d?)\}", text)
    line = text.replace("*", "")
    for slot, shape in slots:
        line = line.replace(f"{{{slot}}}", SAMPLES[shape])
    found = {match["incident"]: match for match in answer(line + "\n")["matches"]}
    assert incident in found
    said = " ".join([found[incident]["title"], *(fix["note"] for fix in found[incident]["fix"])])
    assert not [slot for slot, _ in slots if re.search(rf"\b{slot.upper()}\b", said)]
