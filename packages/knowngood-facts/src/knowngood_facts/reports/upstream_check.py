"""The nightly check of new releases: harvests facts into a copy, so that those of the checkout do not change."""

from __future__ import annotations

import shutil
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from multiprocessing import get_context
from typing import TYPE_CHECKING

from packaging.version import Version

from knowngood.core import local_files, matrix
from knowngood.core.data_files import read_data_text
from knowngood.core.local_files import FACTS_FOLDER, INCIDENTS_FOLDER, RULES_FOLDER
from knowngood.index.artefact import PackageIndex, UnreadableError
from knowngood.index.package_index import SimpleIndex
from knowngood.project import checkout
from knowngood.project.core_facts import CORE_FACTS_FILE, load_matrix_facts
from knowngood.reports.nightly_report import NightlyCheck, NightlyFinding, NightlyResult, NightlySeverity
from knowngood_facts.compat import knowledge
from knowngood_facts.facts.atlas_file import AtlasFile
from knowngood_facts.facts.atlas_harvest import ATLAS_PACKAGES_FILE, OLDEST_REVISION, harvest_atlas, parse_atlas_field
from knowngood_facts.facts.atlas_lookup import list_atlas_packages
from knowngood_facts.facts.broken_use_renewal import renew_broken_uses
from knowngood_facts.facts.broken_use_table import read_broken_uses
from knowngood_facts.facts.core_facts_file import compute_core_facts
from knowngood_facts.facts.fact_reader import find_readers
from knowngood_facts.facts.fact_store import read_fact_file
from knowngood_facts.facts.harvest_run import harvest_facts
from knowngood_facts.facts.metadata_harvest import harvest_metadata
from knowngood_facts.facts.package_metadata import list_metadata_packages
from knowngood_facts.reports import index_changes
from knowngood_facts.reports.index_changes import CellProposal, UpstreamRelease
from knowngood_facts.reports.new_breaks import find_new_breaks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from knowngood.core.cell import Cell
    from knowngood.core.notify import Notify
    from knowngood.project.checkout import Project
    from knowngood_facts.compat.knowledge import CompatKnowledge
    from knowngood_facts.facts.harvest_run import HarvestReport


