"""Contracts about imports: the atlas gives the same pairs of releases."""

from __future__ import annotations

import pytest

from knowngood.facts.atlas_store import atlas_folder
from knowngood.facts.broken_use_table import read_broken_uses
from knowngood.facts.contract_table import PairOutcome
from knowngood.failures.contract_files import read_contract_table


@pytest.mark.parametrize(
    ("contract", "caller", "target"),
    [
        ("trl-top-k-top-p-filtering", "trl", "transformers:top_k_top_p_filtering"),
        ("liger-qwen2", "liger-kernel", "transformers.models.qwen2.modeling_qwen2:QWEN2_INPUTS_DOCSTRING"),
        (
            "axolotl-llama-flash-attention-2",
            "axolotl",
            "transformers.models.llama.modeling_llama:LlamaFlashAttention2",
        ),
    ],
)
def test_the_atlas_gives_the_pairs_of_a_contract_about_an_import(contract: str, caller: str, target: str) -> None:
    table = read_broken_uses(caller, atlas_folder())
    callees = table.callees["transformers"]
    computed = {
        (mine, theirs)
        for use in table.uses["transformers"]
        if use.target == target and not use.keyword
        for place, mine in enumerate(table.releases)
        for other, theirs in enumerate(callees)
        if use.callers >> place & 1 and use.callees >> other & 1
    }
    judged = read_contract_table(atlas_folder().parent / "contracts" / f"{contract}.json")
    breaking = judged.affected(lambda verdict: verdict.outcome is PairOutcome.BREAKS)
    assert computed
    assert computed == {(mine, theirs) for mine, theirs in breaking if mine in table.releases and theirs in callees}
