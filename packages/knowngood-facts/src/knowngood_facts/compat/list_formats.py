"""Every kind of file that says which packages somebody has or wants: listings, lock files, projects. Pure."""

from __future__ import annotations

import json
import posixpath
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from knowngood.core import yaml_document
from knowngood.core.errors import InputError, InputProblem, UsageError
from knowngood.core.package_names import canonical_name
from knowngood_facts.compat.project_file import TomlText, parse_toml, refuse_unknown_names, settle_python
from knowngood_facts.compat.query import UnreadLine, marker_environment, pinned_package
from knowngood_facts.compat.requirement_lines import ListOptions, RequirementList, RequirementReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from packaging.pylock import Package

_NAMES = (
    (r"pyproject\.toml", "pyproject.toml"),
    (r"uv\.lock", "uv.lock"),
    (r"pylock(\.[^.]+)?\.toml", "pylock.toml"),
    (r"(.*[-_.])?environment([-_.].*)?\.ya?ml|conda\.ya?ml", "environment.yml"),
)
_CONTENTS = (
    (r"^lock-version\s*=.*(?s:.)*^\[\[packages\]\]", "pylock.toml"),
    (r"^content-hash\s*=", "poetry.lock"),
    (r"^revision\s*=\s*\d|^version\s*=\s*1\s*$(?s:.)*^\[\[package\]\]", "uv.lock"),
    (r"^\[(?:project|build-system|dependency-groups|tool\.[\w.-]+)\]\s*(?:#.*)?$", "pyproject.toml"),
    (r"^dependencies:\s*(?:#.*)?$", "environment.yml"),
    (r"\A\s*[\[{]\s*[\[{\"\]]", "pip list --format json"),
    (r"\A\s*Package\s+Version\b.*\n\s*-{3,}", "pip list"),
    (r"\A(?:#.*\n)*#\s+Name\s+Version\s+Build", "conda list"),
)
_REFUSED = {
    "poetry.lock": "`poetry export --output requirements.txt` says the same",
    "Pipfile": "`pipenv requirements` writes what it says as a requirements file",
    "Pipfile.lock": "`pipenv requirements` writes what it says as a requirements file",
    "setup.py": "it is a program; `uv pip compile setup.py` writes what it requires as a requirements file",
    "setup.cfg": "`uv pip compile setup.cfg` writes what it requires as a requirements file",
}
PROJECT_FORMATS = ("pyproject.toml", "uv.lock", "pylock.toml")
"""The kinds that have extras and groups."""


def recognize_format(origin: str, text: str) -> str:
    """Return the kind of a file: the name of one, or `requirements`; its content counts where the name says nothing.

    Raises:
        UsageError: it is of a kind that is not read; the text says what to give instead.
    """
    name = posixpath.basename(origin)
    kind = next((kind for pattern, kind in _NAMES if re.fullmatch(pattern, name)), None)
    if kind is None and name in _REFUSED:
        kind = name
    if kind is None:
        kind = next((kind for pattern, kind in _CONTENTS if re.search(pattern, text, re.MULTILINE)), "requirements")
    if kind in _REFUSED:
        raise UsageError(f"{origin}: {kind} is not read; {_REFUSED[kind]}")
    if kind == "requirements" and name.endswith((".toml", ".yml", ".yaml", ".json")):
        known = "a pyproject.toml, a pylock.toml, a uv.lock, a conda environment.yml or a requirements file"
        raise UsageError(f"{origin}: neither its name nor its content is that of {known}")
    return kind


def parse_requirement_file(text: str, origin: str, options: ListOptions | None = None) -> RequirementList:
    """Parse any file of requirements, and the files that it names.

    Args:
        text: the file's text.
        origin: its path, for messages and to find the other files; `stdin` when it has none.
        options: the Python, the extras and groups that are asked for, and how other files are read.

    Raises:
        UsageError: the file is of a kind that is not read, or has defects; the text names file, line and column.
    """
    text = text.removeprefix("\ufeff")
    reader = RequirementReader(options=options or ListOptions())
    kind = recognize_format(origin, text)
    if kind not in PROJECT_FORMATS and (reader.options.extras or reader.options.groups):
        raise UsageError(f"{origin}: --extra and --group are for {', '.join(PROJECT_FORMATS)}; this is {kind}")
    _readers()[kind](reader, text, origin)
    return reader.finish()


def _readers() -> Mapping[str, Callable[[RequirementReader, str, str], None]]:
    """Kind -> what reads it; imported here, because most questions need none or one of them."""
    from knowngood_facts.compat import project_file

    return {
        "requirements": RequirementReader.read_lines,
        "pyproject.toml": project_file.read_project_file,
        "uv.lock": read_uv_lock,
        "pylock.toml": read_pylock,
        "environment.yml": read_conda_environment,
        "pip list": read_pip_table,
        "conda list": read_conda_table,
        "pip list --format json": read_pip_json,
    }


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


def read_uv_lock(reader: RequirementReader, text: str, origin: str) -> None:
    """Read a uv.lock: what its projects require, followed to the end for the Python that is asked for."""
    document = parse_toml(text, origin)
    packages = document.data.get("package")
    if not isinstance(packages, list) or not all(isinstance(item, dict) and "name" in item for item in packages):
        raise UsageError(f"{origin}: a uv.lock has a [[package]] with a name for each package; this one has none")
    settle_python(reader, document.data.get("requires-python"), origin)
    _UvLock(reader=reader, document=document, packages=packages).read()


