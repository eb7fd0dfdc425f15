"""What can be known of a variable without running its program, and how operations carry that on. Pure."""

from __future__ import annotations

import ast
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol


@dataclass(frozen=True)
class Unknown:
    """Nothing is known."""


@dataclass(frozen=True)
class Constant:
    """A literal."""

    value: str | float | bool | None


@dataclass(frozen=True)
class Items:
    """A list or tuple of which each element stands for itself; `more`: there may be others behind."""

    values: tuple[Value, ...]
    more: bool = False


@dataclass(frozen=True)
class Map:
    """A dictionary with these keys; `more`: perhaps with others."""

    entries: tuple[tuple[str, Value], ...]
    more: bool = False


@dataclass(frozen=True)
class Reference:
    """Something that was imported, by its dotted name where it is defined."""

    name: str


Value = Unknown | Constant | Items | Map | Reference
State = dict[str, Value]
UNKNOWN = Unknown()
_PATHS = 32  # states that are kept apart


class Scope(Protocol):
    """What surrounds a function: imports, assumptions, the version of the callee."""

    def lookup(self, node: ast.Name | ast.Attribute, state: Mapping[str, Value]) -> Value: ...

    def imported(self, node: ast.Import | ast.ImportFrom) -> State: ...

    def compared(self, node: ast.Compare) -> bool | None: ...


def truth(value: Value) -> bool | None:
    """Whether a value counts as true; `None` when that is not known."""
    match value:
        case Constant(value=constant):
            return bool(constant)
        case Items(values=values, more=False):
            return bool(values)
        case Map(entries=entries, more=False):
            return bool(entries)
        case Items(values=kept) if kept:
            return True
        case Map(entries=known) if known:
            return True
    return None


def combined(op: ast.boolop, truths: Sequence[bool | None]) -> Value:
    """`and` and `or` of what is known of the operands."""
    decisive = isinstance(op, ast.Or)
    if decisive in truths:
        return Constant(decisive)
    return UNKNOWN if None in truths else Constant(not decisive)


_OPERATORS: Mapping[type[ast.cmpop], Any] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
}


def plain(value: Value) -> Any:
    """The Python value of constants and of sequences of them; `UNKNOWN` for anything else."""
    if isinstance(value, Constant):
        return value.value
    if isinstance(value, Items) and not value.more and all(isinstance(one, Constant) for one in value.values):
        return [plain(one) for one in value.values]
    return UNKNOWN


def compared(ops: Sequence[ast.cmpop], values: Sequence[Value]) -> Value:
    """A comparison of constants; anything that is something else is not `None` for certain."""
    if len(values) == 2 and values[1] == Constant(None) and isinstance(values[0], Items | Map | Reference):
        return Constant(isinstance(ops[0], ast.IsNot | ast.NotEq))
    decided = holds(ops, [plain(value) for value in values])
    return UNKNOWN if decided is None else Constant(decided)


def holds(ops: Sequence[ast.cmpop], values: Sequence[Any]) -> bool | None:
    """Whether a chain of comparisons holds; `None` when a value is not known or they cannot be compared."""
    if any(value is UNKNOWN for value in values):
        return None
    try:
        return all(_OPERATORS[type(op)](*pair) for op, pair in zip(ops, pairwise(values), strict=True))
    except TypeError:
        return None


def added(one: Value, other: Value) -> Value:
    """`one + other` of sequences."""
    return extended(one, other) if isinstance(one, Items) else UNKNOWN


def repeated(one: Value, op: ast.operator, other: Value) -> Value:
    """`[None] * 9`."""
    if isinstance(op, ast.Mult) and isinstance(one, Items) and isinstance(other, Constant) and not one.more:
        times = other.value
        return Items(one.values * times) if isinstance(times, int) and times <= 100 else Items((), more=True)
    return UNKNOWN


