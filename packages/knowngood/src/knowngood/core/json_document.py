"""JSON that is checked against a type: keys, types, depth and duplicate keys, with the place of every defect.

pydantic decodes and checks in one pass. It names no lines, and takes the last of two equal keys. So the keys are
counted afterwards, and a text with a defect is looked at once more, slowly, to say where it is. `json` and `pydantic`
are imported in functions, for commands that need neither. Pure.
"""

from __future__ import annotations

import functools
import math
import operator
import re
import types
import typing
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from knowngood.core.errors import InputError, InputProblem, KnowngoodError
from knowngood.core.lazy_patterns import lazy_pattern

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")

MAX_DEPTH = 40
"""The most levels of nesting in a document that is read."""

_MOST_PROBLEMS = 20
_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_TOKEN = lazy_pattern(r'"((?:[^"\\]|\\.)*)"(\s*:)?|([\[{])|([\]}])|(-?\d[\d.eE+-]*|NaN|-?Infinity)', re.DOTALL)
_LONG_NUMBER = lazy_pattern(rb"[0-9]{100}")
_SPACE = lazy_pattern(r"[ \t\r\n]*")


def parse_json(data: bytes, file: str, content: type[T], *, remedy: str, closed: bool = True) -> T:
    """Return the data in a JSON text, checked against a type; `file` is its name for messages.

    The content of a `TypedDict` is a plain dictionary; `closed` says that it has no keys but those of its type.
    Raises `InputError` with every defect, each with the `remedy`.
    """
    from pydantic import ValidationError
    from pydantic_core import from_json, to_json

    body = data.removeprefix(b"\xef\xbb\xbf")
    try:
        _type_adapter(content, closed=closed).validate_json(body)  # type: ignore[arg-type] # a class is hashable
    except ValidationError as error:
        reason = error.errors(include_url=False, include_input=False)[0]["msg"]
        problems = find_json_problems(body, file, content, closed=closed)
        raise _error(problems or [problem_at(file, "", 0, f"not valid: {reason}")], remedy) from None
    value = from_json(body)  # what was checked has its keys in the order of the type, not of the text
    written = to_json(value, inf_nan_mode="constants")
    # A key that is there twice is missing in what was decoded; JSON has no NaN and no Infinity.
    suspect = body.count(b'":') != written.count(b'":') or b"NaN" in written or b"Infinity" in written
    suspect = suspect or _may_be_deep(body) or bool(_LONG_NUMBER.search(body))
    if suspect and (problems := find_json_problems(body, file, content, closed=closed)):
        raise _error(problems, remedy)
    return value  # type: ignore[no-any-return] # it was checked


def parse_foreign_json(data: bytes, what: str, content: type[T]) -> T:
    """Return the data in a JSON text that another program wrote: a server's answer, a document that somebody signed.

    The checks are those of every data file (decision 0005): depth, types, and no key twice, because another reader
    may take the other one. Keys that nothing here knows are allowed, as the formats demand.

    Raises `KnowngoodError`, beginning with `what`, for what is no such document.
    """
    try:
        return parse_json(data, "", content, remedy="", closed=False)
    except InputError as error:
        first = error.problems[0]
        reason = first.text.removesuffix("; ")
        raise KnowngoodError(f"{what} (line {first.line}, column {first.column}: {reason})") from None


def find_json_problems(data: bytes, file: str, content: Any, *, closed: bool = True) -> list[InputProblem]:
    """Return what is wrong with a JSON text as this type of content, in the order of the text."""
    from knowngood.core.data_files import decode_data_text

    try:
        text = decode_data_text(data, file)
    except InputError as error:
        return list(error.problems)
    if problems := [problem_at(file, text, at, words) for at, words in _structure_defects(text)]:
        return problems
    import json

    from pydantic import ValidationError

    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        return [problem_at(file, text, error.pos, f"not well-formed JSON: {error.msg[:1].lower()}{error.msg[1:]}")]
    try:
        _type_adapter(content, closed=closed).validate_json(text)
    except ValidationError as error:
        defects = _describe_errors(error.errors(include_url=False, include_context=False), value, content)
    else:
        return []
    places = sorted((find_json_offset(text, path, key=key), words) for path, words, key in defects)
    return [problem_at(file, text, at, words) for at, words in dict.fromkeys(places)][:_MOST_PROBLEMS]


