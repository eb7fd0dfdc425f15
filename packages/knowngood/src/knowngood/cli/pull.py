"""`knowngood pull [SELECT|IMAGE]`: get published images into the engine, by digest, after checking what they are."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from knowngood.cli import shared_arguments
from knowngood.cli.main import Answer
from knowngood.cli.progress import report_progress
from knowngood.core.cell import Cell
from knowngood.core.errors import KnowngoodError
from knowngood.core.hosts import DEFAULT_HOST, HostArchitecture, detect_host_architecture, parse_host
from knowngood.core.matrix import Matrix
from knowngood.engine import container_engine
from knowngood.project.checkout import Project, find_project
from knowngood.project.release_signers import load_release_verifiers
from knowngood.registry import image_pull
from knowngood.registry.image_pull import CheckedImage
from knowngood.registry.image_reference import ImageReference, Repository
from knowngood.registry.registry_client import Registry


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "select",
        nargs="*",
        metavar="SELECT",
        help="a cell id, a glob over ids, an axis filter, an alias, or an image, HOST/PATH:TAG or HOST/PATH@sha256:... "
        "(default: the alias default)",
    )
    parser.add_argument(
        "--from",
        dest="origin",
        metavar="REPOSITORY",
        help="where the cells are published (default: KNOWNGOOD_REPOSITORY, else `publish` in matrix.yaml)",
    )
    parser.add_argument(
        "--host",
        metavar="ARCH",
        help="the host whose image to take of a name that has several: x86-64 or aarch64 (default: this machine's)",
    )
    parser.add_argument("--dry-run", action="store_true", help="check the images, and pull nothing")


def run(arguments: argparse.Namespace) -> Answer:
    """Pull the selected images. The first that fails decides the exit code."""
    project = find_project()
    verifiers = load_release_verifiers(project.root, project.matrix.publish)
    host = parse_host(arguments.host) if arguments.host else detect_host_architecture() or DEFAULT_HOST
    checks: dict[str, Callable[[], CheckedImage]] = {}
    for word in filter(_is_reference, arguments.select):
        reference = ImageReference.parse(word)
        registry = Registry(reference.repository)
        checks[word] = partial(image_pull.check_referenced_image, project, registry, reference, verifiers, host)
    for cell, registry in _cells(project, arguments, host):
        checks[str(cell)] = partial(image_pull.check_cell_image, project, registry, cell, verifiers)
    rows: list[dict[str, Any]] = []
    lines: list[str] = []
    failures: list[KnowngoodError] = []
    for name, check in checks.items():
        row: dict[str, Any] = {"selected": name, "status": "failed", "error": None}
        try:
            with report_progress(name) as notify:
                image = check()
                row |= image.document()
                if arguments.dry_run:
                    row["status"] = "would be pulled"
                else:
                    engine = container_engine.ensure_engine(notify=notify, builds=False)
                    row["status"] = "pulled" if image_pull.pull_checked_image(image, engine, notify) else "unchanged"
            lines.append(f"{row['status']}: {image.text()}")
        except KnowngoodError as error:
            failures.append(error)
            row["error"] = str(error)
            lines.append(f"FAILED: {name}: {error}")
            print(f"{name}: {error}", file=sys.stderr)
        rows.append(row)
    return Answer(failures[0].exit_code if failures else 0, {"images": rows}, "\n".join(lines))


def _is_reference(word: str) -> bool:
    return "/" in word


def _cells(project: Project, arguments: argparse.Namespace, host: HostArchitecture) -> list[tuple[Any, Registry]]:
    """Return the selected cells, each with the registry that has them; none when only images were named.

    An alias of a cell for x86-64 means its twin for `host`, where matrix.yaml has one.
    """
    words = [word for word in arguments.select if not _is_reference(word)]
    if arguments.select and not words:
        shared_arguments.refuse_options(arguments, ("origin",), "is for cells; the image names its repository")
        return []
    where = shared_arguments.repository_name(arguments.origin, project.matrix, "--from")
    registry = Registry(Repository.parse(where))
    matrix = project.matrix
    chosen = {cell: None for word in words or ["default"] for cell in _cells_of_word(matrix, word, host)}
    return [(cell, registry) for cell in chosen]


def _cells_of_word(matrix: Matrix, word: str, host: HostArchitecture) -> list[Cell]:
    cells = matrix.select_cells([word])
    if word not in matrix.aliases:
        return cells
    maintained = matrix.maintained_cells
    return [
        twin if cell.host == DEFAULT_HOST and (twin := cell.on_host(host)) in maintained else cell for cell in cells
    ]
