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
    memory: int | None = None
    """Bytes, and processors, to which it was limited when it was made; a node says no more of itself."""
    processors: int | None = None


_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


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
    memory, processors = _limits(value("Driver Options", running or head))
    return Inspected(
        driver=value("Driver", head),
        running=running is not None,
        buildkit=version.removeprefix("v"),
        error=error or ("" if running else f"it is {status}"),
        memory=memory,
        processors=processors,
    )


def _limits(text: str) -> tuple[int | None, int | None]:
    """Memory and processors that driver options allow, as kubernetes (`limits.cpu="4"`) or docker takes them."""
    options = dict(re.findall(r'(\S+?)="([^"]*)"', text))
    quota, period = options.get("cpu-quota"), options.get("cpu-period", "100000")
    share = int(quota) / int(period) if quota and quota.isdecimal() and period.isdecimal() else None
    processors = share or _number(options.get("limits.cpu", ""), thousand=1000)
    memory = _number(options.get("memory", ""), thousand=1024) or _number(
        options.get("limits.memory", ""), thousand=1000
    )
    return (int(memory) if memory else None), (max(1, int(processors)) if processors else None)


def _number(text: str, *, thousand: int) -> float | None:
    """`8g` and `8Gi` are of 1024, `8G` is of what `thousand` says, `500m` processors are half of one."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgGtT]?)(i?)[bB]?", text)
    if match is None:
        return None
    if match[2] == "m" and thousand == 1000:  # Kubernetes' thousandths
        return float(match[1]) / 1000
    power: int = (1024 if match[3] else thousand) ** _POWERS[match[2].lower()]
    return float(match[1]) * power


def names(text: str) -> tuple[str, ...]:
    """The builders of `--builder NAME[,NAME...]`, each once."""
    found = tuple(dict.fromkeys(word.strip() for word in text.split(",")))
    if not all(found):
        raise UsageError(f"--builder {text!r}: between commas stands the name of a builder, or an engine's address")
    return found