@dataclass(frozen=True, kw_only=True)
class UpstreamCheck:
    """Compares the releases on the index with the committed facts."""

    here: Project
    cells: Sequence[Cell]
    index: PackageIndex | None = None

    def __call__(self, notify: Notify) -> NightlyResult:
        """Return a finding for each new release; where the index does not answer, the committed facts are used."""
        packages = [name for name in index_changes.list_axis_packages(self.cells) if name in find_readers()]
        with local_files.scratch_folder() as root:
            self._copy(root)
            before = _known_releases(root, packages)
            report = harvest_facts(
                packages, folder=root / FACTS_FOLDER, floors=self._floors(), notify=notify, index=self.index
            )
            known = _known_releases(root, packages)
            new = [
                UpstreamRelease(package=name, version=version)
                for name in packages
                for version in known[name]
                if version not in before[name]
            ]
            axes = [
                index_changes.compare_axis(
                    name, list(known[name]), self.cells, [one.version for one in new if one.package == name]
                )
                for name in packages
            ]
            findings = [*self._uncovered_findings(packages), *_unanswered_findings(report, before)]
            named, unread = self._read_metadata(root / FACTS_FOLDER / "metadata", notify)
            findings += [*unread, *self._judge(root, new, named, notify)]
        unknown = any(item.severity is NightlySeverity.UNKNOWN for item in findings)
        outcome = f"{len(new)} new releases" + (", not all known" if unknown else "")
        ahead = [f"{axis.package} {axis.newest}" for axis in axes if axis.newest and axis.newest != axis.in_cells]
        note = f"no cell has {', '.join(ahead)}" if ahead else "the cells have the newest of each axis"
        return NightlyResult(
            check=NightlyCheck.UPSTREAM,
            outcome=outcome,
            note=note,
            findings=tuple(findings),
            data={"axes": [vars(axis) | {"new": list(axis.new)} for axis in axes]},
        )

    def _uncovered_findings(self, packages: Sequence[str]) -> list[NightlyFinding]:
        """Return a finding for each package of an axis of which nothing is read, so that its releases stay unseen."""
        return [
            _upstream_finding(
                "uncovered",
                NightlySeverity.UNKNOWN,
                name,
                f"{name}: neither its facts nor its metadata are read, so its releases are not known",
            )
            for name in index_changes.list_axis_packages(self.cells)
            if name not in {*packages, *list_metadata_packages(self.here.root / FACTS_FOLDER / "metadata")}
        ]

    def _read_metadata(self, folder: Path, notify: Notify) -> tuple[list[str], list[NightlyFinding]]:
        """Read what new releases of the packages in `folder` declare; return these packages, and findings."""
        report = harvest_metadata(list_metadata_packages(folder), folder=folder, notify=notify, index=self.index)
        severity = NightlySeverity.UNKNOWN if report.unanswered else NightlySeverity.WARNING
        findings = [
            _upstream_finding("unanswered", severity, f"metadata {name}", f"metadata of {name}: {why}")
            for name, why in report.failed.items()
        ]
        names = list(dict.fromkeys(release.partition(" ")[0] for release in report.new))
        if names:
            text = f"the metadata of {len(report.new)} releases is new ({', '.join(names)})"
            findings.append(_upstream_finding("metadata", NightlySeverity.INFO, "metadata", text))
        if absent := [name for name in report.unknown if " " not in name]:
            text = f"still on no index: {', '.join(absent)}"
            findings.append(_upstream_finding("absent", NightlySeverity.INFO, "metadata", text))
        return names, findings

    def _copy(self, root: Path) -> None:
        """Copy facts of the project, and rules and incidents of this program, from which the knowledge is made."""
        shutil.copytree(self.here.root / FACTS_FOLDER, root / FACTS_FOLDER)
        for name in (RULES_FOLDER, INCIDENTS_FOLDER):
            if (folder := local_files.data_folder() / name).is_dir():  # incidents come with knowngood-diagnose
                shutil.copytree(folder, root / name)

    def _floors(self) -> Mapping[str, Version]:
        text = checkout.read_matrix_text(self.here.root)
        return {name: Version(floor) for name, floor in matrix.parse_floors(text, checkout.MATRIX_FILE).items()}

    def _judge(
        self, root: Path, axes: Sequence[UpstreamRelease], named: Iterable[str], notify: Notify
    ) -> Iterator[NightlyFinding]:
        """Yield a finding for each new release of an axis or of the atlas, and for each that was not judged.

        Args:
            root: the copy of facts.
            axes: the new releases of the axes.
            named: packages with other new releases.
            notify: hears what is being done.
        """
        folder = root / FACTS_FOLDER / "atlas"
        before = {name: open_releases(name, folder) for name in list_atlas_packages(folder)}
        names = [name for name in dict.fromkeys([*(one.package for one in axes), *named]) if name in before]
        for name, why in self._read_atlas(names, folder, notify) if names else ():
            yield _upstream_finding("not-judged", NightlySeverity.UNKNOWN, name, f"{name} was not judged: {why}")
        if names:
            notify("judging the pairs with a new release")
            renew_broken_uses(folder)
        newest = {name: open_releases(name, folder) for name in before}
        new = [
            UpstreamRelease(package=name, version=version)
            for name in names
            for version in newest[name]
            if version not in before[name]
        ]
        if not (new := list(dict.fromkeys([*axes, *new]))):
            return
        notify(f"judging {', '.join(map(str, new))}")
        copied = knowledge.load_knowledge(root)
        followed = index_changes.list_axis_packages(self.cells)
        for release in new:
            known = newest.get(release.package, [])
            place = known.index(release.version) if release.version in known else 0
            breaks = find_new_breaks(
                release,
                known[place - 1] if place else None,
                {name: releases[-1] for name, releases in newest.items() if releases},
                partial(read_broken_uses, folder=folder),
                root / FACTS_FOLDER / "metadata",
            )
            verdicts = index_changes.judge_release(copied.universe, copied.published, release, self.cells)
            made = self._propose_cells(copied, root, release) if release.package in followed else []
            yield index_changes.release_finding(release, verdicts, made, breaks)

    def _propose_cells(self, copied: CompatKnowledge, root: Path, release: UpstreamRelease) -> list[CellProposal]:
        """Return the cells that `pick` makes of a release for the GPUs of the matrix, each with what its lock gives."""
        local_files.write_atomically(root / CORE_FACTS_FILE, compute_core_facts(root / FACTS_FOLDER).render())
        facts, text, day = load_matrix_facts(root), checkout.read_matrix_text(self.here.root), datetime.now(UTC).date()
        made = index_changes.propose_cells(copied, release, dict.fromkeys(cell.gpu for cell in self.cells))
        return [index_changes.lock_proposal(one, text, facts, f"{day}") for one in dict.fromkeys(made.values())]

    def _read_atlas(self, names: Sequence[str], folder: Path, notify: Notify) -> Iterator[tuple[str, str]]:
        """Read the new releases of these packages into the copy of the atlas; yield those that could not be read."""
        field = parse_atlas_field(read_data_text(folder / "packages.yaml"), ATLAS_PACKAGES_FILE)
        floors, index = self._floors(), self.index or SimpleIndex()
        callees = frozenset(field.modules.values())
        with ProcessPoolExecutor(mp_context=get_context("spawn")) as workers:
            for name in names:
                if AtlasFile(folder / f"{name}.atlas").reader < OLDEST_REVISION:
                    yield name, "its names are due to be read again, which `knowngood harvest --atlas` does"
                    continue
                package = field.package(name, floors.get(name))
                try:
                    report = harvest_atlas(
                        package, folder=folder, index=index, workers=workers, callees=callees, notify=notify
                    )
                except UnreadableError as error:
                    yield name, str(error)
                    continue
                yield from ((f"{name} {version}", why) for version, why in report.failed.items())


def open_releases(package: str, folder: Path) -> list[str]:
    """Return the releases that the atlas has of a package, oldest first."""
    return AtlasFile(folder / f"{package}.atlas").releases


def _known_releases(root: Path, packages: Iterable[str]) -> dict[str, list[str]]:
    return {name: list(read_fact_file(root / FACTS_FOLDER, name).releases) for name in packages}


def _unanswered_findings(report: HarvestReport, before: Mapping[str, Sequence[str]]) -> list[NightlyFinding]:
    """Return a finding for each package that could not be harvested; its committed facts are used."""
    return [
        _upstream_finding(
            "unanswered",
            NightlySeverity.UNKNOWN,
            name,
            f"{name}: {why}; the committed facts are used ({len(before[name])} releases)",
        )
        for name, why in report.failed.items()
    ]


def _upstream_finding(kind: str, severity: NightlySeverity, subject: str, text: str) -> NightlyFinding:
    return NightlyFinding(check=NightlyCheck.UPSTREAM, kind=kind, severity=severity, subject=subject, text=text)
