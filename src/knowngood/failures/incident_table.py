"""The known failures with the words of their signatures: only an incident that a log may show has to be decoded."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from knowngood.compat.incident import Incident
from knowngood.compat.log_signature import Signature
from knowngood.failures.logs.log_scan import WordIndex, index_words


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
        for incident in incidents:
            starts.append(starts[-1] + len(incident.marks))
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
