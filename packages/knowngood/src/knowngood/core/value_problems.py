"""What is wrong with a value in matrix.yaml, as a sentence with the nearest value that would do. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from knowngood.core.cell import NO_FLASH_ATTN, NO_FRAMEWORK, Axis, flash_attn_package, parse_cell, parse_framework
from knowngood.core.errors import UsageError
from knowngood.core.hosts import HostArchitecture
from knowngood.core.nearest_names import find_nearest_versions

if TYPE_CHECKING:
    from knowngood.core.matrix import MatrixEntry, MatrixFacts
    from knowngood.core.matrix_schema import GpuArchitecture


def hint_nearest_name(name: str, names: Mapping[str, object], words: str) -> str:
    """Return `words` and the nearest of `names`; empty text when there are no names."""
    near = difflib.get_close_matches(name, names, 1, 0)
    return f"{words} {near[0]}" if near else ""


def hint_nearest_cell(name: str, entries: Mapping[str, MatrixEntry]) -> str:
    """Return a hint at the cell that is nearest to one that is not there.

    One for the same GPU is nearer than one that is spelt alike: on another GPU nothing of it would run. A name that is
    no cell's id is compared by its letters.
    """
    try:
        wanted = parse_cell(name).axes()
    except UsageError:
        return hint_nearest_name(name, entries, "; the nearest is")

    def likeness(entry: MatrixEntry) -> tuple[bool, int, float]:
        axes = entry.cell.axes()
        same = sum(axes.get(axis) == value for axis, value in wanted.items())
        alike = difflib.SequenceMatcher(None, name, str(entry.cell)).ratio()
        return axes[Axis.GPU] == wanted[Axis.GPU], same, alike

    return f"; the nearest is {max(entries.values(), key=likeness).cell}" if entries else ""


def describe_missing_name(name: str, section: Mapping[str, object], title: str) -> str | None:
    """Return what is wrong with a name that a section of the file should have; `None` when it has it."""
    if name in section:
        return None
    return f"{name!r} is not in {title}" + hint_nearest_name(name, section, "; the nearest there is")


def describe_unknown_release(package: str, version: str, facts: MatrixFacts) -> str | None:
    """Return what is wrong with a release that facts do not have; `None` when they have it or know nothing of it."""
    releases = facts.torch if package == "torch" else facts.releases(package)
    if releases is None or version in releases:
        return None
    near = find_nearest_versions(version, releases, 3)
    return (
        f"{package} {version} is not among the releases in facts/{package}.json "
        f"(near it: {', '.join(near)}); correct it, or run `knowngood harvest {package}` if it is new"
    )


def describe_unknown_flash_attn(version: str, facts: MatrixFacts) -> str | None:
    """Return what is wrong with a value of the flash-attn axis, `None` for a known release or `0`."""
    if version == NO_FLASH_ATTN:
        return None
    return describe_unknown_release(flash_attn_package(version), version, facts)


def describe_unknown_framework(value: str, facts: MatrixFacts) -> str | None:
    """Return what is wrong with a value of the framework axis, `None` for a known release or `none`."""
    if value == NO_FRAMEWORK:
        return None
    return describe_unknown_release(*parse_framework(value), facts)


def describe_unfit_place(name: str, below: MatrixEntry | None, entries: Mapping[str, MatrixEntry]) -> str | None:
    """Return what is wrong with a cell that a stack is put on, `None` for a maintained one without a framework.

    `name` is its id, `below` its entry, `None` when there is no such cell; `entries` are all that there are.
    """
    if below is None:
        return f"{name!r} is no cell of this file" + hint_nearest_cell(name, entries)
    if below.cell.framework_pin:
        return f"{name} has a framework of its own, {' '.join(below.cell.framework_pin)}; name a cell without one"
    if below.retired:
        return f"{below.retired.sentence(name)}; put the stack on one that is maintained"
    return None


def describe_unfit_host(
    host: HostArchitecture,
    gpus: Sequence[str],
    architectures: Mapping[str, GpuArchitecture],
    torches: Sequence[str],
    facts: MatrixFacts,
) -> str | None:
    """Return why no cell with these GPUs and releases of torch can be for a host, `None` where all can."""
    if host is HostArchitecture.X86_64:
        arm = [name for name in gpus if name in architectures and architectures[name].has_only_arm_hosts]
        return f"every card of {arm[0]} stands beside a CPU of Arm; write host: aarch64" if arm else None
    for release in torches:
        cuda = facts.torch[release].aarch64_cuda
        if cuda not in (None, facts.torch[release].cuda):
            has = "for the CPU only" if cuda == "none" else f"for CUDA {cuda}"
            return f"the wheel of torch {release} for {host} is {has}; take a release whose wheel has CUDA there"
    return None


def describe_other_pin(axis: str, written: str | None, torch: str, pinned: str) -> str | None:
    """Return what is wrong with a CUDA or triton that is written beside a torch which pins another; else `None`."""
    if written is None or written == pinned:
        return None
    return (
        f"{axis} {written} is written here, but torch {torch} pins {axis} {pinned}; "
        f"leave {axis} out, or take a torch that pins {written}"
    )
