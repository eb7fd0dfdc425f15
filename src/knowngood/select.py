"""SELECT: which cells a command is about. An id, a glob over ids, an axis filter, or an alias.

`sm90-*`, `torch>=2.11,gpu=sm_90`, `default`; several of them are joined by blanks: a cell is selected when one matches.
"""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from knowngood.cell import NO_FLASH_ATTN, NO_FRAMEWORK, Axis, Cell
from knowngood.errors import UsageError

_TERM = re.compile(r"\s*(?P<axis>[a-z-]+)\s*(?P<operator>===?|!=|~=|[<>]=?|=)\s*(?P<value>[^,\s]+)\s*")


class Filter:
    """A conjunction of conditions on axes, `torch>=2.11,gpu=sm_90`."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._terms = [_term(part, text) for part in text.split(",")]

    def matches(self, cell: Cell) -> bool:
        """Whether every condition holds for this cell."""
        axes = cell.axes()
        return all(_holds(axis, axes.get(axis, NO_FRAMEWORK), operator, value) for axis, operator, value in self._terms)


def _term(part: str, whole: str) -> tuple[Axis, str, str]:
    match = _TERM.fullmatch(part)
    if match is None:
        raise UsageError(f"{part.strip()!r} in {whole!r} is no condition; one is written like torch>=2.11")
    try:
        axis = Axis(match["axis"])
    except ValueError:
        near = difflib.get_close_matches(match["axis"], list(Axis), 1)
        hint = f"; did you mean {near[0]}?" if near else f"; the axes are {', '.join(Axis)}"
        raise UsageError(f"there is no axis {match['axis']!r}{hint}") from None
    operator = "==" if match["operator"] == "=" else match["operator"]
    value = match["value"]
    if axis is Axis.FLASH_ATTN and value == "none":
        value = NO_FLASH_ATTN
    if axis is Axis.GPU:
        if not re.fullmatch(r"sm_[0-9*?]+", value):
            raise UsageError(f"{part.strip()!r}: {value!r} is not a GPU architecture; one is written like sm_90")
        if operator in ("==", "!="):
            return axis, operator, value
        value = value.removeprefix("sm_")
    if axis is Axis.FRAMEWORK:
        if operator not in ("==", "!="):
            raise UsageError(f"{part.strip()!r}: a framework is named, framework=xtuner0.1.23 or framework=xtuner*")
        return axis, operator, value
    try:
        SpecifierSet(operator + value)
    except InvalidSpecifier:
        raise UsageError(f"{part.strip()!r}: {value!r} is not a version") from None
    return axis, operator, value


def _holds(axis: Axis, actual: str, operator: str, value: str) -> bool:
    if axis in (Axis.GPU, Axis.FRAMEWORK):
        if operator in ("==", "!="):
            return fnmatch.fnmatchcase(actual, value) == (operator == "==")
        actual = actual.removeprefix("sm_")
    return SpecifierSet(operator + value).contains(actual, prereleases=True)


def select(cells: Iterable[Cell], aliases: Mapping[str, str], words: Sequence[str]) -> list[Cell]:
    """The cells that any of `words` names, in the matrix's order; all of them when there are no words.

    Raises `UsageError` for a word that names nothing, with the nearest name.
    """
    known = {str(cell): cell for cell in cells}
    if not words:
        return list(known.values())
    chosen: set[str] = set()
    for word in words:
        ids = _named(word, known, aliases)
        if not ids:
            near = difflib.get_close_matches(word, [*aliases, *known], 1, 0.4)
            hint = f"; the nearest name is {near[0]}" if near else ""
            raise UsageError(f"{word!r} selects no cell{hint} (`knowngood cells` lists them)")
        chosen |= ids
    return [cell for name, cell in known.items() if name in chosen]


def _named(word: str, known: Mapping[str, Cell], aliases: Mapping[str, str]) -> set[str]:
    if word in aliases:
        return {aliases[word]}
    if word in known:
        return {word}
    if re.search(r"[<>=]", word):
        condition = Filter(word)
        return {name for name, cell in known.items() if condition.matches(cell)}
    return set(fnmatch.filter(known, word))
