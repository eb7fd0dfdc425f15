"""A builder: a docker engine, or an instance of buildx (docker-container, remote, kubernetes). Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from knowngood.errors import UsageError

DOCKER = "docker"
"""The driver of buildx that is the engine itself."""


@dataclass(frozen=True, kw_only=True)
class Builder:
    """A builder that answers, and how `buildx` speaks to it."""

    name: str
    """As the user calls it."""
    buildx: tuple[str, ...]
    """The command up to its `build`."""
    options: tuple[str, ...] = ()
    """What `build` is told to reach it."""
    env: Mapping[str, str] = field(default_factory=dict)
    driver: str
    host: str = ""
    """An engine's address."""
    version: str = ""
    """An engine's."""
    buildkit: str
    machine: str = ""
    """Which machine it is on: builders of one share its memory."""
    memory: int | None = None
    """Bytes of the machine; `None` where nobody says."""
    processors: int | None = None
    bridge: bool = True
    """Whether build steps have a network of their own; else only the host's."""

    @property
    def engine(self) -> bool:
        """Whether it is an engine: then it keeps the images that it builds."""
        return self.driver == DOCKER

    @property
    def file(self) -> str:
        """Its name, as a part of a file's."""
        return re.sub(r"[^A-Za-z0-9.-]+", "-", self.name).strip("-")


@dataclass(frozen=True, kw_only=True)
class Inspected:
    """What `docker buildx inspect` says of an instance."""

    driver: str
    running: bool
    buildkit: str
    error: str
    """Why it does not run."""


def inspected(text: str) -> Inspected:
    """Read the text of `docker buildx inspect`; of several nodes, the first that runs speaks for all."""

    def value(name: str, part: str) -> str:
        match = re.search(rf"^{name}:[ \t]*(\S.*)$", part, re.MULTILINE)
        return match[1].strip() if match else ""

    head, *nodes = re.split(r"^(?=Name:)", text, flags=re.MULTILINE)[1:] or [text]
    states = nodes or [head]
    running = next((node for node in states if value("Status", node) == "running"), None)
    error = next(filter(None, (value("Error", node) for node in [*states, head])), "")
    version = value("BuildKit(?: version)?", running or head)
    status = value("Status", states[0]) or "inactive"
    return Inspected(
        driver=value("Driver", head),
        running=running is not None,
        buildkit=version.removeprefix("v"),
        error=error or ("" if running else f"it is {status}"),
    )


def names(text: str) -> tuple[str, ...]:
    """The builders of `--builder NAME[,NAME...]`, each once."""
    found = tuple(dict.fromkeys(word.strip() for word in text.split(",")))
    if not all(found):
        raise UsageError(f"--builder {text!r}: between commas stands the name of a builder, or an engine's address")
    return found
