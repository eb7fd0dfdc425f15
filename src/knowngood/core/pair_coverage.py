"""A small set of rows in which every pair of values occurs that any row has (a pairwise covering array). Pure.

The set is chosen greedily: it is small, not proven to be the smallest. Packages on the index such as allpairspy make
rows of their own, and take a function for what is forbidden; here the rows that may be chosen are listed already.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterable, Sequence

Row = tuple[str, ...]
"""A value in each column."""


def list_value_pairs(rows: Iterable[Sequence[str]]) -> set[tuple[int, str, int, str]]:
    """Return the pairs of values in these rows, each value with its column."""
    return {
        (first, row[first], second, row[second])
        for row in rows
        for first, second in itertools.combinations(range(len(row)), 2)
    }


def choose_covering_rows(rows: Iterable[Row]) -> list[Row]:
    """Return rows with all the pairs of values of all rows, always taking one with the most pairs still missing.

    Of rows with as many, the order is arbitrary and stable, so that they are not all of the first value. Rows have at
    least two columns.
    """
    candidates = _pair_masks(sorted(rows, key=lambda row: (zlib.crc32("|".join(row).encode()), row)))
    missing = 0
    for _, mask in candidates:
        missing |= mask
    chosen = []
    # What a row adds only falls, so one pass for each number of pairs finds every row that still adds so many.
    for adds in range(candidates[0][1].bit_count() if candidates else 0, 0, -1):
        left = []
        for row, mask in candidates:
            count = (mask & missing).bit_count()
            if count == adds:
                chosen.append(row)
                missing &= ~mask
            elif count:
                left.append((row, mask))
        candidates = left
    return chosen


def _pair_masks(rows: Sequence[Row]) -> list[tuple[Row, int]]:
    """Return each row with its pairs of values as the bits of a mask."""
    columns = list(itertools.combinations(range(len(rows[0]) if rows else 0), 2))
    tables: list[dict[tuple[str, str], int]] = [{} for _ in columns]
    count = 0
    masks = []
    for row in rows:
        mask = 0
        for table, (first, second) in zip(tables, columns, strict=True):
            pair = (row[first], row[second])
            bit = table.get(pair)
            if bit is None:
                bit = table[pair] = 1 << count
                count += 1
            mask |= bit
        masks.append((row, mask))
    return masks
