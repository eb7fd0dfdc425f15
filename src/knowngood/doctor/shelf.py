"""The libraries of this machine's file system, each read once. An edge."""

from __future__ import annotations

import os
import re
import subprocess
from functools import cached_property
from pathlib import Path

from knowngood.doctor import elf
from knowngood.doctor.library import Library

_LDCONFIG = "/sbin/ldconfig"


class Files:
    """`linking.Shelf` by files and ldconfig's cache."""

    def __init__(self) -> None:
        self._known: dict[str, Library | None] = {}
        self.damaged: dict[str, str] = {}
        """Path -> why it cannot be read."""

    def library(self, path: str) -> Library | None:
        """The library at a path; a damaged one is none, and noted."""
        if path not in self._known:
            self._known[path] = self._read(path)
        return self._known[path]

    def _read(self, path: str) -> Library | None:
        if not os.path.isfile(path):  # noqa: PTH113 - asked thousands of times
            return None
        try:
            return elf.read(Path(path))
        except elf.DamagedError as error:
            self.damaged[path] = str(error)
        except OSError as error:
            self.damaged[path] = f"it cannot be read: {error.strerror}"
        return None

    def cached(self, name: str) -> str | None:
        """The path that ldconfig's cache has for a name."""
        return self.cache.get(name)

    @cached_property
    def cache(self) -> dict[str, str]:
        """The cache of ldconfig, of this machine's kind of libraries."""
        try:
            told = subprocess.run([_LDCONFIG, "-p"], capture_output=True, text=True, timeout=10, check=False).stdout
        except (OSError, subprocess.TimeoutExpired):
            return {}
        found: dict[str, str] = {}
        for name, kind, path in re.findall(r"^\s+(\S+) \(([^)]*)\) => (.+)$", told, re.MULTILINE):
            if "x86-64" in kind:
                found.setdefault(name, path)
        return found
