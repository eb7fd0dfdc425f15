"""Renders `docker/facts.json` from the harvested facts, for the program that builds without them."""

from __future__ import annotations

from pathlib import Path

from knowngood.core.local_files import FACTS_FOLDER
from knowngood.project.checkout import Project
from knowngood.project.core_facts import CORE_FACTS_FILE, CoreFacts, TorchRecord
from knowngood_facts.facts import fact_store


def compute_core_facts(folder: Path | None = None) -> CoreFacts:
    """Return the facts that building needs, from those in a folder, this program's own by default."""
    torch = {}
    for version, release in fact_store.read_releases("torch", folder).items():
        facts = release["facts"]
        torch[version] = TorchRecord(
            cuda=facts.get("cuda"),
            triton=facts.get("triton"),
            pythons=list(facts.get("pythons") or ()),
            aarch64_cuda=facts.get("aarch64_cuda"),
            cxx11abi=facts.get("cxx11abi"),
            cxx_minimum=facts.get("cxx_minimum"),
        )
    releases = {name: list(fact_store.read_releases(name, folder)) for name in fact_store.list_packages(folder)}
    return CoreFacts(torch=torch, releases=releases)


def render_core_facts(project: Project, files: dict[Path, str]) -> list[Path]:
    """Add `docker/facts.json` to the files of a project; the extension `knowngood.rendered_files`."""
    if (folder := project.root / FACTS_FOLDER).is_dir():
        files[project.root / CORE_FACTS_FILE] = compute_core_facts(folder).render()
    return []
