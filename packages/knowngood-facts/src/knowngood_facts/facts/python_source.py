"""Read the Python source of other packages from its syntax tree. It is never imported or run. Pure."""

from __future__ import annotations

import ast
import re
import threading
import warnings
from typing import TYPE_CHECKING

from knowngood.index.artefact import UnreadableError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Function = ast.FunctionDef | ast.AsyncFunctionDef

_PARSER_LOCK = threading.Lock()
_FULL_VERSION = re.compile(r"\d+(\.\d+)+(\w*)")


def parse_python(source: str, name: str) -> ast.Module:
    """Return the syntax tree; `UnreadableError` for text that is not Python. `name` is the file, for the message."""
    try:
        return parse_syntax_tree(source)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise UnreadableError(f"{name} does not parse as Python: {error}") from None


def parse_syntax_tree(source: str) -> ast.Module:
    """Return the syntax tree, without the warnings about the source; only one thread parses at a time.

    CPython 3.11 keeps one count, for all threads, of how deep the conversion of a tree has gone. When the garbage
    collector runs a finalizer during one conversion, another thread may begin its own, and one of the two then fails
    with `SystemError: AST constructor recursion depth mismatch`. All threads share the filters of `warnings` too.

    Raises `SyntaxError`, `ValueError` or `RecursionError` for a text that is not Python or too deep for the parser.
    """
    with _PARSER_LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        return ast.parse(source)


def list_functions(tree: ast.Module) -> Iterator[tuple[str, Function]]:
    """Yield every function of the module and every method, as `name` or `Class.name`, in the order of the source.

    Both of two definitions with one name (under `if` and `else`) are yielded.
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


def find_function(tree: ast.Module, name: str) -> Function | None:
    """Return the first function of this name, `name` or `Class.name`."""
    return next((node for known, node in list_functions(tree) if known == name), None)


def version_floors(node: ast.AST) -> list[str]:
    """Return the constants of `... >= version.parse("2.1.0")` inside a node, in the order of the source."""
    floors: list[tuple[int, int, str]] = []
    for part in ast.walk(node):
        if isinstance(part, ast.Compare) and len(part.ops) == 1 and isinstance(part.ops[0], ast.GtE):
            literal = next(
                (text for text in string_constants(part.comparators[0]) if _FULL_VERSION.fullmatch(text)), None
            )
            if literal:
                floors.append((part.lineno, part.col_offset, literal))
    return [literal for _, _, literal in sorted(floors)]


def string_constants(node: ast.AST) -> Iterator[str]:
    """Yield every string constant inside a node."""
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


def find_assigned_value(tree: ast.Module, name: str) -> ast.expr | None:
    """Return the first value that is assigned to a name, at any depth of `if` and `try`."""
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


def render_signature(node: Function) -> str:
    """Return the parameters as in the source, without annotations: `(q, k, v, dropout_p=0.0, *, causal=False)`."""
    arguments = node.args
    for argument in ast.walk(arguments):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    return f"({ast.unparse(arguments)})"


def count_returned_values(node: Function, tree: ast.Module | None = None) -> list[int]:
    """Return how many values the function's `return`s give, each number once; empty when the source does not show it.

    `return F.apply(...)` counts as `F.forward` of the same module (`tree`) does; any other call shows nothing.
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
            forward = find_function(tree, f"{name}.forward")
            return set(count_returned_values(forward)) if forward else set()
        case ast.Call():
            return set()
        case _:
            return {1}


def list_imports(tree: ast.Module, module: str, *, is_package: bool) -> tuple[list[str], list[str]]:
    """Return what importing this module always imports, so not under `try`, `if` or `def`.

    First the absolute names of modules, then those of what is imported from them, which may be modules too:
    `from a.b import c` gives `a.b` and `a.b.c`.
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


def dotted_name(node: ast.AST) -> str:
    """Return `a.b.c` for a name or attribute, and an empty text for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def render_message(node: ast.expr) -> str:
    """Return the text of a message with the source of what is filled in, in braces."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(render_message(value) for value in values)
        case ast.FormattedValue(value=value):
            return f"{{{ast.unparse(value)}}}"
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return render_message(left) + render_message(right)
        case ast.Call(func=ast.Attribute(value=text_node, attr="format")):
            return render_message(text_node)
    return f"{{{ast.unparse(node)}}}"


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


def list_bound_names(node: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement binds where it stands: targets of every form, but not those in its body."""
    todo: list[ast.AST] = [node]
    while todo:
        part = todo.pop()
        match part:
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
                yield name
        inside = not isinstance(part, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp | ast.Lambda)
        if inside:
            todo += [one for one in ast.iter_child_nodes(part) if not isinstance(one, ast.stmt | ast.ExceptHandler)]


def list_own_attributes(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield name and value of each `self.NAME = VALUE` in a method; `None` for one of several values."""
    own = next((argument.arg for argument in [*function.args.posonlyargs, *function.args.args]), "")
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
                    yield item.attr, None if isinstance(node, ast.AugAssign) or item is not store else node.value


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
