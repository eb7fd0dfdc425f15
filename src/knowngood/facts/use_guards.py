"""The guards around a use, as the atlas writes them, and what opens one in the source. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence

from knowngood.facts.python_source import dotted_name

_CONDITION_LIMIT = 300
"""Longer conditions are cut, in characters."""

_AVAILABILITY = re.compile(
    r"version|signature|available|installed|greater|hasattr|find_spec|import|_HAS|HAS_|has_|is_torch|supports?_"
    r"|['\"]\d+\.\d+",
    re.IGNORECASE,
)

_PAST = "past"
"""The word of a guard for code behind an `if` whose body always leaves: it runs where the condition was false."""


def add_condition(guards: Sequence[str], test: ast.expr, word: str, place: str) -> tuple[str, ...]:
    """Return the guards with a condition; `word` is `if` or `unless`.

    Inside a function (`place`) only a condition that asks for a version, or whether something is there, is added.
    """
    text = " ".join(ast.unparse(test).split())
    if place and not _AVAILABILITY.search(text):
        return tuple(guards) if guards else ("",)
    return (*guards, f"{word} {text[:_CONDITION_LIMIT]}")


def add_exit(guards: Sequence[str], node: ast.If, place: str) -> Sequence[str]:
    """Return the guards of what follows an `if`: with its condition when its body always leaves and it asks."""
    leaves = isinstance(node.body[-1], ast.Raise | ast.Return | ast.Continue | ast.Break)
    if leaves and _AVAILABILITY.search(ast.unparse(node.test)):
        return add_condition(guards, node.test, _PAST, place)
    return guards


def open_try(guards: Sequence[str], node: ast.Try) -> tuple[str, ...]:
    """Return the guards of the body of a `try`.

    A handler that raises again catches nothing, unless another `try` is around.
    """
    is_outer = not any(guard.startswith("try ") for guard in guards)
    kept = [one for one in node.handlers if not (is_outer and isinstance(one.body[-1], ast.Raise))]
    return (*guards, f"try {','.join(list_caught_names(kept))}") if kept else tuple(guards)


def open_with(guards: Sequence[str], headers: Iterable[ast.expr]) -> tuple[str, ...]:
    """Return the guards of the body of a `with`: `contextlib.suppress(ImportError)` catches what a `try` would."""
    caught = ",".join(
        dotted_name(argument)
        for header in headers
        if isinstance(header, ast.Call) and dotted_name(header.func).rpartition(".")[2] == "suppress"
        for argument in header.args
    )
    return (*guards, f"try {caught}") if caught else tuple(guards)


def join_guards(guards: Iterable[str]) -> str:
    """Return the guards as a row has them; one that is only there to say that there is a condition is left out."""
    return " & ".join(filter(None, guards))


def is_conditional(guards: Iterable[str]) -> bool:
    """Return whether code under these guards may be left out while the module is imported."""
    return any(not guard.startswith(_PAST) for guard in guards)


def list_caught_names(handlers: Iterable[ast.ExceptHandler]) -> list[str]:
    """Return the exceptions that handlers catch, as written; `BaseException` for one that names none."""
    names = []
    for handler in handlers:
        types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type] if handler.type else []
        names += [dotted_name(item) for item in types] or ["BaseException"]
    return names


def is_type_checking(test: ast.expr) -> bool:
    """Return whether a condition is `TYPE_CHECKING`."""
    return dotted_name(test).rpartition(".")[2] == "TYPE_CHECKING"
