"""The imports of a function or file, and whether a failure of theirs is caught."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from knowngood.contracts.model import Expression


def import_of(node: ast.AST, expression: Expression) -> bool | None:
    """Whether the import is there (else `None`), and whether a `try` around it catches its failure."""
    return next((caught for part, caught in _imports(node, caught=False) if _is(part, expression)), None)


def _imports(node: ast.AST, *, caught: bool) -> Iterator[tuple[ast.AST, bool]]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield node, caught
    elif isinstance(node, ast.Try):
        catches = any(_catches(handler) for handler in node.handlers)
        for child in node.body:
            yield from _imports(child, caught=caught or catches)
        for child in (*node.orelse, *(part for handler in node.handlers for part in handler.body), *node.finalbody):
            yield from _imports(child, caught=caught)
    else:
        for part in ast.iter_child_nodes(node):
            yield from _imports(part, caught=caught)


def _is(node: ast.AST, expression: Expression) -> bool:
    match node:
        case ast.ImportFrom(module=module, names=aliases, level=0):
            return module == expression.module and any(alias.name == expression.name for alias in aliases)
        case ast.Import(names=aliases):
            return not expression.name and any(alias.name == expression.module for alias in aliases)
    return False


def _catches(handler: ast.ExceptHandler) -> bool:
    names = (
        {part.id for part in ast.walk(handler.type) if isinstance(part, ast.Name)} if handler.type else {"Exception"}
    )
    return bool(names & {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"})
