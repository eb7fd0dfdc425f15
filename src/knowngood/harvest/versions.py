"""A caller's own words about the callee's version: comparisons with it, and the bounds that it names."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from knowngood.harvest import abstract, written
from knowngood.harvest.abstract import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from packaging.version import Version


def decided(node: ast.Compare, names: Sequence[str], version: Version) -> bool | None:
    """What a comparison of the callee's version with literals gives; `None` when it is none.

    A version text that is compared as a text (`__version__ < '2.6.3'`) is compared so.
    """
    operands = [node.left, *node.comparators]
    places = [_is_one_of(operand, names) for operand in operands]
    if not any(places):
        return None
    as_text = any(isinstance(operand, ast.Constant) and isinstance(operand.value, str) for operand in operands)
    values: list[Any] = []
    for operand, is_version in zip(operands, places, strict=True):
        literal = written.version_literal(operand)
        if is_version:
            values.append(str(version) if as_text else version)
        elif as_text and isinstance(operand, ast.Constant):
            values.append(operand.value)
        else:
            values.append(UNKNOWN if literal is None else literal)
    return abstract.holds(node.ops, values)


def assigned_version(trees: Sequence[ast.Module], name: str) -> Version | None:
    """The literal that a name, a class's attribute or a table's entry (`TABLE.KEY`) is given first."""
    table, _, key = name.rpartition(".")
    for tree in trees:
        for node in ast.walk(tree):
            match node:
                case ast.Assign(targets=[ast.Name() | ast.Attribute() as target], value=value):
                    if last_name(target) == key and (found := written.version_literal(value)):
                        return found
                    if table and last_name(target) == table.rsplit(".", 1)[-1] and isinstance(value, ast.Call):
                        for keyword in value.keywords:
                            if keyword.arg == key and (found := written.version_literal(keyword.value)):
                                return found
    return None


def is_below(tree: ast.Module, name: str) -> bool:
    """Whether something is compared as `... < maximum`."""
    last = name.rsplit(".", 1)[-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            for op, right in zip(node.ops, node.comparators, strict=True):
                if isinstance(op, ast.Lt) and isinstance(right, ast.Name | ast.Attribute) and last_name(right) == last:
                    return True
    return False


def last_name(node: ast.AST) -> str:
    """`c` of `a.b.c`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _is_one_of(node: ast.expr, names: Sequence[str]) -> bool:
    text = written.dotted(node)
    return any(text == name or text.endswith(f".{name}") for name in names) if text else False
