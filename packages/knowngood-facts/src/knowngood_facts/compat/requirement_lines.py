"""Requirements files and freezes, read so that every line is accounted for. Pure: `read` gives the text of other files.

A line is a package of a known version, an option, another file that is followed, or unread with the reason: nothing is
skipped in silence. `knowngood_facts.compat.list_formats` reads other kinds of files with the same `RequirementReader`.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import unquote

from knowngood.core.errors import InputError, InputProblem, UsageError, redact_credentials
from knowngood.core.package_names import canonical_name
from knowngood_facts.compat.query import PackageSpec, RequirementError, UnreadLine, parse_requirement, pinned_package

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_VERSION = r"[0-9]+(?:\.[0-9]+)+(?:[.-]?(?:a|b|rc|post|dev)\.?[0-9]+)*"
_FOLLOWED = re.compile(r"(-r|--requirement|-c|--constraint)(?:\s*=\s*|\s+|(?<=-[rc]))(.+)")
_EDITABLE = re.compile(r"(?:-e|--editable)(?:\s*=\s*|\s+)(.+)")
_INDEX = re.compile(r"(?:-i|--index-url|--extra-index-url|-f|--find-links)(?:\s*=\s*|\s+)(\S+)")
_OPTION = re.compile(
    r"(-i|-f|--(?:index-url|extra-index-url|find-links|no-index|no-binary|only-binary|prefer-binary|require-hashes"
    r"|pre|trusted-host|use-feature|no-build|all-releases|only-final|uploaded-prior-to))\b.*"
)
_OF_ONE_REQUIREMENT = re.compile(
    r"""\s+--(?:hash|config-settings?|global-option|install-option|build-option)[= ]\s*(?:"[^"]*"|'[^']*'|\S)+"""
)
_EDITABLE_COMMENT = re.compile(rf"#\s*Editable\b.*\((?P<name>{_NAME})==(?P<version>[^)\s]+)\)\s*")
"""What `pip freeze` writes above an editable install whose repository it does not know."""
_DISTRIBUTION_OF_REPOSITORY = {"flash-attention": "flash-attn", "transformerengine": "transformer-engine"}
"""The name of a repository -> the distribution that is built from it, where the names differ."""


