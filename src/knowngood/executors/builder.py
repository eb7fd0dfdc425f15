"""A builder: a docker engine, or a buildx instance (docker-container, remote, kubernetes). Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from knowngood.core.errors import UsageError

ENGINE_DRIVER = "docker"
"""The buildx driver of an engine."""


@dataclass(frozen=True, kw_only=True)
class Builder:
    """A builder that answers, and how `buildx` reaches it."""

    name: str
    """The name in `--builder`."""
    buildx: tuple[str, ...]
    """The command, up to its subcommand `build`."""
    options: tuple[str, ...] = ()
    """The options of `build` that select this builder."""
    env: Mapping[str, str] = field(default_factory=dict)
    driver: str
    host: str = ""
    """The address, if it is an engine."""
    version: str = ""
    """The engine's version, if it is an engine."""
    buildkit: str
    """The version of BuildKit."""
    machine: str = ""
    """The machine that it runs on: builders on one machine share its memory."""
    memory: int | None = None
    """Bytes of memory of the machine; `None` when they are not known."""
    processors: int | None = None
    bake_has_allow: bool = False
    """Whether its `bake` has the option `--allow`: it then refuses the host's network without it."""
    has_bridge: bool = True
    """Whether build steps can have a network of their own; without it they use the host's network."""

    @property
    def is_engine(self) -> bool:
        """Whether it is an engine: an engine keeps the images that it builds."""
        return self.driver == ENGINE_DRIVER

    @property
    def file_name(self) -> str:
        """The name in a form that can be a part of a file name."""
        return re.sub(r"[^A-Za-z0-9.-]+", "-", self.name).strip("-")


@dataclass(frozen=True, kw_only=True)
class BuildxInstance:
    """The state of an instance, as `docker buildx inspect` shows it."""

    driver: str
    running: bool
    buildkit: str
    error: str
    """Why it does not run; empty when it runs."""
    memory: int | None = None
    """The limit in bytes that the instance was created with; buildx shows nothing else about a node's memory."""
    processors: int | None = None
    """The limit that the instance was created with."""


_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_buildx_inspect(text: str) -> BuildxInstance:
    """Parse the output of `docker buildx inspect`. Of several nodes, the first one that runs counts."""

    def value(name: str, part: str) -> str:
        match = re.search(rf"^{name}:[ \t]*(\S.*)$", part, re.MULTILINE)
        return match[1].strip() if match else ""

    head, *nodes = re.split(r"^(?=Name:)", text, flags=re.MULTILINE)[1:] or [text]
    states = nodes or [head]
    running = next((node for node in states if value("Status", node) == "running"), None)
    error = next(filter(None, (value("Error", node) for node in [*states, head])), "")
    version = value("BuildKit(?: version)?", running or head)
    status = value("Status", states[0]) or "inactive"
    memory, processors = _parse_limits(value("Driver Options", running or head))
    return BuildxInstance(
        driver=value("Driver", head),
        running=running is not None,
        buildkit=version.removeprefix("v"),
        error=error or ("" if running else f"it is {status}"),
        memory=memory,
        processors=processors,
    )


def _parse_limits(text: str) -> tuple[int | None, int | None]:
    """Return the limits of memory and processors in driver options, as kubernetes or docker writes them."""
    options = dict(re.findall(r'(\S+?)="([^"]*)"', text))
    quota, period = options.get("cpu-quota"), options.get("cpu-period", "100000")
    share = int(quota) / int(period) if quota and quota.isdecimal() and period.isdecimal() else None
    processors = share or _parse_quantity(options.get("limits.cpu", ""), thousand=1000)
    memory = _parse_quantity(options.get("memory", ""), thousand=1024) or _parse_quantity(
        options.get("limits.memory", ""), thousand=1000
    )
    return (int(memory) if memory else None), (max(1, int(processors)) if processors else None)


def _parse_quantity(text: str, *, thousand: int) -> float | None:
    """Parse a quantity: `8g`, `8Gi`, `8G` or `500m` (half a processor).

    A unit with `i` counts in powers of 1024, any other in powers of `thousand`.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgGtT]?)(i?)[bB]?", text)
    if match is None:
        return None
    if match[2] == "m" and thousand == 1000:  # Kubernetes' thousandths
        return float(match[1]) / 1000
    power: int = (1024 if match[3] else thousand) ** _POWERS[match[2].lower()]
    return float(match[1]) * power


def parse_builder_names(text: str) -> tuple[str, ...]:
    """Return the builders of `--builder NAME[,NAME...]`, each of them once."""
    names = tuple(dict.fromkeys(word.strip() for word in text.split(",")))
    if not all(names):
        raise UsageError(f"--builder {text!r}: write builder names or engine addresses between commas")
    return names
