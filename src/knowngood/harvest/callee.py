"""The callee's side of a contract: what a release defines under a name, looked up in its source."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from knowngood.harvest import source, written
from knowngood.harvest.index import Unreadable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from knowngood.contracts.model import Use
    from knowngood.harvest.release import Release

_PLAIN_BASES = {"object", "Module", "ABC", "Generic", "Protocol", "Enum"}
"""Bases outside the package that define nothing a contract asks for."""


@dataclass(frozen=True, kw_only=True)
class Raised:
    """A `raise` and what it says."""

    text: str
    conditions: frozenset[str]
    """Names that stand in the tests around it."""


def definition(tree: ast.Module, name: str) -> source.Function | ast.ClassDef | None:
    """The last function, method (`Class.method`, inherited ones too) or class of this name."""
    found = [node for known, node in source.functions(tree) if known == name]
    if found:
        return found[-1]
    if "." not in name:
        return class_of(tree, name)
    owner, method = name.rsplit(".", 1)
    node = class_of(tree, owner)
    for base in _bases(node) if node else ():
        inherited = definition(tree, f"{base}.{method}")
        if inherited is not None:
            return inherited
    return None


def class_of(tree: ast.Module, name: str) -> ast.ClassDef | None:
    """A class of the module."""
    return next((node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name), None)


def has_attribute(release: Release, path: str, owner: str, attribute: str, depth: int = 5) -> bool:
    """Whether instances of a class have the attribute: by a method, the class's body, `self.X = ...`, or a base.

    `Unreadable` when a base cannot be followed.
    """
    tree = release.tree(path)
    node = class_of(tree, owner) if tree else None
    if tree is None or node is None:
        raise Unreadable(f"{path} has no class {owner}")
    if attribute in _members(node):
        return True
    for base in _bases(node):
        if class_of(tree, base):
            if depth and has_attribute(release, path, base, attribute, depth - 1):
                return True
        elif base not in _PLAIN_BASES:
            elsewhere = release.imported_from(path, base)
            if elsewhere is None:
                raise Unreadable(f"the base {base} of {owner} is not in {path}")
            if depth and has_attribute(release, elsewhere, base, attribute, depth - 1):
                return True
    return False


def _bases(node: ast.ClassDef) -> list[str]:
    return [ast.unparse(base).rsplit(".", 1)[-1] for base in node.bases]


def _members(node: ast.ClassDef) -> set[str]:
    found: set[str] = set()
    for part in ast.walk(node):
        match part:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                found.add(name)
    for statement in node.body:
        match statement:
            case ast.Assign(targets=targets):
                found |= {target.id for target in targets if isinstance(target, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
    return found


def defines(tree: ast.Module, name: str) -> bool:
    """Whether importing `name` from the module works: it is defined, assigned, imported or listed for lazy import."""
    for node in _module_level(tree.body):
        match node:
            case ast.FunctionDef(name=known) | ast.AsyncFunctionDef(name=known) | ast.ClassDef(name=known):
                if known == name:
                    return True
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                if any((alias.asname or alias.name.partition(".")[0]) == name for alias in aliases):
                    return True
            case ast.Assign() | ast.AnnAssign() | ast.Expr() | ast.AugAssign():
                stores = (part.id for part in ast.walk(node) if isinstance(part, ast.Name))
                if name in stores or ("_import_structure" in ast.unparse(node) and name in source.strings(node)):
                    return True
    return False


def _module_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With):
            yield from _module_level(node.body)
            yield from _module_level(getattr(node, "orelse", []))
            for handler in getattr(node, "handlers", []):
                yield from _module_level(handler.body)


def raised(tree: ast.Module, symbol: str, use: Use) -> list[Raised]:
    """The places of a function or class that raise the exception of a use, with the words it says."""
    start = definition(tree, symbol)
    found: list[Raised] = []

    def visit(node: ast.AST, names: frozenset[str]) -> None:
        if isinstance(node, ast.Raise) and node.exc is not None:
            text = written.exception_text(node.exc)
            under = not use.under or bool(names & set(use.under))
            if text.partition(":")[0] == use.raises and use.saying in text and under:
                found.append(Raised(text=text, conditions=names))
        if isinstance(node, ast.If):
            inner = names | {
                part.id if isinstance(part, ast.Name) else part.attr
                for part in ast.walk(node.test)
                if isinstance(part, ast.Name | ast.Attribute)
            }
            for child in node.body:
                visit(child, inner)
            for child in node.orelse:
                visit(child, names)
            return
        for part in ast.iter_child_nodes(node):
            visit(part, names)

    if start is not None:
        visit(start, frozenset())
    return found
