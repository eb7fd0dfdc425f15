"""What `knowngood diagnose` knows: incidents, rules and GPUs, read from YAML once and kept as JSON in the cache."""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet

from knowngood.core import data_files, gpus, local_files
from knowngood.core.errors import InputError
from knowngood.core.local_files import INCIDENTS_FOLDER, RULES_FOLDER, write_atomically
from knowngood_diagnose.failures.logs import log_scan
from knowngood_diagnose.failures.logs.log_scan import WordIndex, index_words
from knowngood_facts.compat import incident, rule, rule_files
from knowngood_facts.compat.incident import (
    Fix,
    Incident,
    IncidentKind,
    IncidentSeverity,
    IncidentTrait,
    IncidentUse,
    IncidentVariant,
    RangeOrigin,
    Signature,
)
from knowngood_facts.compat.rule import Condition, Rule, rule_from_incident


class IncidentTable(Sequence[Incident]):
    """Incidents whose signatures have numbers: those of an incident follow one another in the order of its `marks`."""

    def __init__(self, incidents: Sequence[Incident], starts: Sequence[int], words: WordIndex) -> None:
        """Take incidents that are decoded when they are asked for, with what `of` computed of the same incidents.

        Args:
            incidents: the incidents in their order.
            starts: the number of the first signature of each, and behind them the count of all signatures.
            words: the words of all signatures.
        """
        self._incidents = incidents
        self.starts = starts
        self.words = words

    @classmethod
    def of(cls, incidents: Sequence[Incident]) -> IncidentTable:
        """Return the table of some incidents; a table is returned as it is."""
        if isinstance(incidents, IncidentTable):
            return incidents
        starts = [0]
        for known in incidents:
            starts.append(starts[-1] + len(known.marks))
        return cls(incidents, starts, index_words(mark for incident in incidents for mark in incident.marks))

    def __len__(self) -> int:
        return len(self._incidents)

    def __getitem__(self, place: Any) -> Any:
        return self._incidents[place]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IncidentTable) and list(self) == list(other)

    def __hash__(self) -> int:
        return hash(tuple(self.starts))

    @property
    def marks(self) -> Sequence[Signature]:
        """The signatures of all incidents by their numbers."""
        return _Marks(self)

    def find_by_marks(self, numbers: Iterable[int]) -> Iterator[tuple[Incident, int]]:
        """Yield the incidents that have any of these signatures, in their order, with the number of their first one."""
        for place in sorted({self.place_of_mark(number) for number in numbers}):
            yield self[place], self.starts[place]

    def place_of_mark(self, number: int) -> int:
        """Return the place of the incident that has a signature."""
        return bisect_right(self.starts, number) - 1


class _Marks(Sequence[Signature]):
    def __init__(self, table: IncidentTable) -> None:
        self._table = table
        self._read: dict[int, Signature] = {}

    def __len__(self) -> int:
        return self._table.starts[-1]

    def __getitem__(self, number: Any) -> Any:
        if number not in self._read:
            place = self._table.place_of_mark(number)
            self._read.update(enumerate(self._table[place].marks, self._table.starts[place]))
        return self._read[number]


@dataclass(frozen=True, kw_only=True)
class KnownFailures:
    """Everything that a log is compared with."""

    incidents: IncidentTable
    rules: tuple[Rule, ...]
    """Those of `rules/`, and those of incidents."""
    catalog: gpus.GpuCatalog | None
    """The GPUs of matrix.yaml; `None` when it cannot be read, which other commands report."""


def load_known_failures(folder: Path | None = None) -> KnownFailures:
    """Load the incidents of a folder, knowngood's own by default; raises `InputError` with every defect."""
    root = local_files.data_folder()
    place = local_files.cache_folder() / "diagnose" / "known.json"
    state = json.dumps(_list_files(root, folder or root / INCIDENTS_FOLDER))
    with contextlib.suppress(OSError):
        head, _, data = place.read_bytes().partition(b"\n")
        if head == _describe_cache(state, data):
            return unpack_known_failures(data)
    data = pack_known_failures(root, folder)
    _write_cache(place, b"%b\n%b" % (_describe_cache(state, data), data))
    return unpack_known_failures(data)


def _list_files(root: Path, incidents: Path) -> list[tuple[str, int, int, int]]:
    """Path, size and times of all files that decide the result; a change of one changes at least its last time."""
    here, *modules = (Path(str(module.__file__)) for module in (incident, log_scan, gpus, rule, data_files))
    # Two more take time to be imported, and are only needed when the cache is written.
    parsers = (Path(__file__), here.with_name("incident_file.py"), modules[-1].with_name("yaml_document.py"))
    files = [(str(path), path.stat()) for path in (here, *modules, *parsers)]
    if (root / "matrix.yaml").exists():
        files.append((str(root / "matrix.yaml"), (root / "matrix.yaml").stat()))
    for folder in filter(os.path.isdir, (incidents, root / RULES_FOLDER)):
        with os.scandir(folder) as entries:
            yaml = (entry for entry in entries if entry.name.endswith(".yaml") and entry.is_file())
            files += sorted((entry.path, entry.stat()) for entry in yaml)
    return [(path, state.st_size, state.st_mtime_ns, state.st_ctime_ns) for path, state in files]


