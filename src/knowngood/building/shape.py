"""What shapes a cell's image: the same shape gives the same bytes. Pure.

An image carries the hash of its shape as a label; so does the record that is committed beside its Dockerfile.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One word for each thing that shapes an image; two images differ only where two of these do."""

    dockerfile: str
    """SHA-256 of its text."""
    lock: str
    """The lock's digest."""
    base: str
    """The base image's digest."""
    recipe: str
    """SHA-256 over `docker/recipe/`."""
    suite: str
    """SHA-256 over the smoke suite."""
    uv: str
    """The release that installs the wheels."""
    export: str
    """How layers are compressed, and the time of every file."""

    @property
    def inputs(self) -> str:
        """SHA-256 over all of it."""
        return _digest(asdict(self))

    @property
    def making(self) -> str:
        """SHA-256 over what shapes a layer besides the wheels in it: layers of one name and one making are the same."""
        shared = {name: value for name, value in asdict(self).items() if name in ("base", "recipe", "uv", "export")}
        return _digest(shared)

    def layers(self, locked: tuple[str, ...]) -> tuple[str, ...]:
        """The names of the image's layers, in their order; `locked` are those of the lock."""
        # BuildKit makes a layer of WORKDIR too, an empty one.
        below = (f"base-{self.base.removeprefix('sha256:')[:12]}", "venv", "workdir")
        return (*below, *locked, f"installed-{self.lock[:12]}", f"suite-{self.suite[:12]}")

    def changes(self, other: Shape) -> tuple[str, ...]:
        """What differs, in words."""
        mine, theirs = asdict(self), asdict(other)
        return tuple(_WORDS[name] for name in mine if mine[name] != theirs[name])


_WORDS = {
    "dockerfile": "the Dockerfile",
    "lock": "the lock",
    "base": "the base",
    "recipe": "docker/recipe",
    "suite": "the smoke suite",
    "uv": "the release of uv",
    "export": "the compression",
}


def _digest(words: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(dict(sorted(words.items()))).encode()).hexdigest()


def text_digest(text: str) -> str:
    """SHA-256 of a file's text."""
    return hashlib.sha256(text.encode()).hexdigest()
