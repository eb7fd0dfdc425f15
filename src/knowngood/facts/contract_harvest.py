"""Judge every contract on every pair of published releases, for `knowngood harvest --contracts`.

The tables are written to `facts/contracts/`.
"""

from __future__ import annotations

import datetime as dt
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from knowngood.core import yaml_document
from knowngood.core.errors import InputError, InputProblem
from knowngood.core.local_files import write_atomically
from knowngood.facts import contract_definition, contract_table
from knowngood.facts.contract_caller import CallerRelease
from knowngood.facts.contract_document import load_contract_document
from knowngood.facts.contract_judge import ContractCoverage, PairJudge
from knowngood.facts.contract_table import ContractTable, PairOutcome, PairVerdict, compress_verdicts
from knowngood.facts.fact_file import render_json
from knowngood.facts.fact_reader import (
    FactReader,
    IndexedRelease,
    TableReader,
    choose_wheel_by,
    choose_wheel_or_sdist,
    find_readers,
)
from knowngood.facts.harvest_run import group_by_release, open_artefact
from knowngood.facts.release_source import ReleaseSource
from knowngood.index.artefact import PackageIndex, UnansweredError, UnreadableError
from knowngood.index.package_index import SimpleIndex

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from packaging.version import Version

    from knowngood.core.notify import Notify
    from knowngood.facts.contract import Contract, ContractSide
    from knowngood.index.artefact import PublishedFile

SCHEMA = "knowngood/contract/1"
REVISION = 1
"""Raised when the same releases may get another verdict: tables of an older revision are judged again."""
_WORKERS = 4


@dataclass
class ContractReport:
    """The result of judging contracts; contracts are named by their id."""

    written: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    unknown: dict[str, int] = field(default_factory=dict)
    """Contract -> pairs that could not be judged."""
    failed: dict[str, str] = field(default_factory=dict)
    unanswered: bool = False

    @property
    def exit_code(self) -> int:
        """0 when all was done, 1 when something failed, 4 when the index does not answer."""
        if self.unanswered:
            return 4
        return 1 if self.failed else 0


def harvest_contracts(  # noqa: PLR0913 - tests replace `index` and `cache`
    texts: Mapping[str, str],
    *,
    folder: Callable[[str], Path],
    floors: Mapping[str, Version],
    notify: Notify,
    refresh: bool = False,
    index: PackageIndex | None = None,
    cache: Path | None = None,
) -> ContractReport:
    """Judge the contracts in these texts (file name to text), and write each table into its `folder`.

    A contract is not judged again when its table was made from the same text and the same releases, unless `refresh`.

    Raises:
        InputError: a contract has errors; the message lists those of all contracts.
    """
    problems: list[InputProblem] = []
    contracts = {}
    for file, text in texts.items():
        try:
            contract = contract_definition.parse_contract(text, file)
            problems += _find_missing_floors(contract, floors, text, file)
            contracts[file] = contract
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    harvest = _ContractHarvest(
        index=index or SimpleIndex(), folder=folder, floors=floors, notify=notify, refresh=refresh, cache=cache
    )
    for file, contract in contracts.items():
        try:
            problems += harvest.judge_contract(contract, texts[file], file)
        except UnreadableError as error:
            harvest.report.failed[contract.id] = str(error)
            notify(f"{contract.id}: {error}")
            if isinstance(error, UnansweredError):  # it would not answer for the others either
                harvest.report.unanswered = True
                break
    if problems:
        raise InputError(problems)
    return harvest.report


def _find_missing_floors(contract: Contract, floors: Mapping[str, Version], text: str, file: str) -> list[InputProblem]:
    source = yaml_document.parse_yaml(text, file)
    return [
        source.problem((key, "package"), f"matrix.yaml has no floor for {side.package}; add `from: VERSION` beside it")
        for key, side in (("caller", contract.caller), ("callee", contract.callee))
        if side.floor is None and side.package not in floors
    ]


