"""SELECT, the argument that says which cells a command works on.

A word is a cell id, a glob over ids (`sm90-*`), an axis filter (`torch>=2.11,gpu=sm_90`, `stack=trl`) or an alias
(`default`). A GPU is an architecture (`gpu=sm_90`, on any host) or a card (`gpu=RTX 4090`, on that card's host).
Several words are separated by blanks, and a cell is selected when at least one of them matches.
"""

from __future__ import annotations

import contextlib
import difflib
import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence

from packaging.version import InvalidVersion, Version

from knowngood.core.cell import NO_FLASH_ATTN, NO_FRAMEWORK, Axis, Cell, parse_cell
from knowngood.core.errors import UsageError
from knowngood.core.gpus import GpuCatalog
from knowngood.core.hosts import DEFAULT_HOST, parse_host

STACK = "stack"
"""What a condition calls a framework without its release: `stack=trl` is any TRL, `stack=none` no framework."""

_UNSAID = {Axis.FRAMEWORK: NO_FRAMEWORK, Axis.HOST: str(DEFAULT_HOST)}
"""The values of the axes that `Cell.axes` leaves out."""

_EXAMPLES = {
    Axis.FRAMEWORK: ("a framework", "framework=xtuner0.1.23 or framework=xtuner*"),
    Axis.HOST: ("a host", "host=aarch64"),
}
"""The axes whose values are names: what a message calls one, and conditions on it."""

_CONDITION = re.compile(
    r"\s*(?P<axis>[a-z-]+)\s*(?P<operator>===?|!=|~=|[<>]=?|=)\s*(?P<value>[^,\s]([^,]*[^,\s])?)\s*"
)


class CellFilter:
    """Conditions on axes that must all hold, such as `torch>=2.11,gpu=sm_90`."""

    def __init__(self, text: str, gpus: GpuCatalog | None = None) -> None:
        """Parse the conditions; with `gpus`, one on `gpu` may name a card."""
        self.text = text
        self._conditions = [_parse_condition(part, text, gpus) for part in text.split(",")]

    def matches(self, cell: Cell) -> bool:
        """Return whether every condition holds for this cell."""
        axes = cell.axes()
        return all(
            (f"{cell.gpu}/{cell.host}" in value.split()) == (operator == "==")
            if "/" in value and axis is Axis.GPU
            else _holds(axis, axes.get(axis) or _UNSAID[axis], operator, value)
            for axis, operator, value in self._conditions
        )


def _parse_condition(part: str, whole: str, gpus: GpuCatalog | None) -> tuple[Axis, str, str]:
    match = _CONDITION.fullmatch(part)
    if match is None:
        raise UsageError(f"{part.strip()!r} in {whole!r} is not a condition; one is written like torch>=2.11")
    operator = "==" if match["operator"] == "=" else match["operator"]
    value = match["value"]
    if match["axis"] == STACK:
        return _parse_stack_condition(part, operator, value)
    try:
        axis = Axis(match["axis"])
    except ValueError:
        near = difflib.get_close_matches(match["axis"], list(Axis), 1)
        hint = f"; did you mean {near[0]}?" if near else f"; the axes are {', '.join(Axis)}"
        raise UsageError(f"there is no axis {match['axis']!r}{hint}") from None
    if axis is Axis.FLASH_ATTN and value == "none":
        value = NO_FLASH_ATTN
    if axis is Axis.GPU:
        return _parse_gpu_condition(part, operator, value, gpus)
    if axis in _EXAMPLES:
        what, example = _EXAMPLES[axis]
        return axis, _equality(part, operator, what, example), str(parse_host(value)) if axis is Axis.HOST else value
    if not _is_specifier(operator, value):
        raise UsageError(f"{part.strip()!r}: {value!r} is not a version")
    return axis, operator, value


