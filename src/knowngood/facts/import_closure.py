"""Which modules of other packages must be importable so that a package's modules can be imported."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from knowngood.facts import python_source
from knowngood.index.artefact import Artefact, UnreadableError, read_text_member

if TYPE_CHECKING:
    from collections.abc import Mapping


def list_module_files(artefact: Artefact, package: str) -> dict[str, str]:
    """Return dotted module name -> member path, for every module of a package in the artefact."""
    paths: dict[str, str] = {}
    for member in artefact.members:
        if member.startswith(f"{package}/") and member.endswith(".py"):
            name = member.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            if all(part.isidentifier() for part in name.split(".")):
                paths[name] = member
    return paths


def find_needed_modules(artefact: Artefact, package: str) -> dict[str, list[str]]:
    """Return module -> top-level modules of other packages that importing it needs.

    The entry of the package itself has what every module needs; the others only list what they need beyond that.
    Guarded imports (`try`, `if`) are not needed; the standard library and torch are left out. A module of the package
    that is imported but not in the artefact is named in full, because then the import fails. A module without further
    needs is left out, and so is one that does not parse.
    """
    files = list_module_files(artefact, package)
    direct: dict[str, tuple[list[str], list[str]]] = {}
    for name, member in files.items():
        try:
            tree = python_source.parse_python(read_text_member(artefact, member), member)
        except UnreadableError:
            continue
        direct[name] = python_source.list_imports(tree, name, is_package=member.endswith("/__init__.py"))
    folders = {parent for name in files for parent in _parents(name)}
    needs = {name: _foreign(name, direct, package, folders) for name in direct}
    common = needs.get(package, frozenset())
    rest = {name: sorted(names - common) for name, names in sorted(needs.items()) if name != package}
    return {package: sorted(common)} | {name: names for name, names in rest.items() if names}


def _foreign(
    start: str, direct: Mapping[str, tuple[list[str], list[str]]], package: str, known: set[str]
) -> frozenset[str]:
    visited: set[str] = set()
    foreign: set[str] = set()
    todo = _parents(start)
    while todo:
        name = todo.pop()
        if name in visited:
            continue
        visited.add(name)
        top = name.partition(".")[0]
        if top == package:
            modules, taken = direct.get(name, ([], []))
            foreign |= {wanted for wanted in modules if wanted.partition(".")[0] == package and wanted not in known}
            todo += [parent for wanted in (*modules, *taken) for parent in _parents(wanted)]
        elif top and top not in sys.stdlib_module_names and top != "torch":
            foreign.add(top)
    return frozenset(foreign)


def _parents(name: str) -> list[str]:
    """Return `a`, `a.b` and `a.b.c` for `a.b.c`: importing the last one imports all of them."""
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
