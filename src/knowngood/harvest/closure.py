"""What a Python package needs to be imported, module by module: the imports that must succeed, followed through."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from knowngood.harvest import source
from knowngood.harvest.artefact import Artefact, text
from knowngood.harvest.index import Unreadable

if TYPE_CHECKING:
    from collections.abc import Mapping


def module_files(artefact: Artefact, package: str) -> dict[str, str]:
    """Dotted module name -> member path, of every module of a package in the artefact."""
    found: dict[str, str] = {}
    for member in artefact.members:
        if member.startswith(f"{package}/") and member.endswith(".py"):
            name = member.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            if all(part.isidentifier() for part in name.split(".")):
                found[name] = member
    return found


def needs(artefact: Artefact, package: str) -> dict[str, list[str]]:
    """Module -> foreign top-level modules that importing it needs, beyond those that the package itself needs.

    Guarded imports (`try`, `if`) are not needed; the standard library and torch are left out. A module of the package
    that is imported but not in the artefact is named in full, for then the import fails. A module without needs of
    its own is left out; so is one that does not parse, of which nothing is known.
    """
    files = module_files(artefact, package)
    direct: dict[str, tuple[list[str], list[str]]] = {}
    for name, member in files.items():
        try:
            tree = source.parse(text(artefact, member), member)
        except Unreadable:
            continue
        direct[name] = source.imported(tree, name, is_package=member.endswith("/__init__.py"))
    folders = {parent for name in files for parent in _parents(name)}
    found = {name: _foreign(name, direct, package, folders) for name in direct}
    common = found.get(package, frozenset())
    rest = {name: sorted(names - common) for name, names in sorted(found.items()) if name != package}
    return {package: sorted(common)} | {name: names for name, names in rest.items() if names}


def _foreign(
    start: str, direct: Mapping[str, tuple[list[str], list[str]]], package: str, known: set[str]
) -> frozenset[str]:
    seen: set[str] = set()
    foreign: set[str] = set()
    todo = _parents(start)
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        top = name.partition(".")[0]
        if top == package:
            modules, taken = direct.get(name, ([], []))
            foreign |= {wanted for wanted in modules if wanted.partition(".")[0] == package and wanted not in known}
            todo += [parent for wanted in (*modules, *taken) for parent in _parents(wanted)]
        elif top and top not in sys.stdlib_module_names and top != "torch":
            foreign.add(top)
    return frozenset(foreign)


def _parents(name: str) -> list[str]:
    """`a.b.c` -> `a`, `a.b`, `a.b.c`: importing the last imports all."""
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
