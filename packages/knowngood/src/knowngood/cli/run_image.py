"""The image in which `knowngood run` starts the program: that of the cell, with what is added to it."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from knowngood.cli.progress import print_notice, report_progress
from knowngood.core import extensions
from knowngood.core.errors import KnowngoodError
from knowngood.core.package_names import canonical_name, parse_requirement_text
from knowngood.launch import added_packages
from knowngood.launch.container_run import ContainerRun

if TYPE_CHECKING:
    from pathlib import Path

    from knowngood.core.cell import Cell
    from knowngood.engine.container_engine import Engine
    from knowngood.launch.added_packages import AddedPackage
    from knowngood.launch.derived_image import DerivedImage
    from knowngood.launch.dev_toolkit import DevToolkit
    from knowngood.launch.image_access import RunnableImage
    from knowngood.lock.lock_tree import CellLock
    from knowngood.project.checkout import Project
    from knowngood.smoke.suite_command import SuiteOptions
    from knowngood.smoke.suite_run import SuiteContainer


_MOST_NAMES = 6


@dataclass(frozen=True, kw_only=True)
class ImageAdditions:
    """What a program gets beyond the image of its cell."""

    packages: tuple[AddedPackage, ...] = ()
    toolkit: DevToolkit | None = None
    notices: tuple[str, ...] = ()
    """What a person should read about them."""

    def describe(self, project: Project, cell: Cell, base: str) -> DerivedImage | None:
        """Return the image with these on the cell's image, whose id is `base`; `None` where nothing is added."""
        from knowngood.launch import derived_image

        if not self.packages and self.toolkit is None:
            return None
        return derived_image.describe_derived_image(project, cell, base, self.packages, self.toolkit)


def get_cell_image(project: Project, cell: Cell, engine: Engine) -> RunnableImage:
    """Return the engine's image; where it has none, pull it, else build it, and say the size before."""
    from knowngood.launch import image_access

    if image := image_access.find_recorded_image(project, cell, engine, print_notice):
        return image
    with report_progress(str(cell)) as notify:
        return image_access.fetch_cell_image(project, cell, engine, print_notice, notify)


@contextlib.contextmanager
def open_suite_container(project: Project, cell: Cell, options: SuiteOptions, *, log: str) -> Iterator[SuiteContainer]:
    """Give the container of the cell's image in which a suite can run; `log` is the name of its log file.

    Starts the engine and gets the image where they are not there yet, and shows progress as long as the container is in
    use. Raises `KnowngoodError` where engine or image cannot be had.
    """
    from knowngood.engine import container_engine
    from knowngood.images.pipeline import cell_log_path
    from knowngood.smoke.suite_run import SuiteContainer

    with report_progress(str(cell)) as notify:
        engine = container_engine.ensure_engine(notify=notify, builds=False)
    image = get_cell_image(project, cell, engine)
    with report_progress(str(cell)) as notify:
        yield SuiteContainer(
            cell=cell,
            image=image.name,
            digest=image.digest,
            engine=engine,
            options=options,
            log=cell_log_path(cell, log),
            notify=notify,
        )


def list_wanted_packages(arguments: argparse.Namespace) -> tuple[tuple[str, ...], Path | None]:
    """Return the requirements of `--with` and of the requirements.txt beside the script, and that file, or `None`."""
    wanted = tuple(arguments.added)
    file = None if arguments.no_requirements else added_packages.find_requirements_file(arguments.program)
    return (wanted + added_packages.read_requirement_file(file) if file else wanted), file


def choose_image_additions(arguments: argparse.Namespace, project: Project, cell: Cell) -> ImageAdditions:
    """Return what `--dev`, and `--with` or the requirements.txt beside the script, add to the cell's image.

    Raises `UnfitCellError` for packages that do not fit the cell, or that `check` says break in it.
    """
    wanted, file = list_wanted_packages(arguments)
    if not (wanted or arguments.dev):
        return ImageAdditions()
    lock = project.tree.load(cell)
    if lock is None:
        raise KnowngoodError(f"{cell} has no lock, so nothing can be added to it; run `knowngood lock '{cell}'`")
    toolkit = None
    if arguments.dev:
        from knowngood.launch import dev_toolkit

        toolkit = dev_toolkit.describe_dev_toolkit(project.matrix, lock)
        wanted = (*dev_toolkit.missing_build_tools(lock), *wanted)
    added = added_packages.resolve_added_packages(project.matrix, lock, wanted) if wanted else ()
    requested = {canonical_name(parse_requirement_text(text).name) for text in wanted}
    ordered = sorted(added, key=lambda item: item.name not in requested)
    names = _list_some([f"{item.name} {item.version}" for item in ordered]) or "nothing, the cell has it all"
    reasons = ["--dev"] * bool(toolkit) + [file.name if file else "--with"] * bool(file or arguments.added)
    notices = [f"added for {' and '.join(reasons)}: {names}"]
    notices += _examine_added(lock, added, unchecked=arguments.unchecked) if added else []
    return ImageAdditions(packages=added, toolkit=toolkit, notices=tuple(notices))


def _examine_added(lock: CellLock, added: Sequence[AddedPackage], *, unchecked: bool) -> list[str]:
    """Return what is known to break with added packages; raises `UnfitCellError` for an error of `check`."""
    check = extensions.load_extension(extensions.CHECK_PACKAGES)
    if check is None:
        return ["nobody has looked at whether they go with the cell: knowngood-facts is not installed"]
    findings, unread = check(lock, added)
    errors = [item for item in findings if item.severity == "error" and not unchecked]
    if errors:
        raise added_packages.UnfitCellError(
            f"{lock.cell}: {'; '.join(f'{item.because} [{item.id}]' for item in errors)}; add another release, or "
            "--unchecked"
        )
    unread_ids = {f"unknown:{item.name}": item.name for item in added}
    notices = [
        *unread,
        *(f"{item.severity}: {item.because}  [{item.id}]" for item in findings if item.id not in unread_ids),
    ]
    if unknown := [unread_ids[item.id] for item in findings if item.id in unread_ids]:
        notices.append(f"not looked at, since nothing is known of these releases: {_list_some(unknown)}")
    return notices


def _list_some(names: Sequence[str]) -> str:
    """Return the first names of a list that may have a hundred, and how many more there are."""
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


def add_to_image(project: Project, cell: Cell, image: RunnableImage, additions: ImageAdditions) -> RunnableImage:
    """Return the image with the additions; it is built once, by an engine that can build."""
    from knowngood.engine import container_engine
    from knowngood.launch import derived_image

    derived = additions.describe(project, cell, image.digest)
    if derived is None:
        return image
    with report_progress(derived.name) as notify:
        engine = container_engine.ensure_engine(notify=notify)
        return derived_image.make_derived_image(project, derived, engine, notify)


def name_program_image(
    container: ContainerRun, project: Project, cell: Cell, additions: ImageAdditions
) -> ContainerRun:
    """Return the container with the image that the program would get; nothing is pulled or built."""
    from knowngood.launch import image_access
    from knowngood.registry import image_reference

    record = project.tree.load_record(cell)
    if derived := additions.describe(project, cell, record.manifest.digest if record else ""):
        print_notice(f"{derived.name} is made when the program is run without --print")
        return replace(container, image=derived.name)
    repositories = image_reference.list_repositories(project.matrix, os.environ)
    return replace(container, reference=image_access.recorded_reference(project, cell, repositories))
