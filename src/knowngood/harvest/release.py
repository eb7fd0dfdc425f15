"""One published release as contracts read it: its modules by path, wherever its archive keeps them."""

from __future__ import annotations

import ast
import re
from hashlib import sha256
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from knowngood.harvest import closure, source
from knowngood.harvest.artefact import text

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from packaging.version import Version

    from knowngood.harvest.artefact import Artefact

_PURELIB = re.compile(r"(?:[^/]+\.data/(?:purelib|platlib)/|src/|lib/)")


class Release:
    """A release, read a file at a time; what was read is kept in the cache, trees as long as this object."""

    def __init__(self, package: str, version: Version, artefact: Artefact | None, *, yanked: bool) -> None:
        self.package = package
        self.version = version
        self.yanked = yanked
        self.artefact = artefact
        self.hashes: dict[str, str] = {}
        """Path -> sha256 of each file that was looked at."""
        self._trees: dict[str, ast.Module | None] = {}
        self._imports: dict[str, dict[str, list[str]]] = {}

    def tree(self, path: str) -> ast.Module | None:
        """The syntax tree of a file; `None` when the release has no such file, `Unreadable` when it cannot be read."""
        if path not in self._trees:
            content = self._content(path)
            if content is not None:
                self.hashes[path] = sha256(content.encode()).hexdigest()
            self._trees[path] = None if content is None else source.parse(content, path)
        return self._trees[path]

    def first(self, paths: Sequence[str]) -> str | None:
        """The first of these files that the release has."""
        return next((path for path in paths if self.tree(path) is not None), None)

    def _content(self, path: str) -> str | None:
        artefact = self.artefact
        if artefact is None:
            return None

        def read() -> str | None:
            member = self._member(path)
            return None if member is None else text(artefact, member)

        content: str | None = artefact.derived(f"module {path}", read)
        return content

    def _member(self, path: str) -> str | None:
        assert self.artefact is not None  # noqa: S101 - asked of nothing else
        if path in self.artefact.members:
            return path
        found = [name for name in self.artefact.members if name.endswith(f"/{path}")]
        return next((name for name in found if _PURELIB.fullmatch(name.removesuffix(path))), None)

    def needs(self, package: str) -> dict[str, Any]:
        """Module -> foreign modules that importing it needs (see `closure`)."""
        artefact = self.artefact
        if artefact is None:
            return {}
        found: dict[str, Any] = artefact.derived(f"needs {package}", lambda: closure.needs(artefact, package))
        return found

    def module(self, dotted: str) -> str | None:
        """The file of a module."""
        stem = dotted.replace(".", "/")
        return self.first((f"{stem}.py", f"{stem}/__init__.py"))

    def imports(self, path: str) -> dict[str, list[str]]:
        """Name -> dotted names of what the module imports under it outside functions; several under `if` and `try`."""
        if path not in self._imports:
            tree = self.tree(path)
            found: dict[str, list[str]] = {}
            for node in _outside_functions(tree) if tree else ():
                for name, target in imported_names(node, path).items():
                    found.setdefault(name, []).append(target)
            self._imports[path] = found
        return self._imports[path]

    def imported_from(self, path: str, name: str) -> str | None:
        """The file of this release that a module imports a name from."""
        modules = (self.module(target.rpartition(".")[0]) for target in self.imports(path).get(name, ()))
        return next((module for module in modules if module), None)

    def resolved(self, targets: Sequence[str], tops: Collection[str], depth: int = 5) -> str:
        """Of these dotted names, each followed through the release's own modules to where it comes from, the one that
        ends in the packages of `tops`, else the first.
        """
        ends = []
        for dotted in targets:
            module, _, name = dotted.rpartition(".")
            own = self.module(module) if module and depth and module.partition(".")[0] not in tops else None
            further = [one for one in self.imports(own).get(name, ()) if one != dotted] if own else []
            ends.append(self.resolved(further, tops, depth - 1) if further else dotted)
        return next((end for end in ends if end.partition(".")[0] in tops), ends[0])


def imported_names(node: ast.stmt, path: str) -> dict[str, str]:
    """Name -> dotted name, of one import in the module at `path`."""
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
    found: list[ast.stmt] = []
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.append(node)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.expr):
            todo.extend(ast.iter_child_nodes(node))
    return found[::-1]
