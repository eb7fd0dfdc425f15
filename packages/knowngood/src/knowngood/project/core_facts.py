"""`docker/facts.json`: the few facts that building needs, rendered from those that were harvested.

The distribution that harvests facts writes the file (`knowngood harvest` and `knowngood render`), and
`knowngood render --check` says when it is not what the facts give.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypedDict

from knowngood.core import local_files
from knowngood.core.data_files import load_json
from knowngood.core.errors import MissingError, UnknownError
from knowngood.core.matrix import MatrixFacts, TorchPins

CORE_FACTS_FILE = "docker/facts.json"
_REMEDY = "write it again with `knowngood render`"


class TorchRecord(TypedDict):
    """What the wheels of a torch release say; `None` where they do not say it."""

    cuda: str | None
    triton: str | None
    pythons: list[str]
    aarch64_cuda: str | None
    cxx11abi: bool | None
    cxx_minimum: int | None


class CoreFactsDocument(TypedDict):
    """The content of the file."""

    torch: dict[str, TorchRecord]
    releases: dict[str, list[str]]


@dataclass(frozen=True, kw_only=True)
class CoreFacts:
    """The facts that matrix.yaml is checked against, and that locking and building need."""

    torch: Mapping[str, TorchRecord]
    releases: Mapping[str, Sequence[str]]
    """Package -> its known releases, of the packages whose releases matrix.yaml names."""

    def render(self) -> str:
        """Return the text of the file."""
        return json.dumps(vars(self), indent=1) + "\n"


@cache
def load_core_facts(root: Path | None = None) -> CoreFacts:
    """Read the facts of this program, or of a folder that has such a file.

    Raises:
        MissingError: there is no such file.
        InputError: it is damaged.
    """
    path = (root or local_files.data_folder()) / CORE_FACTS_FILE
    try:
        document = load_json(path, CoreFactsDocument, remedy=_REMEDY, file=CORE_FACTS_FILE)
    except FileNotFoundError:
        raise MissingError(f"there is no {CORE_FACTS_FILE}; {_REMEDY}") from None
    return CoreFacts(torch=document["torch"], releases=document["releases"])


def load_matrix_facts(root: Path | None = None) -> MatrixFacts:
    """Return the facts that matrix.yaml is checked against; raises as `load_core_facts` does."""
    facts = load_core_facts(root)
    torch = {
        version: TorchPins(
            cuda=record["cuda"],
            triton=record["triton"],
            pythons=tuple(record["pythons"]),
            aarch64_cuda=record["aarch64_cuda"],
        )
        for version, record in facts.torch.items()
        if record["cuda"] and record["triton"] and record["pythons"]
    }
    return MatrixFacts(torch=torch, releases=lambda package: _as_list(facts.releases.get(package)))


def _as_list(releases: Sequence[str] | None) -> list[str] | None:
    return None if releases is None else list(releases)


def load_torch_cxx_minimum(torch: str) -> int | None:
    """Return the C++ standard that the headers of a torch release demand, 17 for C++17; `None` when no fact says so."""
    record = load_core_facts().torch.get(torch)
    return None if record is None else record["cxx_minimum"]


def load_torch_cxx11abi(torch: str) -> bool:
    """Return whether a torch release uses the C++11 ABI, as its binaries show.

    Raises `UnknownError` when no fact says so.
    """
    record = load_core_facts().torch.get(torch)
    if record is None or record["cxx11abi"] is None:
        raise UnknownError(f"no fact says which C++ ABI torch {torch} has; run `knowngood harvest torch`")
    return record["cxx11abi"]
