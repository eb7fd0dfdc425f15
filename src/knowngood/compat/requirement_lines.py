"""Requirements files and freezes, read so that every line is accounted for. Pure: `read` gives the text of other files.

A line is a package of a known version, an option that says nothing about packages, another file that is followed, or
unread with the reason: nothing is skipped in silence.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from urllib.parse import unquote

from knowngood.compat.query import PackageSpec, UnreadLine, canonical_name, parse_requirement, pinned_package
from knowngood.core.errors import UsageError

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_VERSION = r"[0-9]+(?:\.[0-9]+)+(?:[.-]?(?:a|b|rc|post|dev)\.?[0-9]+)*"
_FOLLOWED = re.compile(r"(-r|--requirement|-c|--constraint)(?:\s*=\s*|\s+|(?<=-[rc]))(.+)")
_EDITABLE = re.compile(r"(?:-e|--editable)(?:\s*=\s*|\s+)(.+)")
_INDEX = re.compile(r"(?:-i|--index-url|--extra-index-url|-f|--find-links)(?:\s*=\s*|\s+)(\S+)")
_DISTRIBUTION_OF_REPOSITORY = {"flash-attention": "flash-attn", "transformerengine": "transformer-engine"}
"""The name of a repository -> the distribution that is built from it, where the names differ."""


@dataclass(kw_only=True)
class RequirementList:
    """What a requirements file, with the files that it names, asks for."""

    packages: list[PackageSpec] = field(default_factory=list)
    unread: list[UnreadLine] = field(default_factory=list)


def parse_package_list(
    text: str, origin: str, *, python: str | None = None, read: Callable[[str], str | None] | None = None
) -> RequirementList:
    """Parse a requirements file or a freeze, and the files that it names by `-r` and `-c`.

    Args:
        text: the file's text.
        origin: its path, for messages and to find the other files; `stdin` when it has none.
        python: the Python for which markers are evaluated.
        read: returns the text of another file by its path, `None` when there is none; without it none is followed.

    Raises:
        UsageError: a line cannot be parsed; the text names the file and the line.
    """
    reader = _ListReader(python=python, read=read or (lambda _: None))
    reader.read_lines(text, origin)
    reader.finish()
    return reader.result


@dataclass(kw_only=True)
class _ListReader:
    """Reads a list of requirements, file by file."""

    python: str | None
    read: Callable[[str], str | None]
    result: RequirementList = field(default_factory=RequirementList)
    constraints: list[tuple[UnreadLine, PackageSpec]] = field(default_factory=list)
    files: set[str] = field(default_factory=set)
    torch_build: str | None = None
    """The local version of the torch that another index has, such as `cu126`."""

    def read_lines(self, text: str, origin: str, *, constraint: bool = False) -> None:
        self.files.add(posixpath.normpath(origin))
        for number, line in enumerate(_logical_lines(text), start=1):
            item = re.sub(r"(^|\s)#.*$", "", line).strip()
            item = re.sub(r"\s+--(hash|config-settings?|global-option|install-option)[= ]\S+", "", item)
            if item:
                unread = UnreadLine(file=origin, line=number, text=item, because="")
                try:
                    self.read_item(item, unread, constraint=constraint)
                except UsageError as error:
                    raise UsageError(f"{origin}:{number}: {error}") from None

    def read_item(self, item: str, unread: UnreadLine, *, constraint: bool) -> None:
        if match := _FOLLOWED.fullmatch(item):
            self.follow(
                match[2].strip().strip("'\""), unread, constraint=constraint or match[1] in ("-c", "--constraint")
            )
            return
        if match := _INDEX.fullmatch(item):
            build = re.search(r"/(cu[0-9]{2,3}|cpu|rocm[0-9.]+|xpu)/?$", match[1])
            self.torch_build = build[1] if build else self.torch_build
            return
        editable = _EDITABLE.fullmatch(item)
        if item.startswith("-") and not editable:
            return  # the other options of pip name no package
        package = self.read_package(editable[1].strip() if editable else item, unread)
        if package is not None and constraint:
            self.constraints.append((unread, package))
        elif package is not None:
            self.result.packages.append(package)

    def follow(self, name: str, unread: UnreadLine, *, constraint: bool) -> None:
        """Read another file, whose path is relative to the one that names it."""
        if "://" in name:
            self.add_unread(unread, "a file on another machine; it is not fetched")
            return
        path = posixpath.join(posixpath.dirname(unread.file), name)
        if posixpath.normpath(path) in self.files:
            return
        text = self.read(path)
        if text is None:
            self.add_unread(unread, f"there is no file {path}")
        else:
            self.read_lines(text, path, constraint=constraint)

    def read_package(self, item: str, unread: UnreadLine) -> PackageSpec | None:
        """Return the package of a line; `None` when its marker excludes it, or when the line is noted as unread."""
        direct, marker = _split_marker(item)
        named = re.fullmatch(rf"({_NAME})\s*(?:\[([^\]]*)\])?\s*@\s*(\S.*)", direct)
        target = named[3].strip() if named else direct
        if "${" in item:
            self.add_unread(unread, "an environment variable decides what it means")
            return None
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

    def finish(self) -> None:
        """Apply what holds for the whole list: constraints, and the index that torch comes from."""
        names = {package.name for package in self.result.packages}
        for unread, package in self.constraints:
            if package.name in names:
                self.result.packages.append(package)
            else:
                self.add_unread(unread, "a constraint on a package that the list does not name", package.name)
        if self.torch_build is not None:
            self.result.packages = [
                replace(package, local=self.torch_build)
                if package.name == "torch" and package.version and package.local is None
                else package
                for package in self.result.packages
            ]


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


def _logical_lines(text: str) -> Iterator[str]:
    """Yield the lines of a file; one that a backslash continues comes with the last of its lines."""
    joined = ""
    for line in text.lstrip("\ufeff").splitlines():
        if line.endswith("\\"):
            joined += line[:-1] + " "
            yield ""
            continue
        yield joined + line
        joined = ""
    if joined:
        yield joined
