"""Reads a few releases from the real registry again and compares them with the committed facts."""

import json

import pytest
from packaging.version import Version

from knowngood.index.package_index import SimpleIndex
from knowngood_facts.facts import fact_store
from knowngood_facts.facts.driver_reader import DriverFacts
from knowngood_facts.facts.harvest_run import harvest_facts
from knowngood_facts.facts.metadata_harvest import harvest_metadata
from knowngood_facts.facts.package_metadata import read_package_metadata

pytestmark = pytest.mark.integration

AGAIN = {
    "torch": ("2.6.0", "2.11.0"),
    "triton": ("3.6.0",),
    "transformers": ("4.44.2", "5.4.0"),
    "flash-attn": ("2.6.3", "2.7.0.post2"),
    "flash-attn-4": ("4.0.0b36",),
    "transformer-engine": ("1.13.0",),
    "transformer-engine-torch": ("1.13.0",),
    "transformer-engine-cu12": ("1.13.0",),
    "transformer-engine-cu13": ("2.9.0",),
    "xtuner": ("0.1.23",),
    "openrlhf": ("0.8.0",),
    "torchaudio": ("2.11.0",),
}


class Few:
    """The real registry, of whose releases only some are shown."""

    def __init__(self, versions):
        self.real = SimpleIndex()
        self.session = self.real.session
        self.versions = {Version(version) for version in versions}

    def files(self, project):
        return tuple(file for file in self.real.files(project) if file.version in self.versions)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("package", AGAIN)
def test_read_again_without_a_cache_the_facts_are_the_same(package, tmp_path):
    versions = AGAIN[package]
    report = harvest_facts(
        [package],
        folder=tmp_path,
        floors={},
        notify=print,
        index=Few(versions),
        cache=tmp_path / "cache",
    )
    assert report.exit_code == 0
    read = json.loads((tmp_path / f"{package}.json").read_text())["releases"]
    known = json.loads((fact_store.facts_folder() / f"{package}.json").read_text())["releases"]
    assert set(read) == set(versions)
    for version in versions:
        assert read[version] | {"read": ""} == known[version] | {"read": ""}


@pytest.mark.timeout(120)
def test_metadata_read_again_is_the_same(tmp_path):
    versions = ("3.4.0", "3.6.0")
    report = harvest_metadata(["triton"], folder=tmp_path, notify=print, index=Few(versions))
    assert (report.exit_code, len(report.new), report.unknown) == (0, 2, {})
    read, known = read_package_metadata("triton", tmp_path), read_package_metadata("triton")
    for version in versions:
        assert read.releases[version] == known.releases[version]
        assert read.releases[version].source == "wheel"


@pytest.mark.timeout(120)
def test_the_registry_offers_every_release_that_the_facts_know():
    index = SimpleIndex()
    for package in AGAIN:
        offered = {file.version for file in index.files(package)}
        gone = [version for version in fact_store.list_versions(package) if Version(version) not in offered]
        assert not gone, f"{package}: the registry has these no more: {gone}"


@pytest.mark.timeout(120)
def test_drivers_read_again(tmp_path):
    report = harvest_facts(["drivers"], folder=tmp_path, notify=print, floors={}, cache=tmp_path / "cache")
    assert report.exit_code == 0
    for cuda, release in fact_store.load_facts("drivers", DriverFacts, tmp_path).items():
        known = fact_store.load_facts("drivers", DriverFacts).get(cuda)
        assert known is None or known.facts == release.facts
