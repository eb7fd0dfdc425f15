r"""Signatures: the language in which an incident describes what its failure looks like in a log.

A signature is the text as it appears in the log, on one line, with

- `*` for anything up to 200 characters of the same line (a path, a name, a number),
- `{version}`, `{number}` or `{name}` for a version, a number, or a part of an identifier,
- `\*` and `\{` for the characters themselves.

White space does not count, quotes of all kinds are equal, and lines that a terminal wrapped are joined again. There are
no alternatives and no repetition, so the search for any signature takes time linear in the length of the log. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from knowngood.core.lazy_patterns import lazy_pattern

GAP = 200
LEAST_LITERAL = 12
MOST_WILDCARDS = 6
MOST_PLACEHOLDERS = 4
COMMON = frozenset(
    b"Error error File line torch python packages module object attribute name import from with this that RuntimeError"
    b" ImportError AttributeError TypeError ValueError ModuleNotFoundError found version site dist modules".split()
)
"""Words that are in every log, so that they do not show where to look."""

_PLACEHOLDERS = {
    "version": rb"\d++(?:\.(?:\d++|(?:post|dev)\d++))*+(?:(?:rc|a|b)\d++)?+(?:\+(?:cu|cpu|rocm)[\d.]*+)?+",
    "number": rb"\d++",
    "name": rb"\w{1,60}",
}
_PLACE, _NUMBER = "\0", "\1"
"""What stands for a placeholder while words are looked for: one that may have letters, and one of digits."""
_REGEX = lazy_pattern(r"\\[dwsSWDb.]|\(\?|[)\]][+*?]|\.\*|\[\^")
_PARTS = lazy_pattern(r"\\([*{\\])|(\*)|\{(\w+)\}|([^\\*{]+|.)", re.DOTALL)
_WORD = lazy_pattern(rb"\w+", re.ASCII)
_QUOTES = bytes.maketrans(b'"`', b"''")
_CURLY = lazy_pattern(rb"\xe2\x80[\x98\x99\x9c\x9d]")
_SPACE = b" \t\f\v"


class SignatureError(ValueError):
    """The text cannot be a signature; the message says why and what to write instead."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Signature:
    """A compiled signature.

    It is searched for only in a part of a log that has all of its `words` but one, since one may be wrapped.
    """

    text: str
    words: tuple[bytes, ...]
    literal: bytes
    """The longest part without wildcards, as it appears in a log without wrapped lines; it is searched for first."""
    segments: tuple[bytes, ...]
    """Regular expressions for the parts between the wildcards: literals and bounded placeholders."""
    beside: tuple[Signature, ...] = ()
    """When not empty, one of these must be in the log too, because the text alone could come from something else."""

    def search(self, text: bytes) -> bool:
        """Whether the signature is in a text that `normalize_log` returned."""
        patterns = [re.compile(segment, re.ASCII) for segment in self.segments]
        for tries, first in enumerate(patterns[0].finditer(text)):
            if _follow(patterns[1:], text, first.end()):
                return True
            if tries == 50:
                break
        return False


def _follow(patterns: Sequence[re.Pattern[bytes]], text: bytes, at: int) -> bool:
    """Whether the patterns follow in `text` from `at` on, each after a gap within the line."""
    for pattern in patterns:
        match = pattern.search(text, at, min(len(text), at + GAP + len(pattern.pattern)))
        if match is None or b"\n" in text[at : match.start()]:
            return False
        at = match.end()
    return True


