"""The stored table of one caller's uses that some releases of other packages break.

It is `facts/atlas/<caller>.uses.json.gz`, JSON as gzip: 0.3 MB for all callers, and 2.8 MB as text. `knowngood harvest
--atlas` computes it from the atlas of both packages, which takes seconds; `check`, `api --breaks` and the docs read it.
Releases are bits in the order of the lists in the file; there they are intervals of places, as in the atlas itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Literal, TypedDict

from knowngood.core import json_document
from knowngood.core.data_files import load_json_checked_once
from knowngood.core.local_files import cache_folder
from knowngood_facts.facts.atlas_file import READER_REVISION, parse_intervals, render_intervals

SCHEMA = "knowngood/broken-uses/3"
_REMEDY = "restore it, or make it again with `knowngood harvest --atlas`"
_SUFFIX = ".uses.json.gz"

_Row = tuple[str, str, str, str, str, str, str, str, str, str, str]
"""Module, target, failure, detail, place; the releases: callers, reached, callees, needed, exported; then exports."""


class _CalleeDocument(TypedDict):
    """What one callee breaks."""

    releases: list[str]
    uses: list[_Row]


class BrokenUseDocument(TypedDict):
    """The content of the file of one caller."""

    schema: Literal["knowngood/broken-uses/3"]
    package: str
    regenerate: str
    releases: list[str]
    callees: dict[str, _CalleeDocument]


class UseFailure(StrEnum):
    """What does not fit between a use and the callee."""

    NAME = "name"
    """The name or module is not there."""
    KEYWORD = "keyword"
    """A keyword is passed that the callee's signature lacks."""
    VALUES = "values"
    """The result is unpacked into another number of names than the callee returns values."""
    OVERRIDE = "override"
    """The callee passes a keyword to its own method, which the caller overrides without it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokenUse:
    """One use that some releases of the callee break."""

    module: str
    """The caller's module in which it stands."""
    target: str
    """`transformers:top_k_top_p_filtering`, as imported."""
    failure: UseFailure
    detail: str
    """The keyword, or into how many names the result is unpacked (`4`, `3*` when one takes the rest)."""
    place: str
    """The function in which it stands, or empty when importing the module fails."""
    callers: int
    """The caller's releases with this use, as bits."""
    reached: int
    """Those of them in which importing the caller's top-level module imports this one too."""
    callees: int
    """The callee's releases that break it, as bits."""
    needed: int = 0
    """The caller's releases in which a name that people install it for imports this module."""
    exported: int = 0
    """The caller's releases of which the top-level module exports names of this module lazily, or needs it."""
    exports: str = ""
    """Some of these names, as in `SFTTrainer, GRPOTrainer`."""

    @property
    def stopping(self) -> int:
        """The caller's releases that are of no use when this breaks."""
        return self.reached | self.needed


@dataclass(frozen=True, kw_only=True)
class BrokenUseTable:
    """The uses of other packages by one package that some of their releases break."""

    package: str
    releases: Sequence[str]
    """Those of the caller, oldest first."""
    callees: Mapping[str, Sequence[str]]
    """Package -> its releases, oldest first."""
    uses: Mapping[str, Sequence[BrokenUse]]
    """Package -> the uses that it breaks."""

    def render(self) -> str:
        """Return the text of the file, with one use in a line."""
        width = len(self.releases)
        parts = [
            f'"schema": "{SCHEMA}"',
            f'"package": {json.dumps(self.package)}',
            f'"regenerate": {json.dumps(f"knowngood harvest --atlas {self.package}")}',
            f'"releases": {json.dumps(list(self.releases))}',
        ]
        callees = []
        for package, releases in self.callees.items():
            rows = ",\n".join(
                json.dumps(
                    [
                        use.module,
                        use.target,
                        use.failure,
                        use.detail,
                        use.place,
                        render_intervals(use.callers, width),
                        render_intervals(use.reached, width),
                        render_intervals(use.callees, len(releases)),
                        render_intervals(use.needed, width),
                        render_intervals(use.exported, width),
                        use.exports,
                    ]
                )
                for use in self.uses[package]
            )
            callees.append(f'{json.dumps(package)}: {{"releases": {json.dumps(list(releases))}, "uses": [\n{rows}\n]}}')
        parts.append('"callees": {\n' + ",\n".join(callees) + "\n}")
        return "{\n" + ",\n".join(parts) + "\n}\n"


def refreshed_names_folder() -> Path:
    """Return the folder of this user for the names that `--refresh` reads; it is in the cache."""
    return cache_folder() / "facts" / f"names-{READER_REVISION}"


def releases_folder(own: Path) -> Path:
    """Return where that folder has the files of single releases."""
    return own / "releases"


def table_path(package: str, folder: Path) -> Path:
    """Return where the table of a package is kept."""
    return folder / f"{package}{_SUFFIX}"


def list_table_packages(folder: Path) -> list[str]:
    """Return the packages that have a table, sorted."""
    return sorted(path.name.removesuffix(_SUFFIX) for path in folder.glob(f"*{_SUFFIX}"))


@cache
def read_broken_uses(package: str, folder: Path) -> BrokenUseTable | None:
    """Return the table of a package, read once in a process; `None` when there is none.

    Raises:
        InputError: the file is damaged.
    """
    path = table_path(package, folder)
    if not path.exists():
        return None

    def parse(data: bytes) -> BrokenUseDocument:
        return json_document.parse_json(data, str(path), BrokenUseDocument, remedy=_REMEDY)

    modules = (Path(__file__), Path(json_document.__file__))
    document: BrokenUseDocument = load_json_checked_once(path, parse, modules, remedy=_REMEDY)
    return BrokenUseTable(
        package=document["package"],
        releases=document["releases"],
        callees={name: part["releases"] for name, part in document["callees"].items()},
        uses=_UsesOfCallees(document),
    )


class _UsesOfCallees(Mapping[str, Sequence[BrokenUse]]):
    """Package -> the uses that it breaks; they are made when the package is first asked for, as few ever are."""

    def __init__(self, document: BrokenUseDocument) -> None:
        self._callees = document["callees"]
        self._width = len(document["releases"])
        self._made: dict[str, list[BrokenUse]] = {}
        self._masks: dict[tuple[str, int], int] = {}

    def __len__(self) -> int:
        return len(self._callees)

    def __iter__(self) -> Iterator[str]:
        return iter(self._callees)

    def __getitem__(self, package: str) -> list[BrokenUse]:
        if package not in self._made:
            part = self._callees[package]
            self._made[package] = [self._use(row, len(part["releases"])) for row in part["uses"]]
        return self._made[package]

    def _use(self, row: _Row, count: int) -> BrokenUse:
        module, target, failure, detail, place, callers, reached, callees, needed, exported, exports = row
        return BrokenUse(
            module=module,
            target=target,
            failure=UseFailure(failure),
            detail=detail,
            place=place,
            callers=self._mask(callers, self._width),
            reached=self._mask(reached, self._width),
            callees=self._mask(callees, count),
            needed=self._mask(needed, self._width),
            exported=self._mask(exported, self._width),
            exports=exports,
        )

    def _mask(self, text: str, count: int) -> int:
        key = (text, count)
        if key not in self._masks:
            self._masks[key] = parse_intervals(text, count) if text else 0
        return self._masks[key]


def read_broken_use_tables(folder: Path) -> list[BrokenUseTable]:
    """Return every table in a folder, in the order of the packages' names; `InputError` when one is damaged."""
    tables = (read_broken_uses(package, folder) for package in list_table_packages(folder))
    return [table for table in tables if table is not None]
