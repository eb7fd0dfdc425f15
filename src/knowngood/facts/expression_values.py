"""Find the value of an expression, as far as it can be known, and the calls that are made in it. Pure."""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from knowngood.facts import abstract_values, python_source
from knowngood.facts.abstract_values import (
    UNKNOWN,
    ConstantValue,
    ImportedValue,
    MappingValue,
    SequenceValue,
    State,
    Value,
)
from knowngood.facts.call_shape import CallShape, WalkResult

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from knowngood.facts.python_source import Function

_DEPTH = 3  # functions of the same file that are entered from one another


@dataclass(kw_only=True)
class ExpressionWalk(ABC):
    """Evaluates the expressions of one file; the subclass that walks statements also enters functions."""

    functions: Mapping[str, Function]
    """The file's own module-level functions."""
    matches: Callable[[ast.expr, Value], bool]
    """Returns whether this called expression, with this value, is the one that the contract names."""
    scope: abstract_values.WalkScope
    result: WalkResult = field(default_factory=WalkResult)
    _returned: list[list[tuple[Value, State]]] = field(default_factory=list)
    """For each function that was entered, the values and variables at its `return`s."""
    _unpacking: tuple[ast.expr, int, bool] | None = None
    """The expression that is unpacked now, into how many names, and whether one of them is starred."""

    @abstractmethod
    def _enter(self, function: Function, positional: SequenceValue, named: MappingValue) -> list[tuple[Value, State]]:
        """Return what a function of the file can return, each with its variables then; record its calls."""

    def _bind(self, target: ast.expr, value: Value, state: State) -> None:
        match target:
            case ast.Name() | ast.Attribute():
                if name := python_source.dotted_name(target):
                    state[name] = value
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                values = abstract_values.unpack_value(value, len(parts))
                for part, one in zip(parts, values, strict=True):
                    self._bind(part.value if isinstance(part, ast.Starred) else part, one, state)
            case ast.Subscript(value=ast.Name() | ast.Attribute() as base, slice=key):
                if name := python_source.dotted_name(base):
                    state[name] = abstract_values.store_item(self.value(base, state), self.value(key, state), value)

    def truth(self, test: ast.expr, state: State) -> bool | None:
        """Return whether a test is true; `None` when that is not known."""
        return abstract_values.truth_of(self.value(test, state))

    def value(self, node: ast.expr, state: State) -> Value:  # noqa: C901, PLR0911, PLR0912 - a case an expression
        """Return the value of an expression, and record the calls in it."""
        match node:
            case ast.Constant(value=constant):
                return ConstantValue(constant) if isinstance(constant, str | int | float | bool | None) else UNKNOWN
            case ast.Name() | ast.Attribute():
                known = self.scope.lookup(node, state)
                if known is UNKNOWN and isinstance(node, ast.Attribute):
                    self.value(node.value, state)
                return known
            case ast.Dict(keys=keys, values=values):
                mapping: Value = MappingValue(())
                for key, item in zip(keys, values, strict=True):
                    value = self.value(item, state)
                    mapping = (
                        abstract_values.merge_mappings(mapping, value)
                        if key is None
                        else abstract_values.store_item(mapping, self.value(key, state), value)
                    )
                return mapping
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                return self._items(elements, state)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                truth = self.truth(test, state)
                if truth is not None:
                    return self.value(body if truth else orelse, state)
                one, other = self.value(body, state), self.value(orelse, state)
                return one if one == other else UNKNOWN
            case ast.BoolOp(op=op, values=values):
                return abstract_values.combine_truths(op, [self.truth(value, state) for value in values])
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                truth = self.truth(operand, state)
                return UNKNOWN if truth is None else ConstantValue(not truth)
            case ast.Compare():
                decided = self.scope.compared(node)
                if decided is not None:
                    return ConstantValue(decided)
                return abstract_values.compare_values(
                    node.ops, [self.value(part, state) for part in (node.left, *node.comparators)]
                )
            case ast.BinOp(left=left, op=op, right=right):
                one, other = self.value(left, state), self.value(right, state)
                return (
                    abstract_values.add_values(one, other)
                    if isinstance(op, ast.Add)
                    else abstract_values.repeat_sequence(one, op, other)
                )
            case ast.Subscript(value=base, slice=key):
                return abstract_values.look_up_item(self.value(base, state), self.value(key, state))
            case ast.Call():
                return self._call(node, state)
            case ast.Lambda():
                return UNKNOWN
            case ast.NamedExpr(target=target, value=value):
                result = self.value(value, state)
                self._bind(target, result, state)
                return result
        for child in ast.walk(node):  # other expressions have no value that is followed, but may contain calls
            if isinstance(child, ast.Call) and child is not node:
                self._call(child, state)
        return UNKNOWN

    def _items(self, elements: Sequence[ast.expr], state: State) -> SequenceValue:
        sequence = SequenceValue(())
        for element in elements:
            if isinstance(element, ast.Starred):
                sequence = abstract_values.extend_sequence(sequence, self.value(element.value, state))
            else:
                sequence = replace(sequence, values=(*sequence.values, self.value(element, state)))
        return sequence

    def _call(self, node: ast.Call, state: State) -> Value:
        unpacking = self._unpacking if self._unpacking and self._unpacking[0] is node else None
        self._unpacking = None
        positional = self._items(node.args, state)
        keywords: Value = MappingValue(())
        for keyword in node.keywords:
            value = self.value(keyword.value, state)
            keywords = (
                abstract_values.store_item(keywords, ConstantValue(keyword.arg), value)
                if keyword.arg
                else abstract_values.merge_mappings(keywords, value)
            )
        named = keywords if isinstance(keywords, MappingValue) else MappingValue((), more=True)
        called = self.scope.lookup(node.func, state) if isinstance(node.func, ast.Name | ast.Attribute) else UNKNOWN
        if self.matches(node.func, called):
            self._note(positional, named, unpacking)
            return UNKNOWN
        if isinstance(node.func, ast.Attribute):
            return self._method(node.func, positional, named, state)
        if isinstance(node.func, ast.Name):
            if node.func.id == "dict" and not positional.values:
                return named
            function = self.functions.get(node.func.id)
            if function is not None and not isinstance(called, ImportedValue) and len(self._returned) < _DEPTH:
                ends = self._enter(function, positional, named)
                self._carry_back(node, function, [variables for _, variables in ends], state)
                results = [value for value, _ in ends]
                return results[0] if results and all(result == results[0] for result in results) else UNKNOWN
        else:
            self.value(node.func, state)
        return UNKNOWN

    def _note(
        self, positional: SequenceValue, named: MappingValue, unpacking: tuple[ast.expr, int, bool] | None
    ) -> None:
        shape = CallShape(
            positional=None if positional.more else len(positional.values),
            keywords=tuple(sorted(key for key, _ in named.entries)),
            more=named.more,
            unpacked=unpacking[1] if unpacking else 0,
            starred=unpacking[2] if unpacking else False,
            constants=tuple(sorted((k, str(v.value)) for k, v in named.entries if isinstance(v, ConstantValue))),
        )
        if shape not in self.result.shapes:
            self.result.shapes.append(shape)

    def _method(self, func: ast.Attribute, positional: SequenceValue, named: MappingValue, state: State) -> Value:
        base = self.value(func.value, state)
        if isinstance(base, MappingValue) and func.attr == "copy":
            return base
        if isinstance(base, MappingValue) and func.attr in {"update", "pop", "setdefault", "clear"}:
            changed: Value = MappingValue(base.entries, more=True)
            if func.attr == "update":
                changed = abstract_values.merge_mappings(base, positional.values[0]) if positional.values else base
                changed = abstract_values.merge_mappings(changed, named)
            self._bind(func.value, changed, state)
        elif isinstance(base, SequenceValue) and func.attr in {"append", "extend", "insert", "pop"}:
            grown = replace(base, more=True)
            if func.attr == "append":
                grown = replace(base, values=(*base.values, *positional.values))
            elif func.attr == "extend" and positional.values:
                grown = abstract_values.extend_sequence(base, positional.values[0])
            self._bind(func.value, grown, state)
        return UNKNOWN

    @staticmethod
    def _carry_back(node: ast.Call, function: Function, ends: list[State], state: State) -> None:
        """Store what a function did to the sequences and mappings that were passed to it by name."""
        parameters = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
        passed = [*zip(node.args, parameters, strict=False), *((word.value, word.arg) for word in node.keywords)]
        for argument, parameter in passed:
            if isinstance(argument, ast.Starred):
                return
            name = python_source.dotted_name(argument)
            old = state.get(name)
            after = [end.get(parameter or "", UNKNOWN) for end in ends]
            if isinstance(old, MappingValue | SequenceValue) and any(value != old for value in after):
                same = all(value == after[0] for value in after) and not _is_bound(function, parameter)
                state[name] = after[0] if same else replace(old, more=True)


def _is_bound(function: Function, name: str | None) -> bool:
    stores = (part for part in ast.walk(function) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store))
    return any(part.id == name for part in stores)
