"""Read a log of any size once, in little memory: which signatures stand in it and where, and what it says of versions.

Each block is split into words, and only where the words of a signature stand is it looked at closely. The log is bytes:
whatever it is written in, however it is cut, there is nothing to decode and nothing to raise.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from knowngood.diagnose_signature import Signature, plain

BLOCK = 1 << 20
OVERLAP = 8 << 10
AROUND = 2_000
MOST_LOOKS = 40_000
"""Looks at near misses in a whole log (the same near miss is looked at once); a look takes some 20 microseconds."""

MOST_STEPS = 1_000
"""Appearances of words gone through in one block."""

_WORDS_ONLY = bytes(c if (chr(c).isalnum() and c < 128) or c == 95 else 32 for c in range(256))
_ANSI = re.compile(rb"\x1b(?:\[[0-9;?]{0,20}[A-Za-z]|\][^\x07\x1b\n]{0,200}(?:\x07|\x1b\\))")
_DIGITS = b"0123456789"


class Source(Protocol):
    """A binary file."""

    def read(self, size: int, /) -> bytes:
        """Up to `size` bytes, none at the end."""


class Reader(Protocol):
    """What else reads along."""

    @property
    def hints(self) -> frozenset[bytes]:
        """Words of which it wants to know whether they stand in a block."""

    def feed(self, block: bytes, present: frozenset[bytes]) -> None:
        """The next block, with the end of the one before it, and which of the hints stand in it."""

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
        self._index: dict[bytes, list[int]] = {}
        for number, signature in enumerate(self.signatures):
            for word in signature.words:
                self._index.setdefault(word, []).append(number)
        self._vocabulary = frozenset(self._index)

    def read(self, source: Source, *readers: Reader) -> None:
        """Read all of `source`."""
        vocabulary = self._vocabulary.union(*(reader.hints for reader in readers))
        for block, fresh in _blocks(source):
            present = vocabulary.intersection(block.translate(_WORDS_ONLY).split())
            self._block(block, present)
            for reader in readers:
                reader.feed(block, present)
            self.lines += block.count(b"\n", 0, fresh)
        for reader in readers:
            reader.finish()

    def _block(self, block: bytes, present: frozenset[bytes]) -> None:
        self._steps = 0
        hits: dict[int, list[bytes]] = {}
        for word in present:
            for number in self._index.get(word, ()):
                hits.setdefault(number, []).append(word)
        for number, words in hits.items():
            signature = self.signatures[number]
            if number not in self.found and len(words) >= max(1, len(signature.words) - 1):
                at = self._place(block, number, max(words, key=_rarity))
                if at is not None:
                    self.found[number] = self.lines + block.count(b"\n", 0, at) + 1

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


def _blocks(source: Source) -> Iterator[tuple[bytes, int]]:
    """Blocks without colours and NULs (so text in UTF-16 is read too), each after the end of the one before.

    With each, how much of it will not be seen again.
    """
    tail = b""
    while True:
        data = source.read(BLOCK)
        block = tail + data
        if b"\0" in data:
            block = block.replace(b"\0", b"")
        if b"\x1b" in block:
            block = _ANSI.sub(b"", block)
        if not data:
            yield block, len(block)
            return
        keep = min(OVERLAP, len(block))
        yield block, len(block) - keep
        tail = block[-keep:] if keep else b""