def extended(items: Items, more: Value) -> Items:
    """The sequence with the elements of another behind it."""
    if items.more:
        return items
    if isinstance(more, Items):
        return Items((*items.values, *more.values), more=more.more)
    return Items(items.values, more=True)


def merged(one: Value, other: Value) -> Value:
    """`{**one, **other}`."""
    if not isinstance(one, Map):
        return UNKNOWN
    if not isinstance(other, Map):
        return Map(one.entries, more=True)
    return Map(tuple({**dict(one.entries), **dict(other.entries)}.items()), more=one.more or other.more)


def stored(base: Value, key: Value, value: Value) -> Value:
    """`base` after `base[key] = value`."""
    if isinstance(base, Map):
        if isinstance(key, Constant) and isinstance(key.value, str):
            return Map(tuple({**dict(base.entries), key.value: value}.items()), more=base.more)
        return Map(base.entries, more=True)
    if isinstance(base, Items):
        return Items((UNKNOWN,) * len(base.values), more=base.more)
    return UNKNOWN


def part(base: Value, key: Value) -> Value:
    """`base[key]`."""
    if isinstance(base, Map) and isinstance(key, Constant):
        return dict(base.entries).get(str(key.value), UNKNOWN)
    if isinstance(base, Items) and isinstance(key, Constant) and isinstance(key.value, int) and not base.more:
        return base.values[key.value] if -len(base.values) <= key.value < len(base.values) else UNKNOWN
    return UNKNOWN


def parts(value: Value, count: int) -> Sequence[Value]:
    """What unpacking a value into so many names gives each."""
    if isinstance(value, Items) and not value.more and len(value.values) == count:
        return value.values
    return [UNKNOWN] * count


def arguments(parameters: ast.arguments, positional: Items, named: Map) -> State:
    """The variables at the start of a function that is called so."""
    names = [one.arg for one in (*parameters.posonlyargs, *parameters.args)]
    state: State = dict.fromkeys((*names, *(one.arg for one in parameters.kwonlyargs)), UNKNOWN)
    for default_name, default in zip(names[len(names) - len(parameters.defaults) :], parameters.defaults, strict=True):
        if isinstance(default, ast.Constant) and not positional.more and not named.more:
            state[default_name] = Constant(default.value) if not isinstance(default.value, bytes) else UNKNOWN  # type: ignore[arg-type]
    for keyword, default_value in zip(parameters.kwonlyargs, parameters.kw_defaults, strict=True):
        if isinstance(default_value, ast.Constant) and not named.more:
            state[keyword.arg] = Constant(default_value.value)  # type: ignore[arg-type]
    state |= dict(zip(names, positional.values, strict=False))
    state |= {key: value for key, value in named.entries if key in state}
    return state


def widened(before: State, after: State) -> State | None:
    """Where a loop begins again: sequences that its body made longer are open; `None` when it changed nothing."""
    wider = dict(after)
    changed = False
    for name, value in after.items():
        old = before.get(name)
        if isinstance(value, Items) and isinstance(old, Items) and len(value.values) != len(old.values):
            wider[name] = Items((), more=True)
            changed = True
        elif value != old and isinstance(value, Map | Items | Reference) and old is not None:
            changed = True
    return wider if changed else None


def joined(states: Sequence[State]) -> list[State]:
    """The states that differ in a sequence, mapping or name; constants in which they differ are forgotten."""
    kept = _grouped(states, (Items, Map, Reference))
    return kept if len(kept) <= _PATHS else _grouped(kept, (Map, Reference))


def _grouped(states: Sequence[State], apart: tuple[type, ...]) -> list[State]:
    if len(states) < 2:
        return list(states)
    groups: dict[frozenset[tuple[str, Value]], State] = {}
    for state in states:
        key = frozenset((name, value) for name, value in state.items() if isinstance(value, apart))
        known = groups.get(key)
        if known is None:
            groups[key] = state
        else:
            for name in known.keys() | state.keys():
                if known.get(name) != state.get(name):
                    known[name] = UNKNOWN
    return list(groups.values())
