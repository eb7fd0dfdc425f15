"""Listings of environments: conda's environment.yml, and what `pip list` and `conda list` print. Pure.

Only what pip installs is looked at. conda's own packages are other builds under other names; each is named as unread.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from knowngood.compat.query import UnreadLine, pinned_package
from knowngood.compat.requirement_lines import RequirementReader
from knowngood.core import yaml_document
from knowngood.core.errors import InputError, InputProblem, UsageError

_SPECIFICATION = re.compile(r"(?:[^\s:]+::)?([A-Za-z0-9_][\w.-]*)\s*(.*)")
_INSTALLERS = ("pip", "uv")
_NOT_LOOKED_AT = "a package of conda, which is another build than that of the index: it is not looked at"


def read_conda_environment(reader: RequirementReader, text: str, origin: str) -> None:
    """Read a conda environment.yml: its pip part, and the Python that it pins."""
    document = yaml_document.parse_yaml(text, origin)
    items = document.data.get("dependencies") if isinstance(document.data, dict) else None
    if not isinstance(items, list):
        raise InputError([document.problem(("dependencies",), "an environment.yml has a list `dependencies`")])
    for number, item in enumerate(items):
        if isinstance(item, str):
            _read_conda_package(reader, item, _place(document, ("dependencies", number), item))
    for number, item in enumerate(items):
        if isinstance(item, dict) and isinstance(item.get("pip"), list):
            for index, line in enumerate(item["pip"]):
                path = ("dependencies", number, "pip", index)
                _read_pip_line(reader, document, path, line)
        elif not isinstance(item, str):
            problem = "a dependency is `NAME=VERSION`, or `pip:` with a list of requirements"
            reader.problems.append(document.problem(("dependencies", number), problem))


def _read_pip_line(
    reader: RequirementReader, document: yaml_document.YamlDocument, path: yaml_document.DocumentPath, line: Any
) -> None:
    if isinstance(line, str):
        problem = document.problem(path, "")
        reader.read_item(re.sub(r"(^|\s)#.*$", "", line).strip(), _place(document, path, line), column=problem.column)
    else:
        reader.problems.append(document.problem(path, "a line of the pip part is text, as in torch==2.6.0"))


def _place(document: yaml_document.YamlDocument, path: yaml_document.DocumentPath, text: str) -> UnreadLine:
    return UnreadLine(file=document.file, line=document.problem(path, "").line, text=text, because="")


def _read_conda_package(reader: RequirementReader, text: str, place: UnreadLine) -> None:
    """Note a package of conda as unread, except the installers and the Python, whose release counts."""
    match = _SPECIFICATION.fullmatch(text.strip())
    if match is None:
        reader.add_problem(f"{text!r} is not a package of conda, as in python=3.11", place)
        return
    name = match[1].lower()
    if name == "python":
        release = re.match(r"[=~]{0,2}\s*(3\.\d+(?:\.\d+)?)(?:\.\*|=\S*)?\s*$", match[2])
        if release:
            reader.result.python = release[1]
        elif match[2]:
            reader.result.notes.append(f"{place.file}: python {match[2]} leaves the release open; --python states it")
    elif name not in _INSTALLERS:
        reader.add_unread(place, _NOT_LOOKED_AT, name)


def read_pip_table(reader: RequirementReader, text: str, origin: str) -> None:
    """Read the table that `pip list` or `uv pip list` prints."""
    _read_rows(reader, origin, ((number, line.split()) for number, line in _rows(text)))


def read_conda_table(reader: RequirementReader, text: str, origin: str) -> None:
    """Read the table that `conda list` prints: packages of the channel `pypi`, and the Python."""
    for number, line in _rows(text):
        words = line.split()
        place = UnreadLine(file=origin, line=number, text=line.strip(), because="")
        if words[-1] == "pypi":
            _read_rows(reader, origin, [(number, words)])
        elif len(words) > 1:
            _read_conda_package(reader, f"{words[0]}={words[1]}", place)


def _rows(text: str) -> Iterable[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() and not re.match(r"\s*(#|Package\s+Version\b|-{3,})", line):
            yield number, line


def _read_rows(reader: RequirementReader, origin: str, rows: Iterable[tuple[int, list[str]]]) -> None:
    for number, words in rows:
        place = UnreadLine(file=origin, line=number, text=" ".join(words), because="")
        if len(words) < 2:
            reader.add_problem(f"{words[0]!r} has no version beside it", place)
        else:
            _pin_installed(reader, words[0], words[1], place)


def _pin_installed(reader: RequirementReader, name: str, version: str, place: UnreadLine) -> None:
    public, _, local = version.partition("+")
    try:
        reader.result.packages.append(pinned_package(name, public, local or None, explicit=False))
    except UsageError:
        reader.add_unread(place, f"its version {version!r} is not valid (PEP 440)", name)


def read_pip_json(reader: RequirementReader, text: str, origin: str) -> None:
    """Read what `pip list --format json` or `pip inspect` prints."""
    try:
        data = json.loads(text)
    except ValueError as error:
        line, column = getattr(error, "lineno", 1), getattr(error, "colno", 1)
        raise InputError(
            [InputProblem(file=origin, line=line, column=column, text=f"not a JSON document: {error}")]
        ) from None
    items = data.get("installed") if isinstance(data, dict) else data
    if not isinstance(items, list):
        raise UsageError(f"{origin}: this JSON is neither of `pip list --format json` nor of `pip inspect`")
    for number, item in enumerate(items, start=1):
        entry = item.get("metadata", item) if isinstance(item, dict) else {}
        name, version = entry.get("name"), entry.get("version")
        place = UnreadLine(file=origin, line=1, text=str(name or item)[:80], because="")
        if isinstance(name, str) and isinstance(version, str):
            _pin_installed(reader, name, version, place)
        else:
            reader.add_problem(f"entry {number} has no name and version", place)
    environment = data.get("environment") if isinstance(data, dict) else None
    if isinstance(environment, dict) and isinstance(environment.get("python_full_version"), str):
        reader.result.python = environment["python_full_version"]
