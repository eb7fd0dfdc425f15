"""The rules of this code that a linter does not check; CONTRIBUTING.md states them in words.

Run as a program, with rooms as arguments, it lists every breach, and counts imports inside functions.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SOURCES = [
    path
    for path in sorted(Path(__file__).resolve().parents[3].glob("*/src/knowngood*"))
    if (path / "__init__.py").exists()
]
PARTICIPLES = {"Asked", "Found", "Heard", "Known", "Listed", "Made", "Named", "Said", "Seen", "Told", "Wanted"}
VAGUE_LOCALS = {"asked", "found", "heard", "said", "seen", "told"}
VAGUE_FUNCTIONS = {"ask", "find", "get", "judge", "look", "make", "of", "parse", "read", "run", "tell", "text", "write"}
SHARED_FUNCTIONS = {"configure", "run", "main"}
"""Every command of `cli` has the first two; `main` is that of the program and of the script that compiles."""
SHORTEST_DOCSTRING = 23
FIXED_BYTES = {"wheels/compile_inside.py"}
"""Its hash is part of the key of every compiled wheel: another name in it would compile them all again."""


def modules() -> dict[str, ast.Module]:
    """Path below the package -> syntax tree."""
    paths = {
        path.relative_to(source if source.name == "knowngood" else source.parent).as_posix(): path
        for source in SOURCES
        for path in sorted(source.rglob("*.py"))
    }
    return {name: ast.parse(path.read_text()) for name, path in paths.items() if name not in FIXED_BYTES}


@cache
def walk(tree: ast.Module) -> tuple[ast.AST, ...]:
    """Every node of a module; several rules look at all of them."""
    return tuple(ast.walk(tree))


def public(tree: ast.Module, kind: type[ast.AST] | tuple[type[ast.AST], ...]) -> Iterator[ast.AST]:
    """The public definitions of a kind at the top level of a module."""
    for node in tree.body:
        if isinstance(node, kind) and not node.name.startswith("_"):  # type: ignore[attr-defined]
            yield node


def participle_types(trees: dict[str, ast.Module]) -> list[str]:
    """Types named by what was done to them and not by what they are."""
    nodes = ((path, node) for path, tree in trees.items() for node in walk(tree) if isinstance(node, ast.ClassDef))
    return [f"{path}:{node.lineno}: class {node.name}" for path, node in nodes if node.name.strip("_") in PARTICIPLES]


def vague_functions(trees: dict[str, ast.Module]) -> list[str]:
    """Public functions whose name has no object."""
    return [
        f"{path}:{node.lineno}: {node.name}()"
        for path, tree in trees.items()
        for node in public(tree, (ast.FunctionDef, ast.AsyncFunctionDef))
        if node.name in VAGUE_FUNCTIONS and not ("cli/" in path and node.name in SHARED_FUNCTIONS)
    ]


def vague_locals(trees: dict[str, ast.Module]) -> list[str]:
    """Variables and parameters that say that something was found or said, but not what."""
    lines = []
    for path, tree in trees.items():
        for node in walk(tree):
            name = node.id if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else None
            name = node.arg if isinstance(node, ast.arg) else name
            if name in VAGUE_LOCALS:
                lines.append(f"{path}:{node.lineno}: {name}")
    return lines


def short_docstrings(trees: dict[str, ast.Module]) -> list[str]:
    """Docstrings too short to say anything."""
    lines = []
    for path, tree in trees.items():
        for node in walk(tree):
            if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                text = ast.get_docstring(node)
                if text is not None and len(text) < SHORTEST_DOCSTRING:
                    lines.append(f"{path}:{node.lineno}: {node.name}: {text!r}")
    return lines


def inner_imports(trees: dict[str, ast.Module]) -> list[str]:
    """Imports inside functions; each must keep the start of a command fast."""
    functions = (
        (path, function)
        for path, tree in trees.items()
        for function in walk(tree)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
    )
    lines = {
        f"{path}:{node.lineno}: {ast.unparse(node)}"
        for path, function in functions
        for node in ast.walk(function)
        if isinstance(node, (ast.Import, ast.ImportFrom))
    }
    return sorted(lines)


RULES = (
    participle_types,
    vague_functions,
    vague_locals,
    short_docstrings,
)
COUNTS = (inner_imports,)


def test_the_code_keeps_the_rules():
    trees = modules()
    assert {rule.__name__: breaches for rule in RULES if (breaches := rule(trees))} == {}


def test_a_rule_finds_what_breaks_it():
    tree = ast.parse("""
class Seen:
    pass
def find():
    "A."
    found = 1
""")
    assert [len(rule({"core/one.py": tree})) for rule in RULES] == [1, 1, 1, 1]


def test_every_room_says_what_comes_in_and_what_goes_out():
    for path in (
        path
        for source in SOURCES
        for path in source.glob("*/__init__.py")
        if path.parent.name != "cli" or source.name == "knowngood"
    ):
        text = ast.get_docstring(ast.parse(path.read_text()))
        assert text, path
        assert "In: " in text, path
        assert "Out: " in text, path
        assert "ever" in text.rpartition("Out: ")[2], path


if __name__ == "__main__":
    rooms = tuple(f"{room}/" for room in sys.argv[1:])
    for rule in (*RULES, *COUNTS):
        breaches = [line for line in rule(modules()) if not rooms or any(room in line for room in rooms)]
        print(f"{rule.__name__}: {len(breaches)}")
        for breach in breaches if rooms else ():
            print(f"    {breach}")
