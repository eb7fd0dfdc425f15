"""All lines about what was seen, in the order of the table; what the judges need to know is read here. An edge."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

from knowngood.doctor import (
    judge_binaries,
    judge_environment,
    judge_gpu,
    judge_image,
    judge_system,
    judge_tools,
    variables,
)
from knowngood.doctor.line import Line
from knowngood.doctor.seen import Image, Seen
from knowngood.solving.relations import sm

if TYPE_CHECKING:
    from collections.abc import Mapping

    from knowngood.cell import Cell
    from knowngood.solving.knowledge import Knowledge
    from knowngood.solving.verdict import Result


@dataclass(frozen=True, kw_only=True)
class Context:
    """What is known, and what the asker says of the machine that is meant."""

    known: Knowledge
    drivers: Mapping[str, str]
    """CUDA -> least driver."""
    gpus: tuple[str, ...] = ()
    """As stated with --gpu."""
    driver: str | None = None


def context(gpu: str | None = None, driver: str | None = None) -> Context:
    """Read the facts, rules and GPUs; `UsageError` for a GPU or a driver that is none."""
    from knowngood import facts
    from knowngood.solving import knowledge, query

    known = knowledge.read()
    return Context(
        known=known,
        drivers={
            cuda: release.facts.minimum for cuda, release in facts.load("drivers").items() if release.facts.minimum
        },
        gpus=tuple(known.universe.gpus.find(gpu)) if gpu else (),
        driver=query.axis("driver", driver) if driver else None,
    )


def lines(seen: Seen, about: Context) -> list[Line]:
    """The table."""
    gpus = about.gpus or tuple(dict.fromkeys(gpu.sm for gpu in seen.nvidia.gpus))
    first, *rest = judge_environment.lines(seen, check(seen, about, gpus))
    return [
        first,
        *judge_gpu.lines(seen, about.gpus, about.driver, about.drivers),
        *rest,
        *judge_binaries.lines(seen, gpus, diagnose),
        *judge_tools.lines(seen),
        *judge_system.lines(seen),
        *variables.lines(seen, gpus),
    ]


def image_lines(image: Image, seen: Seen, about: Context) -> list[Line]:
    """The table about an image; of `seen` only the driver and its GPUs matter."""
    from knowngood.cell import parse
    from knowngood.doctor.image import architecture
    from knowngood.render import LABEL

    gpus = about.gpus or tuple(dict.fromkeys(gpu.sm for gpu in seen.nvidia.gpus))
    name = image.labels.get(LABEL + "cell")
    cell = parse(name) if name else None
    return [
        *judge_image.lines(
            image,
            seen,
            here=architecture(),
            stated=about.gpus,
            driver=about.driver,
            minimums=about.drivers,
            checked=check_cell(cell, about, gpus, seen.nvidia.driver) if cell else None,
            tier=about.known.published.tier(str(cell)) if cell else None,
        )
    ]


def check_cell(cell: Cell, about: Context, gpus: tuple[str, ...], driver: str | None) -> Result:
    """What `knowngood check` says of a cell's packages on this machine."""
    from knowngood.solving import query
    from knowngood.solving.check import check as checked
    from knowngood.solving.published import packages_of

    pins = packages_of(cell) | dict([cell.framework_pin] if cell.framework_pin else [])
    have = about.driver or driver
    known = [gpu for gpu in gpus if gpu in about.known.universe.gpus.sections]
    request = query.Request(
        gpu=known[0] if known else None,
        axes={"python": cell.python} | ({"driver": have} if have else {}),
        packages=tuple(query.pinned(name, version) for name, version in pins.items() if version != "none"),
    )
    return checked(about.known.for_request(request), request, about.known.published)


def something(seen: Seen) -> bool:
    """Whether there was anything to look at: a GPU, torch, or a binary with GPU code."""
    return bool(seen.nvidia.gpus or seen.torch or any(item.code for item in seen.binaries))


def check(seen: Seen, about: Context, gpus: tuple[str, ...]) -> Result | None:
    """What `knowngood check` says of the versions; `None` when nothing is installed."""
    from knowngood import installed
    from knowngood.solving import query
    from knowngood.solving.check import check as checked

    packages = installed.wanted(seen.packages)
    if not packages:
        return None
    known = {gpu for gpu in gpus if gpu in about.known.universe.gpus.sections}
    driver = about.driver or seen.nvidia.driver
    axes = {
        "python": seen.python.version if seen.python else "",
        "glibc": seen.machine.glibc or "",
        "driver": driver or "",
    }
    request = query.Request(
        gpu=min(known, key=sm) if known else None,  # of several kinds the oldest, which most rules are about
        axes={name: value for name, value in axes.items() if value},
        packages=tuple(packages),
    )
    return checked(about.known.for_request(request), request, about.known.published)


def diagnose(log: str) -> tuple[str, ...]:
    """The incidents that stand in a log, best first."""
    from knowngood.diagnosing.diagnose import diagnose as read_log
    from knowngood.incidents.files import read

    found = read_log(io.BytesIO(log.encode()), read())
    return tuple(match.incident.id for match in found.matches)