def compile_signature(text: str) -> Signature:
    """Compile the text of a signature; raises `SignatureError`."""
    if _REGEX.search(text):
        raise SignatureError(f"{text!r} looks like a regular expression; write the text as it appears, * for a gap")
    if "\n" in text:
        raise SignatureError("a signature is one line; make each line a signature or a context of its own")
    segments, spans, length, placeholders = [b""], [""], 0, 0
    for escaped, star, placeholder, plain_text in _PARTS.findall(text):
        if star:
            segments.append(b"")
            spans.append("")
        elif placeholder:
            if placeholder not in _PLACEHOLDERS:
                raise SignatureError(f"{{{placeholder}}} is not one of {', '.join(f'{{{n}}}' for n in _PLACEHOLDERS)}")
            placeholders += 1
            segments[-1] += _PLACEHOLDERS[placeholder]
            spans[-1] += _PLACE if placeholder == "name" else _NUMBER
        else:
            piece = escaped or plain_text
            literal_part = _without_spaces(piece.encode())
            length += len(literal_part)
            segments[-1] += re.escape(literal_part)
            spans[-1] += piece
    if length < LEAST_LITERAL:
        raise SignatureError(f"{text!r} has only {length} characters of its own; quote at least {LEAST_LITERAL}")
    if len(segments) - 1 > MOST_WILDCARDS or placeholders > MOST_PLACEHOLDERS:
        limits = f"{MOST_WILDCARDS} * or {MOST_PLACEHOLDERS} placeholders"
        raise SignatureError(f"{text!r} has more than {limits}; quote a shorter part")
    words = _words(spans)
    if not words:
        raise SignatureError(f"{text!r} has no whole word of four letters that would show where to look; quote more")
    literal = max((part for span in spans for part in re.split(f"[{_PLACE}{_NUMBER}]", span)), key=len).strip().encode()
    return Signature(text=text, words=words, literal=literal, segments=tuple(item for item in segments if item))


def _words(spans: list[str]) -> tuple[bytes, ...]:
    """Up to three of the longest words that no wildcard and no placeholder cuts; of four letters if none is longer."""
    whole: set[bytes] = set()
    for place, span in enumerate(spans):
        data = span.encode()
        for match in _WORD.finditer(data):
            cut_before = match.start() == 0 and place > 0
            cut_after = match.end() == len(data) and place < len(spans) - 1
            before, after = data[match.start() - 1 : match.start()], data[match.end() : match.end() + 1]
            # Words are compared without their digits, so digits behind one do not cut it.
            beyond = data[match.end() + 1 : match.end() + 2]
            cut_after = cut_after or after == b"\0" or (after == b"\1" and bool(_WORD.match(beyond)))
            if not (cut_before or cut_after or before in (b"\0", b"\1")):
                whole.add(match.group())
    rare = [word for word in whole if len(word) >= 4 and word not in COMMON and not word.isdigit()]
    rare = [word for word in rare if len(word) >= 5] or rare
    return tuple(sorted(rare, key=lambda word: (-len(word), word))[:3])


def _without_spaces(data: bytes) -> bytes:
    return _CURLY.sub(b"'", data).translate(_QUOTES, b" \t\r\f\v")


# What launchers, actors and loggers put before a line; each part is bounded.
_PREFIX = lazy_pattern(
    rb"(?:\s|[|>]|\xe2\x94[\x80-\xbf]|\xe2\x95[\x80-\xbf]"
    rb"|\[(?:default|rank|node|gpu|RANK)?\s?-?\d{1,5}(?:,\d{1,5})?\](?:<std(?:err|out)>)?:?"
    rb"|\([\w .-]{1,60}pid=\d{1,9}[^)\n]{0,60}\)"
    rb"|(?:ERROR|INFO|WARNING|DEBUG) [\d:. ,-]{5,30}(?: ?\[?[\w./]{1,40}:\d{1,5}\])?"
    rb"|\d{1,5}: )",
    re.ASCII,
)


def normalize_log(window: bytes) -> bytes:
    """Return a part of a log as signatures are compared with it: no spaces, one kind of quote, lines unwrapped."""
    text = window.replace(b"\\n", b"\n").replace(b'\\"', b'"').replace(b"\\'", b"'").replace(b"\r", b"\n")
    normalized: list[bytes] = []
    for line in text.split(b"\n"):
        rest = line
        for _ in range(6):
            prefix = _PREFIX.match(rest)
            if prefix is None:
                break
            rest = rest[prefix.end() :]
        normalized.append(_without_spaces(rest))
        normalized.append(b"" if len(line) >= 60 else b"\n")
    return b"".join(normalized)
