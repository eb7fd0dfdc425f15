"""The calls that a file's functions would make of another package's: followed in the source, nothing of it imported.

Statements run in their order with what is known (constants, sequences, mappings, the package's version); all else
is ``ANYTHING``, and a test that it decides goes both ways. So the arguments that frameworks build piece by piece, by
the version of the package that they call, reach the call as they would, and Python itself says whether they fit.
A loop's body runs once; functions of the same file are entered.
"""

from __future__ import annotations

import ast
import builtins
import copy
from typing import Any

DEPTH = 12  # functions entered within one another


class Undecided(Exception):  # noqa: N818
    """A test on what is not known."""


class Anything:
    """A value of which nothing is known but the attributes that are given."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.__dict__["given"] = given

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.given.get(name, self)

    def __bool__(self) -> bool:
        raise Undecided

    def __iter__(self) -> Any:
        raise Undecided

    def _same(self, *_others: Any, **_named: Any) -> Any:
        return self

    __hash__ = object.__hash__
    __call__ = __getitem__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _same  # type: ignore[assignment]
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __floordiv__ = __mod__ = __neg__ = _same


class Names(dict):  # type: ignore[type-arg]
    """The names that a function sees: its own, what is given, Python's; any other is anything."""

    def __init__(self, walk: Walk, own: dict[str, Any]) -> None:
        super().__init__(own, __builtins__={})
        self.walk = walk

    def __missing__(self, name: str) -> Any:
        if name in self.walk.known:
            return self.walk.known[name]
        return getattr(builtins, name, self.walk.anything)


class Walk:
    """Functions of one file, followed with what is given by name: a variable's, a parameter's or an attribute's."""

    def __init__(self, tree: ast.Module, given: dict[str, Any], names: dict[str, Any]) -> None:
        self.given, self.anything = given, Anything(given)
        self.depth = 0
        self.known = {**names, **given}
        for node in tree.body:
            if isinstance(node, ast.FunctionDef):
                self.known.setdefault(node.name, self.entered(node))

    def entered(self, function: ast.FunctionDef) -> Any:
        """The function as something to call: its body is followed with those arguments."""
        bound = stub(function)

        def call(*positional: Any, **named: Any) -> Any:
            if self.depth >= DEPTH:
                return self.anything
            self.depth += 1
            try:
                values = {**bound(*positional, **named), **self.given}
                return self.function(function, values)
            finally:
                self.depth -= 1

        return call

    def function(self, function: ast.FunctionDef, values: dict[str, Any]) -> Any:
        """Follow a function whose parameters are these, others anything; what it returns, as far as that is known."""
        returned: list[Any] = []
        self.block(function.body, Names(self, values), returned)
        return returned[0] if returned else None

    def block(self, statements: list[ast.stmt], names: Names, returned: list[Any]) -> bool:
        """Follow statements; whether they left the function."""
        return any(self.statement(node, names, returned) for node in statements)

    def statement(self, node: ast.stmt, names: Names, returned: list[Any]) -> bool:  # noqa: C901, PLR0912
        """Follow one statement; whether it left the function."""
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            value = self.value(node.value, names)
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                self.bind(target, value, names)
        elif isinstance(node, ast.AugAssign):
            added = ast.BinOp(left=_read(node.target), op=node.op, right=node.value)
            self.bind(node.target, self.value(added, names), names)
        elif isinstance(node, ast.Expr):
            self.value(node.value, names)
        elif isinstance(node, ast.Return):
            returned.append(self.value(node.value, names) if node.value else None)
            return True
        elif isinstance(node, ast.Raise):
            return True
        elif isinstance(node, ast.If):
            left = [self.block(branch, names, returned) for branch in self.taken(node, names)]
            return all(left)
        elif isinstance(node, (ast.For, ast.While)):
            if isinstance(node, ast.For):
                self.bind(node.target, self.anything, names)
            self.block(node.body, names, returned)
        elif isinstance(node, ast.With):
            for item in node.items:
                self.value(item.context_expr, names)
            return self.block(node.body, names, returned)
        elif isinstance(node, ast.Try):
            return self.block([*node.body, *node.orelse, *node.finalbody], names, returned)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:  # under another name it is what it was
                names[alias.asname or alias.name] = self.known.get(alias.name, self.anything)
        return False

    def taken(self, node: ast.If, names: Names) -> list[list[ast.stmt]]:
        """The branches to follow: both where nothing decides."""
        try:
            return [node.body if self.value(node.test, names, test=True) else node.orelse]
        except Undecided:
            return [node.body, node.orelse]

    def value(self, node: ast.expr, names: Names, *, test: bool = False) -> Any:
        """What an expression gives; anything where it cannot be had, and ``Undecided`` for a test of that."""
        if isinstance(node, ast.Call) and not test:
            return self.called(node, names)
        code = compile(
            ast.fix_missing_locations(ast.Expression(_Equal().visit(copy.deepcopy(node)))), "followed", "eval"
        )
        try:
            found = eval(code, names)  # noqa: S307 - the framework's own expressions, with nothing in reach
            return bool(found) if test else found
        except Exception as error:
            if test:
                raise Undecided from error
            return self.anything

    def called(self, node: ast.Call, names: Names) -> Any:
        """What a call gives: an argument that cannot be had is anything, the others arrive."""
        function = self.value(node.func, names)
        positional: list[Any] = []
        named: dict[str | None, Any] = {}
        try:
            for argument in node.args:
                if isinstance(argument, ast.Starred):
                    positional += self.value(argument.value, names)
                else:
                    positional.append(self.value(argument, names))
            for keyword in node.keywords:
                value = self.value(keyword.value, names)
                named.update(value if keyword.arg is None else {keyword.arg: value})
            return function(*positional, **named)  # type: ignore[arg-type]
        except Exception:  # noqa: BLE001 - whatever goes wrong without the true values
            return self.anything

    def bind(self, target: ast.expr, value: Any, names: Names) -> None:
        """Assign, where it is to a name or an entry of something known; what is given stays."""
        if isinstance(target, (ast.Tuple, ast.List)):
            for part in target.elts:
                self.bind(part, self.anything, names)
        elif isinstance(target, ast.Name) and target.id not in self.given:
            names[target.id] = value
        elif isinstance(target, ast.Subscript):
            holder, key = self.value(target.value, names), self.value(target.slice, names)
            if isinstance(holder, dict):
                holder[key] = value


class _Equal(ast.NodeTransformer):
    """``is`` becomes ``==``: whether something unknown is the same object as another is not decided."""

    def visit_Is(self, _: ast.Is) -> ast.Eq:
        return ast.Eq()

    def visit_IsNot(self, _: ast.IsNot) -> ast.NotEq:
        return ast.NotEq()


def _read(target: ast.expr) -> ast.expr:
    read = copy.deepcopy(target)
    for node in ast.walk(read):
        if hasattr(node, "ctx"):
            node.ctx = ast.Load()
    return read


def stub(function: ast.FunctionDef) -> Any:
    """A function of the same name and parameters that returns them: calling it, Python says whether a call fits."""
    parameters = copy.deepcopy(function.args)
    for node in ast.walk(parameters):
        if isinstance(node, ast.arg):
            node.annotation = None
    nothing = ast.Constant(None)
    parameters.defaults = [nothing for _ in parameters.defaults]
    parameters.kw_defaults = [default and nothing for default in parameters.kw_defaults]
    made: dict[str, Any] = {}
    source = f"def {function.name}({ast.unparse(parameters)}): return locals()"
    exec(source, {"__builtins__": {"locals": locals}}, made)  # noqa: S102 - parameter names alone
    return made[function.name]
