"""`knowngood harvest --contracts`: every contract on every pair of published releases, into `facts/contracts/`."""

from __future__ import annotations

import datetime as dt
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from knowngood import document
from knowngood.contracts import reading
from knowngood.contracts import table as contract_table
from knowngood.contracts.table import Outcome, Table, Verdict, compressed
from knowngood.errors import InputError, Problem
from knowngood.harvest.artefact import write_whole
from knowngood.harvest.caller import Caller
from knowngood.harvest.index import Index, SimpleIndex, Unanswered, Unreadable
from knowngood.harvest.judge import Judge
from knowngood.harvest.ledger import lines
from knowngood.harvest.readers import READERS
from knowngood.harvest.reading import Published, Reader, by_tags, wheel_or_sdist
from knowngood.harvest.release import Release
from knowngood.harvest.run import open_artefact, releases
from knowngood.harvest.seen import Seen

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from packaging.version import Version

    from knowngood.contracts.model import Contract, Side
    from knowngood.harvest.index import File

SCHEMA = "knowngood/contract/1"
REVISION = 1
"""Raised when the same releases may get another verdict: tables of an older revision are made anew."""
_AT_ONCE = 4


@dataclass
class Report:
    """What a run did."""

    written: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    unknown: dict[str, int] = field(default_factory=dict)
    """Contract -> pairs that could not be judged."""
    failed: dict[str, str] = field(default_factory=dict)
    unanswered: bool = False

    @property
    def exit_code(self) -> int:
        """0 done, 1 something failed, 4 the registry does not answer."""
        if self.unanswered:
            return 4
        return 1 if self.failed else 0


def harvest_contracts(  # noqa: PLR0913 - `index` and `cache` are the tests' seams
    texts: Mapping[str, str],
    *,
    folder: Callable[[str], Path],
    floors: Mapping[str, Version],
    say: Callable[[str], None],
    refresh: bool = False,
    index: Index | None = None,
    cache: Path | None = None,
) -> Report:
    """Judge the contracts in these texts (file name to text), and write each table into its `folder`.

    A contract whose text and releases are those of its table is left as it is, unless `refresh`. Raises `InputError`
    with the defects of all contracts.
    """
    problems: list[Problem] = []
    read = {}
    for file, text in texts.items():
        try:
            contract = reading.parse(text, file)
            problems += _without_floor(contract, floors, text, file)
            read[file] = contract
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    run = _Run(index=index or SimpleIndex(), folder=folder, floors=floors, say=say, refresh=refresh, cache=cache)
    for file, contract in read.items():
        try:
            problems += run.contract(contract, texts[file], file)
        except Unreadable as error:
            run.report.failed[contract.id] = str(error)
            say(f"{contract.id}: {error}")
            if isinstance(error, Unanswered):  # nor would it for the others
                run.report.unanswered = True
                break
    if problems:
        raise InputError(problems)
    return run.report


def _without_floor(contract: Contract, floors: Mapping[str, Version], text: str, file: str) -> list[Problem]:
    source = document.parse(text, file)
    return [
        source.problem((key, "package"), f"matrix.yaml has no floor for {side.package}; say `from: VERSION` beside it")
        for key, side in (("caller", contract.caller), ("callee", contract.callee))
        if side.floor is None and side.package not in floors
    ]


