"""Names of images in registries, `HOST[:PORT]/PATH[:TAG or @DIGEST]`, and the tags of published cells. Pure.

A tag has at most 128 characters. An immutable tag is `<cell id>-<first 12 digits of the lock's hash>`. Where the id is
too long, its end is replaced by 12 digits of its own hash.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from knowngood.core.errors import UsageError

if TYPE_CHECKING:
    from knowngood.core.matrix import Matrix

TAG_LENGTH_LIMIT = 128
TAG_HASH_DIGITS = 12
"""Hexadecimal digits of a hash that stands in a tag."""

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_HOST = re.compile(r"(?P<name>[A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\])(:(?P<port>\d{1,5}))?")
_PART = r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*"
_PATH = re.compile(rf"{_PART}(/{_PART})*")


@dataclass(frozen=True, kw_only=True)
class Repository:
    """A repository of a registry: all images of one name."""

    host: str
    """Host name, with the port if there is one."""
    path: str
    plain: bool = field(default=False, compare=False)
    """Whether the registry, on this machine, is asked over plain HTTP."""

    def __str__(self) -> str:
        return f"{self.host}/{self.path}"

    @property
    def loopback(self) -> bool:
        """Whether the registry is on this machine."""
        match = _HOST.fullmatch(self.host)
        name = match["name"].strip("[]") if match else ""
        try:
            return ipaddress.ip_address(name).is_loopback
        except ValueError:
            return name == "localhost"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `HOST/PATH`, or `http://HOST/PATH` on this machine; `UsageError` says what is wrong."""
        if re.search(r"@(?!sha256:)", text):  # the text is not repeated: it may contain a password
            raise UsageError(
                "the name of a repository contains no user and no password; write it as "
                "registry.example/team/knowngood, and log in with `docker login registry.example`"
            )
        name = text.removeprefix("http://")
        host, slash, path = name.partition("/")
        if not slash or not _HOST.fullmatch(host) or not ({".", ":"} & set(host) or host == "localhost"):
            raise UsageError(
                f"{text!r} does not begin with a registry host: write it as registry.example/team/knowngood"
            )
        if not _PATH.fullmatch(path):
            hint = "; leave out tag and digest, which follow from the cell" if re.search("[:@]", path) else ""
            raise UsageError(f"{path!r} is not a repository name (lower case, parts joined by /){hint}")
        repository = cls(host=host, path=path, plain=name != text)
        if repository.plain and not repository.loopback:
            raise UsageError(f"http:// is for a registry on this machine, {host} is not on it; write {name}")
        return repository


@dataclass(frozen=True, kw_only=True)
class ImageReference:
    """One image in a repository."""

    repository: Repository
    name: str
    """A tag, or a digest `sha256:...`."""

    def __str__(self) -> str:
        return f"{self.repository}{'@' if DIGEST.fullmatch(self.name) else ':'}{self.name}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `HOST/PATH:TAG` or `HOST/PATH@DIGEST`; `UsageError` says what is wrong."""
        if "@" in text:
            repository, _, name = text.rpartition("@")
            if not DIGEST.fullmatch(name):  # what is before the @ may be a password
                raise UsageError(f"'...@{name}': what follows @ must be a digest, sha256:<64 hex digits>")
        else:
            repository, _, name = text.rpartition(":")
            if not repository or "/" in name or not _TAG.fullmatch(name):
                raise UsageError(
                    f"{text!r} has no tag: write it as registry.example/team/knowngood:TAG (or @sha256:...)"
                )
        return cls(repository=Repository.parse(repository), name=name)


def immutable_tag(cell: str, lock: str, revision: int = 1) -> str:
    """Return the immutable tag of a cell with this lock; a higher `revision` is another image of the same lock."""
    end = f"-{lock[:TAG_HASH_DIGITS]}" + (f"-r{revision}" if revision > 1 else "")
    room = TAG_LENGTH_LIMIT - len(end)
    if len(cell) > room:
        cell = f"{cell[: room - TAG_HASH_DIGITS - 1]}-{hashlib.sha256(cell.encode()).hexdigest()[:TAG_HASH_DIGITS]}"
    return cell + end


def list_repositories(matrix: Matrix, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the repositories in which images are looked for, each once.

    These are the ones that `KNOWNGOOD_REGISTRY` lists (with blanks or commas between them), that of
    `KNOWNGOOD_REPOSITORY`, and that of matrix.yaml.
    """
    named = re.split(r"[\s,]+", environ.get("KNOWNGOOD_REGISTRY", ""))
    named += [environ.get("KNOWNGOOD_REPOSITORY", ""), matrix.publish.repository or ""]
    return tuple(dict.fromkeys(filter(None, named)))
