"""Find the calls that a function makes by walking its syntax tree with what is known of its variables. Pure.

Frameworks build the arguments of a call piece by piece, depending on the version of the package that they call:

    kwargs = {}
    if flash_attn_version >= Version("2.4"):
        kwargs["alibi_slopes"] = None
    backward(dout, q, k, *lengths, **kwargs)

So the body is walked with abstract values (constants, sequences and mappings with known content, imported names). A
test that they decide takes one branch, any other test takes both. What is not known stays unknown and is never guessed.
Limits: a loop's body is assumed to run at least once; methods of objects and functions of other files are not entered.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from packaging.version import Version

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
from knowngood.facts.caller_guards import decide_comparison, last_name
from knowngood.facts.expression_values import ExpressionWalk
from knowngood.facts.release_source import names_from_import

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from knowngood.facts.contract import Expression
    from knowngood.facts.contract_caller import CallerRelease
    from knowngood.facts.python_source import Function

_ASSUMED_CONSTANTS: Mapping[str, Any] = {"true": True, "false": False, "none": None}


@dataclass(frozen=True, kw_only=True)
class CallerScope:
    """The surroundings of a walk in a file of the caller: imports, the contract's assumptions, the callee's version."""

    caller: CallerRelease
    path: str
    version: Version

    def lookup(self, node: ast.Name | ast.Attribute, state: Mapping[str, Value]) -> Value:
        text, last = python_source.dotted_name(node), last_name(node)
        given = self.caller.contract.given
        for name in (text, last, last.lstrip("_")):
            if name in given:
                return ConstantValue(_ASSUMED_CONSTANTS.get(given[name].lower(), given[name]))
        flag = self.caller.holds(last, self.version)
        if flag is not None:
            return ConstantValue(flag)
        if text in state:
            return state[text]
        imported = self.caller.release.imports(self.path).get(text)
        return ImportedValue(self._resolved(imported)) if imported else UNKNOWN

    def imported(self, node: ast.Import | ast.ImportFrom) -> State:
        return {name: ImportedValue(self._resolved([to])) for name, to in names_from_import(node, self.path).items()}

    @property
    def _callee_packages(self) -> set[str]:
        """The callee's top-level packages."""
        return {path.partition("/")[0] for path in self.caller.contract.callee.files}

    def _resolved(self, targets: Sequence[str]) -> str:
        return self.caller.release.resolved(targets, self._callee_packages)

    def compared(self, node: ast.Compare) -> bool | None:
        return decide_comparison(node, self.caller.contract.version, self.version)

    def matcher(self, expression: Expression) -> Any:
        """Return a test whether a called name is the expression's, by its import or else as it is written."""
        packages = self._callee_packages
        wanted = expression.name.rsplit(".", 1)[-1]

        def matches(func: ast.expr, value: Value) -> bool:
            if isinstance(value, ImportedValue):
                module, _, name = value.name.rpartition(".")
                return name == wanted and module.partition(".")[0] in packages
            return (python_source.dotted_name(func) or ast.unparse(func)) == expression.name

        return matches


@dataclass(kw_only=True)
class FunctionWalk(ExpressionWalk):
    """A walk through the functions of one file."""

    _loop_exits: list[list[State]] = field(default_factory=list)
    """For each loop around the current statement, the states at its `break`s and `continue`s."""
    _known: dict[tuple[int, int, SequenceValue, MappingValue], list[tuple[Value, State]]] = field(default_factory=dict)
    """How functions ended with arguments that they were walked with before."""
    _undecided: int = 0
    """How many undecided tests are around the current statement."""

    def body(self, statements: Sequence[ast.stmt], state: State) -> list[State]:
        """Walk a block from one state and return the states after it."""
        return self._block(statements, [state])

    def _block(self, statements: Sequence[ast.stmt], states: list[State]) -> list[State]:
        for statement in statements:
            after: list[State] = []
            for state in states:
                after += self._statement(statement, state)
            states = abstract_values.join_states(after)
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
                self._bind(target, abstract_values.add_values(old, self.value(value, state)), state)
            case ast.AugAssign(target=target, value=value):
                self.value(value, state)
                self._bind(target, UNKNOWN, state)
            case ast.Expr(value=value):
                self.value(value, state)
            case ast.Return(value=value):
                result = self.value(value, state) if value else ConstantValue(None)
                if self._returned:
                    self._returned[-1].append((result, state))
                return []
            case ast.Raise(exc=exception):
                if exception is not None and not self._undecided:
                    self.result.refusals.append(python_source.render_exception(exception))
                return []
            case ast.Assert(test=test, msg=message):
                if self.truth(test, state) is False:
                    text = f": {python_source.render_message(message)}" if message else ""
                    self.result.refusals.append(f"AssertionError{text}")
                    return []
            case ast.If(test=test, body=body, orelse=orelse):
                truth = self.truth(test, state)
                self._undecided += truth is None
                then = self._block(body, [dict(state)]) if truth is not False else []
                other = self._block(orelse, [dict(state)]) if truth is not True else []
                self._undecided -= truth is None
                return then + other
            case ast.For(target=target, iter=iterated, body=body, orelse=orelse):
                self.value(iterated, state)
                self._bind(target, UNKNOWN, state)
                return self._loop([*body, *orelse], state)
            case ast.While(body=body, orelse=orelse):
                return self._loop([*body, *orelse], state)
            case ast.Break() | ast.Continue():
                if self._loop_exits:
                    self._loop_exits[-1].append(state)
                return []
            case ast.With(items=items, body=body):
                for item in items:
                    self.value(item.context_expr, state)
                return self._block(body, [state])
            case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=finalbody):
                before = dict(state)
                states = self._block([*body, *orelse], [state])
                self._undecided += 1
                for handler in handlers:
                    states += self._block(handler.body, [dict(before)])
                self._undecided -= 1
                return self._block(finalbody, abstract_values.join_states(states))
            case ast.Match(cases=cases):
                return [after for case in cases for after in self._block(case.body, [dict(state)])] or [state]
            case ast.Import() | ast.ImportFrom():
                state |= self.scope.imported(node)
        return [state]

    def _loop(self, body: Sequence[ast.stmt], state: State) -> list[State]:
        """Walk a body that runs at least once, and once more when it changes the state that it starts from."""
        before = dict(state)
        states = self._walk_once(body, state)
        again = [wider for after in states if (wider := abstract_values.widen_state(before, after)) is not None]
        return states + [
            after for start in abstract_values.join_states(again) for after in self._walk_once(body, start)
        ]

    def _walk_once(self, body: Sequence[ast.stmt], state: State) -> list[State]:
        self._loop_exits.append([])
        states = self._block(body, [state])
        return states + self._loop_exits.pop()

    def _enter(self, function: Function, positional: SequenceValue, named: MappingValue) -> list[tuple[Value, State]]:
        key = (len(self._returned), id(function), positional, named)
        if key not in self._known:
            self._returned.append([])
            self._loop_exits.append([])
            through = self._block(function.body, [abstract_values.bind_arguments(function.args, positional, named)])
            self._loop_exits.pop()
            self._known[key] = [*self._returned.pop(), *((ConstantValue(None), state) for state in through)]
        return self._known[key]


def _unpacking(targets: Sequence[ast.expr], value: ast.expr) -> tuple[ast.expr, int, bool] | None:
    match targets:
        case [ast.Tuple(elts=parts) | ast.List(elts=parts)]:
            starred = any(isinstance(part, ast.Starred) for part in parts)
            return value, len(parts) - starred, starred
    return None
