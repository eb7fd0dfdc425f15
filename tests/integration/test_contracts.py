"""Contracts against the real registry, with the releases on both sides of each boundary; ranged reads, about 15 s."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.version import Version

from knowngood.core import matrix
from knowngood.facts import contract_table
from knowngood.facts.contract_harvest import harvest_contracts
from knowngood.facts.contract_table import PairOutcome
from knowngood.index.package_index import SimpleIndex

pytestmark = pytest.mark.integration
ROOT = Path(__file__).resolve().parents[2]
SOFTCAP = "TypeError: {}() missing 1 required positional argument: 'softcap'"


@dataclass
class Few:
    """The registry, with these releases only."""

    index: SimpleIndex
    versions: dict[str, set[str]]

    @property
    def session(self):
        return self.index.session

    def files(self, project):
        return tuple(file for file in self.index.files(project) if str(file.version) in self.versions[project])


@pytest.fixture
def judged(tmp_path):
    def judge(name, **versions):
        floors = matrix.parse_floors((ROOT / "matrix.yaml").read_text(), "matrix.yaml")
        wanted = {package.replace("_", "-"): set(chosen) for package, chosen in versions.items()}
        report = harvest_contracts(
            {f"contracts/{name}.yaml": (ROOT / "contracts" / f"{name}.yaml").read_text()},
            folder=lambda _: tmp_path,
            floors={package: Version(floor) for package, floor in floors.items()},
            notify=lambda _: None,
            index=Few(SimpleIndex(), wanted),
            cache=tmp_path / "cache",
        )
        assert report.written == [name]
        table = contract_table.table_from_document(json.loads((tmp_path / f"{name}.json").read_text()))
        return {(caller, callee): (verdict.outcome, verdict.text) for caller, callee, verdict in table.pairs()}

    return judge


def test_xtuner_with_qwen2(judged):
    callees = ("4.38.2", "4.39.0", "4.42.4", "4.43.0", "4.44.2", "4.45.0", "4.47.1", "4.48.0")
    found = judged("xtuner-qwen2", xtuner=("0.1.23",), transformers=callees)
    refused, least, last, gone, gone_too, strange, strange_too, left = (found["0.1.23", name] for name in callees)
    assert refused[0] is PairOutcome.REFUSES
    assert least == last == (PairOutcome.WORKS, "")
    words = "AttributeError: 'Qwen2FlashAttention2' object has no attribute '_flash_attention_forward'"
    assert gone == gone_too == (PairOutcome.BREAKS, words)
    words = "TypeError: Qwen2RotaryEmbedding.forward() got an unexpected keyword argument 'seq_len'"
    assert strange == strange_too == (PairOutcome.BREAKS, words)
    assert left[0] is PairOutcome.NOT_CALLED


def test_transformer_engine_with_flash_attn(judged):
    callees = ("2.5.9.post1", "2.6.1", "2.6.2", "2.6.3", "2.7.0.post2")
    found = judged("transformer-engine-varlen-p2p", transformer_engine=("1.13.0", "2.1.0"), flash_attn=callees)
    works, forward, backward, backward_too, refused = (found["1.13.0", name] for name in callees)
    assert works == (PairOutcome.WORKS, "")
    assert forward == (PairOutcome.BREAKS, SOFTCAP.format("_flash_attn_varlen_forward"))
    assert backward == backward_too == (PairOutcome.BREAKS, SOFTCAP.format("_flash_attn_varlen_backward"))
    assert refused[0] is PairOutcome.REFUSES
    assert {found["2.1.0", name] for name in callees} == {(PairOutcome.WORKS, "")}
