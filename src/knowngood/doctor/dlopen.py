"""How a package's own Python code loads its libraries: for all to see, and with functions bound at their first call.

TransformerEngine loads its core before its extension, which finds the core's functions by that alone. An edge: it reads
sources, and runs none.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Loads:
    """What the calls of `ctypes.CDLL` in a package ask for."""

    everywhere: bool = False
    """RTLD_GLOBAL: what is loaded later finds their symbols."""
    lazily: bool = False
    """RTLD_LAZY: a function that is nowhere is missed when it is called, and not before."""


def of(package: Path) -> Loads:
    """The flags in the `__init__.py` of a package and of the packages right below it."""
    flags: set[str] = set()
    for path in (package / "__init__.py", *sorted(package.glob("*/__init__.py"))):
        flags |= set(_flags(path))
    return Loads(everywhere="RTLD_GLOBAL" in flags, lazily="RTLD_LAZY" in flags)


def _flags(path: Path) -> Iterator[str]:
    try:
        text = path.read_text(encoding="utf-8")
        nodes = list(ast.walk(ast.parse(text))) if "CDLL" in text else []
    except (OSError, ValueError, SyntaxError):
        return
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "CDLL":
            for keyword in (item for item in node.keywords if item.arg == "mode"):
                yield from (item.attr for item in ast.walk(keyword.value) if isinstance(item, ast.Attribute))
