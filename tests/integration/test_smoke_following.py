"""The suite's reading of TransformerEngine's calls against the contract's table, on both sides of each boundary.

Two programs that share no line follow the same published sources; ranged reads and four sdists, half a minute.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from packaging.version import Version

from knowngood.facts import contract_table
from knowngood.facts.contract_table import PairOutcome
from knowngood.facts.harvest_run import open_artefact
from knowngood.index.package_index import SimpleIndex

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from smoke_tests.framework_transformer_engine import bound  # noqa: E402

pytestmark = pytest.mark.integration
ENGINES = ("1.9.0.post1", "1.13.0", "2.1.0")
FLASH = ("2.5.6", "2.5.8", "2.6.1", "2.6.3")
RING = ("AttnFuncWithCP.", "AttnFuncWithCPAndKVP2P.")


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Version -> where the files lie, of both packages."""
    index = SimpleIndex()
    found = {}
    for project, versions in (("transformer-engine", ENGINES), ("flash-attn", FLASH)):
        for version in versions:
            folder = tmp_path_factory.mktemp(f"{project}-{version}")
            file = next(file for file in index.files(project) if file.version == Version(version))
            artefact = open_artefact(file, index, folder / "cache")
            for member in artefact.members:
                if member.endswith(".py") and member.startswith(("transformer_engine/pytorch/", "flash_attn/")):
                    path = folder / member
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(artefact.read(member))
            artefact.close()
            found[version] = folder
    return found


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("flash", FLASH)
def test_the_suite_and_the_contract_say_the_same(sources, engine, flash):
    table = json.loads((ROOT / "facts/contracts/transformer-engine-p2p.json").read_text())
    verdicts = {(str(one), str(other)): said for one, other, said in contract_table.table_from_document(table).pairs()}
    said = verdicts[engine, flash]
    interface = sources[flash] / "flash_attn" / "flash_attn_interface.py"
    calls, wrong = bound(sources[engine] / "transformer_engine" / "pytorch", interface, flash)
    assert calls["_flash_attn_varlen_forward"] >= 5
    assert calls["_flash_attn_varlen_backward"] >= 5
    ring = [text.partition(": ")[2] for text in wrong if text.startswith(RING)]
    if said.outcome is PairOutcome.REFUSES:  # by its own gate, and what it would call is not looked at
        assert flash in ("2.6.1", "2.6.3")
    elif said.outcome is PairOutcome.WORKS:
        assert wrong == []
    else:
        assert ring[0] == said.text
