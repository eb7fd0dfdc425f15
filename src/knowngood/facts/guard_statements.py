"""Runs the statements of a guard's shortened source, with values that may be unknown. Pure."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from knowngood.facts.guard_values import UNKNOWN, CallerFunction, GuardError, GuardFrame, merge_values


class GuardReturn(Exception):  # noqa: N818 - it is no error
    """A function returns here."""

    def __init__(self, value: object) -> None:
        self.value = value


class StatementRunner:
    """Runs statements, one after another."""

    def __init__(
        self,
        evaluate: Callable[[ast.expr, GuardFrame], Any],
        load_import: Callable[[ast.Import | ast.ImportFrom, GuardFrame], None],
    ) -> None:
        self._evaluate = evaluate
        self._statements: dict[type[ast.stmt], Callable[[Any, GuardFrame], None]] = {
            ast.Return: self._return,
            ast.Raise: self._raise,
            ast.Assign: self._assign,
            ast.If: self._branch,
            ast.Try: self._try,
            ast.With: lambda node, frame: self.execute(node.body, frame),
            ast.Import: load_import,
            ast.ImportFrom: load_import,
            ast.FunctionDef: self._define,
            ast.Pass: lambda *_: None,
            ast.Global: lambda *_: None,
        }

    def execute(self, body: Iterable[ast.stmt], frame: GuardFrame) -> None:
        """Run statements; `GuardReturn` where they return, `GuardError` where they raise."""
        for node in body:
            execute = self._statements.get(type(node), _skip_statement)
            execute(node, frame)

    def _return(self, node: ast.Return, frame: GuardFrame) -> None:
        raise GuardReturn(self._evaluate(node.value, frame) if node.value else None)

    @staticmethod
    def _raise(*_: object) -> None:
        raise GuardError

    @staticmethod
    def _define(node: ast.FunctionDef, frame: GuardFrame) -> None:
        frame.names[node.name] = CallerFunction(frame.module, node)

    def _assign(self, node: ast.Assign, frame: GuardFrame) -> None:
        value = self._evaluate(node.value, frame)
        for target in node.targets:
            _assign_value(target, value, frame)

    def _branch(self, node: ast.If, frame: GuardFrame) -> None:
        decision = self._evaluate(node.test, frame)
        if decision is UNKNOWN:
            self._merge_ways([node.body, node.orelse], frame)
        else:
            self.execute(node.body if decision else node.orelse, frame)

    def _merge_ways(self, ways: Sequence[Sequence[ast.stmt]], frame: GuardFrame) -> None:
        """Run several ways of which one is taken, and keep of the variables what all of them give.

        A way that raises makes the guard fail or false, and both keep the guarded code from running.
        """
        before = dict(frame.names)
        ends: list[dict[str, Any]] = []
        values: list[Any] = []
        for body in ways:
            frame.names = dict(before)
            try:
                self.execute(body, frame)
                ends.append(frame.names)
            except GuardReturn as signal:
                values.append(signal.value)
            except GuardError:
                values.append(False)
        if not ends:
            raise GuardReturn(merge_values(values))
        frame.maybe += values
        frame.names = {name: merge_values([end.get(name, UNKNOWN) for end in ends]) for end in ends for name in end}

    def _try(self, node: ast.Try, frame: GuardFrame) -> None:
        """Run a `try`: its body, and the first handler where the body raises or may raise."""
        outer, frame.may_raise = frame.may_raise, False
        before = dict(frame.names)
        handler = node.handlers[0].body if node.handlers else None
        try:
            self.execute(node.body, frame)
        except GuardError:
            if handler is None:
                raise
            frame.names = before | dict.fromkeys(frame.names.keys() - before.keys(), UNKNOWN)
            frame.may_raise = outer
            self.execute(handler, frame)
        except GuardReturn as signal:
            if handler is None or not frame.may_raise:
                raise
            frame.maybe.append(signal.value)
            frame.names, frame.may_raise = before, outer
            self.execute(handler, frame)
        else:
            ways = [node.orelse, handler] if handler is not None and frame.may_raise else [node.orelse]
            frame.may_raise = outer
            if len(ways) > 1:
                self._merge_ways(ways, frame)
            else:
                self.execute(node.orelse, frame)
        self.execute(node.finalbody, frame)


def _skip_statement(node: ast.stmt, frame: GuardFrame) -> None:
    """A statement that is not followed, such as a loop: what it binds is unknown, and it may return."""
    frame.maybe.append(UNKNOWN)
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            frame.names[part.id] = UNKNOWN


def _assign_value(target: ast.expr, value: Any, frame: GuardFrame) -> None:
    match target:
        case ast.Name(id=name):
            frame.names[name] = value
        case ast.Tuple(elts=items):
            values = value if isinstance(value, tuple) and len(value) == len(items) else (UNKNOWN,) * len(items)
            for item, part in zip(items, values, strict=True):
                _assign_value(item, part, frame)