@dataclass(kw_only=True)
class _ContractHarvest:
    """The state of one call of `harvest_contracts`."""

    index: PackageIndex
    folder: Callable[[str], Path]
    floors: Mapping[str, Version]
    notify: Notify
    refresh: bool
    cache: Path | None
    report: ContractReport = field(default_factory=ContractReport)
    _readers: Mapping[str, FactReader | TableReader] = field(default_factory=find_readers)
    _releases: dict[str, list[IndexedRelease]] = field(default_factory=dict)

    def judge_contract(self, contract: Contract, text: str, file: str) -> list[InputProblem]:
        """Judge one contract and write its table, or return the errors that the table shows in the contract."""
        path = self.folder(file) / f"{contract.id}.json"
        digest = sha256(text.encode()).hexdigest()
        sides = {"caller": self._list_releases(contract.caller), "callee": self._list_releases(contract.callee)}
        old = _read_table(path)
        if not self.refresh and old and _is_current(old, digest, sides):
            self.report.unchanged.append(contract.id)
            return []
        self.notify(f"{contract.id}: {len(sides['caller'])} releases with {len(sides['callee'])}")
        caller_files, callee_files = contract.files_read
        callees = self._open_releases(sides["callee"], callee_files)
        versions = [release.version for release in callees]
        callers = [
            CallerRelease(contract, release, versions) for release in self._open_releases(sides["caller"], caller_files)
        ]
        coverage, judge = ContractCoverage(), PairJudge(contract=contract)
        verdicts = {
            (str(caller.release.version), str(callee.version)): coverage.judge_pair(caller, callee, judge)
            for callee in callees
            for caller in callers
        }
        problems = coverage.problems(contract, yaml_document.parse_yaml(text, file))
        if problems:
            return problems
        document = _build_document(contract, digest, callers, callees, verdicts)
        if old and {**old, "read": ""} == {**document, "read": ""}:
            self.report.unchanged.append(contract.id)
            return []
        write_atomically(path, render_json(document) + "\n")
        self.report.written.append(contract.id)
        count = sum(verdict.outcome is PairOutcome.UNKNOWN for verdict in verdicts.values())
        if count:
            self.report.unknown[contract.id] = count
        return []

    def _list_releases(self, side: ContractSide) -> list[IndexedRelease]:
        """Return the releases of interest as for facts: from the floor on, without development releases."""
        if side.package not in self._releases:
            self._releases[side.package] = group_by_release(side.package, self.index.files(side.package))
        floor = side.floor or self.floors[side.package]
        reader = self._readers.get(side.package)
        accepts = reader.accepts if isinstance(reader, FactReader) else lambda version: not version.is_devrelease
        releases = [one for one in self._releases[side.package] if one.version >= floor and accepts(one.version)]
        if not releases:
            raise UnreadableError(f"the registry has no release of {side.package} from {floor} on")
        return releases

    def _open_releases(self, listed: Sequence[IndexedRelease], paths: Sequence[str]) -> list[ReleaseSource]:
        """Open the releases and read the files at `paths`, a few releases at a time."""

        def open_release(published: IndexedRelease) -> ReleaseSource:
            file = _choose_artefact(published, self._readers.get(published.project))
            artefact = open_artefact(file, self.index, self.cache) if file else None
            release = ReleaseSource(published.project, published.version, artefact, yanked=published.yanked)
            for path in paths:
                try:
                    release.tree(path)
                except UnreadableError:  # the verdict of each pair will have the reason
                    break
            self.notify(f"{published.project} {published.version}")
            return release

        with ThreadPoolExecutor(_WORKERS) as pool:
            return list(pool.map(open_release, listed))


def _choose_artefact(published: IndexedRelease, reader: FactReader | TableReader | None) -> PublishedFile | None:
    """Return the artefact to read a release from: the one that its reader chooses, or a wheel, or the sdist."""
    if isinstance(reader, FactReader) and (file := reader.choose(published)):
        return file
    return choose_wheel_or_sdist(published) or choose_wheel_by("-any.whl", "-cp311-", "-cp310-")(published)


def _build_document(
    contract: Contract,
    digest: str,
    callers: Sequence[CallerRelease],
    callees: Sequence[ReleaseSource],
    verdicts: Mapping[tuple[str, str], PairVerdict],
) -> dict[str, Any]:
    names = tuple(str(caller.release.version) for caller in callers), tuple(str(release.version) for release in callees)
    table = ContractTable(
        contract=contract.id,
        caller=contract.caller.package,
        callee=contract.callee.package,
        callers=names[0],
        callees=names[1],
        rows=compress_verdicts(*names, lambda caller, callee: verdicts[caller, callee]),
    )
    return {
        "schema": SCHEMA,
        "contract": contract.id,
        "regenerate": f"knowngood harvest --contracts {contract.id}",
        "reader": REVISION,
        "digest": digest,
        "read": dt.datetime.now(tz=dt.UTC).date().isoformat(),
        "caller": _side(contract.caller, [caller.release for caller in callers], contract.files_read[0]),
        "callee": _side(contract.callee, callees, contract.files_read[1]),
        "pairs": contract_table.document_from_table(table),
    }


def _side(side: ContractSide, read: Sequence[ReleaseSource], paths: Sequence[str]) -> dict[str, Any]:
    return {
        "package": side.package,
        "releases": {
            str(release.version): {
                "yanked": release.yanked,
                "artefact": release.artefact.file.name if release.artefact else None,
                "files": {path: release.hashes[path] for path in paths if path in release.hashes},
            }
            for release in read
        },
    }


def _read_table(path: Path) -> dict[str, Any] | None:
    try:
        return load_contract_document(path)
    except (FileNotFoundError, InputError):
        return None  # missing, or damaged: it is written anew


def _is_current(old: Mapping[str, Any], digest: str, sides: Mapping[str, Sequence[IndexedRelease]]) -> bool:
    """Return whether a table was made from this contract and these releases, and has no unknown pair."""
    if (old.get("digest"), old.get("reader")) != (digest, REVISION):
        return False
    if any(run[2] == PairOutcome.UNKNOWN for item in old["pairs"] for run in item["callee"]):
        return False
    return all(
        {str(one.version): one.yanked for one in listed}
        == {version: entry["yanked"] for version, entry in old[side]["releases"].items()}
        for side, listed in sides.items()
    )
