"""The calls that a function makes: its syntax tree is followed with what is known of its variables.

Frameworks build the arguments of a call piece by piece, by the version of the package that they call:

    kwargs = {}
    if flash_attn_version >= Version("2.4"):
        kwargs["alibi_slopes"] = None
    backward(dout, q, k, *lengths, **kwargs)

So the body is walked with abstract values (constants, sequences and mappings of known make-up, imported names); a test
that is decided by them takes one branch, any other takes both. What is not known stays unknown, never guessed.
Limits: a loop's body is taken to run at least once; methods of objects and functions of other files are not entered.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from knowngood.harvest import abstract, written
from knowngood.harvest.abstract import UNKNOWN, Constant, Items, Map, State, Value
from knowngood.harvest.expressions import Expressions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from knowngood.harvest.source import Function


@dataclass(kw_only=True)
class Walk(Expressions):
    """A walk through functions of one file."""

    _left: list[list[State]] = field(default_factory=list)
    _known: dict[tuple[int, int, Items, Map], list[tuple[Value, State]]] = field(default_factory=dict)
    """How functions ended with arguments that they were given before."""
    _unsure: int = 0
    """How many tests that nothing decides stand around the place."""

    def body(self, statements: Sequence[ast.stmt], state: State) -> list[State]:
        """Walk a block from one state."""
        return self._block(statements, [state])

    def _block(self, statements: Sequence[ast.stmt], states: list[State]) -> list[State]:
        for statement in statements:
            after: list[State] = []
            for state in states:
                after += self._statement(statement, state)
            states = abstract.joined(after)
            if not states:
                break
        return states

    def _statement(self, node: ast.stmt, state: State) -> list[State]:  # noqa: C901, PLR0911, PLR0912, PLR0915 - a case a statement
        match node:
            case ast.Assign(targets=targets, value=value):
                self._unpacking = _unpacking(targets, value)
                result = self.value(value, state)
                self._unpacking = None
                for target in targets:
                    self._bind(target, result, state)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._bind(target, self.value(value, state), state)
            case ast.AugAssign(target=target, op=ast.Add(), value=value):
                old = self.value(target, state)
                self._bind(target, abstract.added(old, self.value(value, state)), state)
            case ast.AugAssign(target=target, value=value):
                self.value(value, state)
                self._bind(target, UNKNOWN, state)
            case ast.Expr(value=value):
                self.value(value, state)
            case ast.Return(value=value):
                result = self.value(value, state) if value else Constant(None)
                if self._returned:
                    self._returned[-1].append((result, state))
                return []
            case ast.Raise(exc=exception):
                if exception is not None and not self._unsure:
                    self.found.refusals.append(written.exception_text(exception))
                return []
            case ast.Assert(test=test, msg=message):
                if self.truth(test, state) is False:
                    said = f": {written.message(message)}" if message else ""
                    self.found.refusals.append(f"AssertionError{said}")
                    return []
            case ast.If(test=test, body=body, orelse=orelse):
                truth = self.truth(test, state)
                self._unsure += truth is None
                then = self._block(body, [dict(state)]) if truth is not False else []
                other = self._block(orelse, [dict(state)]) if truth is not True else []
                self._unsure -= truth is None
                return then + other
            case ast.For(target=target, iter=iterated, body=body, orelse=orelse):
                self.value(iterated, state)
                self._bind(target, UNKNOWN, state)
                return self._loop([*body, *orelse], state)
            case ast.While(body=body, orelse=orelse):
                return self._loop([*body, *orelse], state)
            case ast.Break() | ast.Continue():
                if self._left:
                    self._left[-1].append(state)
                return []
            case ast.With(items=items, body=body):
                for item in items:
                    self.value(item.context_expr, state)
                return self._block(body, [state])
            case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=finalbody):
                before = dict(state)
                states = self._block([*body, *orelse], [state])
                self._unsure += 1
                for handler in handlers:
                    states += self._block(handler.body, [dict(before)])
                self._unsure -= 1
                return self._block(finalbody, abstract.joined(states))
            case ast.Match(cases=cases):
                return [after for case in cases for after in self._block(case.body, [dict(state)])] or [state]
            case ast.Import() | ast.ImportFrom():
                state |= self.scope.imported(node)
        return [state]

    def _loop(self, body: Sequence[ast.stmt], state: State) -> list[State]:
        """A body that runs at least once, and once more where it changes what it starts from."""
        before = dict(state)
        states = self._once(body, state)
        again = [wider for after in states if (wider := abstract.widened(before, after)) is not None]
        return states + [after for start in abstract.joined(again) for after in self._once(body, start)]

    def _once(self, body: Sequence[ast.stmt], state: State) -> list[State]:
        self._left.append([])
        states = self._block(body, [state])
        return states + self._left.pop()

    def _entered(self, function: Function, positional: Items, named: Map) -> list[tuple[Value, State]]:
        key = (len(self._returned), id(function), positional, named)
        if key not in self._known:
            self._returned.append([])
            self._left.append([])
            through = self._block(function.body, [abstract.arguments(function.args, positional, named)])
            self._left.pop()
            self._known[key] = [*self._returned.pop(), *((Constant(None), state) for state in through)]
        return self._known[key]


def _unpacking(targets: Sequence[ast.expr], value: ast.expr) -> tuple[ast.expr, int, bool] | None:
    match targets:
        case [ast.Tuple(elts=parts) | ast.List(elts=parts)]:
            starred = any(isinstance(part, ast.Starred) for part in parts)
            return value, len(parts) - starred, starred
    return None
