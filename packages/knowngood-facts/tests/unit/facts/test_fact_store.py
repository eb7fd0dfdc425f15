import dataclasses
import json

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from knowngood.core.errors import UnknownError
from knowngood_facts.facts import fact_store
from knowngood_facts.facts.driver_reader import DriverFacts
from knowngood_facts.facts.fact_reader import find_readers
from knowngood_facts.facts.fact_store import FactFile
from knowngood_facts.facts.flash_attn_reader import FlashAttnFacts
from knowngood_facts.facts.framework_reader import TransformersFacts
from knowngood_facts.facts.kernel_reader import TritonFacts
from knowngood_facts.facts.torch_reader import TorchFacts

ALL = fact_store.list_packages()
READERS = find_readers()


def raw(package):
    return json.loads((fact_store.facts_folder() / f"{package}.json").read_text())


def test_every_package_has_facts():
    assert sorted(name for name, reader in READERS.items() if not getattr(reader, "folder", "")) == ALL


@pytest.mark.parametrize("package", ALL)
def test_every_fact_in_the_files_is_a_documented_field(package):
    fields = {field.name for field in dataclasses.fields(READERS[package].model)}
    for version, entry in raw(package)["releases"].items():
        assert set(entry["facts"]) <= fields, version
        assert not set(entry["unknown"]) & set(entry["facts"]), version


@pytest.mark.parametrize("package", ALL)
def test_files_are_as_the_reader_in_this_source_writes_them(package):
    document = raw(package)
    assert document["reader"] == READERS[package].revision
    assert document["regenerate"] == f"knowngood harvest {package}"
    versions = list(document["releases"])
    assert versions == sorted(versions, key=Version)


@pytest.mark.parametrize("package", ALL)
def test_no_reason_is_a_program_error_or_a_network_fault(package):
    for version, entry in raw(package)["releases"].items():
        assert not any("could not be understood" in reason for reason in entry["unknown"].values()), version
        assert "retry" not in entry, version


@pytest.mark.parametrize("package", ALL)
def test_no_addresses(package):
    assert "://" not in (fact_store.facts_folder() / f"{package}.json").read_text()


def test_loading_one_package_reads_no_other_file(monkeypatch):
    """Loading all takes some 20 ms; what `cells` and `doctor` need is the file that they ask for."""
    read = []
    load = fact_store.load_fact_document
    monkeypatch.setattr(fact_store, "load_fact_document", lambda path: read.append(path.name) or load(path))
    fact_store._read_releases.cache_clear()
    fact_store._load.cache_clear()
    fact_store.load_facts("drivers", DriverFacts)
    assert read == ["drivers.json"]


def test_a_package_is_read_once():
    assert fact_store.load_facts("torch", TorchFacts) is fact_store.load_facts("torch", TorchFacts)


def test_facts_cannot_be_changed():
    release = fact_store.load_facts("torch", TorchFacts)["2.11.0"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        release.facts.cuda = "1"
    with pytest.raises(TypeError):
        release.facts.sass[0] = "1"


def test_unknown_package_names_the_known_ones():
    with pytest.raises(
        UnknownError, match=r"no facts about tensorflow in .*; there are about .*drivers, flash-attn, .*torch"
    ):
        fact_store.load_facts("tensorflow", TorchFacts)


def test_folder_of_choice(tmp_path):
    FactFile(package="torch", reader=1).write(tmp_path)
    assert len(fact_store.load_facts("torch", TorchFacts, tmp_path)) == 0


def test_torch_pins_exist_among_the_facts_of_triton():
    known = {Version(version) for version in fact_store.load_facts("triton", TritonFacts)}
    for version, release in fact_store.load_facts("torch", TorchFacts).items():
        assert any(SpecifierSet(release.facts.triton_requires).filter(known)), version
        assert Version(release.facts.triton) in known, version


def test_every_cuda_of_torch_has_a_driver():
    drivers = fact_store.load_facts("drivers", DriverFacts)
    assert {release.facts.cuda for release in fact_store.load_facts("torch", TorchFacts).values()} <= set(drivers)


@pytest.mark.parametrize(
    ("version", "cuda", "abi", "sass"),
    [
        ("2.0.1", "11.7", False, "37 50 60 70 75 80 86"),
        ("2.6.0", "12.4", False, "50 60 70 75 80 86 90"),
        ("2.7.1", "12.6", True, "50 60 70 75 80 86 90"),
        ("2.8.0", "12.8", True, "70 75 80 86 90 100 120"),
        ("2.10.0", "12.8", True, "70 75 80 86 90 100 120"),
        ("2.11.0", "13.0", True, "75 80 86 90 100 120"),
    ],
)
def test_boundaries_of_torch(version, cuda, abi, sass):
    release = fact_store.load_facts("torch", TorchFacts)[version].facts
    assert (release.cuda, release.cxx11abi) == (cuda, abi)
    assert release.sass == tuple(sass.split())
    assert release.ptx == ()


def test_boundaries_of_flash_attn():
    known = fact_store.load_facts("flash-attn", FlashAttnFacts)
    name = "flash_attn.flash_attn_interface._flash_attn_varlen_backward"
    assert "softcap" not in known["2.5.9.post1"].facts.functions[name][0]
    assert "window_size, softcap, alibi_slopes" in known["2.6.0.post1"].facts.functions[name][0]
    assert known["2.6.3"].facts.functions["flash_attn.bert_padding.unpad_input"][1] == (4,)
    assert known["2.7.0.post2"].facts.functions["flash_attn.bert_padding.unpad_input"][1] == (5,)
    assert "90" not in known["2.2.4"].facts.sass
    rotary = "flash_attn.layers.rotary"
    assert known["2.1.1"].facts.needs[rotary] == ("rotary_emb",)
    assert known["2.1.2.post3"].facts.needs[rotary] == ("flash_attn.ops.triton.rotary",)
    assert "triton" in known["2.2.0"].facts.needs[rotary]
    assert not known["2.7.2.post1"].facts.newer_than_sm90
    assert known["2.7.3"].facts.newer_than_sm90


def test_boundaries_of_transformers():
    known = fact_store.load_facts("transformers", TransformersFacts)
    assert "flash_attention_4" not in known["5.3.0"].facts.attention
    assert "flash_attention_4" in known["5.4.0"].facts.attention
    assert known["4.57.6"].facts.flash_attn_minimum == "2.1.0"
    assert known["5.4.0"].facts.flash_attn_minimum == "2.3.3"
