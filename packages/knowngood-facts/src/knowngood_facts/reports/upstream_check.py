"""The nightly check of new releases: harvests facts into a copy, so that those of the checkout do not change."""

from __future__ import annotations

import shutil
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import TYPE_CHECKING

from packaging.version import Version

from knowngood.core import local_files, matrix
from knowngood.core.local_files import FACTS_FOLDER, INCIDENTS_FOLDER, RULES_FOLDER
from knowngood.index.artefact import PackageIndex, PublishedFile, UnreadableError
from knowngood.index.package_index import SimpleIndex
from knowngood.project import checkout
from knowngood.reports.nightly_report import NightlyCheck, NightlyFinding, NightlyResult, NightlySeverity
from knowngood_facts.compat import knowledge
from knowngood_facts.facts.atlas_file import AtlasFile
from knowngood_facts.facts.atlas_harvest import READER_REVISION, AtlasPackage, harvest_atlas
from knowngood_facts.facts.fact_reader import find_readers
from knowngood_facts.facts.fact_store import read_fact_file
from knowngood_facts.facts.harvest_run import harvest_facts
from knowngood_facts.facts.metadata_harvest import harvest_metadata
from knowngood_facts.facts.package_metadata import list_metadata_packages
from knowngood_facts.reports import index_changes
from knowngood_facts.reports.index_changes import UpstreamRelease
from knowngood_facts.reports.newly_broken_uses import find_newly_broken_uses

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    import requests

    from knowngood.core.cell import Cell
    from knowngood.core.notify import Notify
    from knowngood.project.checkout import Project
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
            findings += self._metadata_findings(root / FACTS_FOLDER / "metadata", notify)
            if new:
                findings += self._judge(root, new, notify)
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
        """Return a finding for each package of an axis whose releases nothing reads, so that news of it stay unseen."""
        return [
            _upstream_finding(
                "uncovered",
                NightlySeverity.UNKNOWN,
                name,
                f"{name}: no reader of facts covers it, so its releases are not known",
            )
            for name in index_changes.list_axis_packages(self.cells)
            if name not in packages
        ]

    def _metadata_findings(self, folder: Path, notify: Notify) -> list[NightlyFinding]:
        """Read what new releases of the packages in `folder` declare, and return findings about them."""
        report = harvest_metadata(list_metadata_packages(folder), folder=folder, notify=notify, index=self.index)
        severity = NightlySeverity.UNKNOWN if report.unanswered else NightlySeverity.WARNING
        findings = [
            _upstream_finding("unanswered", severity, f"metadata {name}", f"metadata of {name}: {why}")
            for name, why in report.failed.items()
        ]
        if report.new:
            names = ", ".join(dict.fromkeys(release.partition(" ")[0] for release in report.new))
            text = f"the metadata of {len(report.new)} releases is new ({names}): knowngood harvest --metadata"
            findings.append(_upstream_finding("metadata", NightlySeverity.INFO, "metadata", text))
        return findings

    def _copy(self, root: Path) -> None:
        """Copy facts of the project, and rules and incidents of this program, from which the knowledge is made."""
        shutil.copytree(self.here.root / FACTS_FOLDER, root / FACTS_FOLDER)
        for name in (RULES_FOLDER, INCIDENTS_FOLDER):
            if (folder := local_files.data_folder() / name).is_dir():  # incidents come with knowngood-diagnose
                shutil.copytree(folder, root / name)

    def _floors(self) -> Mapping[str, Version]:
        text = checkout.read_matrix_text(self.here.root)
        return {name: Version(floor) for name, floor in matrix.parse_floors(text, checkout.MATRIX_FILE).items()}

    def _judge(self, root: Path, new: Sequence[UpstreamRelease], notify: Notify) -> list[NightlyFinding]:
        notify(f"judging {', '.join(map(str, new))}")
        copied = knowledge.load_knowledge(root)
        gpus = list(dict.fromkeys(cell.gpu for cell in self.cells))
        broken, findings = self._newly_broken(root, new, notify)
        for release in new:
            verdicts = index_changes.judge_release(copied.universe, copied.published, release, self.cells)
            proposals = index_changes.propose_cells(copied.universe, copied.published, release, gpus)
            findings.append(index_changes.release_finding(release, verdicts, proposals, broken.get(release, {})))
        return findings

    def _newly_broken(
        self, root: Path, new: Sequence[UpstreamRelease], notify: Notify
    ) -> tuple[dict[UpstreamRelease, dict[str, str]], list[NightlyFinding]]:
        """Return what each new release breaks in the newest releases of other packages, and those not judged."""
        folder = root / FACTS_FOLDER / "atlas"
        with ProcessPoolExecutor(mp_context=get_context("spawn")) as workers:

            def read_release(package: str, version: str) -> str:
                atlas = AtlasFile(folder / f"{package}.atlas")
                if version in atlas.releases:
                    return ""
                if atlas.reader != READER_REVISION:
                    return "its names are due to be read again, which `knowngood harvest --atlas` does"
                try:
                    report = harvest_atlas(
                        AtlasPackage(name=package, module=atlas.root, since=""),
                        folder=folder,
                        index=_FilteredIndex(self.index or SimpleIndex(), {package: {version}}),
                        workers=workers,
                        callees=frozenset(),  # what it uses itself is not judged here
                        notify=notify,
                    )
                except UnreadableError as error:
                    return str(error)
                return report.failed.get(version, "")

            broken, unread = find_newly_broken_uses(folder, new, read_release)
        return broken, [
            _upstream_finding("not-judged", NightlySeverity.UNKNOWN, str(release), f"{release} was not judged: {why}")
            for release, why in unread.items()
        ]


class _FilteredIndex:
    """An index that lists only some releases."""

    def __init__(self, index: PackageIndex, keep: Mapping[str, set[str]]) -> None:
        self._index, self._keep = index, keep

    @property
    def session(self) -> requests.Session:
        return self._index.session

    def files(self, project: str) -> tuple[PublishedFile, ...]:
        return tuple(file for file in self._index.files(project) if str(file.version) in self._keep.get(project, ()))


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
