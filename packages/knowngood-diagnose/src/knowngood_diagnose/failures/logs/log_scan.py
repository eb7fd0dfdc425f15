"""Read a log of any size once, in little memory, to find which signatures are in it and in which lines.

Of the lines of a block that differ only in numbers, one is split into words; and only where the words of a signature
are, the block is compared with it. A log is read as bytes: in any encoding, cut at any place, there is nothing to
decode and no error to raise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from knowngood.core.lazy_patterns import lazy_pattern
from knowngood_facts.compat.incident import Signature, normalize_log

BLOCK = 1 << 20
OVERLAP = 8 << 10
AROUND = 2_000
MOST_COMPARISONS = 40_000
"""The most comparisons in a whole log (the same near miss is compared once); one takes about 20 microseconds."""

MOST_STEPS = 1_000
"""The most occurrences of words that are visited in one block."""

_WORDS_ONLY = bytes(c if (chr(c).isalnum() and c < 128) or c == 95 else 32 for c in range(256))
_LINES = bytes.maketrans(b"\r", b"\n")
"""A progress bar is drawn again after each carriage return: each drawing counts as a line."""
_ANSI = lazy_pattern(rb"\x1b(?:\[[0-9;?]{0,20}[A-Za-z]|\][^\x07\x1b\n]{0,200}(?:\x07|\x1b\\))")
_DIGITS = b"0123456789"
_HTML = (
    (b"&nbsp;", b" "),
    (b"&#160;", b" "),
    (b"&#x27;", b"'"),
    (b"&#39;", b"'"),
    (b"&quot;", b'"'),
    (b"&#34;", b'"'),
    (b"&lt;", b"<"),
    (b"&gt;", b">"),
    (b"&amp;", b"&"),
)


class LogSource(Protocol):
    """A file opened for reading bytes."""

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes, none at the end of the file."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LogBlock:
    """A part of a log; it begins with the end of the part before."""

    raw: bytes
    fresh: int = 0
    """How many bytes of it the next block does not repeat."""

    @cached_property
    def text(self) -> bytes:
        """The block without colours, NULs (so that text in UTF-16 is read too) and escapes of HTML."""
        text = self.raw.replace(b"\0", b"") if b"\0" in self.raw else self.raw
        if b"&" in text:
            for escape, character in _HTML:
                text = text.replace(escape, character)
        return _ANSI.sub(b"", text) if b"\x1b" in text else text

    @cached_property
    def fresh_lines(self) -> int:
        """How many lines end in the part that the next block does not repeat."""
        return self.raw.count(b"\n", 0, self.fresh)

    @cached_property
    def distinct(self) -> bytes:
        """The lines of the block without digits, each once: what is in none of them is not in the block."""
        raw = self.raw.replace(b"\\n", b"\n") if b"\\n" in self.raw else self.raw  # JSON escapes the ends of lines
        return b"\n".join(frozenset(raw.translate(_LINES, _DIGITS + b"\0").split(b"\n")))

    def words(self) -> list[bytes]:
        """Return the words of the block without their digits, some of them more than once."""
        return LogBlock(raw=self.distinct).text.translate(_WORDS_ONLY).split()


def strip_digits(word: bytes) -> bytes:
    """Return a word without its digits: with them, nearly every line of a log would have words of its own."""
    return word.translate(None, _DIGITS)


WordIndex = Mapping[bytes, Sequence[tuple[int, str]]]
"""A word without its digits -> the signatures that have it: the number of each, and the word with its digits."""


def index_words(signatures: Iterable[Signature]) -> WordIndex:
    """Return the words of signatures, which are numbered in their order."""
    index: dict[bytes, list[tuple[int, str]]] = {}
    for number, signature in enumerate(signatures):
        for stripped, word in {strip_digits(word): word for word in signature.words}.items():
            index.setdefault(stripped, []).append((number, word.decode("latin-1")))
    return index


class LogReader(Protocol):
    """Something else that reads the blocks of a log while it is scanned."""

    @property
    def hints(self) -> frozenset[bytes]:
        """The words of which it needs to know whether a block may have them."""

    def feed(self, block: LogBlock, present: frozenset[bytes]) -> None:
        """Take the next block, and those of the hints that may be in it."""

    def finish(self) -> None:
        """Take note that the log has ended."""


@dataclass(kw_only=True)
class SignatureScan:
    """The search for signatures in one log."""

    signatures: Sequence[Signature]
    words: WordIndex | None = None
    """The words of the signatures, when they are known already; then only those that may be in the log are read."""
    lines_of: dict[int, int] = field(default_factory=dict)
    """Number of a signature -> the line in which it first appears."""
    texts_of: dict[int, bytes] = field(default_factory=dict)
    """Number of a signature -> the text before its line, and the beginning of the line."""
    starts_of: dict[int, str] = field(default_factory=dict)
    """Number of a signature -> its line."""
    lines: int = 0
    """The number of lines read so far."""
    _comparisons: int = 0
    _steps: int = 0
    _compared: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._index = index_words(self.signatures) if self.words is None else self.words

    def read(self, source: LogSource, *readers: LogReader) -> None:
        """Read a whole log, and pass each block to the readers."""
        hints = {strip_digits(hint): hint for reader in readers for hint in reader.hints}
        vocabulary = frozenset((*self._index, *hints))
        for block in _blocks(source):
            present = vocabulary.intersection(block.words())
            self._scan_block(block, present)
            present_hints = frozenset(hints[word] for word in present if word in hints)
            for reader in readers:
                reader.feed(block, present_hints)
            self.lines += block.fresh_lines
        for reader in readers:
            reader.finish()

    def _scan_block(self, block: LogBlock, present: frozenset[bytes]) -> None:
        self._steps = 0
        hits: dict[int, list[bytes]] = {}
        for key in present:
            for number, word in self._index.get(key, ()):
                hits.setdefault(number, []).append(word.encode("latin-1"))
        for number, words in hits.items():
            signature = self.signatures[number]
            if number not in self.lines_of and len(words) >= max(1, len(signature.words) - 1):
                at = self._find_in_block(block.text, number, max(words, key=_rarity))
                if at is not None:
                    line = block.text[block.text.rfind(b"\n", 0, at) + 1 : at + AROUND // 4].partition(b"\n")[0]
                    self.starts_of[number] = line.decode("utf-8", "replace")
                    self.texts_of[number] = block.text[max(0, at - 3 * AROUND) : at + AROUND // 4]
                    self.lines_of[number] = self.lines + block.text.count(b"\n", 0, at) + 1

    def _find_in_block(self, block: bytes, number: int, word: bytes) -> int | None:
        """The place of a signature in a block: first where its literal is, else (wrapped) near its rarest word."""
        signature = self.signatures[number]
        at, tries = block.find(signature.literal), 0
        while at >= 0 and tries < 20:
            if (place := self._compare(block, number, at)) is not None:
                return place
            at, tries = block.find(signature.literal, at + 1), tries + 1
        at = block.find(word)
        while at >= 0 and self._steps < MOST_STEPS:
            self._steps += 1
            if (place := self._compare(block, number, at)) is not None:
                return place
            at = block.find(word, at + 1)
        return None

    def _compare(self, block: bytes, number: int, at: int) -> int | None:
        near = block[max(0, at - 160) : at + 160].translate(None, _DIGITS)
        key = hash((number, near))
        if key in self._compared or self._comparisons >= MOST_COMPARISONS:
            return None
        self._compared.add(key)
        self._comparisons += 1
        start = _start(block, at)
        window = block[start : at + AROUND]
        signature = self.signatures[number]
        return start + _line_in(window, signature, at - start) if signature.search(normalize_log(window)) else None


def _rarity(word: bytes) -> tuple[int, bytes]:
    """A longer word is rarer; the word itself decides between equals, so that every run does the same."""
    return len(word), word


def _line_in(window: bytes, signature: Signature, word: int) -> int:
    """The place in `window` of the line with the signature, or of its word when it goes over several lines."""
    at = 0
    for line in window.splitlines(keepends=True):
        if signature.search(normalize_log(line)):
            return at
        at += len(line)
    return word


def _start(block: bytes, at: int) -> int:
    """Where a comparison begins: some lines before, at the beginning of a line if possible."""
    start = max(0, at - AROUND)
    line = block.find(b"\n", start, at)
    return line + 1 if start and line >= 0 else start


def _blocks(source: LogSource) -> Iterator[LogBlock]:
    """Yield the blocks of a log; each begins with the end of the one before."""
    tail = b""
    while True:
        data = source.read(BLOCK)
        raw = tail + data
        if not data:
            yield LogBlock(raw=raw, fresh=len(raw))
            return
        keep = min(OVERLAP, len(raw))
        yield LogBlock(raw=raw, fresh=len(raw) - keep)
        tail = raw[-keep:] if keep else b""
