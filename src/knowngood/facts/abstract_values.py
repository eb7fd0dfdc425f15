"""What can be known about a variable without running its program, and what operations do to it. Pure."""

from __future__ import annotations

import ast
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol


@dataclass(frozen=True)
class UnknownValue:
    """A value about which nothing is known."""


@dataclass(frozen=True)
class ConstantValue:
    """A value that a literal gives."""

    value: str | float | bool | None


@dataclass(frozen=True)
class SequenceValue:
    """A list or tuple with these elements; `more`: there may be others after them."""

    values: tuple[Value, ...]
    more: bool = False


@dataclass(frozen=True)
class MappingValue:
    """A dictionary with these keys; `more`: there may be others."""

    entries: tuple[tuple[str, Value], ...]
    more: bool = False


@dataclass(frozen=True)
class ImportedValue:
    """Something imported, by its dotted name in the module that defines it."""

    name: str


Value = UnknownValue | ConstantValue | SequenceValue | MappingValue | ImportedValue
State = dict[str, Value]
UNKNOWN = UnknownValue()
_PATHS = 32  # the most states that are kept apart


class WalkScope(Protocol):
    """The surroundings of a function: imports, assumptions, the version of the callee."""

    def lookup(self, node: ast.Name | ast.Attribute, state: Mapping[str, Value]) -> Value: ...

    def imported(self, node: ast.Import | ast.ImportFrom) -> State: ...

    def compared(self, node: ast.Compare) -> bool | None: ...


def truth_of(value: Value) -> bool | None:
    """Return whether a value is true in a test; `None` when that is not known."""
    match value:
        case ConstantValue(value=constant):
            return bool(constant)
        case SequenceValue(values=values, more=False):
            return bool(values)
        case MappingValue(entries=entries, more=False):
            return bool(entries)
        case SequenceValue(values=kept) if kept:
            return True
        case MappingValue(entries=known) if known:
            return True
    return None


def combine_truths(op: ast.boolop, truths: Sequence[bool | None]) -> Value:
    """Return the value of `and` or `or` from what is known about the operands."""
    decisive = isinstance(op, ast.Or)
    if decisive in truths:
        return ConstantValue(decisive)
    return UNKNOWN if None in truths else ConstantValue(not decisive)


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


def python_value(value: Value) -> Any:
    """Return the Python value of constants and of sequences of them; `UNKNOWN` for anything else."""
    if isinstance(value, ConstantValue):
        return value.value
    if (
        isinstance(value, SequenceValue)
        and not value.more
        and all(isinstance(one, ConstantValue) for one in value.values)
    ):
        return [python_value(one) for one in value.values]
    return UNKNOWN


def compare_values(ops: Sequence[ast.cmpop], values: Sequence[Value]) -> Value:
    """Return the value of a comparison; a sequence, mapping or imported name is certainly not `None`."""
    if (
        len(values) == 2
        and values[1] == ConstantValue(None)
        and isinstance(values[0], SequenceValue | MappingValue | ImportedValue)
    ):
        return ConstantValue(isinstance(ops[0], ast.IsNot | ast.NotEq))
    decided = comparison_holds(ops, [python_value(value) for value in values])
    return UNKNOWN if decided is None else ConstantValue(decided)


def comparison_holds(ops: Sequence[ast.cmpop], values: Sequence[Any]) -> bool | None:
    """Return whether a chain of comparisons is true; `None` when a value is unknown or they cannot be compared."""
    if any(value is UNKNOWN for value in values):
        return None
    try:
        return all(_OPERATORS[type(op)](*pair) for op, pair in zip(ops, pairwise(values), strict=True))
    except TypeError:
        return None


def add_values(one: Value, other: Value) -> Value:
    """Return the value of `one + other` for sequences."""
    return extend_sequence(one, other) if isinstance(one, SequenceValue) else UNKNOWN


def repeat_sequence(one: Value, op: ast.operator, other: Value) -> Value:
    """Return the value of a repetition like `[None] * 9`."""
    if (
        isinstance(op, ast.Mult)
        and isinstance(one, SequenceValue)
        and isinstance(other, ConstantValue)
        and not one.more
    ):
        times = other.value
        return (
            SequenceValue(one.values * times)
            if isinstance(times, int) and times <= 100
            else SequenceValue((), more=True)
        )
    return UNKNOWN


