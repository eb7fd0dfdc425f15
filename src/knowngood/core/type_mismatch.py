"""How plain data differs from a type that it should have: unknown and missing keys, and values of another type.

It understands what msgspec checks, and says for each difference where it is, which msgspec does not. Only for data that
msgspec refused: it is slow. Pure.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

DataPath = tuple[str | int, ...]
"""Keys and indexes from the top of a document down to a value: `("layers", 0, "size")`."""


def describe_path(path: Sequence[str | int]) -> str:
    """Return a path as people write it: `releases["2.11.0"].facts.sass[0]`."""
    parts = (
        f"[{part}]" if isinstance(part, int) else f".{part}" if part.isidentifier() else f'["{part[:80]}"]'
        for part in path
    )
    return "".join(parts).removeprefix(".")


def find_mismatches(value: Any, content: Any, path: DataPath = ()) -> Iterator[tuple[DataPath, str, bool]]:
    """Yield path, description, and whether it is about the key, of all that makes a value none of this type."""
    origin, arguments = typing.get_origin(content), typing.get_args(content)
    if origin in (typing.Required, typing.NotRequired):
        yield from find_mismatches(value, arguments[0], path)
    elif origin in (typing.Union, types.UnionType):
        yield from _union_mismatches(value, arguments, path)
    elif typing.is_typeddict(content) and isinstance(value, dict):
        yield from _table_mismatches(value, content, path)
    elif origin is dict and isinstance(value, dict):
        for name, item in value.items():
            if not _is_instance(name, arguments[0]):
                yield (*path, name), f"the key {name[:80]!r} must be {_describe_type(arguments[0])}", True
            yield from find_mismatches(item, arguments[1], (*path, name))
    elif origin is list and isinstance(value, list):
        for index, item in enumerate(value):
            yield from find_mismatches(item, arguments[0], (*path, index))
    elif not _is_instance(value, content):
        place = describe_path(path) or "the file"
        yield path, f"{place} must be {_describe_type(content)}, not {_describe_value(value)}", False


def _table_mismatches(value: dict[str, Any], content: Any, path: DataPath) -> Iterator[tuple[DataPath, str, bool]]:
    hints = typing.get_type_hints(content, include_extras=True)
    parent = f" in {describe_path(path)}" if path else ""
    for name in value:
        if name not in hints:
            import difflib  # only here, because its import takes a while

            near = difflib.get_close_matches(name, hints, 1)
            hint = f"the nearest known one is {near[0]!r}" if near else f"the keys here are {', '.join(hints)}"
            yield (*path, name), f"unknown key {name[:80]!r}{parent}; {hint}", True
    for name, hint in hints.items():
        # With postponed annotations, the required keys include those that are marked as not required.
        optional = name in content.__optional_keys__ or typing.get_origin(hint) is typing.NotRequired
        if not optional and name not in value:
            yield path, f"the key {name!r} is missing{parent}", False
    for name, hint in hints.items():
        if name in value:
            yield from find_mismatches(value[name], hint, (*path, name))


def _union_mismatches(value: Any, arms: Sequence[Any], path: DataPath) -> Iterator[tuple[DataPath, str, bool]]:
    outcomes = [list(find_mismatches(value, arm, path)) for arm in arms]
    if all(outcomes):
        # The arm of the same kind as the value says it best.
        inner = [outcome for outcome in outcomes if any(place != path or key for place, _, key in outcome)]
        place = describe_path(path) or "the file"
        wanted = _describe_union(arms)
        yield from inner[0] if inner else [(path, f"{place} must be {wanted}, not {_describe_value(value)}", False)]


def _is_instance(value: Any, content: Any) -> bool:
    import msgspec

    try:
        msgspec.convert(value, content)
    except (msgspec.ValidationError, RecursionError):
        return False
    return True


def _describe_type(content: Any) -> str:
    origin, arguments = typing.get_origin(content), typing.get_args(content)
    if origin is Annotated:
        bounds = [f"{word} {limit}" for item in arguments[1:] for word, limit in _bounds(item)]
        return " ".join([_describe_type(arguments[0]), *bounds])
    if origin is typing.Literal:
        return " or ".join(repr(item) for item in arguments)
    if origin in (typing.Union, types.UnionType):
        return _describe_union(arguments)
    if origin in (typing.Required, typing.NotRequired):
        return _describe_type(arguments[0])
    if typing.is_typeddict(content):
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
