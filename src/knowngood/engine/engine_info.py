"""What an engine reports about itself, and whether it can build or run our images. Pure."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from knowngood.core.hosts import HostArchitecture

OLDEST_BUILDKIT = (0, 13)
# Distributions build the engine without BuildKit's version number; the engine's own major version implies it.
BUILDKIT_OF_ENGINE = {23: "0.10", 24: "0.11", 25: "0.12", 26: "0.13", 27: "0.15", 28: "0.20", 29: "0.25"}


@dataclass(frozen=True, kw_only=True)
class EngineInfo:
    """The part of `docker info` that matters here."""

    version: str
    os: str
    arch: str
    containerd_store: bool


def describe_objection(host: str, info: EngineInfo, buildkit: str | None) -> str | None:
    """Return why an engine that answers cannot build our images, or run them (`buildkit` is None); None if it can."""
    if info.os != "linux" or info.arch not in {name.machine for name in HostArchitecture}:
        return f"the engine at {host} is for {info.os} on {info.arch}, not for Linux on x86_64 or aarch64"
    if buildkit is not None and parse_release(buildkit) < OLDEST_BUILDKIT:
        return f"the engine at {host} builds with BuildKit {buildkit}, older than 0.13 (Docker 26)"
    return None


def parse_engine_info(text: str) -> EngineInfo | None:
    """Parse the JSON of `docker info`; None if it is no answer of an engine."""
    try:
        values = json.loads(text)
    except ValueError:
        return None
    if not isinstance(values, dict) or not values.get("ServerVersion"):
        return None
    driver = {pair[0]: pair[1] for pair in values.get("DriverStatus") or [] if len(pair) == 2}
    return EngineInfo(
        version=values["ServerVersion"],
        os=values.get("OSType", ""),
        arch=values.get("Architecture", ""),
        containerd_store=driver.get("driver-type", "").startswith("io.containerd.snapshotter"),
    )


def buildkit_version(inspected: str, engine: str) -> str:
    """Return BuildKit's version from `docker buildx inspect`, or else from the engine's version."""
    match = re.search(r"^BuildKit(?: version)?:\s*v?(\d+\.\d+\S*)", inspected, re.MULTILINE)
    if match and parse_release(match[1]) > (0, 0):
        return match[1]
    known = [number for number in BUILDKIT_OF_ENGINE if number <= parse_release(engine)[0]]
    return BUILDKIT_OF_ENGINE[max(known)] if known else "0"


def parse_release(version: str) -> tuple[int, int]:
    """Return the first two numbers of a version."""
    major, minor, *_ = [*map(int, re.findall(r"\d+", version)[:2]), 0, 0]
    return major, minor
