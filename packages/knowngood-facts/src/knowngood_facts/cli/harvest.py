"""`knowngood harvest [PACKAGE ...]`: read facts from artefacts.

`--metadata [PACKAGE ...]`: read what releases declare, of any package. `--atlas [PACKAGE ...]`: read the Python names
that they have. `--messages [PACKAGE ...]`: read what they raise and log as errors. `--wheel-names [PACKAGE ...]`: read
which modules and commands they install.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from packaging.utils import canonicalize_name
from packaging.version import Version

from knowngood.cli import shared_arguments
from knowngood.cli.main import Answer
from knowngood.cli.progress import report_progress
from knowngood.core import matrix
from knowngood.core.data_files import read_data_text
from knowngood.core.errors import MissingError, UsageError
from knowngood.core.formatting import format_bytes
from knowngood.core.local_files import FACTS_FOLDER, INCIDENTS_FOLDER, write_atomically
from knowngood.index.artefact import UnansweredError, UnreadableError
from knowngood.index.package_index import SimpleIndex
from knowngood.project.checkout import MATRIX_FILE, find_checkout, read_matrix_text
from knowngood.project.core_facts import CORE_FACTS_FILE
from knowngood_facts.compat.incident_ranges import find_range_drifts
from knowngood_facts.compat.rule_files import load_incidents
from knowngood_facts.facts.atlas_harvest import (
    ATLAS_PACKAGES_FILE,
    AtlasField,
    AtlasPackage,
    AtlasReport,
    MessageHarvest,
    harvest_atlas,
    parse_atlas_field,
)
from knowngood_facts.facts.broken_use_renewal import renew_broken_uses
from knowngood_facts.facts.broken_use_table import read_broken_uses
from knowngood_facts.facts.core_facts_file import compute_core_facts
from knowngood_facts.facts.harvest_run import HarvestReport, harvest_facts
from knowngood_facts.facts.message_store import MESSAGES_FOLDER
from knowngood_facts.facts.metadata_harvest import SEEDS_FILE, harvest_metadata, parse_metadata_field
from knowngood_facts.facts.package_metadata import WHEEL_NAMES_FILE, list_metadata_packages, read_wheel_names
from knowngood_facts.facts.wheel_names_harvest import harvest_wheel_names

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence

    from knowngood.core.notify import Notify

T = TypeVar("T")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("packages", nargs="*", metavar="NAME", help="packages (default: all)")
    parser.add_argument("--refresh", action="store_true", help="read releases again that were read before")
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--metadata",
        action="store_true",
        help="read what releases declare instead, of any package (default: of those that were read before)",
    )
    what.add_argument(
        "--atlas",
        action="store_true",
        help=f"read the Python names of releases instead (default: of the packages in {ATLAS_PACKAGES_FILE})",
    )
    what.add_argument(
        "--messages",
        action="store_true",
        help="read what the packages of the atlas raise and log as errors instead",
    )
    what.add_argument(
        "--wheel-names",
        action="store_true",
        help="read which modules and commands packages install instead (default: of those that were read before)",
    )
    parser.add_argument(
        "--follow",
        action="store_true",
        help=f"with --metadata: read all that the packages require too (default: those in {SEEDS_FILE})",
    )


def run(arguments: argparse.Namespace) -> Answer:
    """Write facts into `facts/`."""
    if arguments.atlas or arguments.messages or arguments.wheel_names:
        reason = "belongs to a harvest of facts or of --metadata"
        shared_arguments.refuse_options(arguments, ["refresh", "follow"], reason)
    if arguments.follow and not arguments.metadata:
        raise UsageError("--follow belongs to --metadata: `knowngood harvest --metadata --follow`")
    project = find_checkout("facts/")
    if arguments.wheel_names:
        return _harvest_wheel_names(project.root, arguments.packages)
    if arguments.messages:
        return _harvest_messages(project.root, arguments.packages)
    if arguments.atlas:
        return _harvest_atlas(project.root, arguments.packages)
    if arguments.metadata:
        return _harvest_metadata(project.root, arguments)
    with report_progress("harvest") as notify:
        report = harvest_facts(
            arguments.packages,
            folder=project.root / FACTS_FOLDER,
            floors=_read_floors(project.root),
            notify=notify,
            refresh=arguments.refresh,
        )
    if (folder := project.root / FACTS_FOLDER).joinpath("torch.json").exists():  # matrix.yaml is checked against these
        write_atomically(project.root / CORE_FACTS_FILE, compute_core_facts(folder).render())
    return _answer(report)


def _answer(report: HarvestReport) -> Answer:
    problems = [f"{name}: {why}" for name, why in {**report.failed, **report.unknown}.items()]
    text = "\n".join([f"{len(report.new)} releases read, {report.unchanged} known before", *problems])
    document = {
        "new": report.new,
        "unchanged": report.unchanged,
        "unknown": report.unknown,
        "corrupt": report.corrupt,
        "failed": report.failed,
    }
    return Answer(report.exit_code, document, text)


def _harvest_wheel_names(root: Path, packages: Sequence[str]) -> Answer:
    path = root / FACTS_FOLDER / WHEEL_NAMES_FILE
    names = packages or list(read_wheel_names(path).packages)
    if not names:
        raise UsageError(f"no names were read before in {path}; name packages")
    with report_progress("harvest") as notify:
        report = harvest_wheel_names(names, path=path, index=SimpleIndex(), notify=notify)
    return _answer(report)


def _harvest_metadata(root: Path, arguments: argparse.Namespace) -> Answer:
    folder = root / FACTS_FOLDER / "metadata"
    names: Sequence[str] = arguments.packages
    rule = None
    if arguments.follow:
        rule = _read_field(root, SEEDS_FILE, parse_metadata_field)
        names = names or rule.seeds
    names = names or list_metadata_packages(folder)
    if not names:
        raise UsageError(f"no metadata was read before in {folder}; name packages, or add --follow")
    with report_progress("harvest") as notify:
        report = harvest_metadata(names, folder=folder, notify=notify, refresh=arguments.refresh, field=rule)
    return _answer(report)


def _harvest_atlas(root: Path, names: Sequence[str]) -> Answer:
    """Read the names of new releases, and judge what breaks between the releases of all packages then."""
    folder = root / Path(ATLAS_PACKAGES_FILE).parent

    def harvest(package: AtlasPackage, field: AtlasField, workers: ProcessPoolExecutor, notify: Notify) -> AtlasReport:
        callees = frozenset(field.modules.values())
        return harvest_atlas(
            package, folder=folder, index=SimpleIndex(), workers=workers, callees=callees, notify=notify
        )

    answer = _harvest_packages(root, names, harvest)
    with report_progress("harvest") as notify:
        notify("judging the uses of all packages by the releases of all others")
        tables = renew_broken_uses(folder)
    drifts = find_range_drifts(load_incidents(root / INCIDENTS_FOLDER), lambda name: read_broken_uses(name, folder))
    broken = f"; broken uses of {', '.join(tables)} changed" if tables else ""
    text = "\n".join([f"{answer.text}{broken}", *drifts])
    return Answer(answer.code, answer.document | {"broken_uses": tables, "incidents": drifts}, text)


def _harvest_messages(root: Path, names: Sequence[str]) -> Answer:
    folder = root / Path(ATLAS_PACKAGES_FILE).parent / MESSAGES_FOLDER

    def harvest(package: AtlasPackage, _: AtlasField, workers: ProcessPoolExecutor, notify: Notify) -> AtlasReport:
        reader = MessageHarvest(folder=folder, index=SimpleIndex(), workers=workers, notify=notify)
        return reader.harvest_package(package)

    return _harvest_packages(root, names, harvest)


def _harvest_packages(
    root: Path,
    names: Sequence[str],
    harvest: Callable[[AtlasPackage, AtlasField, ProcessPoolExecutor, Notify], AtlasReport],
) -> Answer:
    """Harvest packages of the atlas one after the other; one that cannot be read does not stop the others."""
    field = _read_field(root, ATLAS_PACKAGES_FILE, parse_atlas_field)
    if unlisted := sorted(set(map(canonicalize_name, names)) - set(field.modules)):
        raise UsageError(f"{ATLAS_PACKAGES_FILE} does not have {', '.join(unlisted)}; add a line with its module")
    floors = _read_floors(root)
    report, sizes = HarvestReport(), {}
    with report_progress("harvest") as notify, ProcessPoolExecutor(mp_context=get_context("spawn")) as workers:
        for name in map(canonicalize_name, names or field.modules):
            try:
                part = harvest(field.package(name, floors.get(name)), field, workers, notify)
            except UnreadableError as error:
                report.failed[name] = str(error)
                report.unanswered |= isinstance(error, UnansweredError)
                continue
            report.new += [f"{name} {version}" for version in part.new]
            report.unchanged += part.known
            report.unknown.update({f"{name} {version}": why for version, why in part.failed.items()})
            sizes[name] = part.size
    answer = _answer(report)
    text = f"{answer.text}\n{format_bytes(sum(sizes.values()))} in {len(sizes)} files"
    return Answer(answer.code, answer.document | {"bytes": sizes}, text)


def _read_field(root: Path, file: str, parse: Callable[[str, str], T]) -> T:
    try:
        return parse(read_data_text(root / file, file), file)
    except FileNotFoundError:
        raise MissingError(f"there is no {file} in {root}; it lists the packages to read") from None


def _read_floors(root: Path) -> Mapping[str, Version]:
    floors = matrix.parse_floors(read_matrix_text(root), MATRIX_FILE)
    return {name: Version(floor) for name, floor in floors.items()}
