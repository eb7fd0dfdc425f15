"""The committed tables against the facts that other readers read from the same artefacts, exact at every boundary."""

from __future__ import annotations

import ast
import json
import re
from functools import cache
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from knowngood.facts import contract_table
from knowngood.facts.contract_table import PairOutcome
from knowngood.failures import contract_files

ROOT = Path(__file__).resolve().parents[3]
TABLES = contract_files.read_contract_tables(ROOT)
SOFTCAP = "TypeError: {}() missing 1 required positional argument: 'softcap'"


@cache
def releases(package):
    return json.loads((ROOT / "facts" / f"{package}.json").read_text())["releases"]


def runs(name, caller):
    """The runs of a caller's row: first, last, outcome, text."""
    table = TABLES[name]
    row = next(row for first, last, row in table.rows if caller in table.callers[slice(*_span(table, first, last))])
    return [(start, end, verdict.outcome, verdict.text) for start, end, verdict in row]


def _span(table, first, last):
    return table.callers.index(first), table.callers.index(last) + 1


def test_every_contract_has_its_table_and_every_incident_the_range_that_follows():
    texts = {f"contracts/{path.name}": path.read_text() for path in sorted((ROOT / "contracts").glob("*.yaml"))}
    assert contract_files.find_stale_contracts(ROOT, texts, lambda _: ROOT / "facts" / "contracts") == []


@pytest.mark.parametrize("name", sorted(TABLES))
def test_tables_have_every_release_of_the_facts_and_mark_the_withdrawn(name):
    table = TABLES[name]
    for package, versions in ((table.caller, table.callers), (table.callee, table.callees)):
        if (ROOT / "facts" / f"{package}.json").exists():
            known = releases(package)
            assert set(known) <= set(versions)
            marked = {version for one, version in table.yanked if one == package}
            assert {version for version in known if known[version]["yanked"]} == marked & set(known)
    assert len(list(table.pairs())) == len(table.callers) * len(table.callees)


@pytest.mark.parametrize("name", sorted(TABLES))
def test_no_pair_of_a_table_is_unknown(name):
    unknown = {pair for pair in TABLES[name].pairs() if pair[2].outcome is PairOutcome.UNKNOWN}
    assert not unknown


def test_xtuner_with_qwen2_has_four_boundaries():
    missing = "AttributeError: 'Qwen2FlashAttention2' object has no attribute '_flash_attention_forward'"
    strange = "TypeError: Qwen2RotaryEmbedding.forward() got an unexpected keyword argument 'seq_len'"
    row = runs("xtuner-qwen2", "0.1.23")
    assert [run[:3] for run in row] == [
        ("4.37.0", "4.38.2", PairOutcome.REFUSES),
        ("4.39.0", "4.42.4", PairOutcome.WORKS),
        ("4.43.0", "4.44.2", PairOutcome.BREAKS),
        ("4.45.0", "4.47.1", PairOutcome.BREAKS),
        ("4.48.0", TABLES["xtuner-qwen2"].callees[-1], PairOutcome.NOT_CALLED),
    ]
    assert [run[3] for run in row[2:4]] == [missing, strange]
    least = releases("xtuner")["0.1.23"]["facts"]["model_minimums"]["qwen2"]
    assert f">={least} " in row[0][3]
    assert "Qwen2FlashAttention2" not in {words for _, _, _, words in runs("xtuner-qwen2", "0.2.0")}


@pytest.mark.parametrize("name", ["transformer-engine-varlen-p2p", "transformer-engine-p2p"])
def test_transformer_engine_refuses_exactly_what_its_bounds_exclude(name):
    for caller, entry in releases("transformer-engine").items():
        facts = entry["facts"]
        if "flash_attn_maximum" not in facts:
            continue
        upper = "<=" if facts["flash_attn_maximum_included"] else "<"
        bounds = SpecifierSet(f">={facts['flash_attn_minimum']},{upper}{facts['flash_attn_maximum']}")
        for callee in TABLES[name].callees:
            verdict = TABLES[name].verdict(caller, callee)
            assert (verdict.outcome is PairOutcome.REFUSES) == (not bounds.contains(callee)), (caller, callee, verdict)


def needs(version, function, parameter):
    """Whether a flash-attn release's function has a parameter without a default."""
    signature = releases("flash-attn")[version]["facts"]["functions"][f"flash_attn.flash_attn_interface.{function}"][0]
    arguments = ast.parse(f"def f{signature}: ...").body[0].args
    required = arguments.args[: len(arguments.args) - len(arguments.defaults)]
    return parameter in {argument.arg for argument in required}


