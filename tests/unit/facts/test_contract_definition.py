"""Contracts as files: what they say, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from knowngood.core.errors import InputError
from knowngood.facts import contract_definition
from knowngood.facts.contract import ExpressionForm, parse_expression

ROOT = Path(__file__).resolve().parents[3]
GOOD = """\
title: A caller's use
caller: {package: caller, from: 1.0, file: caller/use.py}
callee: {package: callee, file: [callee/new.py, callee/old.py]}
inside: run
uses:
  - {expression: "function(...)", symbol: function}
"""


@pytest.mark.parametrize("path", sorted((ROOT / "contracts").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_contracts_of_the_project_are_read(path):
    contract = contract_definition.parse_contract(path.read_text(), f"contracts/{path.name}")
    assert contract.id == path.stem
    assert contract.uses


def test_a_contract_has_the_values_of_its_file():
    contract = contract_definition.parse_contract(GOOD, "contracts/small.yaml")
    assert (contract.id, contract.title) == ("small", "A caller's use")
    assert str(contract.caller.floor) == "1.0"
    assert contract.callee.files == ("callee/new.py", "callee/old.py")
    assert contract.uses[0].inside == ("run",)


@pytest.mark.parametrize(
    ("text", "form", "module", "name"),
    [
        ("self.rotary_emb(...)", ExpressionForm.CALL, "", "self.rotary_emb"),
        ("super().__init__(...)", ExpressionForm.CALL, "", "super().__init__"),
        ("self._forward", ExpressionForm.ATTRIBUTE, "", "self._forward"),
        ("from a.b import c", ExpressionForm.IMPORT, "a.b", "c"),
        ("import a.b", ExpressionForm.IMPORT, "a.b", ""),
    ],
)
def test_forms_of_an_expression(text, form, module, name):
    found = parse_expression(text)
    assert (found.form, found.module, found.name) == (form, module, name)


@pytest.mark.parametrize("text", ["f(", "f(x)", "f", "a + b", "from . import c", "from a import *", "import a, b"])
def test_text_that_is_no_expression_is_refused(text):
    with pytest.raises(ValueError, match="a contract's expression is a call"):
        parse_expression(text)


@pytest.mark.parametrize(
    ("old", "new", "place", "said"),
    [
        ("title: A caller's use", "titel: x", "1:1", "unknown key 'titel'"),
        ("title: A caller's use", "titel: x", "1:1", "the key 'title' is missing"),
        ("from: 1.0", "from: soon", "2:33", "'soon' is not a version"),
        ("package: callee", "package: Call_ee", "3:19", "write the package as the registry does: call-ee"),
        ('"function(...)"', '"function("', "6:18", "does not parse as Python"),
        (", symbol: function", "", "6:5", "the key 'symbol' is missing"),
        ("symbol: function", "symbol: f, saying: no", "6:5", "belong to raises"),
        ("symbol: function", "symbol: f, spared_by: [x]", "6:57", "spared_by is a list of"),
        ('  - {expression: "function(...)", symbol: function}', "  - function", "6:5", "a use is a mapping"),
        ("inside: run", "inside: {a: b}", "4:9", "inside must be a text or a list of texts"),
        ("inside: run", "given: run", "4:8", "given must be a mapping"),
        ("inside: run", "gate: {minimun: x}", "4:8", "unknown key 'minimun'"),
        ("inside: run", "reached_by: {name: x}", "4:13", "the key 'otherwise' is missing"),
    ],
)
def test_errors_have_line_and_column(old, new, place, said):
    with pytest.raises(InputError) as caught:
        contract_definition.parse_contract(GOOD.replace(old, new), "contracts/small.yaml")
    told = [str(problem) for problem in caught.value.problems]
    assert any(text.startswith(f"contracts/small.yaml:{place}: ") and said in text for text in told), told


def test_a_file_that_is_no_mapping_is_refused():
    with pytest.raises(InputError, match="a contract is a mapping"):
        contract_definition.parse_contract("- a", "contracts/small.yaml")
