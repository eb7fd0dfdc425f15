"""The runs of every cell and what they prove, read from a folder of evidence.

Reading and checking one file takes some milliseconds, so the cache folder keeps what was read of each file with its
size and time. That cache is derived data: a file that changed is read again, and a damaged cache is made anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from knowngood.core.local_files import cache_folder, write_atomically
from knowngood.evidence import sealed_files
from knowngood.evidence.cell_standing import CellStanding, standing_from_runs
from knowngood.evidence.observed_run import RecordedRun, RunDetails, StepFigures, load_run_details
from knowngood.evidence.run_evidence import RunPlace, SettingObservation
from knowngood.evidence.sealed_files import RunSeal

_OTHER_RUNS = frozenset({"incidents", "models", "nights", "parallel", "speed"})
"""The folders beside those of cells."""
_FileState = tuple[int, int]
"""Size in bytes and time of the last change in nanoseconds."""


@dataclass(frozen=True, kw_only=True)
class CellRuns:
    """The runs of one cell, in the order of their times."""

    standing: CellStanding
    runs: tuple[RecordedRun, ...]
    """All runs that can be used, oldest first."""


def list_run_files(folder: Path) -> list[Path]:
    """Return the files of the runs of cells in a folder of evidence; other folders hold runs of another kind."""
    files = folder.glob("*/*.json")
    return sorted(path for path in files if path.parent.name not in _OTHER_RUNS and path.name[0] != ".")


def read_cell_runs(folder: Path, seal: RunSeal | None = None) -> Mapping[str, CellRuns]:
    """Return cell id -> its runs, for every cell that has evidence or has lost some. A cell is judged when asked for.

    With the project's seal, a good run that it does not cover proves nothing; a red run counts in any case. Of a cell
    that has lost a file, no run proves anything.
    """
    lost = sealed_files.find_missing_files(folder, seal)
    by_cell: dict[str, list[str]] = {cell: [] for cell in lost if cell.partition("/")[0] not in _OTHER_RUNS}
    for path, content in _read_files(folder).items():
        by_cell.setdefault(path.parent.name, []).append(content)
    return _JudgedCells(by_cell, lost, seal)


class _JudgedCells(Mapping[str, CellRuns]):
    """The runs of each cell, from what the cache keeps of their files: most commands ask for one or two cells."""

    def __init__(
        self, contents: Mapping[str, Sequence[str]], lost: Mapping[str, Sequence[str]], seal: RunSeal | None
    ) -> None:
        self._contents = contents
        self._lost = lost
        self._seal = seal
        self._judged: dict[str, CellRuns] = {}

    def __getitem__(self, cell: str) -> CellRuns:
        if cell not in self._judged:
            items = [_from_data(json.loads(content)) for content in self._contents[cell]]
            self._judged[cell] = _judge_runs(items, self._lost.get(cell, ()), self._seal)
        return self._judged[cell]

    def __iter__(self) -> Iterator[str]:
        return iter(self._contents)

    def __len__(self) -> int:
        return len(self._contents)


def _judge_runs(items: Iterable[RunDetails | str], lost: Sequence[str], seal: RunSeal | None) -> CellRuns:
    details = [item for item in items if isinstance(item, RunDetails)]
    left_out = [item for item in items if isinstance(item, str)]
    unsigned = [item.run.file for item in details if seal and item.run.ok and not seal.covers_run(item.run.file)]
    counting = [] if lost else [item for item in details if item.run.file not in unsigned]
    standing = standing_from_runs(counting, [*lost, *left_out])
    runs = sorted((item.run for item in details), key=lambda run: (run.when, run.file))
    return CellRuns(standing=replace(standing, unsigned=tuple(unsigned)), runs=tuple(runs))


def _read_files(folder: Path) -> dict[Path, str]:
    """Return what each file of a run says, or why it is left out, as JSON; of an unchanged file from the cache."""
    states: dict[Path, _FileState] = {}
    for path in list_run_files(folder):
        with contextlib.suppress(OSError):  # it was removed in between
            status = path.stat()
            states[path] = (status.st_size, status.st_mtime_ns)
    place = cache_folder() / "runs" / f"{hashlib.sha256(bytes(folder.resolve())).hexdigest()[:32]}.json"
    origin = _origin(folder)
    known = _read_cache(place, origin)
    contents: dict[Path, str] = {}
    changed = len(known) != len(states)
    for path, state in states.items():
        kept = known.get(str(path.relative_to(folder)))
        if kept and (kept[0], kept[1]) == state:
            contents[path] = kept[2]
        else:
            contents[path], changed = json.dumps(_as_data(load_run_details(path))), True
    if changed:
        rows = {str(path.relative_to(folder)): (*states[path], content) for path, content in contents.items()}
        text = json.dumps(rows)
        with contextlib.suppress(OSError):  # the cache cannot be written: the next command reads the files again
            write_atomically(place, f"{_checksum(origin, text)}\n{text}")
    return contents


def _read_cache(place: Path, origin: str) -> dict[str, tuple[int, int, str]]:
    """Return what the cache keeps of each file; nothing where it is damaged, or of another program or ledger."""
    with contextlib.suppress(OSError, ValueError):
        checksum, _, text = place.read_text(encoding="utf-8").partition("\n")
        if checksum == _checksum(origin, text):
            known: dict[str, tuple[int, int, str]] = json.loads(text)
            return known
    return {}


def _checksum(origin: str, text: str) -> str:
    return hashlib.sha256(f"{origin}\n{text}".encode()).hexdigest()


def _as_data(item: RunDetails | str) -> Any:
    return item if isinstance(item, str) else asdict(item)


def _from_data(data: Any) -> RunDetails | str:
    if isinstance(data, str):
        return data
    return RunDetails(
        run=RecordedRun(**data["run"] | {"where": RunPlace(data["run"]["where"])}),
        settings={name: _observation(item) for name, item in data["settings"].items()},
        figures={name: StepFigures(**item) for name, item in data["figures"].items()},
    )


def _observation(stored: Mapping[str, Any]) -> SettingObservation:
    lists = {"limits": tuple(stored["limits"]), "defects": tuple(stored["defects"])}
    return SettingObservation(**{**stored, **lists})


def _origin(folder: Path) -> str:
    """Return a digest of what decides besides the files: the ledger of digests, and the modules that read evidence."""
    digest = hashlib.sha256()
    with contextlib.suppress(OSError):
        digest.update((folder / sealed_files.LEDGER).read_bytes())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