@pytest.mark.parametrize("caller", ["1.11.0", "1.12.0", "1.13.0"])
def test_transformer_engine_without_softcap_breaks_exactly_where_flash_attn_demands_it(caller):
    for start, end, outcome, text in runs("transformer-engine-varlen-p2p", caller):
        if outcome is PairOutcome.REFUSES:
            continue
        for callee in (start, end):
            forward = needs(callee, "_flash_attn_varlen_forward", "softcap")
            backward = needs(callee, "_flash_attn_varlen_backward", "softcap")
            function = "_flash_attn_varlen_forward" if forward else "_flash_attn_varlen_backward"
            assert text == (SOFTCAP.format(function) if forward or backward else ""), callee
    broken = [run[:2] for run in runs("transformer-engine-varlen-p2p", caller) if run[2] is PairOutcome.BREAKS]
    assert broken == [("2.6.0.post1", "2.6.1"), ("2.6.2", "2.6.3")]


def test_transformer_engine_1_9_does_not_pass_block_table():
    broken = [run for run in runs("transformer-engine-varlen-p2p", "1.9.0.post1") if run[2] is PairOutcome.BREAKS]
    assert [run[:2] for run in broken] == [("2.5.7", "2.5.8")]
    assert "'block_table'" in broken[0][3]
    assert needs("2.5.7", "_flash_attn_varlen_forward", "block_table")
    assert "block_table" not in str(
        releases("flash-attn")["2.5.6"]["facts"]["functions"][
            "flash_attn.flash_attn_interface._flash_attn_varlen_forward"
        ]
    )


@pytest.mark.parametrize(
    ("name", "caller", "takes"), [("transformers-unpad-input", "4.44.2", 4), ("openrlhf-unpad-input", "0.7.0", 5)]
)
def test_unpad_input_breaks_exactly_where_it_returns_another_number(name, caller, takes):
    for callee, entry in releases("flash-attn").items():
        returned = entry["facts"]["functions"]["flash_attn.bert_padding.unpad_input"][1]
        expected = PairOutcome.WORKS if returned == [takes] else PairOutcome.BREAKS
        assert TABLES[name].verdict(caller, callee).outcome is expected, callee


def test_transformers_accepts_further_values_from_4_49_on():
    rows = TABLES["transformers-unpad-input"].rows
    broken = [(first, last) for first, last, row in rows if any(v.outcome is PairOutcome.BREAKS for _, _, v in row)]
    assert broken == [("4.37.0", "4.48.3")]


def test_qwens_imports_fail_exactly_where_the_facts_miss_a_module():
    for callee, entry in releases("flash-attn").items():
        need = entry["facts"]["needs"]
        rotary = {"rotary_emb", "flash_attn.ops.triton.rotary"} & set(need.get("flash_attn.layers.rotary", ()))
        verdict = TABLES["qwen-rotary"].verdict("1.9.0", callee)
        assert verdict.outcome is (PairOutcome.REFUSES if rotary else PairOutcome.WORKS), callee
        norm = "dropout_layer_norm" in need.get("flash_attn.ops.rms_norm", ())
        verdict = TABLES["qwen-rms-norm"].verdict("1.9.0", callee)
        assert (verdict.outcome is PairOutcome.REFUSES) == norm, callee


def test_the_padding_check_is_in_two_ranges_of_transformers():
    raising = [
        run[:2]
        for run in runs("trl-grpo-qwen2-padding", "0.16.0")
        if run[2] is PairOutcome.BREAKS and "padding_side" in run[3]
    ]
    assert raising == [("4.37.0", "4.41.2"), ("4.49.0", "4.52.4")]
    assert {run[2] for run in runs("trl-grpo-qwen2-padding", "0.22.0")} == {PairOutcome.WORKS}
    spared = [run[:2] for run in runs("openrlhf-qwen2-padding", "0.5.0") if "use_cache = False" in run[3]]
    assert spared == raising


def blocks(kind):
    text = (ROOT / "docs" / "contracts.md").read_text()
    return dict(re.findall(rf"<!-- {kind}: ([a-z0-9-]+) -->\n```\w+\n(.*?)```", text, re.DOTALL))


def test_the_worked_example_is_a_contract_and_prints_what_the_page_shows():
    (name, text), *_ = blocks("contract").items()
    assert (ROOT / "contracts" / f"{name}.yaml").read_text() == text
    assert blocks("table") == {name: contract_table.render_table_text(TABLES[name]) + "\n"}
