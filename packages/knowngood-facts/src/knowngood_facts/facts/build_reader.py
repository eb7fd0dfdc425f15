"""The sdists of packages that are compiled against torch: which C++ standard their build passes to the compiler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from knowngood.index.artefact import UnreadableError, read_text_member
from knowngood.index.cxx_standard import find_passed_standard, is_build_file
from knowngood_facts.facts.fact_reader import FactReader, ReleaseReading, choose_sdist
from knowngood_facts.facts.fact_store import BUILDS_FOLDER

if TYPE_CHECKING:
    from knowngood.index.artefact import Artefact
    from knowngood.index.releases import IndexedRelease

_PACKAGES = ("causal-conv1d", "deepspeed", "gptqmodel", "grouped-gemm", "mamba-ssm", "nv-grouped-gemm")


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildFacts:
    """The sdist of a package that is compiled against the torch that is there."""

    cxx_standard: int | None
    """The highest C++ standard that its build files name, 17 for C++17; `None` where torch's own is taken."""
    compiled_when_used: bool | None
    """Whether operators are compiled when they are first used, and installing compiles nothing; its files."""


def read_build(artefact: Artefact, _: IndexedRelease, reading: ReleaseReading) -> None:
    """Record the facts of one release (see `BuildFacts`)."""
    reading.take("cxx_standard", lambda: _find_standard(artefact), optional=True)
    compiled_when_used = any(name.startswith("op_builder/") for name in artefact.members)
    reading.take("compiled_when_used", lambda: compiled_when_used or None, optional=True)


def read_passed_standard(artefact: Artefact) -> dict[str, Any]:
    """Return the C++ standard that the build passes, as the fact of another reader; `UnreadableError` without one."""
    standard = _find_standard(artefact)
    if standard is None:
        raise UnreadableError("its build files name no C++ standard")
    return {"cxx_standard": standard}


def _find_standard(artefact: Artefact) -> int | None:
    return find_passed_standard(read_text_member(artefact, name) for name in artefact.members if is_build_file(name))


READERS = tuple(
    FactReader(
        package=package, revision=1, model=BuildFacts, choose=choose_sdist, read=read_build, folder=BUILDS_FOLDER
    )
    for package in _PACKAGES
)
