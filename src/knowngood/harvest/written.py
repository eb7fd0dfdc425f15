"""What stands in source as it is: dotted names, versions, the text of messages and exceptions. Pure."""

from __future__ import annotations

import ast
import re

from packaging.version import InvalidVersion, Version


def dotted(node: ast.AST) -> str:
    """`a.b.c` of a name or attribute; empty for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


_VERSION = re.compile(r"v?\d+(\.\d+)*\w*")


def version_literal(node: ast.expr) -> Version | None:
    """The version in `Version("2.4")`, `digit_version('4.38')` or the like."""
    match node:
        case ast.Call(args=[ast.Constant(value=str(text)), *_]) if _VERSION.match(text):
            try:
                return Version(text)
            except InvalidVersion:
                return None
    return None


def message(node: ast.expr) -> str:
    """The text of a message; what is filled in stands in braces."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(message(value) for value in values)
        case ast.FormattedValue(value=value):
            return f"{{{ast.unparse(value)}}}"
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return message(left) + message(right)
        case ast.Call(func=ast.Attribute(value=text_node, attr="format")):
            return message(text_node)
    return f"{{{ast.unparse(node)}}}"


def exception_text(node: ast.expr) -> str:
    """`ValueError: what it says` of `ValueError("what it says")`."""
    if isinstance(node, ast.Call):
        said = f": {message(node.args[0])}" if node.args else ""
        return f"{ast.unparse(node.func)}{said}"
    return ast.unparse(node)
