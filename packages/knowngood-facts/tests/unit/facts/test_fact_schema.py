"""A facts file is checked when it is read: schema, keys, types; what its readers record is what may be in it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import get_type_hints

import pytest

from knowngood.core.errors import InputError
from knowngood_facts.compat.factbook import FactFolder
from knowngood_facts.facts import fact_schema
from knowngood_facts.facts.fact_reader import find_readers
from knowngood_facts.facts.fact_schema import KnownFacts, KnownFlashAttnFacts, parse_fact_document
from knowngood_facts.facts.fact_store import load_fact_document

FACTS = Path(__file__).resolve().parents[3] / "facts"


@pytest.mark.parametrize("package", sorted(find_readers()))
def test_the_schema_repeats_the_models_of_the_readers(package):
    known = get_type_hints(KnownFlashAttnFacts if package == "flash-attn" else KnownFacts, include_extras=True)
    for name, hint in fact_schema.plain_hints(find_readers()[package].model).items():
        assert known[name] == hint, name


def test_every_known_fact_is_one_of_a_reader():
    names = {name for reader in find_readers().values() for name in fact_schema.plain_hints(reader.model)}
    assert {*get_type_hints(KnownFacts), *get_type_hints(KnownFlashAttnFacts)} == names


@pytest.mark.parametrize("path", [*sorted(FACTS.glob("*.json")), *sorted(FACTS.glob("lines/*.json"))], ids=str)
def test_the_committed_facts_are_sound(path):
    data = path.read_bytes()
    assert parse_fact_document(data, path) == json.loads(data) == load_fact_document(path)


@pytest.fixture
def damage(tmp_path):
    """Write facts/torch.json with a text replaced (or with new bytes), and return the message of its refusal."""

    def refuse(pattern: str, new: str) -> str:
        text = (FACTS / "torch.json").read_text(encoding="utf-8")
        (tmp_path / "torch.json").write_text(re.sub(pattern, new, text, count=1), encoding="utf-8")
        with pytest.raises(InputError) as raised:
            FactFolder(path=tmp_path).read_book()
        return str(raised.value)

    return refuse


@pytest.mark.parametrize(
    ("pattern", "new", "message"),
    [
        ("facts/1", "facts/2", "schema must be 'knowngood/facts/1', not 'knowngood/facts/2'"),
        ('"yanked": false', '"yanked": "no"', "releases[\"2.0.0\"].yanked must be true or false, not 'no'"),
        ('"yanked": false', '"yanked": false, "colour": 1', "unknown key 'colour' in releases[\"2.0.0\"]"),
        (
            '"cxx11abi": false',
            '"cxx12abi": false',
            "unknown key 'cxx12abi' in releases[\"2.0.0\"].facts; the nearest known one is",
        ),
        (r'"sass": \[[^]]*\]', '"sass": 70', 'releases["2.0.0"].facts.sass must be a list or null, not 70'),
        (r'"sass": \[', '"sass": [70, ', 'releases["2.0.0"].facts.sass[0] must be text, not 70'),
        (r'"triton_min_major": \d+', '"triton_min_major": ' + "9" * 5000, "a number of 5000 digits"),
        ('"2.0.0": {', '"two": {', "the key 'two' must be text like"),
        ('"2.0.1": {', '"2.0.0": {', "the key '2.0.0' is given twice; keep one of them"),
        (r'"releases": \{', '"releases": ', "not well-formed JSON"),
    ],
)
def test_a_damaged_file_of_facts_is_refused_with_its_place(damage, pattern, new, message):
    text = damage(pattern, new)
    assert message in text
    assert re.search(r"/torch\.json:\d+:\d+: ", text)
    assert "restore the file, or delete it and run `knowngood harvest torch`" in text