@functools.cache
def _type_adapter(content: Any, *, closed: bool) -> TypeAdapter[Any]:
    """Return pydantic's checker of a type, which converts nothing and, when `closed`, refuses unknown keys."""
    from pydantic import ConfigDict, TypeAdapter, with_config

    config = ConfigDict(extra="forbid" if closed else "ignore", strict=True)
    known = _pydantic_type(content)
    return (
        TypeAdapter(with_config(config)(known)) if typing.is_typeddict(content) else TypeAdapter(known, config=config)
    )


def _pydantic_type(content: Any) -> Any:
    """Return a type with the `TypedDict` of typing_extensions, which pydantic demands below Python 3.12.

    Its import takes 40 ms, so the modules with schemas, which `check` imports, use that of typing.
    """
    origin, arguments = typing.get_origin(content), typing.get_args(content)
    if origin in (dict, list):
        return origin[tuple(map(_pydantic_type, arguments))]
    if origin in (typing.Union, types.UnionType):
        return functools.reduce(operator.or_, map(_pydantic_type, arguments))
    if not typing.is_typeddict(content):
        return content
    import typing_extensions

    fields: dict[str, Any] = {}
    for name, hint in _keys_of(content).items():
        wrapped = _is_wrapper(typing.get_origin(hint))
        optional = name in content.__optional_keys__ or typing.get_origin(hint) is typing.NotRequired
        plain = _pydantic_type(typing.get_args(hint)[0] if wrapped else hint)
        fields[name] = typing_extensions.NotRequired[plain] if optional else plain
    typed_dict: Any = typing_extensions.TypedDict  # mypy knows only those whose keys are written out
    return typed_dict(content.__name__, fields)


DataPath = tuple[str | int, ...]
"""Keys and indexes from the top of a document down to a value: `("layers", 0, "size")`."""


def describe_path(path: Sequence[str | int]) -> str:
    """Return a path as people write it: `releases["2.11.0"].facts.sass[0]`."""
    parts = (
        f"[{part}]" if isinstance(part, int) else f".{part}" if part.isidentifier() else f'["{part[:80]}"]'
        for part in path
    )
    return "".join(parts).removeprefix(".")


def _describe_errors(errors: Sequence[Any], value: Any, content: Any) -> Iterator[tuple[DataPath, str, bool]]:
    """Yield path, description, and whether it is about the key, of each of pydantic's errors about a value."""
    placed = [(*_locate_error(value, error["loc"]), error) for error in errors]
    for path, union, error in placed:
        if union is None:
            yield _describe_error(path, error, value, content)
            continue
        # The arm of the same kind as the value says it best: its errors are about parts of the value.
        deeper = [item for item, other, it in placed if other == union and (item != union or _is_about_keys(it))]
        if not deeper:
            yield _describe_error(union, {"type": "union"}, value, content)
        elif path != union or _is_about_keys(error):
            yield _describe_error(path, error, value, content)


def _is_about_keys(error: Any) -> bool:
    return error["type"] in ("missing", "extra_forbidden") or error["loc"][-1] == "[key]"


def _locate_error(value: Any, loc: Sequence[str | int]) -> tuple[DataPath, DataPath | None]:
    """Return the path of an error in the data, and of the first value on it that may have several types.

    Besides keys and indexes, pydantic's `loc` names the arm of a union, and the key that is missing.
    """
    path: list[str | int] = []
    union: DataPath | None = None
    for place, part in enumerate(loc):
        has_part = (isinstance(value, dict) and part in value) or (isinstance(value, list) and isinstance(part, int))
        if has_part:
            value = value[part]
            path.append(part)
        elif part != "[key]" and (place < len(loc) - 1 or not isinstance(value, dict)):
            union = tuple(path) if union is None else union
    return tuple(path), union


