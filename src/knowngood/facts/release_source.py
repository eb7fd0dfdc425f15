"""The Python source of one published release: its modules by path, wherever its archive keeps them."""

from __future__ import annotations

import ast
import re
from hashlib import sha256
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from knowngood.facts import import_closure, python_source
from knowngood.index.artefact import read_text_member

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from packaging.version import Version

    from knowngood.index.artefact import Artefact

_PURELIB = re.compile(r"(?:[^/]+\.data/(?:purelib|platlib)/|src/|lib/)")


class ReleaseSource:
    """A release, read one file at a time. Texts are kept in the cache, syntax trees as long as this object."""

    def __init__(self, package: str, version: Version, artefact: Artefact | None, *, yanked: bool) -> None:
        self.package = package
        self.version = version
        self.yanked = yanked
        self.artefact = artefact
        self.hashes: dict[str, str] = {}
        """Path -> sha256 of each file that was read."""
        self._trees: dict[str, ast.Module | None] = {}
        self._imports: dict[str, dict[str, list[str]]] = {}

    def tree(self, path: str) -> ast.Module | None:
        """Return the syntax tree of a file; `None` when the release has no such file.

        `UnreadableError` when it cannot be read.
        """
        if path not in self._trees:
            content = self._content(path)
            if content is not None:
                self.hashes[path] = sha256(content.encode()).hexdigest()
            self._trees[path] = None if content is None else python_source.parse_python(content, path)
        return self._trees[path]

    def first(self, paths: Sequence[str]) -> str | None:
        """Return the first of these files that the release has, or `None`."""
        return next((path for path in paths if self.tree(path) is not None), None)

    def _content(self, path: str) -> str | None:
        artefact = self.artefact
        if artefact is None:
            return None

        def read() -> str | None:
            member = self._member(path)
            return None if member is None else read_text_member(artefact, member)

        content: str | None = artefact.derived(f"module {path}", read)
        return content

    def _member(self, path: str) -> str | None:
        assert self.artefact is not None  # noqa: S101 - `_content` checks it
        if path in self.artefact.members:
            return path
        names = (name for name in self.artefact.members if name.endswith(f"/{path}"))
        return next((name for name in names if _PURELIB.fullmatch(name.removesuffix(path))), None)

    def needs(self, package: str) -> dict[str, Any]:
        """Return module -> modules of other packages that importing it needs (see `find_needed_modules`)."""
        artefact = self.artefact
        if artefact is None:
            return {}
        needs: dict[str, Any] = artefact.derived(
            f"needs {package}", lambda: import_closure.find_needed_modules(artefact, package)
        )
        return needs

    def module(self, dotted: str) -> str | None:
        """Return the file of a module, or `None` when the release has no such module."""
        stem = dotted.replace(".", "/")
        return self.first((f"{stem}.py", f"{stem}/__init__.py"))

    def imports(self, path: str) -> dict[str, list[str]]:
        """Return name -> dotted names that the module imports as it outside functions; several under `if` and `try`."""
        if path not in self._imports:
            tree = self.tree(path)
            imports: dict[str, list[str]] = {}
            for node in _outside_functions(tree) if tree else ():
                for name, target in names_from_import(node, path).items():
                    imports.setdefault(name, []).append(target)
            self._imports[path] = imports
        return self._imports[path]

    def imported_from(self, path: str, name: str) -> str | None:
        """Return the file of this release that a module imports a name from, or `None`."""
        modules = (self.module(target.rpartition(".")[0]) for target in self.imports(path).get(name, ()))
        return next((module for module in modules if module), None)

    def resolved(self, targets: Sequence[str], packages: Collection[str], depth: int = 5) -> str:
        """Follow dotted names through the release's own modules to where they are defined.

        Returns the one that is defined in a module of `packages`, or else the first. `depth` limits the steps.
        """
        ends = []
        for dotted in targets:
            module, _, name = dotted.rpartition(".")
            own = self.module(module) if module and depth and module.partition(".")[0] not in packages else None
            further = [one for one in self.imports(own).get(name, ()) if one != dotted] if own else []
            ends.append(self.resolved(further, packages, depth - 1) if further else dotted)
        return next((end for end in ends if end.partition(".")[0] in packages), ends[0])


def names_from_import(node: ast.stmt, path: str) -> dict[str, str]:
    """Return name -> dotted name for one import in the module at `path`."""
    if isinstance(node, ast.Import):
        return {alias.asname or alias.name: alias.name for alias in node.names if alias.asname or "." not in alias.name}
    if not isinstance(node, ast.ImportFrom):
        return {}
    base = node.module or ""
    if node.level:
        parents = PurePosixPath(path).parts[: -node.level]
        base = ".".join([*parents, *([base] if base else [])])
    return {alias.asname or alias.name: f"{base}.{alias.name}" for alias in node.names if alias.name != "*"}


def _outside_functions(tree: ast.Module) -> list[ast.stmt]:
    imports: list[ast.stmt] = []
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports.append(node)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.expr):
            todo.extend(ast.iter_child_nodes(node))
    return imports[::-1]
