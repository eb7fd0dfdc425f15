"""The nightly check of new releases: harvests facts into a copy, so that those of the checkout do not change."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.version import Version

from knowngood.compat import knowledge
from knowngood.compat.matrix_cells import packages_of_cell
from knowngood.core import local_files, matrix
from knowngood.core.data_files import read_data_text
from knowngood.core.errors import InputError
from knowngood.core.notify import Notify
from knowngood.facts import contract_definition
from knowngood.facts.contract_harvest import harvest_contracts
from knowngood.facts.contract_table import PairOutcome, PairVerdict
from knowngood.facts.fact_file import read_fact_file
from knowngood.facts.fact_reader import find_readers
from knowngood.facts.harvest_run import harvest_facts
from knowngood.facts.metadata_harvest import harvest_metadata
from knowngood.facts.package_metadata import list_metadata_packages
from knowngood.failures import contract_files
from knowngood.index.artefact import PackageIndex, PublishedFile
from knowngood.index.package_index import SimpleIndex
from knowngood.project import checkout
from knowngood.reports import index_changes
from knowngood.reports.index_changes import UpstreamRelease
from knowngood.reports.nightly_report import NightlyCheck, NightlyFinding, NightlyResult, NightlySeverity

if TYPE_CHECKING:
    import requests

    from knowngood.core.cell import Cell
    from knowngood.facts.contract import Contract
    from knowngood.facts.harvest_run import HarvestReport
    from knowngood.project.checkout import Project


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
                packages, folder=root / "facts", floors=self._floors(), notify=notify, index=self.index
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
            findings += self._metadata_findings(root / "facts/metadata", notify)
            if new:
                findings += self._judge(root, new, known, notify)
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
        shutil.copytree(self.here.root / "facts", root / "facts")
        for name in ("rules", "incidents"):
            shutil.copytree(local_files.data_folder() / name, root / name)

    def _floors(self) -> Mapping[str, Version]:
        text = checkout.read_matrix_text(self.here.root)
        return {name: Version(floor) for name, floor in matrix.parse_floors(text, checkout.MATRIX_FILE).items()}

    def _judge(
        self, root: Path, new: Sequence[UpstreamRelease], known: Mapping[str, Sequence[str]], notify: Notify
    ) -> list[NightlyFinding]:
        notify(f"judging {', '.join(map(str, new))}")
        copied = knowledge.load_knowledge(root)
        gpus = list(dict.fromkeys(cell.gpu for cell in self.cells))
        broken, findings = self._broken_contracts(root, new, known, notify)
        for release in new:
            verdicts = index_changes.judge_release(copied.universe, copied.published, release, self.cells)
            proposals = index_changes.propose_cells(copied.universe, copied.published, release, gpus)
            findings.append(index_changes.release_finding(release, verdicts, proposals, broken.get(release, {})))
        return findings

    def _broken_contracts(
        self, root: Path, new: Sequence[UpstreamRelease], known: Mapping[str, Sequence[str]], notify: Notify
    ) -> tuple[dict[UpstreamRelease, dict[str, str]], list[NightlyFinding]]:
        """Return the contracts that each new release breaks, each with an explanation, and those not judged.

        A release is judged together with what the cells have.
        """
        folder, broken = root / "of-new", dict[UpstreamRelease, dict[str, str]]()
        findings: list[NightlyFinding] = []
        kept = _releases_to_judge(new, known, self.cells)
        index = _FilteredIndex(self.index or SimpleIndex(), kept)
        for path in sorted((self.here.root / "contracts").glob("*.yaml")):
            file, text = f"contracts/{path.name}", read_data_text(path, f"contracts/{path.name}")
            contract = contract_definition.parse_contract(text, file)
            about = [one for one in new if one.package in (contract.caller.package, contract.callee.package)]
            if not about:
                continue
            try:
                report = harvest_contracts(
                    {file: text}, folder=lambda _: folder, floors=self._floors(), notify=notify, index=index
                )
            except InputError:
                continue  # these few releases do not have what the contract is about
            severity = NightlySeverity.UNKNOWN if report.unanswered else NightlySeverity.WARNING
            findings += [
                _upstream_finding("not-judged", severity, name, f"contract {name} was not judged: {why}")
                for name, why in report.failed.items()
            ]
            table = folder / f"{contract.id}.json"
            if table.exists():
                _collect_broken(broken, contract, contract_files.read_contract_table(table).pairs(), about)
        return broken, findings


def _collect_broken(
    broken: dict[UpstreamRelease, dict[str, str]],
    contract: Contract,
    pairs: Iterable[tuple[str, str, object]],
    about: Sequence[UpstreamRelease],
) -> None:
    for caller, callee, verdict in pairs:
        if not isinstance(verdict, PairVerdict) or verdict.outcome is not PairOutcome.BREAKS:
            continue
        for release in about:
            versions = {contract.caller.package: caller, contract.callee.package: callee}
            if versions[release.package] == release.version:
                other = " ".join(
                    item for name in versions if name != release.package for item in (name, versions[name])
                )
                broken.setdefault(release, {}).setdefault(contract.id, f"with {other}: {verdict.text}")


def _releases_to_judge(
    new: Sequence[UpstreamRelease], known: Mapping[str, Sequence[str]], cells: Sequence[Cell]
) -> dict[str, set[str]]:
    """Return the releases to judge contracts on: the new ones, those of the cells, and the newest three known."""
    keep: dict[str, set[str]] = {}
    for release in new:
        keep.setdefault(release.package, set()).add(release.version)
    for cell in cells:
        for name, version in packages_of_cell(cell).items():
            keep.setdefault(name, set()).add(version)
    for name, versions in known.items():
        keep.setdefault(name, set()).update(list(versions)[-3:])
    return keep


class _FilteredIndex:
    """An index that lists only some releases."""

    def __init__(self, index: PackageIndex, keep: Mapping[str, set[str]]) -> None:
        self._index, self._keep = index, keep

    @property
    def session(self) -> requests.Session:
        return self._index.session

    def files(self, project: str) -> tuple[PublishedFile, ...]:
        kept, listed = self._keep.get(project), self._index.files(project)
        if kept is None:  # the package is not on an axis: list its newest releases
            newest = sorted({file.version for file in listed if not file.version.is_prerelease})[-3:]
            return tuple(file for file in listed if file.version in newest)
        return tuple(file for file in listed if str(file.version) in kept)


def _known_releases(root: Path, packages: Iterable[str]) -> dict[str, list[str]]:
    return {name: list(read_fact_file(root / "facts", name).releases) for name in packages}


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
