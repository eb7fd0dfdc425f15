"""What a pyproject.toml requires: its dependencies, extras and groups, in the standard's form. Pure."""

from __future__ import annotations

import difflib
import posixpath
import re
import tomllib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from knowngood.core.errors import InputError, InputProblem, UsageError, redact_credentials
from knowngood.core.package_names import canonical_name
from knowngood_facts.compat.query import UnreadLine

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from knowngood_facts.compat.requirement_lines import RequirementReader

_MARKER_PYTHON = "3.11"
"""The Python for which markers are evaluated when nothing states one."""


def read_project_file(reader: RequirementReader, text: str, origin: str) -> None:
    """Read a pyproject.toml: its dependencies, and the extras and groups that are asked for."""
    document = parse_toml(text, origin)
    if document.table("tool", "poetry", "dependencies") and not document.table("project").get("dependencies"):
        raise UsageError(
            f"{origin}: Poetry's own tables are not read; `poetry export --output requirements.txt` says the same"
        )
    if not document.data.keys() & {"project", "dependency-groups"}:
        raise UsageError(f"{origin}: it has neither of the tables project and dependency-groups")
    project = _ProjectFile(reader=reader, document=document)
    project.read()


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


@dataclass(kw_only=True)
class _ProjectFile:
    """One pyproject.toml on its way into a list."""

    reader: RequirementReader
    document: TomlText

    def read(self) -> None:
        """Read everything that is asked for."""
        project = self.document.table("project")
        settle_python(self.reader, project.get("requires-python"), self.document.file)
        self._note_indexes()
        dynamic = project.get("dynamic") or []
        for item in self.document.strings(project.get("dependencies", []), "dependencies"):
            self._add(item)
        if "dependencies" in dynamic:
            self._read_dynamic()
        extras = {canonical_name(name): value for name, value in project.get("optional-dependencies", {}).items()}
        self._read_extras(project.get("name", ""), extras)
        self._read_groups()
        uv = self.document.table("tool", "uv")
        for item in self.document.strings(uv.get("constraint-dependencies", []), "constraint-dependencies"):
            self._add(item, constraint=True)
        if uv.get("override-dependencies"):
            self._note("tool.uv.override-dependencies replaces what packages require; that is not looked at")

    def _add(self, item: str, *, constraint: bool = False) -> None:
        place, column = self.document.place(item)
        self.reader.read_item(item, place, column=column, constraint=constraint)

    def _note(self, text: str) -> None:
        self.reader.result.notes.append(f"{self.document.file}: {text}")

    def _note_indexes(self) -> None:
        """Note which build of torch the file's own index has (`tool.uv.sources`)."""
        source = self.document.table("tool", "uv", "sources").get("torch")
        sources = source if isinstance(source, list) else [source]
        names = {item.get("index") for item in sources if isinstance(item, dict)}
        indexes = self.document.table("tool", "uv").get("index", [])
        chosen = [item for item in indexes if isinstance(item, dict) and item.get("name") in names]
        if len(names - {None}) > 1:
            self._note("torch comes from several indexes (tool.uv.sources); which build it is, is not looked at")
        elif chosen:
            self.reader.note_index(str(chosen[0].get("url", "")))

    def _read_dynamic(self) -> None:
        """Read the files that setuptools takes the dependencies from; without them a build decides."""
        source = self.document.table("tool", "setuptools", "dynamic").get("dependencies", {})
        files = source.get("file", []) if isinstance(source, dict) else []
        place, _ = self.document.place("dependencies")
        for name in [files] if isinstance(files, str) else files:
            self.reader.follow(str(name), place, constraint=False)
        if not files:
            self.reader.add_unread(place, "the dependencies are dynamic: a build of the project decides")

    def _read_extras(self, own_name: str, extras: Mapping[str, Any]) -> None:
        known = list(extras)
        left = [canonical_name(name) for name in self.reader.options.extras]
        done: set[str] = set()
        while left:
            name = left.pop(0)
            if name in done:
                continue
            done.add(name)
            refuse_unknown_names([name], known, "extra", self.document.file)
            for item in self.document.strings(extras.get(name, []), name):
                own = re.match(r"\s*([\w.-]+)\s*\[([^\]]*)\]\s*(?:;|$)", item)
                if own and canonical_name(own[1]) == canonical_name(own_name):
                    left += [canonical_name(extra.strip()) for extra in own[2].split(",")]
                else:
                    self._add(item)
        self._say_left_out("extra", [name for name in known if name not in done])

    def _read_groups(self) -> None:
        groups = {canonical_name(name): value for name, value in self.document.table("dependency-groups").items()}
        wanted = [canonical_name(name) for name in self.reader.options.groups]
        refuse_unknown_names(wanted, list(groups), "group", self.document.file)
        for name in wanted:
            self._read_group(name, groups, ())
        self._say_left_out("group", [name for name in groups if name not in wanted])

    def _read_group(self, name: str, groups: Mapping[str, Any], above: Sequence[str]) -> None:
        if name in above:
            raise self.document.error(f"the group {name} includes itself ({' > '.join((*above, name))})", name)
        if not isinstance(groups.get(name), list):
            raise self.document.error(
                f"there is no list of the group {name}, which {above[-1:] or 'it'} includes", name
            )
        for item in groups[name]:
            if isinstance(item, str):
                self._add(item)
            elif isinstance(item, dict) and isinstance(item.get("include-group"), str):
                self._read_group(canonical_name(item["include-group"]), groups, (*above, name))
            else:
                raise self.document.error(f"an entry of the group {name} is a text or include-group", name)

    def _say_left_out(self, kind: str, names: Sequence[str]) -> None:
        if names:
            subject = f"{kind}s {', '.join(names)} were" if len(names) > 1 else f"{kind} {names[0]} was"
            self._note(f"the {subject} not asked for (--{kind} NAME)")


def settle_python(reader: RequirementReader, requires: Any, origin: str) -> None:
    """Note what `requires-python` says against the Python that is asked for; without one, take the oldest it allows."""
    if not isinstance(requires, str) or not requires.strip():
        return
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    from knowngood.index.wheel_metadata import oldest_python

    try:
        allowed = SpecifierSet(requires)
    except InvalidSpecifier:
        raise UsageError(f"{origin}: requires-python {requires!r} is not a specifier, as in >=3.11") from None
    python = reader.python
    if python is None and not allowed.contains(f"{_MARKER_PYTHON}.0"):
        reader.result.python = oldest_python(requires)
        reader.result.notes.append(
            f"{origin} requires Python {requires}; the answer is for {reader.result.python} (no --python is given)"
        )
    elif python is not None:
        release = python.removesuffix("t")
        if not allowed.contains(release if release.count(".") > 1 else f"{release}.99", prereleases=True):
            reader.result.notes.append(f"{origin}: it requires Python {requires}, which excludes {python}")


def refuse_unknown_names(wanted: Iterable[str], known: Sequence[str], kind: str, origin: str) -> None:
    """Raise `UsageError` for an extra or a group that a file does not have, with the nearest that it has."""
    for name in wanted:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1, 0)
            there = f"the nearest is {near[0]} (known: {', '.join(known)})" if near else f"it has no {kind}s"
            raise UsageError(f"{posixpath.basename(origin)} has no {kind} {name!r}; {there}")


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
