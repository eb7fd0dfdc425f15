"""The callee's side of a contract: look up in its source what a release defines under a name. Pure."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from knowngood.facts import python_source
from knowngood.index.artefact import UnreadableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from knowngood.facts.contract import ContractUse
    from knowngood.facts.release_source import ReleaseSource

_PLAIN_BASES = {"object", "Module", "ABC", "Generic", "Protocol", "Enum"}
"""Base classes outside the package that define nothing a contract asks for."""


@dataclass(frozen=True, kw_only=True)
class RaiseSite:
    """A `raise` statement in the callee."""

    text: str
    """`ValueError: the message`"""
    conditions: frozenset[str]
    """Names in the conditions of the `if`s around it."""


def find_definition(tree: ast.Module, name: str) -> python_source.Function | ast.ClassDef | None:
    """Return the last function, method (`Class.method`, inherited ones too) or class of this name."""
    functions = [node for known, node in python_source.list_functions(tree) if known == name]
    if functions:
        return functions[-1]
    if "." not in name:
        return find_class(tree, name)
    owner, method = name.rsplit(".", 1)
    node = find_class(tree, owner)
    for base in _bases(node) if node else ():
        inherited = find_definition(tree, f"{base}.{method}")
        if inherited is not None:
            return inherited
    return None


def find_class(tree: ast.Module, name: str) -> ast.ClassDef | None:
    """Return the first class of this name in a module."""
    return next((node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name), None)


def has_attribute(release: ReleaseSource, path: str, owner: str, attribute: str, depth: int = 5) -> bool:
    """Return whether instances of a class have an attribute: by a method, the class's body, `self.X = ...`, or a base.

    `UnreadableError` when a base class cannot be found. `depth` limits how many bases are followed.
    """
    tree = release.tree(path)
    node = find_class(tree, owner) if tree else None
    if tree is None or node is None:
        raise UnreadableError(f"{path} has no class {owner}")
    if attribute in _members(node):
        return True
    for base in _bases(node):
        if find_class(tree, base):
            if depth and has_attribute(release, path, base, attribute, depth - 1):
                return True
        elif base not in _PLAIN_BASES:
            elsewhere = release.imported_from(path, base)
            if elsewhere is None:
                raise UnreadableError(f"the base {base} of {owner} is not in {path}")
            if depth and has_attribute(release, elsewhere, base, attribute, depth - 1):
                return True
    return False


def _bases(node: ast.ClassDef) -> list[str]:
    return [ast.unparse(base).rsplit(".", 1)[-1] for base in node.bases]


def _members(node: ast.ClassDef) -> set[str]:
    members: set[str] = set()
    for part in ast.walk(node):
        match part:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                members.add(name)
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                members.add(name)
    for statement in node.body:
        match statement:
            case ast.Assign(targets=targets):
                members |= {target.id for target in targets if isinstance(target, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name)):
                members.add(name)
    return members


def defines_name(tree: ast.Module, name: str) -> bool:
    """Return whether importing `name` from the module works: defined, assigned, imported, or listed for lazy import."""
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
                if name in stores or (
                    "_import_structure" in ast.unparse(node) and name in python_source.string_constants(node)
                ):
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


def find_raises(tree: ast.Module, symbol: str, use: ContractUse) -> list[RaiseSite]:
    """Return the places of a function or class that raise the exception of a use with its message."""
    start = find_definition(tree, symbol)
    sites: list[RaiseSite] = []

    def visit(node: ast.AST, names: frozenset[str]) -> None:
        if isinstance(node, ast.Raise) and node.exc is not None:
            text = python_source.render_exception(node.exc)
            under = not use.under or bool(names & set(use.under))
            if text.partition(":")[0] == use.raises and use.saying in text and under:
                sites.append(RaiseSite(text=text, conditions=names))
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
    return sites
