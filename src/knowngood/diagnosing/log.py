"""Read a log of any size once, in little memory: which signatures stand in it and where, and what it says of versions.

Of the lines of a block that differ in numbers only one is split into words, and only where the words of a signature
stand is the block looked at closely. The log is bytes: whatever it is written in, however it is cut, there is nothing
to decode and nothing to raise.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from knowngood.diagnosing.signature import Signature, plain

BLOCK = 1 << 20
OVERLAP = 8 << 10
AROUND = 2_000
MOST_LOOKS = 40_000
"""Looks at near misses in a whole log (the same near miss is looked at once); a look takes some 20 microseconds."""

MOST_STEPS = 1_000
"""Appearances of words gone through in one block."""

_WORDS_ONLY = bytes(c if (chr(c).isalnum() and c < 128) or c == 95 else 32 for c in range(256))
_LINES = bytes.maketrans(b"\r", b"\n")
"""A bar that is drawn again and again is a line each time."""
_ANSI = re.compile(rb"\x1b(?:\[[0-9;?]{0,20}[A-Za-z]|\][^\x07\x1b\n]{0,200}(?:\x07|\x1b\\))")
_DIGITS = b"0123456789"


class Source(Protocol):
    """A binary file."""

    def read(self, size: int, /) -> bytes:
        """Up to `size` bytes, none at the end."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Block:
    """A part of a log, after the end of the part before."""

    raw: bytes
    fresh: int = 0
    """How many bytes of it will not be seen again."""

    @cached_property
    def text(self) -> bytes:
        """Without colours and NULs, so that text in UTF-16 is read too."""
        text = self.raw.replace(b"\0", b"") if b"\0" in self.raw else self.raw
        return _ANSI.sub(b"", text) if b"\x1b" in text else text

    def words(self) -> list[bytes]:
        """The words that stand in it, as `key` has them, some of them more than once."""
        lines = frozenset(self.raw.translate(_LINES, _DIGITS + b"\0").split(b"\n"))
        return Block(raw=b"\n".join(lines)).text.translate(_WORDS_ONLY).split()


def key(word: bytes) -> bytes:
    """What stands for a word where only its presence counts: numbers would make every line another one."""
    return word.translate(None, _DIGITS)


class Reader(Protocol):
    """What else reads along."""

    @property
    def hints(self) -> frozenset[bytes]:
        """Words of which it wants to know whether they may stand in a block."""

    def feed(self, block: Block, present: frozenset[bytes]) -> None:
        """The next block, and which of the hints may stand in it."""

    def finish(self) -> None:
        """There is no more."""


@dataclass(kw_only=True)
class Scan:
    """The state of one reading; `found` has the line of each signature's first appearance."""

    signatures: Sequence[Signature]
    found: dict[int, int] = field(default_factory=dict)
    lines: int = 0
    _looks: int = 0
    _steps: int = 0
    _seen: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._index: dict[bytes, dict[int, bytes]] = {}
        for number, signature in enumerate(self.signatures):
            for word in signature.words:
                self._index.setdefault(key(word), {})[number] = word

    def read(self, source: Source, *readers: Reader) -> None:
        """Read all of `source`."""
        hints = {key(hint): hint for reader in readers for hint in reader.hints}
        vocabulary = frozenset((*self._index, *hints))
        for block in _blocks(source):
            present = vocabulary.intersection(block.words())
            self._block(block, present)
            told = frozenset(hints[word] for word in present if word in hints)
            for reader in readers:
                reader.feed(block, told)
            self.lines += block.raw.count(b"\n", 0, block.fresh)
        for reader in readers:
            reader.finish()

    def _block(self, block: Block, present: frozenset[bytes]) -> None:
        self._steps = 0
        hits: dict[int, list[bytes]] = {}
        for found in present:
            for number, word in self._index.get(found, {}).items():
                hits.setdefault(number, []).append(word)
        for number, words in hits.items():
            signature = self.signatures[number]
            if number not in self.found and len(words) >= max(1, len(signature.words) - 1):
                at = self._place(block.text, number, max(words, key=_rarity))
                if at is not None:
                    self.found[number] = self.lines + block.text.count(b"\n", 0, at) + 1

    def _place(self, block: bytes, number: int, word: bytes) -> int | None:
        """Where a signature stands in a block: as it is written, else wrapped, near its rarest word."""
        signature = self.signatures[number]
        at, tries = block.find(signature.literal), 0
        while at >= 0 and tries < 20:
            if (place := self._look(block, number, at)) is not None:
                return place
            at, tries = block.find(signature.literal, at + 1), tries + 1
        at = block.find(word)
        while at >= 0 and self._steps < MOST_STEPS:
            self._steps += 1
            if (place := self._look(block, number, at)) is not None:
                return place
            at = block.find(word, at + 1)
        return None

    def _look(self, block: bytes, number: int, at: int) -> int | None:
        near = block[max(0, at - 160) : at + 160].translate(None, _DIGITS)
        key = hash((number, near))
        if key in self._seen or self._looks >= MOST_LOOKS:
            return None
        self._seen.add(key)
        self._looks += 1
        start = _start(block, at)
        window = block[start : at + AROUND]
        signature = self.signatures[number]
        return start + _line_in(window, signature, at - start) if signature.search(plain(window)) else None


def _rarity(word: bytes) -> tuple[int, bytes]:
    """The longer the rarer; of equal ones the same at every run."""
    return len(word), word


def _line_in(window: bytes, signature: Signature, word: int) -> int:
    """Where in `window` the line is that shows the signature; where its word is, when it goes over several lines."""
    at = 0
    for line in window.splitlines(keepends=True):
        if signature.search(plain(line)):
            return at
        at += len(line)
    return word


def _start(block: bytes, at: int) -> int:
    """Where the look begins: some lines before, and at the begin of one where there is one."""
    start = max(0, at - AROUND)
    line = block.find(b"\n", start, at)
    return line + 1 if start and line >= 0 else start


def _blocks(source: Source) -> Iterator[Block]:
    """The parts of a log, each after the end of the one before."""
    tail = b""
    while True:
        data = source.read(BLOCK)
        raw = tail + data
        if not data:
            yield Block(raw=raw, fresh=len(raw))
            return
        keep = min(OVERLAP, len(raw))
        yield Block(raw=raw, fresh=len(raw) - keep)
        tail = raw[-keep:] if keep else b""
