"""Questions to Python source of others, answered from its syntax tree; nothing of it is ever run."""

from __future__ import annotations

import ast
import re
import warnings
from typing import TYPE_CHECKING

from knowngood.harvest.index import Unreadable

if TYPE_CHECKING:
    from collections.abc import Iterator

Function = ast.FunctionDef | ast.AsyncFunctionDef

_VERSION = re.compile(r"\d+(\.\d+)+(\w*)")


def parse(source: str, name: str) -> ast.Module:
    """The tree; `Unreadable` for text that is not Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise Unreadable(f"{name} does not parse as Python: {error}") from None


def functions(tree: ast.Module) -> Iterator[tuple[str, Function]]:
    """Every function of the module and every method, as `name` or `Class.name`, in the order of the source.

    Of two definitions with one name (under `if` and `else`) both are given.
    """

    def visit(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, Function]]:
        for node in body:
            if isinstance(node, Function):
                yield prefix + node.name, node
            elif isinstance(node, ast.ClassDef):
                yield from visit(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.If | ast.Try | ast.With):
                yield from visit(node.body, prefix)
                yield from visit(getattr(node, "orelse", []), prefix)
                for handler in getattr(node, "handlers", []):
                    yield from visit(handler.body, prefix)

    yield from visit(tree.body, "")


def function(tree: ast.Module, name: str) -> Function | None:
    """The first function of this name."""
    return next((found for known, found in functions(tree) if known == name), None)


def version_floors(node: ast.AST) -> list[str]:
    """The constants of `... >= version.parse("2.1.0")` inside a node, in the order of the source."""
    found: list[tuple[int, int, str]] = []
    for part in ast.walk(node):
        if isinstance(part, ast.Compare) and len(part.ops) == 1 and isinstance(part.ops[0], ast.GtE):
            literal = next((text for text in strings(part.comparators[0]) if _VERSION.fullmatch(text)), None)
            if literal:
                found.append((part.lineno, part.col_offset, literal))
    return [literal for _, _, literal in sorted(found)]


def strings(node: ast.AST) -> Iterator[str]:
    """Every string constant inside a node."""
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


def assigned(tree: ast.Module, name: str) -> ast.expr | None:
    """The value that the module assigns to a name, the first one, at any depth of `if` and `try`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            targets: list[ast.expr] = node.targets
        elif isinstance(node, ast.AnnAssign):
            targets = [node.target]
        else:
            continue
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return node.value
    return None


def signature(node: Function) -> str:
    """The parameters as they stand in the source, without annotations: `(q, k, v, dropout_p=0.0, *, causal=False)`."""
    arguments = node.args
    for argument in ast.walk(arguments):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    return f"({ast.unparse(arguments)})"


def returned(node: Function, tree: ast.Module | None = None) -> list[int]:
    """How many values it returns: the sizes of its `return`s, without repetition; empty when that is not in sight.

    `return F.apply(...)` counts as `F.forward` of the same module does; any other call says nothing.
    """
    sizes: set[int] = set()
    todo: list[ast.AST] = list(node.body)
    while todo:
        part = todo.pop()
        if isinstance(part, Function | ast.Lambda | ast.ClassDef):
            continue
        if isinstance(part, ast.Return) and part.value is not None:
            sizes |= _sizes(part.value, tree)
        todo.extend(ast.iter_child_nodes(part))
    return sorted(sizes)


def _sizes(value: ast.expr, tree: ast.Module | None) -> set[int]:
    match value:
        case ast.IfExp():
            return _sizes(value.body, tree) | _sizes(value.orelse, tree)
        case ast.Tuple():
            return set() if any(isinstance(item, ast.Starred) for item in value.elts) else {len(value.elts)}
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="apply")) if tree is not None:
            forward = function(tree, f"{name}.forward")
            return set(returned(forward)) if forward else set()
        case ast.Call():
            return set()
        case _:
            return {1}


def imported(tree: ast.Module, module: str, *, is_package: bool) -> tuple[list[str], list[str]]:
    """What importing this module imports for certain (not under `try`, `if` or `def`): absolute names of modules, and
    of what is taken out of them, which may be modules too (`from a.b import c` gives `a.b`, and `a.b.c`).
    """
    modules: list[str] = []
    taken: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".")
                kept = parents[: len(parents) - node.level + is_package]
                base = ".".join([*kept, *([base] if base else [])])
            modules.append(base)
            taken += [f"{base}.{alias.name}" for alias in node.names]
    return modules, taken
