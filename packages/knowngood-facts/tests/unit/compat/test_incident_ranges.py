"""The ranges of incidents about uses of one package by another follow from the tables of the atlas."""

from __future__ import annotations

from dataclasses import replace

from packaging.specifiers import SpecifierSet

from knowngood_facts.compat.incident_ranges import find_range_drifts
from knowngood_facts.compat.rule_files import load_incidents
from knowngood_facts.facts.atlas_lookup import atlas_folder
from knowngood_facts.facts.broken_use_table import read_broken_uses


def drifts(*incidents) -> list[str]:
    return find_range_drifts(incidents, lambda name: read_broken_uses(name, atlas_folder()))


def test_the_ranges_of_this_checkout_are_those_of_its_atlas() -> None:
    known = [incident for incident in load_incidents() if incident.uses]
    assert known
    assert drifts(*known) == []


def test_another_range_is_told_with_both() -> None:
    incident = next(item for item in load_incidents() if item.id == "transformers-llama-flash-attention-2")
    other = replace(incident, affected=({"transformers": SpecifierSet(">=4.49")},))
    start = "incidents/transformers-llama-flash-attention-2.yaml: "
    text = "affected has transformers since 4.49.0, but its use by axolotl breaks since 4.48.0"
    assert drifts(other) == [start + text]
    assert incident.uses is not None
    unknown = replace(incident, uses=replace(incident.uses, target="transformers:nothing"))
    assert drifts(unknown) == [f"{start}no release breaks transformers:nothing in axolotl"]