@dataclass(kw_only=True)
class RequirementList:
    """What a file of requirements, with the files that it names, asks for."""

    packages: list[PackageSpec] = field(default_factory=list)
    constraints: list[PackageSpec] = field(default_factory=list)
    """Bounds on packages that the list does not name."""
    unread: list[UnreadLine] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What was passed over because it says nothing about versions, and what was assumed."""
    python: str | None = None
    """The Python that the file itself asks for."""


@dataclass(frozen=True, kw_only=True)
class ListOptions:
    """What decides how a file of requirements is read, besides its text."""

    python: str | None = None
    """The Python for which markers are evaluated."""
    extras: tuple[str, ...] = ()
    """The extras of a project that are asked for."""
    groups: tuple[str, ...] = ()
    """The dependency groups of a project that are asked for."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """The variables that `${NAME}` stands for."""
    read: Callable[[str], str | None] = lambda _: None
    """Returns the text of another file by its path, `None` when there is none."""


@dataclass(kw_only=True)
class RequirementReader:
    """Reads requirements, file by file; every kind of file gives what it requires to one of these."""

    options: ListOptions = field(default_factory=ListOptions)
    result: RequirementList = field(default_factory=RequirementList)
    bounds: list[PackageSpec] = field(default_factory=list)
    """The constraints of all files."""
    problems: list[InputProblem] = field(default_factory=list)
    files: set[str] = field(default_factory=set)
    torch_build: str | None = None
    """The local version of the torch that another index has, such as `cu126`."""

    @property
    def python(self) -> str | None:
        """The Python for which markers are evaluated: the one that is asked for, else the file's own."""
        return self.options.python or self.result.python

    def read_lines(self, text: str, origin: str, *, constraint: bool = False) -> None:
        """Read the text of a requirements file or a freeze; what is wrong with it is added to `problems`."""
        self.files.add(posixpath.normpath(origin))
        options: dict[str, list[int]] = {}
        editable_pin: PackageSpec | None = None
        for number, line in _logical_lines(text):
            comment = _EDITABLE_COMMENT.fullmatch(line.strip())
            item = _OF_ONE_REQUIREMENT.sub("", re.sub(r"(^|\s)#.*$", "", line).strip())
            if comment:
                editable_pin = pinned_package(comment["name"], *comment["version"].split("+", 1), explicit=False)
            if not item:
                continue
            if option := _OPTION.fullmatch(item):
                options.setdefault(option[1], []).append(number)
            place = UnreadLine(file=origin, line=number, text=redact_credentials(item), because="")
            if editable_pin is not None and _EDITABLE.fullmatch(item) and "://" not in item:
                self.result.packages.append(editable_pin)
            else:
                self.read_item(item, place, column=line.find(item[:1]) + 1, constraint=constraint)
            editable_pin = None
        if options:
            passed = ", ".join(f"{name} (line {lines[0]})" for name, lines in options.items())
            self.result.notes.append(f"{origin}: passed over, for they name no package: {passed}")

    def read_item(self, item: str, place: UnreadLine, *, column: int = 1, constraint: bool = False) -> None:
        """Read one line without its comment; what is wrong with it is added to `problems`."""
        try:
            self._read_item(self._expand(item, place), place, constraint=constraint)
        except UsageError as error:
            if isinstance(error, RequirementError):
                self.add_problem(f"this is {error.reason}", place, column + error.offset)
            else:
                self.add_problem(str(error), place, column)

    def add_problem(self, text: str, place: UnreadLine, column: int = 1) -> None:
        """Note a defect of the file, which ends the command with exit code 2."""
        self.problems.append(InputProblem(file=place.file, line=place.line, column=column, text=text))

    def _expand(self, item: str, place: UnreadLine) -> str:
        """Return a line with the values of its variables (`${NAME}`); with an unset one the line is unread."""
        names = re.findall(r"\$\{([A-Z0-9_]+)\}", item)
        missing = [name for name in names if name not in self.options.environ]
        if missing:
            self.add_unread(place, f"the environment variable {missing[0]} decides what it means, and it is not set")
            return ""
        return re.sub(r"\$\{([A-Z0-9_]+)\}", lambda match: self.options.environ[match[1]], item)

    def _read_item(self, item: str, place: UnreadLine, *, constraint: bool) -> None:
        if match := _FOLLOWED.fullmatch(item):
            self.follow(
                match[2].strip().strip("'\""), place, constraint=constraint or match[1] in ("-c", "--constraint")
            )
            return
        if match := _INDEX.fullmatch(item):
            self.note_index(match[1])
            return
        if not item or _OPTION.fullmatch(item):
            return
        editable = _EDITABLE.fullmatch(item)
        if item.startswith("-") and not editable:
            option = re.split(r"[=\s]", item, maxsplit=1)[0]
            raise UsageError(f"a requirements file has no option {option}")
        package = self.read_package(editable[1].strip() if editable else item, place)
        if package is not None:
            (self.bounds if constraint else self.result.packages).append(package)

    def note_index(self, address: str) -> None:
        """Note which build of torch an index has, when its address ends in that."""
        build = re.search(r"/(cu[0-9]{2,3}|cpu|rocm[0-9.]+|xpu)/?$", address)
        self.torch_build = build[1] if build else self.torch_build

    def follow(self, name: str, unread: UnreadLine, *, constraint: bool) -> None:
        """Read another file, whose path is relative to the one that names it."""
        if "://" in name:
            self.add_unread(unread, "a file on another machine; it is not fetched")
            return
        path = posixpath.join(posixpath.dirname(unread.file), name)
        if posixpath.normpath(path) in self.files:
            return
        text = self.options.read(path)
        if text is None:
            self.add_unread(unread, f"there is no file {path}")
        else:
            self.read_lines(text, path, constraint=constraint)

    def read_package(self, item: str, unread: UnreadLine) -> PackageSpec | None:
        """Return the package of a line; `None` when its marker excludes it, or when the line is noted as unread."""
        direct, marker = _split_marker(item)
        named = re.fullmatch(rf"({_NAME})\s*(?:\[([^\]]*)\])?\s*@\s*(\S.*)", direct)
        target = named[3].strip() if named else direct
        if not (named or _is_location(target)):
            return parse_requirement(item, explicit=False, python=self.python)
        if marker and parse_requirement(f"x; {marker}", python=self.python) is None:
            return None
        package = self.read_location(target, named[1] if named else None, unread)
        extras = [canonical_name(extra.strip()) for extra in named[2].split(",")] if named and named[2] else []
        return replace(package, extras=tuple(sorted(extras))) if package and extras else package

    def read_location(self, target: str, name: str | None, unread: UnreadLine) -> PackageSpec | None:
        """Return the package at a URL or a path, where that names its version."""
        place, _, fragment = unquote(target).partition("#")
        egg = re.search(rf"(?:^|&)egg=({_NAME})", fragment)
        name = name or (egg[1] if egg else None)
        last = place.rstrip("/").rpartition("/")[2]
        if last.endswith(".whl"):
            return parse_requirement(last, explicit=False, python=self.python)
        if re.match(r"(?:git|hg|svn|bzr)\+|git@|git://", place):
            return self.read_repository(place, name, "subdirectory=" in fragment, unread)
        archive = re.fullmatch(rf"(?:({_NAME})-)?v?({_VERSION})\.(?:tar\.gz|tar\.bz2|zip|tgz)", last)
        if archive and (name or archive[1]):
            return pinned_package(name or archive[1], archive[2], explicit=False)
        if "://" in place and not place.startswith("file:"):
            self.add_unread(unread, "this URL names no version", name)
            return None
        self.add_unread(unread, "a local path names no version", name)
        return None

    def read_repository(
        self, place: str, name: str | None, subdirectory: bool, unread: UnreadLine
    ) -> PackageSpec | None:
        """Return the release that a tag of a repository names."""
        path = place.partition("://")[2] or place.partition(":")[2]
        path, _, revision = path.partition("/")[2].rpartition("@") if "@" in path.partition("/")[2] else (path, "", "")
        repository = path.rstrip("/").rpartition("/")[2].removesuffix(".git").lower()
        if name is None and not subdirectory:
            name = _DISTRIBUTION_OF_REPOSITORY.get(repository, repository)
        prefix = rf"(?:(?:{re.escape(repository)}|release|version|rel|ver)[-_/])?v?"
        tag = re.fullmatch(rf"(?:refs/tags/)?{prefix}({_VERSION})", revision, re.IGNORECASE)
        if tag is None or name is None:
            what = f"{revision!r} is no tag that names a version" if revision else "it names no tag"
            self.add_unread(unread, f"a repository, and {what}", name)
            return None
        return pinned_package(name, tag[1], explicit=False)

    def add_unread(self, unread: UnreadLine, because: str, name: str | None = None) -> None:
        """Note why a line was not read."""
        package = canonical_name(name) if name else None
        self.result.unread.append(replace(unread, because=because, package=package))

    def finish(self) -> RequirementList:
        """Return the list, with what holds for the whole of it: constraints, and the index that torch comes from.

        Raises:
            InputError: the files have defects; the text has all of them, each with file, line and column.
        """
        if self.problems:
            raise InputError(self.problems)
        result = self.result
        names = {package.name for package in result.packages}
        result.packages += [package for package in self.bounds if package.name in names]
        others = [package for package in self.bounds if package.name not in names]
        result.constraints += [replace(package, is_constraint=True) for package in others]
        if self.torch_build is not None:
            result.packages = [
                replace(package, local=self.torch_build)
                if package.name == "torch" and package.version and package.local is None
                else package
                for package in result.packages
            ]
        return result


def _split_marker(item: str) -> tuple[str, str]:
    """Split a line that names a location into what stands before its marker, and the marker."""
    place, separator, marker = item.partition(" ;") if " ;" in item else item.partition("; ")
    return (place.strip(), marker.strip()) if separator else (item, "")


def _is_location(text: str) -> bool:
    """Whether a line is a URL or a path instead of a requirement."""
    first = re.split(r"[\[;]", text, maxsplit=1)[0]
    return (
        "://" in first
        or text.startswith((".", "/", "~", "git@"))
        or bool(re.search(r"\.(?:whl|tar\.gz|tar\.bz2|zip|tgz)$", first.strip()))
        or bool(re.fullmatch(r"[^\s=<>!~@]+/[^\s=<>!~@]*", first.strip()))
    )


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file with their numbers; one that a backslash continues has the number of its first."""
    joined, first = "", 0
    for number, line in enumerate(text.splitlines(), start=1):
        first = first or number
        is_comment = line.lstrip().startswith("#")  # a comment ends what a backslash continues, as with pip
        if line.endswith("\\") and not is_comment:
            joined += line[:-1] + " "
            continue
        yield first, f"{joined} {line}" if joined and is_comment else joined + line
        joined, first = "", 0
    if joined:
        yield first, joined