def _describe_error(path: DataPath, error: Any, value: Any, content: Any) -> tuple[DataPath, str, bool]:
    kind = error["type"]
    if kind == "missing":
        return path, f"the key {error['loc'][-1]!r} is missing{_parent(path)}", False
    name = str(path[-1]) if path else ""
    if kind == "extra_forbidden":
        import difflib  # only here, because its import takes a while

        known = [key for table in _types_at(content, path[:-1]) for key in _keys_of(table)]
        near = difflib.get_close_matches(name, known, 1)
        hint = f"the nearest known one is {near[0]!r}" if near else f"the keys here are {', '.join(known)}"
        return path, f"unknown key {name[:80]!r}{_parent(path[:-1])}; {hint}", True
    if path and error.get("loc", ("",))[-1] == "[key]":
        keys = [
            typing.get_args(table)[0] for table in _types_at(content, path[:-1]) if typing.get_origin(table) is dict
        ]
        return path, f"the key {name[:80]!r} must be {_describe_union(keys)}", True
    for part in path:
        value = value[part]
    place = describe_path(path) or "the file"
    return path, f"{place} must be {_describe_union(_types_at(content, path))}, not {_describe_value(value)}", False


def _parent(path: DataPath) -> str:
    return f" in {describe_path(path)}" if path else ""


def _types_at(content: Any, path: DataPath) -> list[Any]:
    """Return the types that the value at a path may have; several where a type above or there is a union."""
    origin, arguments = typing.get_origin(content), typing.get_args(content)
    if _is_wrapper(origin):
        return _types_at(arguments[0], path)
    if origin in (typing.Union, types.UnionType):
        return [item for arm in arguments for item in _types_at(arm, path)]
    if not path:
        return [content]
    if origin in (dict, list):
        return _types_at(arguments[-1], path[1:])
    keys = _keys_of(content)
    return _types_at(keys[str(path[0])], path[1:]) if path[0] in keys else []


def _keys_of(content: Any) -> dict[str, Any]:
    """Return the keys of a `TypedDict` with their types; none for another type."""
    return typing.get_type_hints(content, include_extras=True) if typing.is_typeddict(content) else {}


def _is_wrapper(origin: Any) -> bool:
    return origin in (typing.Required, typing.NotRequired)


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


def _describe_type(content: Any) -> str:
    origin, arguments = typing.get_origin(content), typing.get_args(content)
    if origin is Annotated:
        metas = [meta for item in arguments[1:] for meta in getattr(item, "metadata", [item])]
        bounds = [f"{word} {limit}" for meta in metas for word, limit in _bounds(meta)]
        return " ".join([_describe_type(arguments[0]), *bounds])
    if origin is typing.Literal:
        return " or ".join(repr(item) for item in arguments)
    if origin in (typing.Union, types.UnionType):
        return _describe_union(arguments)
    if _is_wrapper(origin):
        return _describe_type(arguments[0])
    if _keys_of(content):
        return "an object"
    kind = origin or content
    return _TYPE_WORDS.get(kind) or str(getattr(kind, "__name__", kind))


def _describe_union(arms: Sequence[Any]) -> str:
    return " or ".join(dict.fromkeys(map(_describe_type, arms)))


_TYPE_WORDS = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    dict: "an object",
    list: "a list",
    tuple: "a list",
    type(None): "null",
}


def _bounds(meta: Any) -> Iterator[tuple[str, Any]]:
    for name, word in (("ge", "from"), ("le", "to"), ("min_length", "of at least"), ("max_length", "of at most")):
        if getattr(meta, name, None) is not None:
            yield word, getattr(meta, name)
    if getattr(meta, "pattern", None):
        yield "like", meta.pattern


def _describe_value(value: Any) -> str:
    if isinstance(value, dict | list):
        return _TYPE_WORDS[type(value)]
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