def _describe_cache(state: str, data: bytes) -> bytes:
    """The first line of the cached file, with the state of the files and a checksum of the rest."""
    return f"{zlib.crc32(data)} {state}".encode()


def _read_or_empty(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def pack_known_failures(root: Path, folder: Path | None = None) -> bytes:
    """Return what `unpack_known_failures` reads: a line with all that every log needs, then one for each incident.

    `root` is the folder of the data, `folder` that of the incidents. Raises `InputError` with every defect.
    """
    # These take time to import, and are not needed when the cache has an answer.
    from knowngood.core.yaml_document import parse_yaml_data
    from knowngood_facts.compat.incident_file import parse_incidents

    try:
        sections = parse_yaml_data(_read_or_empty(root / "matrix.yaml"), "matrix.yaml")["gpus"]
        gpus.gpu_catalog_from_sections(sections)
    except (InputError, KeyError, TypeError, AttributeError):
        sections = None
    incidents = parse_incidents(rule_files.read_incident_texts(folder))
    table = IncidentTable.of(incidents)
    shared = {
        "rules": [*rule_files.load_rules(root / RULES_FOLDER), *filter(None, map(rule_from_incident, incidents))],
        "gpus": sections,
        "starts": table.starts,
        "words": {word.decode("latin-1"): numbers for word, numbers in table.words.items()},
    }
    return "\n".join(json.dumps(item, default=_encode) for item in (shared, *incidents)).encode()


def _write_cache(place: Path, data: bytes) -> None:
    """Replace the cached file, where the cache can be written."""
    with contextlib.suppress(OSError):
        write_atomically(place, data)


def _encode(value: Any) -> Any:
    """What JSON stores of a value that it does not know."""
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def unpack_known_failures(data: bytes) -> KnownFailures:
    """Return what was packed. An incident is read when it is asked for."""
    head, *lines = data.split(b"\n")
    shared = json.loads(head)
    words = {word.encode("latin-1"): numbers for word, numbers in shared["words"].items()}
    return KnownFailures(
        incidents=IncidentTable(_StoredIncidents(lines), shared["starts"], words),
        rules=tuple(map(_decode_rule, shared["rules"])),
        catalog=None if shared["gpus"] is None else gpus.gpu_catalog_from_sections(shared["gpus"]),
    )


class _StoredIncidents(Sequence[Incident]):
    """Incidents, each decoded when it is first asked for."""

    def __init__(self, lines: Sequence[bytes]) -> None:
        self._lines = lines
        self._decoded: dict[int, Incident] = {}

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, place: Any) -> Any:
        if place not in self._decoded:
            self._decoded[place] = _decode_incident(json.loads(self._lines[place]))
        return self._decoded[place]


_SIGNATURE_KEYS = ("signatures", "context", "frames", "without")


def _decode_incident(cached: dict[str, Any]) -> Incident:
    decoded = {
        "kind": IncidentKind(cached["kind"]),
        "severity": IncidentSeverity(cached["severity"]),
        "range_from": RangeOrigin(cached["range_from"]) if cached["range_from"] else None,
        "uses": IncidentUse(**cached["uses"]) if cached["uses"] else None,
        "affected": tuple(
            {name: SpecifierSet(text, prereleases=True) for name, text in item.items()} for item in cached["affected"]
        ),
        "fix": tuple(Fix(**item) for item in cached["fix"]),
        "variants": tuple(
            IncidentVariant(
                **{
                    **item,
                    **{key: tuple(item[key]) for key in ("words", "shows")},
                    "kind": IncidentKind(item["kind"]) if item["kind"] else None,
                    "fix": tuple(Fix(**fix) for fix in item["fix"]),
                }
            )
            for item in cached["variants"]
        ),
        "traits": tuple(map(IncidentTrait, cached["traits"])),
        **{name: tuple(cached[name]) for name in ("run_reasons", "source", "report_erred")},
        **{name: tuple(map(_decode_signature, cached[name])) for name in _SIGNATURE_KEYS},
    }
    return Incident(**{**cached, **decoded})


def _decode_signature(cached: Mapping[str, Any]) -> Signature:
    return Signature(
        text=cached["text"],
        words=tuple(word.encode("latin-1") for word in cached["words"]),
        literal=cached["literal"].encode("latin-1"),
        segments=tuple(segment.encode("latin-1") for segment in cached["segments"]),
        beside=tuple(map(_decode_signature, cached["beside"])),
    )


def _decode_rule(cached: dict[str, Any]) -> Rule:
    conditions = {
        key: {
            subject: Condition(relation=item["relation"], arguments=tuple(item["arguments"]))
            for subject, item in cached[key].items()
        }
        for key in ("when", "require")
    }
    return Rule(**{**cached, **conditions, **{key: tuple(cached[key]) for key in ("source", "forbid", "fix")}})
