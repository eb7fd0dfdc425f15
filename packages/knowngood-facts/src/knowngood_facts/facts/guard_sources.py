"""The functions and variables by which a module tells what is installed, shortened, for the rows of the atlas. Pure."""

from __future__ import annotations

import ast
import copy
import re
from typing import TYPE_CHECKING, Any

from knowngood_facts.facts.atlas_file import RowKind
from knowngood_facts.facts.python_source import Function, dotted_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from knowngood_facts.facts.atlas_lookup import AtlasLookup

_ASKING = re.compile(
    r"available|installed|version|exists?$|exist_|greater|support|_ge$|gte$|^_?is_|^_?has_|^_?(?:can|use)_|^_?HAS|^_?USE_"
    r"|_ENABLED$|^(?:strtobool|str_to_bool)$",
    re.IGNORECASE,
)
"""Names that ask something."""

_TELLING = re.compile(
    r"find_spec|metadata|version|env|available|installed|import|\bcuda\b|hasattr|\bhas_|sys\.|lower\(\)",
    re.IGNORECASE,
)
"""What the source of such a name has in it when it asks for what is installed, and not for a value."""

_LIMIT = 1500
"""A longer source is left out, in characters."""

_STATEMENTS = 4
"""A variable that more statements bind is left out."""

_LINES = 100
"""A longer statement is not looked at, in lines of the file."""


def list_guard_sources(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the name and the source of every function and variable that tells what is installed.

    A source has its line breaks escaped, so that it is one line: `decode_guard_source` gives it back.
    """
    bound = _list_bindings(tree.body)
    wanted = set(_names_of_conditions(tree.body)) | {name for name in bound if _ASKING.search(name)}
    todo = [name for name in bound if name in wanted]
    sources: dict[str, str] = {}
    while todo:
        name = todo.pop()
        if name in sources or len(bound[name]) > _STATEMENTS:
            continue
        parts = [_Shortener(name, node).shorten() for node in bound[name]]
        text = "\n".join(parts)
        is_helper = name not in wanted
        sources[name] = text if len(text) <= _LIMIT and (is_helper or _tells(text, bound[name])) else ""
        if sources[name]:
            todo += [other for other in _loaded_names(parts) if other in bound]
    for name, text in sorted(sources.items()):
        if text:
            yield name, text.encode("unicode_escape").decode("ascii")


def decode_guard_source(text: str) -> str:
    """Return the source that `list_guard_sources` yielded, with its line breaks."""
    return text.encode("ascii").decode("unicode_escape")


def _tells(text: str, nodes: Iterable[ast.stmt]) -> bool:
    """Whether a source asks for what is installed; a variable may be a release or a switch."""
    return bool(_TELLING.search(text)) or not any(isinstance(node, Function) for node in nodes)


def _list_bindings(body: Iterable[ast.stmt]) -> Mapping[str, list[ast.stmt]]:
    """Return name -> the module's own statements that bind it; plain imports and classes are left out."""
    bound: dict[str, list[ast.stmt]] = {}
    for node in body:
        is_long = (node.end_lineno or 0) - node.lineno > _LINES
        if is_long or _is_main(node) or isinstance(node, ast.Import | ast.ImportFrom | ast.ClassDef):
            continue
        for name in sorted(set(_bound_names(node))):
            if name.startswith("__"):
                continue
            bound.setdefault(name, []).append(node)
    return bound


def _bound_names(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            yield name
        case ast.Assign(targets=targets):
            for target in targets:
                for item in target.elts if isinstance(target, ast.Tuple) else [target]:
                    if isinstance(item, ast.Name):
                        yield item.id
        case ast.AnnAssign(target=ast.Name(id=name), value=value) if value is not None:
            yield name
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in aliases)
        case _:
            for inner in _inner_statements(node):
                yield from _bound_names(inner)


def _inner_statements(node: ast.stmt) -> Iterator[ast.stmt]:
    """The statements directly below an `if`, a `try` or a `with`."""
    if isinstance(node, ast.If | ast.Try | ast.With):
        yield from node.body
        yield from getattr(node, "orelse", [])
        for handler in getattr(node, "handlers", []):
            yield from handler.body
        yield from getattr(node, "finalbody", [])


def _names_of_conditions(body: Iterable[ast.stmt]) -> Iterator[str]:
    """The names in the conditions under which the module runs its statements."""
    for node in body:
        if _is_main(node):
            continue
        if isinstance(node, ast.If):
            yield from (part.id for part in ast.walk(node.test) if isinstance(part, ast.Name))
        yield from _names_of_conditions(_inner_statements(node))


def _is_main(node: ast.stmt) -> bool:
    """Whether a statement is `if __name__ == "__main__"`, which no import runs."""
    return isinstance(node, ast.If) and any(
        isinstance(part, ast.Name) and part.id == "__name__" for part in ast.walk(node.test)
    )


def _loaded_names(texts: Iterable[str]) -> set[str]:
    return {
        part.id
        for text in texts
        for part in ast.walk(ast.parse(text))
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)
    }


_LOOPS = (ast.For, ast.While, ast.AsyncFor, ast.AsyncWith, ast.Match)


