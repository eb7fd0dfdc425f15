"""The values of a guard's code while it is run by hand (`guard_program`), and what can be said of them. Pure."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from packaging.version import InvalidVersion, Version

SIGNS: Mapping[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "==": operator.eq,
    "!=": operator.ne,
}
"""The signs of comparisons of versions."""

_OPERATORS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.GtE: operator.ge,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.Lt: operator.lt,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.In: lambda one, many: one in many,
    ast.NotIn: lambda one, many: one not in many,
}
_METHODS = {
    str: {"upper", "lower", "strip", "split", "startswith", "endswith", "replace", "rpartition", "partition", "join"},
    frozenset: {"union"},
}
_BUILTINS: dict[str, Callable[..., Any]] = {
    "bool": bool,
    "str": str,
    "len": len,
    "tuple": tuple,
    "any": any,
    "all": all,
}
_VERSION_PARTS = frozenset({"base_version", "release", "major", "minor", "micro"})
_OLDEST_PYTHON, _NEWEST_PYTHON = (3, 10), (3, 13)


class _Unknown:
    """What the sources and the one release do not decide."""

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN = _Unknown()


class _Something:
    """A value of which only this is known: it is there, and true."""


SOMETHING = _Something()


@dataclass(frozen=True, slots=True)
class LibraryName:
    """An imported module of the callee, or a name inside it."""

    path: str


@dataclass(frozen=True, slots=True)
class CallerFunction:
    """A function of the caller."""

    module: str
    node: ast.FunctionDef


@dataclass(frozen=True, slots=True)
class PythonRelease:
    """`sys.version_info` of the Pythons that are in use."""

    def compare(self, op: ast.cmpop, other: object) -> Any:
        """Compare with a tuple; `UNKNOWN` where the oldest and the newest give different answers."""
        if not isinstance(other, tuple) or type(op) not in _OPERATORS:
            return UNKNOWN
        try:
            answers = {_OPERATORS[type(op)](release, other) for release in (_OLDEST_PYTHON, _NEWEST_PYTHON)}
        except TypeError:
            return UNKNOWN
        return answers.pop() if len(answers) == 1 else UNKNOWN


class GuardError(Exception):
    """The guard's code raises an exception here."""


@dataclass
class GuardFrame:
    """A function, or the statements that bind a variable of a module, while they run."""

    module: str
    names: dict[str, Any] = field(default_factory=dict)
    maybe: list[Any] = field(default_factory=list)
    """What was returned under a condition that is not decided."""
    may_raise: bool = False


def compare_values(left: Any, op: ast.cmpop, right: Any) -> Any:
    """Return the truth of `left op right`, or `UNKNOWN`."""
    if left is UNKNOWN or right is UNKNOWN:
        return UNKNOWN
    if isinstance(op, ast.Is | ast.IsNot):
        there = LibraryName | CallerFunction | _Something
        if isinstance(left, there) or isinstance(right, there):
            return isinstance(op, ast.IsNot) if left is None or right is None else UNKNOWN
        return (left is right) is isinstance(op, ast.Is)
    if isinstance(left, PythonRelease):
        return left.compare(op, right)
    try:
        return _OPERATORS[type(op)](left, right)
    except (TypeError, KeyError):
        return UNKNOWN


def merge_values(values: Sequence[Any]) -> Any:
    """Return the one value, or the one truth, that all have; else `UNKNOWN`."""
    if any(value is UNKNOWN for value in values):
        return UNKNOWN
    first = values[0]
    if all(type(value) is type(first) and value == first for value in values):
        return first
    truths = {bool(value) for value in values}
    return truths.pop() if len(truths) == 1 else UNKNOWN


def call_method(whole: Any, name: str, arguments: Sequence[Any]) -> Any:
    """Return what a method of a plain value gives, or `UNKNOWN` for any other method."""
    is_plain = any(isinstance(whole, kind) and name in methods for kind, methods in _METHODS.items())
    return _apply(getattr(whole, name), arguments) if is_plain else UNKNOWN


def call_builtin(name: str, arguments: Sequence[Any]) -> Any:
    """Return what a built-in function gives for plain values, or `UNKNOWN`."""
    return _apply(_BUILTINS[name], arguments) if name in _BUILTINS else UNKNOWN


def _apply(function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    if any(argument is UNKNOWN for argument in arguments):
        return UNKNOWN
    try:
        return function(*arguments)
    except (TypeError, ValueError):
        return UNKNOWN


def read_version_part(version: Version, name: str) -> Any:
    """Return an attribute of a version, such as `base_version`."""
    return getattr(version, name) if name in _VERSION_PARTS else UNKNOWN


def parse_version_value(text: object) -> Any:
    """Return the version in a text, or `UNKNOWN`; a version is returned as it is."""
    if isinstance(text, Version):
        return text
    try:
        return Version(text) if isinstance(text, str) else UNKNOWN
    except InvalidVersion:
        return UNKNOWN
