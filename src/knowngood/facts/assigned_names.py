"""Which names the statements of a module, a class or a method assign. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

_BLOCKS = ast.stmt | ast.ExceptHandler | ast.match_case
"""The nodes below which a statement can stand."""


def list_assigned_names(node: ast.stmt) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield the names that a statement assigns, each with its value; `None` for one of several values."""
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                if isinstance(target, ast.Name):
                    yield target.id, value
                elif isinstance(target, ast.Tuple):
                    yield from ((item.id, None) for item in target.elts if isinstance(item, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name), value=value):
            yield name, value


def find_own_attributes(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Return the names of `self.NAME = ...` in a method."""
    own = next((argument.arg for argument in [*function.args.posonlyargs, *function.args.args]), "")
    names = set()
    todo: list[ast.AST] = list(function.body)
    while todo:
        node = todo.pop()
        match node:
            case ast.Assign(targets=targets):
                stores: list[ast.expr] = targets
            case ast.AnnAssign(target=target) | ast.AugAssign(target=target):
                stores = [target]
            case _:
                todo += [child for child in ast.iter_child_nodes(node) if isinstance(child, _BLOCKS)]
                continue
        for store in stores:
            for item in store.elts if isinstance(store, ast.Tuple) else [store]:
                if isinstance(item, ast.Attribute) and isinstance(item.value, ast.Name) and item.value.id == own:
                    names.add(item.attr)
    return names


def flatten_body(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a class, also those under `if` and `try`."""
    for node in body:
        if isinstance(node, ast.If | ast.Try | ast.With):
            yield from flatten_body(node.body)
            yield from flatten_body(getattr(node, "orelse", []))
            for handler in getattr(node, "handlers", []):
                yield from flatten_body(handler.body)
        else:
            yield node
