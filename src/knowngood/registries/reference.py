"""Names of images in registries, `HOST[:PORT]/PATH[:TAG or @DIGEST]`, and the tags of published cells. Pure.

A tag may have 128 characters. An immutable one is `<cell id>-<first 12 digits of the lock's hash>`; where the id is too
long for that, its end is replaced by 12 digits of its own hash.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from dataclasses import dataclass
from typing import Self

from knowngood.errors import UsageError

MAX_TAG = 128
SHORT = 12
"""Digits of a hash in a tag."""

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_HOST = re.compile(r"(?P<name>[A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\])(:(?P<port>\d{1,5}))?")
_PART = r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*"
_PATH = re.compile(rf"{_PART}(/{_PART})*")


@dataclass(frozen=True, kw_only=True)
class Repository:
    """Where images of one name are kept."""

    host: str
    """With the port if there is one."""
    path: str

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
        """Read `HOST/PATH`; raises `UsageError` that says what is wrong."""
        host, slash, path = text.partition("/")
        if not slash or not _HOST.fullmatch(host) or not ({".", ":"} & set(host) or host == "localhost"):
            raise UsageError(f"{text!r} does not begin with a registry: write it as registry.example/team/knowngood")
        if not _PATH.fullmatch(path):
            hint = "; leave tag and digest out, they follow from the cell" if re.search("[:@]", path) else ""
            raise UsageError(f"{path!r} is not the name of a repository (lower case, parts joined by /){hint}")
        return cls(host=host, path=path)


@dataclass(frozen=True, kw_only=True)
class Reference:
    """One image in a repository."""

    repository: Repository
    name: str
    """A tag, or a digest `sha256:...`."""

    def __str__(self) -> str:
        return f"{self.repository}{'@' if DIGEST.fullmatch(self.name) else ':'}{self.name}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `HOST/PATH:TAG` or `HOST/PATH@DIGEST`; raises `UsageError` that says what is wrong."""
        if "@" in text:
            repository, _, name = text.partition("@")
            if not DIGEST.fullmatch(name):
                raise UsageError(f"{text!r}: after @ stands a digest, sha256:<64 hex digits>")
        else:
            repository, _, name = text.rpartition(":")
            if not repository or "/" in name or not _TAG.fullmatch(name):
                raise UsageError(
                    f"{text!r} has no tag: write it as registry.example/team/knowngood:TAG (or @sha256:...)"
                )
        return cls(repository=Repository.parse(repository), name=name)


def immutable_tag(cell: str, lock: str, revision: int = 1) -> str:
    """The one tag of a cell with this lock; another `revision` is the same lock in another image."""
    end = f"-{lock[:SHORT]}" + (f"-r{revision}" if revision > 1 else "")
    room = MAX_TAG - len(end)
    if len(cell) > room:
        cell = f"{cell[: room - SHORT - 1]}-{hashlib.sha256(cell.encode()).hexdigest()[:SHORT]}"
    return cell + end