@dataclass(kw_only=True)
class _Run:
    """One call of `harvest_contracts`."""

    index: Index
    folder: Callable[[str], Path]
    floors: Mapping[str, Version]
    say: Callable[[str], None]
    refresh: bool
    cache: Path | None
    report: Report = field(default_factory=Report)
    _published: dict[str, list[Published]] = field(default_factory=dict)

    def contract(self, contract: Contract, text: str, file: str) -> list[Problem]:
        """Judge one contract and write its table; returns what the table shows to be wrong with the contract."""
        path = self.folder(file) / f"{contract.id}.json"
        digest = sha256(text.encode()).hexdigest()
        sides = {"caller": self._listed(contract.caller), "callee": self._listed(contract.callee)}
        old = _read(path)
        if not self.refresh and old and _same(old, digest, sides):
            self.report.unchanged.append(contract.id)
            return []
        self.say(f"{contract.id}: {len(sides['caller'])} releases with {len(sides['callee'])}")
        of_caller, of_callee = contract.read
        callees = self._opened(sides["callee"], of_callee)
        versions = [release.version for release in callees]
        callers = [Caller(contract, release, versions) for release in self._opened(sides["caller"], of_caller)]
        seen, judge = Seen(), Judge(contract=contract)
        verdicts = {
            (str(caller.release.version), str(callee.version)): seen.noted(caller, callee, judge)
            for callee in callees
            for caller in callers
        }
        problems = seen.problems(contract, document.parse(text, file))
        if problems:
            return problems
        made = _document(contract, digest, callers, callees, verdicts)
        if old and {**old, "read": ""} == {**made, "read": ""}:
            self.report.unchanged.append(contract.id)
            return []
        write_whole(path, (lines(made, "") + "\n").encode())
        self.report.written.append(contract.id)
        count = sum(verdict.outcome is Outcome.UNKNOWN for verdict in verdicts.values())
        if count:
            self.report.unknown[contract.id] = count
        return []

    def _listed(self, side: Side) -> list[Published]:
        """The releases of interest, as harvest takes them elsewhere: from the floor on, no development releases."""
        if side.package not in self._published:
            self._published[side.package] = releases(side.package, self.index.files(side.package))
        floor = side.floor or self.floors[side.package]
        reader = READERS.get(side.package)
        accepts = reader.accepts if isinstance(reader, Reader) else _is_no_development
        found = [one for one in self._published[side.package] if one.version >= floor and accepts(one.version)]
        if not found:
            raise Unreadable(f"the registry has no release of {side.package} from {floor} on")
        return found

    def _opened(self, listed: Sequence[Published], paths: Sequence[str]) -> list[Release]:
        """The releases with their files read, a few at a time."""

        def opened(published: Published) -> Release:
            file = chosen(published)
            artefact = open_artefact(file, self.index, self.cache) if file else None
            release = Release(published.project, published.version, artefact, yanked=published.yanked)
            for path in paths:
                try:
                    release.tree(path)
                except Unreadable:  # said again, of the pair, when it is judged
                    break
            self.say(f"{published.project} {published.version}")
            return release

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return list(pool.map(opened, listed))


def chosen(published: Published) -> File | None:
    """The artefact that a release is read from: as its reader does, else a wheel, else the sdist."""
    reader = READERS.get(published.project)
    if isinstance(reader, Reader) and (file := reader.choose(published)):
        return file
    return wheel_or_sdist(published) or by_tags("-any.whl", "-cp311-", "-cp310-")(published)


def _is_no_development(version: Version) -> bool:
    return not version.is_devrelease


def _document(
    contract: Contract,
    digest: str,
    callers: Sequence[Caller],
    callees: Sequence[Release],
    verdicts: Mapping[tuple[str, str], Verdict],
) -> dict[str, Any]:
    names = tuple(str(caller.release.version) for caller in callers), tuple(str(release.version) for release in callees)
    table = Table(
        contract=contract.id,
        caller=contract.caller.package,
        callee=contract.callee.package,
        callers=names[0],
        callees=names[1],
        rows=compressed(*names, lambda caller, callee: verdicts[caller, callee]),
    )
    return {
        "schema": SCHEMA,
        "contract": contract.id,
        "regenerate": f"knowngood harvest --contracts {contract.id}",
        "reader": REVISION,
        "digest": digest,
        "read": dt.datetime.now(tz=dt.UTC).date().isoformat(),
        "caller": _side(contract.caller, [caller.release for caller in callers], contract.read[0]),
        "callee": _side(contract.callee, callees, contract.read[1]),
        "pairs": contract_table.document(table),
    }


def _side(side: Side, read: Sequence[Release], paths: Sequence[str]) -> dict[str, Any]:
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


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError:
        return None  # half of a file: it is made anew
    return found if isinstance(found, dict) else None


def _same(old: Mapping[str, Any], digest: str, sides: Mapping[str, Sequence[Published]]) -> bool:
    """Whether a table is of this contract and of these releases, and knows all pairs."""
    if (old.get("digest"), old.get("reader")) != (digest, REVISION):
        return False
    if any(run[2] == Outcome.UNKNOWN for item in old["pairs"] for run in item["callee"]):
        return False
    return all(
        {str(one.version): one.yanked for one in listed}
        == {version: entry["yanked"] for version, entry in old[side]["releases"].items()}
        for side, listed in sides.items()
    )
