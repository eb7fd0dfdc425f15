"""What is new upstream: facts harvested into a copy, so that those of the checkout stay as they are. Edge."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from knowngood import matrix, paths, resources
from knowngood.errors import InputError
from knowngood.harvest.contracts import harvest_contracts
from knowngood.harvest.index import File, Index, SimpleIndex
from knowngood.harvest.readers import READERS
from knowngood.harvest.run import harvest
from knowngood.nightly import upstream
from knowngood.nightly.model import Check, Finding, Result, Severity
from knowngood.nightly.upstream import Release
from knowngood.solving import knowledge

if TYPE_CHECKING:
    import requests
    from packaging.version import Version

    from knowngood.cell import Cell
    from knowngood.contracts.model import Contract
    from knowngood.harvest.run import Report
    from knowngood.project import Project

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Upstream:
    """Compares the index with the committed facts."""

    here: Project
    cells: Sequence[Cell]
    index: Index | None = None

    def __call__(self, say: Say) -> Result:
        """The new releases, each with what it meets; when the index does not answer, yesterday's facts stay."""
        packages = [name for name in upstream.packages(self.cells) if name in READERS]
        with paths.scratch() as root:
            self._copy(root)
            before = _known(root, packages)
            report = harvest(packages, folder=root / "facts", floors=self._floors(), say=say, index=self.index)
            known = _known(root, packages)
            new = [
                Release(package=name, version=version)
                for name in packages
                for version in known[name]
                if version not in before[name]
            ]
            axes = [
                upstream.axis(name, list(known[name]), self.cells, [one.version for one in new if one.package == name])
                for name in packages
            ]
            findings = _not_asked(report, before)
            if new:
                findings += self._met(root, new, known, say)
        outcome = f"{len(new)} new releases" + (", not all known" if report.failed else "")
        ahead = [f"{axis.package} {axis.newest}" for axis in axes if axis.newest and axis.newest != axis.in_cells]
        note = f"no cell has {', '.join(ahead)}" if ahead else "the cells have the newest of each axis"
        return Result(
            check=Check.UPSTREAM,
            outcome=outcome,
            note=note,
            findings=tuple(findings),
            data={"axes": [vars(axis) | {"new": list(axis.new)} for axis in axes]},
        )

    def _copy(self, root: Path) -> None:
        """What the knowledge is made of; facts and contracts are the project's, as `knowngood harvest` has them."""
        shutil.copytree(self.here.root / "facts", root / "facts")
        for name in ("rules", "incidents"):
            shutil.copytree(resources.root() / name, root / name)

    def _floors(self) -> Mapping[str, Version]:
        from packaging.version import Version

        text = (self.here.root / "matrix.yaml").read_text(encoding="utf-8")
        return {name: Version(floor) for name, floor in matrix.floors(text, "matrix.yaml").items()}

    def _met(self, root: Path, new: Sequence[Release], known: Mapping[str, Sequence[str]], say: Say) -> list[Finding]:
        say(f"judging {', '.join(map(str, new))}")
        read = knowledge.read(root)
        gpus = list(dict.fromkeys(cell.gpu for cell in self.cells))
        broken = self._contracts(root, new, known, say)
        found = []
        for release in new:
            met = upstream.met(read.universe, read.published, release, self.cells)
            made = upstream.proposed(read.universe, read.published, release, gpus)
            found.append(upstream.finding(release, met, made, broken.get(release, {})))
        return found

    def _contracts(
        self, root: Path, new: Sequence[Release], known: Mapping[str, Sequence[str]], say: Say
    ) -> dict[Release, dict[str, str]]:
        """The contracts that a new release breaks, with the words: judged against what the cells have."""
        from knowngood.contracts import files as contract_files
        from knowngood.contracts import reading

        folder, found = root / "of-new", dict[Release, dict[str, str]]()
        keep = _kept(new, known, self.cells)
        index = _Only(self.index or SimpleIndex(), keep)
        for path in sorted((self.here.root / "contracts").glob("*.yaml")):
            file, text = f"contracts/{path.name}", path.read_text(encoding="utf-8")
            contract = reading.parse(text, file)
            about = [one for one in new if one.package in (contract.caller.package, contract.callee.package)]
            if not about:
                continue
            try:
                harvest_contracts({file: text}, folder=lambda _: folder, floors=self._floors(), say=say, index=index)
            except InputError:
                continue  # on these few releases alone nothing shows what the contract is about
            table = folder / f"{contract.id}.json"
            if table.exists():
                _collect(found, contract, contract_files.table(table).pairs(), about)
        return found


def _collect(
    found: dict[Release, dict[str, str]],
    contract: Contract,
    pairs: Iterable[tuple[str, str, object]],
    about: Sequence[Release],
) -> None:
    from knowngood.contracts.table import Outcome, Verdict

    for caller, callee, verdict in pairs:
        if not isinstance(verdict, Verdict) or verdict.outcome is not Outcome.BREAKS:
            continue
        for release in about:
            versions = {contract.caller.package: caller, contract.callee.package: callee}
            if versions[release.package] == release.version:
                other = " ".join(
                    item for name in versions if name != release.package for item in (name, versions[name])
                )
                found.setdefault(release, {}).setdefault(contract.id, f"with {other}: {verdict.text}")


def _kept(new: Sequence[Release], known: Mapping[str, Sequence[str]], cells: Sequence[Cell]) -> dict[str, set[str]]:
    """The releases that contracts are judged on: the new ones, those of the cells, and the newest known before."""
    from knowngood.solving.published import packages_of

    keep: dict[str, set[str]] = {}
    for release in new:
        keep.setdefault(release.package, set()).add(release.version)
    for cell in cells:
        for name, version in packages_of(cell).items():
            keep.setdefault(name, set()).add(version)
    for name, versions in known.items():
        keep.setdefault(name, set()).update(list(versions)[-3:])
    return keep


class _Only:
    """An index of which only some releases are seen."""

    def __init__(self, index: Index, keep: Mapping[str, set[str]]) -> None:
        self._index, self._keep = index, keep

    @property
    def session(self) -> requests.Session:
        return self._index.session

    def files(self, project: str) -> tuple[File, ...]:
        kept, listed = self._keep.get(project), self._index.files(project)
        if kept is None:  # a package of no axis: its newest releases
            newest = sorted({file.version for file in listed if not file.version.is_prerelease})[-3:]
            return tuple(file for file in listed if file.version in newest)
        return tuple(file for file in listed if str(file.version) in kept)


def _known(root: Path, packages: Iterable[str]) -> dict[str, list[str]]:
    from knowngood.harvest.ledger import read_ledger

    return {name: list(read_ledger(root / "facts", name).releases) for name in packages}


def _not_asked(report: Report, before: Mapping[str, Sequence[str]]) -> list[Finding]:
    """What could not be asked: yesterday's facts stay, and that is said."""
    return [
        Finding(
            check=Check.UPSTREAM,
            kind="unanswered",
            severity=Severity.UNKNOWN,
            subject=name,
            text=f"{name}: {why}; the committed facts stay ({len(before[name])} releases)",
        )
        for name, why in report.failed.items()
    ]
