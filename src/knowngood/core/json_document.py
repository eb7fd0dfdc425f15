"""JSON that is checked against a type: keys, types, depth and duplicate keys, with the place of every defect.

msgspec decodes and checks in one pass, much faster than `json` alone decodes. It names no lines, and drops the keys
that a `TypedDict` does not have. So the keys are counted afterwards, and a text with a defect is looked at once more,
slowly, to say where it is. `json` and `msgspec` are imported in functions, for commands that need neither. Pure.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from knowngood.core.errors import InputError, InputProblem
from knowngood.core.lazy_patterns import lazy_pattern

if TYPE_CHECKING:
    import msgspec

T = TypeVar("T")

MAX_DEPTH = 40
"""The most levels of nesting in a document that is read."""

_MOST_PROBLEMS = 20
_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_TOKEN = lazy_pattern(r'"((?:[^"\\]|\\.)*)"(\s*:)?|([\[{])|([\]}])|(-?\d[\d.eE+-]*|NaN|-?Infinity)', re.DOTALL)
_LONG_NUMBER = lazy_pattern(rb"[0-9]{100}")
_SPACE = lazy_pattern(r"[ \t\r\n]*")


def parse_json(data: bytes, file: str, content: type[T], *, remedy: str) -> T:
    """Return the data in a JSON text, checked against a type; `file` is its name for messages.

    The content of a `TypedDict` is a plain dictionary. Raises `InputError` with every defect, each with the `remedy`.
    """
    import msgspec

    body = data.removeprefix(b"\xef\xbb\xbf")
    try:
        value = _decoder(content).decode(body)  # type: ignore[arg-type] # mypy: a class is hashable
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        problems = find_json_problems(body, file, content)
        raise _error(problems or [problem_at(file, "", 0, f"not valid: {error}")], remedy) from None
    # A key that is there twice, or that the type does not have, is missing in what was decoded.
    lost = body.count(b'":') != msgspec.json.encode(value).count(b'":')
    suspect = lost or _may_be_deep(body) or _LONG_NUMBER.search(body)
    if suspect and (problems := find_json_problems(body, file, content)):
        raise _error(problems, remedy)
    return value  # type: ignore[no-any-return] # the decoder's type is not known to mypy


def find_json_problems(data: bytes, file: str, content: Any) -> list[InputProblem]:
    """Return what is wrong with a JSON text as this type of content, in the order of the text."""
    from knowngood.core.data_files import decode_data_text

    try:
        text = decode_data_text(data, file)
    except InputError as error:
        return list(error.problems)
    if problems := [problem_at(file, text, at, words) for at, words in _structure_defects(text)]:
        return problems
    import json

    from knowngood.core.type_mismatch import find_mismatches

    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        return [problem_at(file, text, error.pos, f"not well-formed JSON: {error.msg[:1].lower()}{error.msg[1:]}")]
    return [
        problem_at(file, text, find_json_offset(text, path, key=key), words)
        for path, words, key in itertools.islice(find_mismatches(value, content), _MOST_PROBLEMS)
    ]


@cache
def _decoder(content: Any) -> msgspec.json.Decoder[Any]:
    import msgspec

    return msgspec.json.Decoder(content)


def _error(problems: Sequence[InputProblem], remedy: str) -> InputError:
    return InputError([replace(problem, text=f"{problem.text}; {remedy}") for problem in problems])


def problem_at(file: str, text: str, offset: int, words: str) -> InputProblem:
    """Return a problem with the line and column of an offset in a text."""
    line, column = text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)
    return InputProblem(file=file, line=line, column=column, text=words)


def _may_be_deep(data: bytes) -> bool:
    """Whether the brackets of a text, those in strings included, are not closed within the allowed depth."""
    brackets = data.translate(None, _BRACKETS)
    for _ in range(MAX_DEPTH):
        if not brackets:
            return False
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
    return bool(brackets)


def _structure_defects(text: str) -> list[tuple[int, str]]:
    """Return offset and description of each key that is there twice and each value that nothing could use.

    Where the text is too deep, that is the only one.
    """
    defects: list[tuple[int, str]] = []
    keys: list[set[str]] = []
    for match in _TOKEN.finditer(text):
        string, colon, opens, closes, number = match.groups()
        if opens:
            keys.append(set())
            if len(keys) > MAX_DEPTH:
                return [(match.start(), f"nested more than {MAX_DEPTH} deep")]
        elif closes:
            keys = keys[:-1]
        elif number:
            defects += [(match.start(), words) for words in _number_defects(number)]
        else:
            name = _unescape(string)
            if name is None:
                defects.append((match.start(), "this text has half of a surrogate pair"))
            elif colon and keys:
                if name in keys[-1]:
                    defects.append((match.start(), f"the key {name[:80]!r} is given twice; keep one of them"))
                keys[-1].add(name)
    return defects[:_MOST_PROBLEMS]


def _number_defects(number: str) -> list[str]:
    try:
        value = float(number)
    except ValueError:  # the parser says it better
        return []
    return [] if math.isfinite(value) else [f"{number} is no number that JSON can hold"]


def _unescape(string: str) -> str | None:
    """Return the value of a text between quotes, `None` when it is no Unicode; what is malformed stays as it is."""
    if "\\" not in string:
        return string
    import json

    try:
        value = str(json.loads(f'"{string}"', strict=False))
        value.encode()
    except UnicodeEncodeError:
        return None
    except ValueError:
        return string
    return value


def find_json_offset(text: str, path: Sequence[str | int], *, key: bool = False) -> int:
    """Return where the value at `path` (its key for `key`) begins in a well-formed text."""
    import json
    from json.decoder import scanstring  # type: ignore[attr-defined] # the stubs leave it out

    decoder = json.JSONDecoder()
    at = _skip_space(text, 0)
    for place, part in enumerate(path):
        last = place == len(path) - 1
        at = _skip_space(text, at + 1)
        index = 0
        while text[at] not in "]}":
            start = at
            name: str | int = index
            if isinstance(part, str):
                name, at = scanstring(text, at + 1)
                at = _skip_space(text, _skip_space(text, at) + 1)
            if name == part:
                at = start if key and last else at
                break
            at = _skip_space(text, decoder.raw_decode(text, at)[1])
            at = _skip_space(text, at + 1) if text[at] == "," else at
            index += 1
    return at


def _skip_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at
