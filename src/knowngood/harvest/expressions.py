"""The value of an expression, as far as it can be known, and the calls that are made on the way."""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from knowngood.harvest import abstract, written
from knowngood.harvest.abstract import UNKNOWN, Constant, Items, Map, Reference, State, Value
from knowngood.harvest.shape import Found, Shape

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from knowngood.harvest.source import Function

_DEPTH = 3  # functions of the same file that are entered from one another


@dataclass(kw_only=True)
class Expressions(ABC):
    """Evaluates expressions of one file; how a function is entered is told by the class that walks statements."""

    functions: Mapping[str, Function]
    """The file's own module-level functions."""
    matches: Callable[[ast.expr, Value], bool]
    """Whether this called expression, of this value, is the one that is looked for."""
    scope: abstract.Scope
    found: Found = field(default_factory=Found)
    _returned: list[list[tuple[Value, State]]] = field(default_factory=list)
    _unpacking: tuple[ast.expr, int, bool] | None = None

    @abstractmethod
    def _entered(self, function: Function, positional: Items, named: Map) -> list[tuple[Value, State]]:
        """What a function of the file returns with these arguments, and its variables then; its calls are noted."""

    def _bind(self, target: ast.expr, value: Value, state: State) -> None:
        match target:
            case ast.Name() | ast.Attribute():
                if name := written.dotted(target):
                    state[name] = value
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                values = abstract.parts(value, len(parts))
                for part, one in zip(parts, values, strict=True):
                    self._bind(part.value if isinstance(part, ast.Starred) else part, one, state)
            case ast.Subscript(value=ast.Name() | ast.Attribute() as base, slice=key):
                if name := written.dotted(base):
                    state[name] = abstract.stored(self.value(base, state), self.value(key, state), value)

    def truth(self, test: ast.expr, state: State) -> bool | None:
        """Whether a test holds; `None` when that is not known."""
        return abstract.truth(self.value(test, state))

    def value(self, node: ast.expr, state: State) -> Value:  # noqa: C901, PLR0911, PLR0912 - a case an expression
        """The value of an expression; notes the calls in it."""
        match node:
            case ast.Constant(value=constant):
                return Constant(constant) if isinstance(constant, str | int | float | bool | None) else UNKNOWN
            case ast.Name() | ast.Attribute():
                known = self.scope.lookup(node, state)
                if known is UNKNOWN and isinstance(node, ast.Attribute):
                    self.value(node.value, state)
                return known
            case ast.Dict(keys=keys, values=values):
                made: Value = Map(())
                for key, item in zip(keys, values, strict=True):
                    value = self.value(item, state)
                    made = (
                        abstract.merged(made, value)
                        if key is None
                        else abstract.stored(made, self.value(key, state), value)
                    )
                return made
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                return self._items(elements, state)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                truth = self.truth(test, state)
                if truth is not None:
                    return self.value(body if truth else orelse, state)
                one, other = self.value(body, state), self.value(orelse, state)
                return one if one == other else UNKNOWN
            case ast.BoolOp(op=op, values=values):
                return abstract.combined(op, [self.truth(value, state) for value in values])
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                truth = self.truth(operand, state)
                return UNKNOWN if truth is None else Constant(not truth)
            case ast.Compare():
                decided = self.scope.compared(node)
                if decided is not None:
                    return Constant(decided)
                return abstract.compared(node.ops, [self.value(part, state) for part in (node.left, *node.comparators)])
            case ast.BinOp(left=left, op=op, right=right):
                one, other = self.value(left, state), self.value(right, state)
                return abstract.added(one, other) if isinstance(op, ast.Add) else abstract.repeated(one, op, other)
            case ast.Subscript(value=base, slice=key):
                return abstract.part(self.value(base, state), self.value(key, state))
            case ast.Call():
                return self._call(node, state)
            case ast.Lambda():
                return UNKNOWN
            case ast.NamedExpr(target=target, value=value):
                result = self.value(value, state)
                self._bind(target, result, state)
                return result
        for child in ast.walk(node):  # what is left holds no value that is followed, but perhaps calls
            if isinstance(child, ast.Call) and child is not node:
                self._call(child, state)
        return UNKNOWN

    def _items(self, elements: Sequence[ast.expr], state: State) -> Items:
        made = Items(())
        for element in elements:
            if isinstance(element, ast.Starred):
                made = abstract.extended(made, self.value(element.value, state))
            else:
                made = replace(made, values=(*made.values, self.value(element, state)))
        return made

    def _call(self, node: ast.Call, state: State) -> Value:
        unpacking = self._unpacking if self._unpacking and self._unpacking[0] is node else None
        self._unpacking = None
        positional = self._items(node.args, state)
        keywords: Value = Map(())
        for keyword in node.keywords:
            value = self.value(keyword.value, state)
            keywords = (
                abstract.stored(keywords, Constant(keyword.arg), value)
                if keyword.arg
                else abstract.merged(keywords, value)
            )
        named = keywords if isinstance(keywords, Map) else Map((), more=True)
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
            if function is not None and not isinstance(called, Reference) and len(self._returned) < _DEPTH:
                ends = self._entered(function, positional, named)
                self._carry_back(node, function, [variables for _, variables in ends], state)
                results = [value for value, _ in ends]
                return results[0] if results and all(result == results[0] for result in results) else UNKNOWN
        else:
            self.value(node.func, state)
        return UNKNOWN

    def _note(self, positional: Items, named: Map, unpacking: tuple[ast.expr, int, bool] | None) -> None:
        shape = Shape(
            positional=None if positional.more else len(positional.values),
            keywords=tuple(sorted(key for key, _ in named.entries)),
            more=named.more,
            unpacked=unpacking[1] if unpacking else 0,
            starred=unpacking[2] if unpacking else False,
            constants=tuple(sorted((k, str(v.value)) for k, v in named.entries if isinstance(v, Constant))),
        )
        if shape not in self.found.shapes:
            self.found.shapes.append(shape)

    def _method(self, func: ast.Attribute, positional: Items, named: Map, state: State) -> Value:
        base = self.value(func.value, state)
        if isinstance(base, Map) and func.attr == "copy":
            return base
        if isinstance(base, Map) and func.attr in {"update", "pop", "setdefault", "clear"}:
            changed: Value = Map(base.entries, more=True)
            if func.attr == "update":
                changed = abstract.merged(base, positional.values[0]) if positional.values else base
                changed = abstract.merged(changed, named)
            self._bind(func.value, changed, state)
        elif isinstance(base, Items) and func.attr in {"append", "extend", "insert", "pop"}:
            grown = replace(base, more=True)
            if func.attr == "append":
                grown = replace(base, values=(*base.values, *positional.values))
            elif func.attr == "extend" and positional.values:
                grown = abstract.extended(base, positional.values[0])
            self._bind(func.value, grown, state)
        return UNKNOWN

    @staticmethod
    def _carry_back(node: ast.Call, function: Function, ends: list[State], state: State) -> None:
        """What a function did to the sequences and mappings that it was given by name."""
        parameters = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
        passed = [*zip(node.args, parameters, strict=False), *((word.value, word.arg) for word in node.keywords)]
        for argument, parameter in passed:
            if isinstance(argument, ast.Starred):
                return
            name = written.dotted(argument)
            old = state.get(name)
            after = [end.get(parameter or "", UNKNOWN) for end in ends]
            if isinstance(old, Map | Items) and any(value != old for value in after):
                same = all(value == after[0] for value in after) and not _is_bound(function, parameter)
                state[name] = after[0] if same else replace(old, more=True)


def _is_bound(function: Function, name: str | None) -> bool:
    stores = (part for part in ast.walk(function) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store))
    return any(part.id == name for part in stores)
