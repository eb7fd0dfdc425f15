"""The words that readers of logs ask incidents for are there, with the fields that they are given."""

from __future__ import annotations

import ast
import string
from pathlib import Path

from knowngood_diagnose import failures
from knowngood_diagnose.failures.machines.memory_numbers import STAGES
from knowngood_diagnose.failures.machines.nccl_errors import OWN_WORDS
from knowngood_diagnose.failures.reason_readers import READERS
from knowngood_facts.compat.rule_files import load_incidents

FROM_TABLES: dict[str, set[str]] = {
    **{stage.name: set() for stage in STAGES},
    **{name: set(words.groupindex) for name, words in OWN_WORDS.items()},
}


def given_fields() -> dict[str, list[set[str]]]:
    """Variant -> the fields of each call of `tell` for it."""
    given = {name: [fields] for name, fields in FROM_TABLES.items()}
    for path in Path(failures.__file__).parent.rglob("*.py"):
        calls = (node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call))
        for call in calls:
            if not (isinstance(call.func, ast.Attribute) and call.func.attr == "tell"):
                continue
            if isinstance(name := call.args[0], ast.Constant):
                given.setdefault(str(name.value), []).append({str(keyword.arg) for keyword in call.keywords})
    return given


def fields_of(*texts: str) -> set[str]:
    return {field for text in texts for _, field, _, _ in string.Formatter().parse(text) if field}


def test_each_named_variant_is_told_with_the_fields_that_it_has():
    given = given_fields()
    told = set()
    for incident in load_incidents():
        named = [variant for variant in incident.variants if variant.name]
        assert not named or incident.narrowed_by in READERS, incident.id
        assert len({variant.name for variant in named}) == len(named), incident.id
        for variant in named:
            texts = (variant.title, variant.because, variant.component, *(fix.note for fix in variant.fix))
            wanted = fields_of(*texts) - {"because"}
            assert wanted in given.get(variant.name, []), f"{incident.id}: {variant.name} has the fields {wanted}"
            told.add(variant.name)
    assert given.keys() == told
