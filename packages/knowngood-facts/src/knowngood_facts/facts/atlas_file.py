"""The file of one package's atlas: rows with the releases that have them, in compressed blocks that are read alone.

A row says what a module offers or uses. Which blocks have a word is computed once and kept in the cache folder.
"""

from __future__ import annotations

import contextlib
import json
import mmap
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NotRequired, TypedDict

from knowngood.core.data_files import read_data_bytes
from knowngood.core.errors import InputError, InputProblem
from knowngood.core.json_document import parse_json
from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.core.local_files import cache_folder, write_atomically

if TYPE_CHECKING:
    import re
    from pathlib import Path

READER_REVISION = 4
"""Raised when the rows of the same source change."""

DETAIL_LIMIT = 400
"""Longer details are cut or left out, in characters."""


class RowKind(StrEnum):
    """What a row of the atlas says."""

    MODULE = "m"
    """The module is there; the flags of the detail: `p` a package, `g` with `__getattr__` or other code that makes
    names which no row shows, `x` its source is missing or did not parse."""
    CLASS = "c"
    """A class; the detail has its bases as written, separated by commas."""
    FUNCTION = "f"
    """A function or method; the detail is its signature."""
    PROPERTY = "p"
    """A property or another descriptor made by a decorator."""
    VALUE = "v"
    """A variable of the module or the class. Of `__getattr__` the detail may be the class, as written, of the object
    that takes a module's place; what the class's own `__getattr__` asks of names are keys of it, as `*Fast`."""
    ATTRIBUTE = "a"
    """An attribute that a method assigns to `self`."""
    IMPORT = "i"
    """A name that is imported; the detail is the module, or `module:name`, with `?` behind it under `if` or `try`.
    It is empty for the standard library."""
    STAR = "s"
    """Everything public of another module; the detail is that module, with `?` as for an import."""
    EXPORT = "e"
    """A name that the module lists in `__all__`, whether or not it defines it; the detail is empty."""
    LAZY = "z"
    """A name that the module exports lazily; the detail is the module that has it."""
    LAZY_FOLDER = "d"
    """Everything that the modules below this folder list in `__all__` is exported lazily; the detail is the module."""
    KEY = "k"
    """A string key of a table or a value of an enumeration, as `TABLE[key]`."""
    WORDS = "w"
    """The deprecation's own words: the decorator as written."""
    CALL = "q"
    """A call of its own method that a class makes; the path is the method, the detail is the call's shape."""
    RETURNS = "r"
    """Of a function that returns tuples only: how many values they have, as `4,5`."""
    SOURCE = "t"
    """Of a function or variable that tells what is installed: its shortened source (see `guard_sources`)."""


@dataclass(frozen=True, slots=True, order=True)
class AtlasRow:
    """One thing that a module has."""

    path: str
    """The name inside the module: empty for the module itself, `Class.method`, `TABLE[key]`."""
    kind: RowKind
    detail: str = ""


@dataclass(frozen=True, slots=True, order=True)
class AtlasUse:
    """One use of another package by a module."""

    target: str
    """`module:name` as imported, or a module; with a call's shape after a space (see `use_collector`).
    `super:Class.method` is a method that a class of this module calls of its bases."""
    place: str
    """The function or class in which it stands, or empty when importing the module runs it."""
    guard: str
    """The guards around it, separated by ` & `: `try ImportError`, `if is_peft_available()`; empty without one.
    `except ImportError of a:b,c` is a handler that runs where one of these imports fails; `past x` is code behind an
    `if x` that raises or returns. Inside functions, conditions that ask neither for a version nor for whether something
    is there are left out."""


@dataclass(frozen=True, slots=True)
class ModuleRows:
    """What was read from one module."""

    rows: tuple[AtlasRow, ...]
    uses: tuple[AtlasUse, ...]


def fits_row(text: str) -> bool:
    """Return whether a text can stand in a row: it is printable and not too long."""
    return text.isprintable() and len(text) <= DETAIL_LIMIT


def render_intervals(mask: int, count: int) -> str:
    """Return `0-3,5,7-` for the bits of a mask; an interval that reaches the newest of `count` releases is open."""
    parts: list[str] = []
    place = 0
    while mask >> place:
        if not (mask >> place) & 1:
            place += 1
            continue
        end = place
        while (mask >> (end + 1)) & 1:
            end += 1
        parts.append(f"{place}-" if end == count - 1 else str(place) if end == place else f"{place}-{end}")
        place = end + 1
    return ",".join(parts)