class _Shortener:
    """Writes the statement that binds a name without what does not matter for its value."""

    def __init__(self, name: str, node: ast.stmt) -> None:
        self._node = node
        is_plain = isinstance(node, ast.Assign | ast.AnnAssign | Function)
        self._kept = None if is_plain else {name} | self._read_names(node)
        """The variables whose bindings are kept, or `None` for all."""
        self._writers: dict[type[ast.stmt], Callable[[Any], Iterable[str]]] = {
            ast.FunctionDef: self._function,
            ast.AsyncFunctionDef: self._function,
            ast.If: self._if,
            ast.Try: self._try,
            ast.With: self._with,
            ast.Raise: _render_raise,
            ast.Assign: self._assignment,
            ast.AnnAssign: self._assignment,
            ast.AugAssign: self._assignment,
            **dict.fromkeys((ast.Return, ast.Import, ast.ImportFrom), lambda node: [ast.unparse(node)]),
            **dict.fromkeys(_LOOPS, lambda node: ast.unparse(node).splitlines()),
        }

    @staticmethod
    def _read_names(node: ast.stmt) -> set[str]:
        return {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)}

    def shorten(self) -> str:
        """Return the statement's source, one space for each level of indentation."""
        return "\n".join(self._lines([self._node])) or "pass"

    def _lines(self, body: Iterable[ast.stmt]) -> Iterator[str]:
        for node in body:
            write = self._writers.get(type(node))
            if write is not None:
                yield from write(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
        if self._kept is None or node.name in self._kept:
            kept, self._kept = self._kept, None
            yield from self._block(f"def {node.name}({_render_arguments(node.args)}):", node.body)
            self._kept = kept

    def _if(self, node: ast.If) -> Iterator[str]:
        yield from self._block(f"if {ast.unparse(node.test)}:", node.body)
        if other := list(self._lines(node.orelse)):
            yield "else:"
            yield from (f" {line}" for line in other)

    def _try(self, node: ast.Try) -> Iterator[str]:
        yield from self._block("try:", node.body)
        for handler in node.handlers:
            caught = f" {ast.unparse(handler.type)}" if handler.type else ""
            yield from self._block(f"except{caught}:", handler.body)
        if node.orelse and node.handlers:
            yield from self._block("else:", node.orelse)
        if node.finalbody:
            yield from self._block("finally:", node.finalbody)

    def _with(self, node: ast.With) -> Iterator[str]:
        yield from self._block(f"with {', '.join(map(ast.unparse, node.items))}:", node.body)

    def _assignment(self, node: ast.Assign | ast.AnnAssign | ast.AugAssign) -> Iterator[str]:
        if self._kept is not None and not self._kept.intersection(_bound_names(node)):
            return
        if isinstance(node, ast.AnnAssign):
            if node.value is not None:
                yield f"{ast.unparse(node.target)} = {ast.unparse(node.value)}"
        else:
            yield ast.unparse(node)

    def _block(self, head: str, body: Iterable[ast.stmt]) -> Iterator[str]:
        yield head
        lines = [f" {line}" for line in self._lines(body)]
        yield from lines or [" pass"]


def _render_raise(node: ast.Raise) -> list[str]:
    """The exception without its message."""
    called = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
    return [f"raise {dotted_name(called) if called else ''}".rstrip()]


def _render_arguments(arguments: ast.arguments) -> str:
    """The parameters without annotations."""
    plain = copy.deepcopy(arguments)
    for part in ast.walk(plain):
        if isinstance(part, ast.arg):
            part.annotation = None
    return ast.unparse(plain)


class CallerSources:
    """Finds where a name is defined, and the shortened source of it, and notes for which releases that holds."""

    def __init__(self, caller: AtlasLookup) -> None:
        self.caller = caller
        self.same = caller.every
        """The releases in which all that was looked up since `select_release` is the same."""
        self._bit = 1
        self._sources: dict[str, dict[str, list[tuple[str, int]]]] = {}
        self._homes: dict[str, dict[str, int]] = {}

    def select_release(self, place: int, among: int) -> None:
        """Look into the release at a place; `same` begins with the releases in `among`."""
        self._bit, self.same = 1 << place, among

    def is_among(self, releases: int) -> bool:
        """Return whether the release that is looked into is one of these."""
        return bool(self._bit & releases)

    def find_home(self, module: str, name: str) -> str | None:
        """Return `module:name` of what a name in a module is, or `None` when the release lacks it."""
        dotted = f"{module}.{name}"
        if dotted not in self._homes:
            self._homes[dotted] = self.caller.find_name(dotted).homes
        return self._choose(self._homes[dotted].items())

    def find_source(self, home: str) -> str | None:
        """Return the escaped source of `module:name`, or `None` when the atlas has none."""
        module, _, name = home.partition(":")
        if module not in self._sources:
            table = self._sources[module] = dict[str, list[tuple[str, int]]]()
            for path, kind, detail, mask in self.caller.file.rows(module):
                if kind == RowKind.SOURCE:
                    table.setdefault(path, []).append((detail, mask))
        return self._choose(self._sources[module].get(name, ()))

    def is_own(self, module: str) -> bool:
        """Return whether a module is one of the caller's."""
        return module.partition(".")[0] == self.caller.file.root

    def _choose(self, rows: Iterable[tuple[str, int]]) -> str | None:
        others = 0
        for text, mask in rows:
            if mask & self._bit:
                self.same &= mask
                return text
            others |= mask
        self.same &= ~others
        return None