def _parse_gpu_condition(part: str, operator: str, value: str, gpus: GpuCatalog | None) -> tuple[Axis, str, str]:
    """Return the condition on an architecture, or on the architectures and hosts (`sm_90/aarch64`) of a card."""
    if re.fullmatch(r"sm_[0-9*?]+", value):
        return Axis.GPU, operator, value if operator in ("==", "!=") else value.removeprefix("sm_")
    if gpus is None or operator not in ("==", "!="):
        raise UsageError(f"{part.strip()!r}: {value!r} is not a GPU architecture; one is written like sm_90")
    return Axis.GPU, operator, " ".join(f"{item.sm}/{item.host}" for item in gpus.find_machines(value))


def _parse_stack_condition(part: str, operator: str, name: str) -> tuple[Axis, str, str]:
    """Return the condition on the framework that `stack=NAME` is: any release of it."""
    pattern = NO_FRAMEWORK if name == NO_FRAMEWORK else f"{name}[0-9]*"
    return Axis.FRAMEWORK, _equality(part, operator, "a stack", "stack=trl"), pattern


def _equality(part: str, operator: str, what: str, example: str) -> str:
    if operator not in ("==", "!="):
        raise UsageError(f"{part.strip()!r}: {what} takes = or !=, as in {example}")
    return operator


def _is_specifier(operator: str, value: str) -> bool:
    # `packaging.specifiers` is half of what `check` imports, and most conditions do not need it.
    try:
        if _is_plain_equality(operator, value):
            return bool(Version(value))
        from packaging.specifiers import InvalidSpecifier, SpecifierSet

        try:
            return bool(SpecifierSet(operator + value))
        except InvalidSpecifier:
            return False
    except InvalidVersion:
        return False


def _is_plain_equality(operator: str, value: str) -> bool:
    return operator == "==" and "*" not in value


def _holds(axis: Axis, actual: str, operator: str, value: str) -> bool:
    if axis in (Axis.GPU, Axis.FRAMEWORK, Axis.HOST):
        if operator in ("==", "!="):
            return fnmatch.fnmatchcase(actual, value) == (operator == "==")
        actual = actual.removeprefix("sm_")
    if _is_plain_equality(operator, value):
        candidate, wanted = Version(actual), Version(value)
        return (candidate if wanted.local else Version(candidate.public)) == wanted
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(operator + value).contains(actual, prereleases=True)


def select_cells(
    cells: Iterable[Cell], aliases: Mapping[str, str], words: Sequence[str], gpus: GpuCatalog | None = None
) -> list[Cell]:
    """Return the cells that any of `words` selects, in the order of the matrix, and all cells when there are no words.

    `gpus` says which cards a name means. Raises `UsageError`, with the nearest name, for a word that selects no cell.
    """
    known = {str(cell): cell for cell in cells}
    if not words:
        return list(known.values())
    chosen: set[str] = set()
    for word in words:
        ids = _select_ids(word, known, aliases, gpus)
        if not ids:
            raise UsageError(_no_cell_message(word, [*aliases, *known]))
        chosen |= ids
    return [cell for name, cell in known.items() if name in chosen]


def _no_cell_message(word: str, names: Sequence[str]) -> str:
    with contextlib.suppress(UsageError):
        return f"{parse_cell(word)} is not in matrix.yaml; add it: `knowngood add {word}`"
    near = difflib.get_close_matches(word, names, 1, 0.4)
    hint = f"; the nearest name is {near[0]}" if near else ""
    return f"{word!r} selects no cell{hint} (`knowngood cells` lists them)"


def _select_ids(word: str, known: Mapping[str, Cell], aliases: Mapping[str, str], gpus: GpuCatalog | None) -> set[str]:
    if word in aliases:
        return {aliases[word]}
    if word in known:
        return {word}
    if re.search(r"[<>=]", word):
        condition = CellFilter(word, gpus)
        return {name for name, cell in known.items() if condition.matches(cell)}
    return set(fnmatch.filter(known, word))