def parse_intervals(text: str, count: int) -> int:
    """Return the mask of `0-3,5,7-`; raises `ValueError` for another text."""
    mask = 0
    for part in text.split(","):
        first, dash, last = part.partition("-")
        begin = int(first)
        end = begin if not dash else int(last) if last else count - 1
        mask |= ((1 << (end - begin + 1)) - 1) << begin
    return mask


_VERSION = 1
"""To be raised when the same file gives another index."""

ListWords = Callable[[], Iterable[Iterable[str]]]
"""Returns the words of each block of a file, the first block first."""


class BlockIndex:
    """The words of one file, each with the blocks that have it."""

    def __init__(self, content: bytes | mmap.mmap) -> None:
        self._content = content

    def find_blocks(self, word: str) -> list[int]:
        """Return the numbers of the blocks that have a word, sorted."""
        content, wanted = self._content, word.encode() + b"\t"
        low, high = 0, len(content)
        while low < high:
            start = content.rfind(b"\n", 0, (low + high) // 2) + 1
            end = content.find(b"\n", start) + 1
            if content[start : start + len(wanted)] == wanted:
                return [int(text) for text in content[start + len(wanted) : end].split()]
            if content[start:end] < wanted:
                low = end
            else:
                high = start
        return []


def open_block_index(path: Path, kind: str, list_words: ListWords) -> BlockIndex:
    """Open the index of a file; it is made first when the cache folder has none of the file as it is now.

    Args:
        path: the file.
        kind: a name for what counts as a word.
        list_words: reads the file, when the index has to be made.
    """
    state = path.stat()
    folder = cache_folder() / "atlas" / path.parent.name
    place = folder / f"{path.stem}.{kind}.{_VERSION}-{state.st_size}-{state.st_mtime_ns}"
    with contextlib.suppress(OSError, ValueError), place.open("rb") as file:
        return BlockIndex(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    content = _render_index(list_words())
    with contextlib.suppress(OSError):
        for old in folder.glob(f"{path.stem}.{kind}.*"):
            old.unlink(missing_ok=True)
        write_atomically(place, content)
    return BlockIndex(content)


def _render_index(words: Iterable[Iterable[str]]) -> bytes:
    blocks: dict[str, list[str]] = {}
    for number, block in enumerate(words):
        for word in block:
            blocks.setdefault(word, []).append(str(number))
    lines = (f"{word}\t{' '.join(numbers)}\n".encode() for word, numbers in blocks.items())
    return b"".join(sorted(lines))


SCHEMA = "knowngood/atlas/1"
_REMEDY = "restore it, or delete it and run `knowngood harvest --atlas`"
EXPORTS = "!"
"""With this and a name begins the list of the modules that export it."""

_BLOCK = 3 << 19  # characters of text in a block
_LEVEL = 19
_FIRST_WORDS = lazy_pattern(r"(?<=\n)\w+")
_WORDS = lazy_pattern(r"\w+")

Masks = dict[str, dict[str, int]]
"""Module -> row without releases (`path TAB kind TAB detail`) -> bits of the releases that have it."""


@dataclass
class AtlasTables:
    """Everything that is known of one package, as it is collected and written."""

    package: str
    root: str
    """The module below which its own modules lie, such as `trl`; other modules of its wheels are not read."""
    option: str = "--atlas"
    """The option of `harvest` that makes the file."""
    reader: int = 0
    """The revision of the reader that read its first releases; a newer one may have read what was added since."""
    releases: list[str] = field(default_factory=list)
    """Releases in the order of their versions; bit 0 of a mask is the first."""
    artefacts: dict[str, str] = field(default_factory=dict)
    """Release -> the file that was read."""
    failed: dict[str, str] = field(default_factory=dict)
    """Release -> why it could not be read; it is tried again at the next harvest."""
    sourceless: dict[str, str] = field(default_factory=dict)
    """Release -> the file that was read and has no Python sources of the package; it is not read again."""
    masks: Masks = field(default_factory=dict)

    def add_release(self, version: str, place: int, artefact: str, rows: Mapping[str, Iterable[str]]) -> None:
        """Add a release at its place in the order; masks of releases behind it move by one bit."""
        if place < len(self.releases):
            low = (1 << place) - 1
            moved = {}
            for table in self.masks.values():
                for row, mask in table.items():
                    if mask not in moved:
                        moved[mask] = (mask & low) | ((mask & ~low) << 1)
                    table[row] = moved[mask]
        self.releases.insert(place, version)
        self.artefacts[version] = artefact
        self.failed.pop(version, None)
        bit = 1 << place
        for module, lines in rows.items():
            table = self.masks.setdefault(module, {})
            for row in lines:
                table[row] = table.get(row, 0) | bit

    def render(self, level: int = _LEVEL) -> bytes:
        """Return the file's bytes; the same tables give the same bytes. `level` is that of zstd."""
        import zstandard  # only who reads a block pays for it: most logs need none

        shown: dict[int, str] = {}
        blocks: list[tuple[str, bytes]] = []
        lines: list[str] = []
        first, size = "", 0
        compressor = zstandard.ZstdCompressor(level=level, write_content_size=True)

        def finish() -> None:
            nonlocal lines, size
            if lines:
                blocks.append((first, compressor.compress("".join(lines).encode())))
            lines, size = [], 0

        masks = {**self.masks, **self._index_exports()}
        for module in sorted(masks):
            if not lines:
                first = module
            part = [f"#{module}\n"]
            for row, mask in sorted(masks[module].items()):
                if mask not in shown:
                    shown[mask] = render_intervals(mask, len(self.releases))
                part.append(f"{row}\t{shown[mask]}\n")
            lines += part
            size += sum(map(len, part))
            if size >= _BLOCK:
                finish()
        finish()
        header = {
            "schema": SCHEMA,
            "package": self.package,
            "regenerate": f"knowngood harvest {self.option} {self.package}",
            "reader": self.reader,
            "root": self.root,
            "releases": {version: self.artefacts[version] for version in self.releases},
            "failed": self.failed,
            "sourceless": self.sourceless,
            "blocks": [[name, len(content)] for name, content in blocks],
        }
        return json.dumps(header).encode() + b"\n" + b"".join(content for _, content in blocks)

    def _index_exports(self) -> Masks:
        """Return `!NAME` -> the modules that export it; nothing when no module exports a folder lazily."""
        index: Masks = {}
        if not any(row.startswith(f"*\t{RowKind.LAZY_FOLDER}\t") for table in self.masks.values() for row in table):
            return index
        for module, table in self.masks.items():
            for row, mask in table.items():
                name, _, rest = row.partition("\t")
                if rest == f"{RowKind.EXPORT}\t" and not module.startswith("@"):
                    index.setdefault(f"{EXPORTS}{name}", {})[f"{module}\t{RowKind.EXPORT}\t"] = mask
        return index

    def write(self, folder: Path, level: int = _LEVEL) -> None:
        """Replace the package's file in `folder`; a low `level` of zstd is fast, for a file that soon changes again."""
        self.write_as(folder / f"{self.package}.atlas", level)

    def write_as(self, path: Path, level: int = 3) -> None:
        """Replace a file, which need not be called like the package."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, self.render(level))


class AtlasHeader(TypedDict):
    """The first line of a file."""

    schema: Literal["knowngood/atlas/1"]
    package: str
    regenerate: str
    reader: int
    root: str
    releases: dict[str, str]
    failed: dict[str, str]
    sourceless: NotRequired[dict[str, str]]
    blocks: list[tuple[str, int]]


class AtlasFile:
    """A package's file, opened; blocks are read when they are asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        content = read_data_bytes(path)
        end = content.find(b"\n")
        header = parse_json(content[: max(end, 0)], str(path), AtlasHeader, remedy=_REMEDY)
        self.package = header["package"]
        self.reader = header["reader"]
        self.root = header["root"]
        """The package's top-level module."""
        self.artefacts = header["releases"]
        self.failed = header["failed"]
        self.sourceless = header.get("sourceless", {})
        self._names = [name for name, _ in header["blocks"]]
        sizes = [size for _, size in header["blocks"]]
        self.releases = list(self.artefacts)
        self._content = content
        self._offsets = [end + 1]
        for size in sizes:
            self._offsets.append(self._offsets[-1] + size)
        if self._offsets[-1] != len(content):
            raise self._damage("it is cut off")
        self._texts: dict[int, str] = {}
        self._sections: dict[int, Mapping[str, slice]] = {}
        self._masks: dict[str, int] = {}

    def rows(self, module: str) -> list[tuple[str, str, str, int]]:
        """Return (path, kind, detail, mask) of everything in a module; empty when no release has the module."""
        place = bisect_right(self._names, module) - 1
        section = self._find_sections(place).get(module) if place >= 0 else None
        return list(self._parse(self._block(place)[section])) if section else []

    def modules(self) -> Iterator[str]:
        """Yield the name of every module, sorted."""
        yield from (module for module, _ in self.sections())

    def sections(self) -> Iterator[tuple[str, str]]:
        """Yield the name of every module, sorted, with the text of its rows."""
        for place in range(len(self._names)):
            for module, section in self._find_sections(place).items():
                if not module.startswith(EXPORTS):
                    yield module, self._block(place)[section]

    def find_rows(self, part: str) -> Iterator[tuple[str, tuple[str, str, str, int]]]:
        """Yield module and row of every row whose line begins with `part`, such as `Qwen2Attention TAB c`."""
        word = _WORDS.match(part)
        is_whole = word is not None and word.end() < len(part)
        for place in self._first_words.find_blocks(word[0]) if word and is_whole else range(len(self._names)):
            text = self._block(place)
            start = text.find("\n" + part)
            while start >= 0:
                end = text.index("\n", start + 1)
                module = text.rfind("\n#", 0, start + 1)
                begin = module + 2 if module >= 0 else 1
                for row in self._parse(text[start + 1 : end + 1]):
                    yield text[begin : text.index("\n", begin)], row
                start = text.find("\n" + part, end)

    def search_rows(self, part: str) -> Iterator[tuple[str, tuple[str, str, str, int]]]:
        """Yield module and row of every row that has `part`, which begins and ends with whole words."""
        blocks = [set(self._words.find_blocks(word)) for word in dict.fromkeys(_WORDS.findall(part))]
        for place in sorted(set.intersection(*blocks)) if blocks else ():
            text = self._block(place)
            at = text.find(part)
            while at >= 0:
                start, end = text.rfind("\n", 0, at) + 1, text.index("\n", at)
                if not text.startswith("#", start):
                    begin = text.rfind("\n#", 0, start) + 2  # without one, the block's first line is the module's
                    for row in self._parse(text[start : end + 1]):
                        yield text[begin : text.index("\n", begin)], row
                at = text.find(part, end)

    @cached_property
    def _first_words(self) -> BlockIndex:
        """The blocks by the words with which rows begin."""
        return open_block_index(self.path, "first-words", lambda: self._list_words(_FIRST_WORDS))

    @cached_property
    def _words(self) -> BlockIndex:
        """The blocks by all words in rows."""
        return open_block_index(self.path, "words", lambda: self._list_words(_WORDS))

    def _list_words(self, pattern: re.Pattern[str]) -> Iterator[set[str]]:
        for place in range(len(self._names)):
            yield set(pattern.findall(self._block(place)))

    def tables(self) -> AtlasTables:
        """Return everything, to add releases to it."""
        tables = AtlasTables(
            package=self.package,
            root=self.root,
            reader=self.reader,
            releases=list(self.releases),
            artefacts=dict(self.artefacts),
            failed=dict(self.failed),
            sourceless=dict(self.sourceless),
        )
        for place in range(len(self._names)):
            table: dict[str, int] = {}
            for line in self._block(place).splitlines():
                if line.startswith(f"#{EXPORTS}"):
                    table = {}  # it follows from the other rows
                    continue
                if line.startswith("#"):
                    table = tables.masks.setdefault(line[1:], {})
                    continue
                row, _, interval = line.rpartition("\t")
                table[row] = self._mask_of(interval)
        return tables

    def _parse(self, text: str) -> Iterator[tuple[str, str, str, int]]:
        for line in text.splitlines():
            path, kind, detail, interval = line.split("\t")
            yield path, kind, detail, self._mask_of(interval)

    def _mask_of(self, interval: str) -> int:
        if interval not in self._masks:
            self._masks[interval] = parse_intervals(interval, len(self.releases))
        return self._masks[interval]

    def _block(self, place: int) -> str:
        if place not in self._texts:
            import zstandard

            content = self._content[self._offsets[place] : self._offsets[place + 1]]
            try:
                self._texts[place] = zstandard.ZstdDecompressor().decompress(content).decode()
            except (zstandard.ZstdError, UnicodeDecodeError) as error:
                raise self._damage(f"block {place}: {error}") from None
        return self._texts[place]

    def _find_sections(self, place: int) -> Mapping[str, slice]:
        """Return each module of a block with the part of its text that has its rows; found once, as many are read."""
        if place not in self._sections:
            sections, end = {}, -1
            for part in self._block(place).removeprefix("#").split("\n#"):
                module, begin = part.partition("\n")[0], end + 2
                end = begin + len(part)
                sections[module] = slice(begin + len(module) + 1, end + 1)
            self._sections[place] = sections
        return self._sections[place]

    def _damage(self, reason: str) -> InputError:
        text = f"this is not an atlas file ({reason}); {_REMEDY}"
        return InputError([InputProblem(file=str(self.path), line=1, column=1, text=text)])