@dataclass(kw_only=True)
class _UvLock:
    """One uv.lock on its way into a list."""

    reader: RequirementReader
    document: TomlText
    packages: list[dict[str, Any]]
    chosen: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    done: set[tuple[str, str, str]] = field(default_factory=set)

    def read(self) -> None:
        """Add every package that the projects of the lock install."""
        roots = [item for item in self.packages if {"virtual", "editable"} & _source(item).keys()]
        if not roots:
            raise UsageError(
                f"{self.document.file}: no package of this lock is a project, so nothing asks for the others"
            )
        wanted = self.reader.options
        extras = [canonical_name(name) for name in wanted.extras]
        groups = [canonical_name(name) for name in wanted.groups]
        refuse_unknown_names(extras, _names(roots, "optional-dependencies"), "extra", self.document.file)
        refuse_unknown_names(groups, _names(roots, "dev-dependencies"), "group", self.document.file)
        for root in roots:
            self._follow(root.get("dependencies", []))
            for extra in extras:
                self._follow(root.get("optional-dependencies", {}).get(extra, []))
            for group in groups:
                self._follow(root.get("dev-dependencies", {}).get(group, []))
        for (name, version), item in sorted(self.chosen.items()):
            if item not in roots:
                self._add(name, version, item)

    def _follow(self, dependencies: Iterable[Mapping[str, Any]]) -> None:
        left = list(dependencies)
        while left:
            dependency = left.pop()
            if not self._holds(str(dependency.get("marker", ""))):
                continue
            for item in self._matching(dependency):
                version = str(item.get("version", ""))
                self.chosen[item["name"], version] = item
                for extra in ("", *dependency.get("extra", [])):
                    key = (item["name"], version, extra)
                    if key not in self.done:
                        self.done.add(key)
                        left += (
                            item.get("optional-dependencies", {}).get(extra, [])
                            if extra
                            else item.get("dependencies", [])
                        )

    def _matching(self, dependency: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [
            item
            for item in self.packages
            if item["name"] == dependency.get("name")
            and dependency.get("version") in (None, item.get("version"))
            and dependency.get("source") in (None, item.get("source"))
        ]

    def _holds(self, marker: str) -> bool:
        """Whether a marker holds; an extra of a project that conflicts with others is extra-N-PROJECT-NAME in it."""
        if not marker:
            return True
        from packaging.markers import Marker

        parsed, environment = Marker(marker), marker_environment(self.reader.python)
        names = [
            f"extra-{len(item['name'])}-{item['name']}-{canonical_name(extra)}"
            for item in self.packages
            for extra in (*self.reader.options.extras, *self.reader.options.groups)
            if "extra-" in marker
        ]
        return any(parsed.evaluate(environment | {"extra": name}) for name in ("", *names))

    def _add(self, name: str, version: str, item: Mapping[str, Any]) -> None:
        place, _ = self.document.place(name)
        public, _, local = version.partition("+")
        if version:
            self.reader.result.packages.append(pinned_package(name, public, local or None, explicit=False))
        else:
            what = next(iter(_source(item)), "its source")
            self.reader.add_unread(place, f"the lock gives it no version ({what})", name)


def _source(item: Mapping[str, Any]) -> Mapping[str, Any]:
    source = item.get("source", {})
    return source if isinstance(source, dict) else {}


def _names(roots: Iterable[Mapping[str, Any]], key: str) -> list[str]:
    return [name for root in roots for name in root.get(key, {})]


def read_pylock(reader: RequirementReader, text: str, origin: str) -> None:
    """Read a pylock.toml: the packages whose markers hold for the Python, the extras and the groups asked for."""
    from packaging.pylock import Pylock, PylockUnsupportedVersionError, PylockValidationError

    document = parse_toml(text, origin)
    try:
        lock = Pylock.from_dict(document.data)
    except (PylockValidationError, PylockUnsupportedVersionError) as error:
        raise UsageError(f"{origin}: not a pylock.toml as PEP 751 says: {error}") from None
    settle_python(reader, str(lock.requires_python) if lock.requires_python else None, origin)
    wanted = reader.options
    refuse_unknown_names(map(canonical_name, wanted.extras), list(lock.extras or ()), "extra", origin)
    refuse_unknown_names(wanted.groups, list(lock.dependency_groups or ()), "group", origin)
    environment: dict[str, Any] = {
        **marker_environment(reader.python),
        "extras": frozenset(map(canonical_name, wanted.extras)),
        "dependency_groups": frozenset(wanted.groups or lock.default_groups or ()),
    }
    for package in lock.packages:
        if package.marker is None or package.marker.evaluate(environment, context="lock_file"):
            _add_locked(reader, package, document)


def _add_locked(reader: RequirementReader, package: Package, document: TomlText) -> None:
    if package.version is None:
        place: UnreadLine = document.place(package.name)[0]
        kind = next((kind for kind in ("vcs", "directory", "archive") if getattr(package, kind) is not None), "source")
        reader.add_unread(place, f"the lock gives it no version ({kind})", package.name)
        return
    public, local = package.version.public, package.version.local
    reader.result.packages.append(pinned_package(package.name, public, local, explicit=False))