def extend_sequence(items: SequenceValue, more: Value) -> SequenceValue:
    """Return the sequence with the elements of another after it."""
    if items.more:
        return items
    if isinstance(more, SequenceValue):
        return SequenceValue((*items.values, *more.values), more=more.more)
    return SequenceValue(items.values, more=True)


def merge_mappings(one: Value, other: Value) -> Value:
    """Return the value of `{**one, **other}`."""
    if not isinstance(one, MappingValue):
        return UNKNOWN
    if not isinstance(other, MappingValue):
        return MappingValue(one.entries, more=True)
    return MappingValue(tuple({**dict(one.entries), **dict(other.entries)}.items()), more=one.more or other.more)


def store_item(base: Value, key: Value, value: Value) -> Value:
    """Return `base` as it is after `base[key] = value`."""
    if isinstance(base, MappingValue):
        if isinstance(key, ConstantValue) and isinstance(key.value, str):
            return MappingValue(tuple({**dict(base.entries), key.value: value}.items()), more=base.more)
        return MappingValue(base.entries, more=True)
    if isinstance(base, SequenceValue):
        return SequenceValue((UNKNOWN,) * len(base.values), more=base.more)
    return UNKNOWN


def look_up_item(base: Value, key: Value) -> Value:
    """Return the value of `base[key]`."""
    if isinstance(base, MappingValue) and isinstance(key, ConstantValue):
        return dict(base.entries).get(str(key.value), UNKNOWN)
    if (
        isinstance(base, SequenceValue)
        and isinstance(key, ConstantValue)
        and isinstance(key.value, int)
        and not base.more
    ):
        return base.values[key.value] if -len(base.values) <= key.value < len(base.values) else UNKNOWN
    return UNKNOWN


def unpack_value(value: Value, count: int) -> Sequence[Value]:
    """Return the values that unpacking into `count` names gives."""
    if isinstance(value, SequenceValue) and not value.more and len(value.values) == count:
        return value.values
    return [UNKNOWN] * count


def bind_arguments(parameters: ast.arguments, positional: SequenceValue, named: MappingValue) -> State:
    """Return the variables at the start of a function that is called with these arguments."""
    names = [one.arg for one in (*parameters.posonlyargs, *parameters.args)]
    state: State = dict.fromkeys((*names, *(one.arg for one in parameters.kwonlyargs)), UNKNOWN)
    for default_name, default in zip(names[len(names) - len(parameters.defaults) :], parameters.defaults, strict=True):
        if isinstance(default, ast.Constant) and not positional.more and not named.more:
            state[default_name] = ConstantValue(default.value) if not isinstance(default.value, bytes) else UNKNOWN  # type: ignore[arg-type]
    for keyword, default_value in zip(parameters.kwonlyargs, parameters.kw_defaults, strict=True):
        if isinstance(default_value, ast.Constant) and not named.more:
            state[keyword.arg] = ConstantValue(default_value.value)  # type: ignore[arg-type]
    state |= dict(zip(names, positional.values, strict=False))
    state |= {key: value for key, value in named.entries if key in state}
    return state


def widen_state(before: State, after: State) -> State | None:
    """Return the state in which a loop's body begins again; `None` when the body changed nothing.

    Sequences that the body made longer may then have further elements.
    """
    wider = dict(after)
    changed = False
    for name, value in after.items():
        old = before.get(name)
        if isinstance(value, SequenceValue) and isinstance(old, SequenceValue) and len(value.values) != len(old.values):
            wider[name] = SequenceValue((), more=True)
            changed = True
        elif value != old and isinstance(value, MappingValue | SequenceValue | ImportedValue) and old is not None:
            changed = True
    return wider if changed else None


def join_states(states: Sequence[State]) -> list[State]:
    """Join states that differ only in constants, which become unknown; keep apart states that differ otherwise."""
    kept = _grouped(states, (SequenceValue, MappingValue, ImportedValue))
    return kept if len(kept) <= _PATHS else _grouped(kept, (MappingValue, ImportedValue))


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
