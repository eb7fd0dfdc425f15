"""How a caller guards itself: comparisons with the callee's version, bounds on it, imports in a `try`. Pure."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from knowngood.facts import abstract_values, python_source
from knowngood.facts.abstract_values import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from packaging.version import Version

    from knowngood.facts.contract import Expression


def decide_comparison(node: ast.Compare, names: Sequence[str], version: Version) -> bool | None:
    """Return the result of a comparison of the callee's version with literals; `None` for any other comparison.

    `names` are the caller's names for that version. A version that the source compares as text
    (`__version__ < '2.6.3'`) is compared as text here too.
    """
    operands = [node.left, *node.comparators]
    places = [_is_one_of(operand, names) for operand in operands]
    if not any(places):
        return None
    as_text = any(isinstance(operand, ast.Constant) and isinstance(operand.value, str) for operand in operands)
    values: list[Any] = []
    for operand, is_version in zip(operands, places, strict=True):
        literal = python_source.parse_version_literal(operand)
        if is_version:
            values.append(str(version) if as_text else version)
        elif as_text and isinstance(operand, ast.Constant):
            values.append(operand.value)
        else:
            values.append(UNKNOWN if literal is None else literal)
    return abstract_values.comparison_holds(node.ops, values)


def find_assigned_version(trees: Sequence[ast.Module], name: str) -> Version | None:
    """Return the first version literal assigned to a name, a class's attribute or a table's entry (`TABLE.KEY`)."""
    table, _, key = name.rpartition(".")
    for tree in trees:
        for node in ast.walk(tree):
            match node:
                case ast.Assign(targets=[ast.Name() | ast.Attribute() as target], value=value):
                    if last_name(target) == key and (version := python_source.parse_version_literal(value)):
                        return version
                    if table and last_name(target) == table.rsplit(".", 1)[-1] and isinstance(value, ast.Call):
                        for keyword in value.keywords:
                            if keyword.arg == key and (version := python_source.parse_version_literal(keyword.value)):
                                return version
    return None


def is_exclusive_maximum(tree: ast.Module, name: str) -> bool:
    """Return whether something is compared as `... < name`, so that the maximum itself is not accepted."""
    last = name.rsplit(".", 1)[-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            for op, right in zip(node.ops, node.comparators, strict=True):
                if isinstance(op, ast.Lt) and isinstance(right, ast.Name | ast.Attribute) and last_name(right) == last:
                    return True
    return False


def last_name(node: ast.AST) -> str:
    """Return `c` for `a.b.c`, and an empty text for what is no name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _is_one_of(node: ast.expr, names: Sequence[str]) -> bool:
    text = python_source.dotted_name(node)
    return any(text == name or text.endswith(f".{name}") for name in names) if text else False


def find_import(node: ast.AST, expression: Expression) -> bool | None:
    """Return whether a `try` catches the failure of an import; `None` when the import is not there."""
    return next((caught for part, caught in _imports(node, caught=False) if _is_import_of(part, expression)), None)


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


def _is_import_of(node: ast.AST, expression: Expression) -> bool:
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
