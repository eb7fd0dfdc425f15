"""The suite's reading of TransformerEngine's calls against the incidents' ranges, on both sides of each boundary.

Ranged reads and four sdists, half a minute.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.version import Version

from knowngood.index.package_index import SimpleIndex
from knowngood.index.releases import open_artefact
from knowngood_facts.compat.incident import normalize_log
from knowngood_facts.compat.rule_files import load_incidents
from smoke_tests.framework_transformer_engine import bound

ROOT = Path(__file__).resolve().parents[4]

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
def test_the_suite_and_the_incidents_say_the_same(sources, engine, flash):
    versions = {"transformer-engine": engine, "flash-attn": flash}
    affecting = [
        incident
        for incident in load_incidents()
        if incident.id.startswith("transformer-engine-")
        and any(
            versions.keys() <= item.keys() and all(item[name].contains(version) for name, version in versions.items())
            for item in incident.affected
        )
    ]
    interface = sources[flash] / "flash_attn" / "flash_attn_interface.py"
    calls, wrong = bound(sources[engine] / "transformer_engine" / "pytorch", interface, flash)
    assert calls["_flash_attn_varlen_forward"] >= 5
    assert calls["_flash_attn_varlen_backward"] >= 5
    ring = [text.partition(": ")[2] for text in wrong if text.startswith(RING)]
    if not affecting:
        refused = engine == "1.9.0.post1" and flash in {"2.6.1", "2.6.3"}  # by its own gate
        assert refused or wrong == []
    else:
        assert any(
            signature.search(normalize_log(ring[0].encode()))
            for incident in affecting
            for signature in incident.signatures
        )
