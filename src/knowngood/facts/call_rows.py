"""How functions are called, what they take and what they return, as the atlas writes it. Pure.

A call is `(2,a,b)`: two positional arguments, then the names of its keywords, and `*` for unpacked ones. Behind it
stands `=4` when its result is unpacked into four names, and `=3*` for three and one that takes the rest.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from knowngood.facts.atlas_file import fits_row
from knowngood.facts.python_source import Function

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_DEFAULT_LIMIT = 30
"""A longer default value is shown as `...`."""

_PLAIN_DECORATORS = frozenset({"staticmethod", "classmethod", "override"})
"""Decorators that leave what a function returns as it is."""


def render_call(call: ast.Call) -> str:
    """Return `(1,a,b)` for a call with one positional argument and the keywords a and b."""
    positional = len([argument for argument in call.args if not isinstance(argument, ast.Starred)])
    unpacked = any(isinstance(argument, ast.Starred) for argument in call.args) or any(
        keyword.arg is None for keyword in call.keywords
    )
    names = [keyword.arg for keyword in call.keywords if keyword.arg]
    return f"({','.join([str(positional), *names, *(['*'] if unpacked else [])])})"


def render_parameters(arguments: ast.arguments) -> str:
    """Return the parameters without annotations, long defaults as `...`: `q, k, *, causal=False, **kwargs`."""
    parts: list[str] = []
    positional = [*arguments.posonlyargs, *arguments.args]
    without_default = len(positional) - len(arguments.defaults)
    for place, argument in enumerate(positional):
        default = arguments.defaults[place - without_default] if place >= without_default else None
        parts.append(argument.arg + _render_default(default))
        if arguments.posonlyargs and place == len(arguments.posonlyargs) - 1:
            parts.append("/")
    if arguments.vararg:
        parts.append(f"*{arguments.vararg.arg}")
    elif arguments.kwonlyargs:
        parts.append("*")
    parts += [
        argument.arg + _render_default(default)
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    if arguments.kwarg:
        parts.append(f"**{arguments.kwarg.arg}")
    return ",".join(parts)


def _render_default(default: ast.expr | None) -> str:
    if default is None:
        return ""
    text = ast.unparse(default) if isinstance(default, ast.Constant | ast.Name | ast.Attribute | ast.UnaryOp) else "..."
    return f"={text}" if len(text) <= _DEFAULT_LIMIT and fits_row(text) and "," not in text else "=..."


def find_unpacked_call(node: ast.AST) -> tuple[ast.Call, str] | None:
    """Return the call and `=4` for `a, b, c, d = f(x)`; `None` for any other statement."""
    match node:
        case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Call() as call) if len(names) > 1:
            starred = any(isinstance(name, ast.Starred) for name in names)
            return call, f"={len(names) - starred}{'*' if starred else ''}"
    return None


def fits_unpacking(unpacked: str, count: int) -> bool:
    """Return whether `count` values can be unpacked as `4`, or as `3*`, which takes three or more."""
    return count >= int(unpacked[:-1]) if unpacked.endswith("*") else count == int(unpacked)


def find_tuple_sizes(function: Function) -> list[int]:
    """Return how many values the `return`s of a function give, each number once and sorted.

    Empty when the source does not show it for each of them, when one is not a tuple, and for generators, coroutines
    and decorated functions.
    """
    if isinstance(function, ast.AsyncFunctionDef):
        return []
    if any(not isinstance(item, ast.Name) or item.id not in _PLAIN_DECORATORS for item in function.decorator_list):
        return []
    sizes = set()
    for node in _own_nodes(function.body):
        match node:
            case ast.Yield() | ast.YieldFrom():
                return []
            case ast.Return(value=ast.Tuple(elts=items)) if not any(isinstance(item, ast.Starred) for item in items):
                sizes.add(len(items))
            case ast.Return():
                return []
    return sorted(sizes)


def _own_nodes(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield every node of a function, without those of functions and classes inside it."""
    todo = list(body)
    while todo:
        node = todo.pop()
        if not isinstance(node, Function | ast.Lambda | ast.ClassDef):
            yield node
            todo.extend(ast.iter_child_nodes(node))


def list_own_calls(function: Function) -> Iterator[tuple[str, ast.Call]]:
    """Yield method and call of each `self.method(...)` that a method makes under no `if` and no `try`."""
    own = next((argument.arg for argument in [*function.args.posonlyargs, *function.args.args]), "")
    todo: list[ast.AST] = list(function.body)
    while todo:
        node = todo.pop()
        if isinstance(
            node, ast.If | ast.Try | ast.IfExp | ast.BoolOp | ast.Match | ast.ClassDef | Function | ast.Lambda
        ):
            continue
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)) if name == own:
                yield method, node
        todo.extend(ast.iter_child_nodes(node))


def find_inherited_call(call: ast.Call, own: str) -> tuple[str, bool] | None:
    """Return the method and whether it is called by `super()`, for `super().method(...)` and `self.method(...)`.

    `own` is the method's name for its object. `None` for any other call.
    """
    match call.func:
        case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=method):
            return method, True
        case ast.Attribute(value=ast.Name(id=name), attr=method) if own and name == own:
            return method, False
    return None
