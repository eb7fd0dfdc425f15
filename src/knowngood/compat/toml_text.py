"""A TOML file as plain data, with the lines of its values as far as they can be found again. Pure.

`tomllib` gives no positions; a requirement is looked up in the text as it stands between quotes.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from typing import Any

from knowngood.compat.query import UnreadLine
from knowngood.core.errors import InputError, InputProblem, redact_credentials


@dataclass(kw_only=True)
class TomlText:
    """The content of a TOML file, and where its values stand."""

    file: str
    text: str
    data: dict[str, Any]
    _next: dict[str, int] = field(default_factory=dict)

    def place(self, value: str, *, key: bool = False) -> tuple[UnreadLine, int]:
        """Return the line and the column of a value (or of a key), its next mention when it was looked up before."""
        needles = [value] if key else [f'"{value}"', f"'{value}'"]
        starts = [self.text.find(needle, self._next.get(value, 0)) for needle in needles]
        start = min((place for place in starts if place >= 0), default=-1)
        if start < 0:  # written with escapes, or looked up more often than it is there
            start = max(0, self._next.get(value, 1) - 1)
        self._next[value] = start + 1
        line = self.text.count("\n", 0, start) + 1
        column = start - self.text.rfind("\n", 0, start) + (0 if key else 1)
        return UnreadLine(file=self.file, line=line, text=redact_credentials(value), because=""), column

    def error(self, text: str, value: str) -> InputError:
        """Return an error about a key of the file."""
        place, column = self.place(value, key=True)
        return InputError([InputProblem(file=self.file, line=place.line, column=column, text=text)])

    def table(self, *path: str) -> dict[str, Any]:
        """Return a table below the top, empty where the file has none; raises `InputError` for any other value."""
        value: Any = self.data
        for key in path:
            value = value.get(key, {})
            if not isinstance(value, dict):
                raise self.error(f"{'.'.join(path)} is a table", key)
        assert isinstance(value, dict)  # noqa: S101 - the loop and the parser give tables only
        return value

    def strings(self, value: Any, name: str) -> list[str]:
        """Return a list of texts; raises `InputError` for anything else."""
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(f"{name} is a list of texts", name.rpartition(".")[2])
        return value


def parse_toml(text: str, file: str) -> TomlText:
    """Return the content of a TOML file; raises `InputError` with line and column when it is not well-formed."""
    try:
        return TomlText(file=file, text=text, data=tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        message, _, position = str(error).rpartition(" (at ")
        numbers = [int(word.strip(",)")) for word in position.split() if word.strip(",)").isdigit()]
        if len(numbers) != 2:  # "at end of document"
            numbers = [text.count("\n") + 1, 1]
            message = str(error)
        line, column = numbers
        raise InputError([InputProblem(file=file, line=line, column=column, text=f"not TOML: {message}")]) from None
