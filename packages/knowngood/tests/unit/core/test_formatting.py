from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knowngood.core import formatting

VALUES = st.text(st.sampled_from("ab [/]\\-:.✓ 字\t\n"), max_size=8)


@settings(deadline=None)  # the first call imports rich
@given(st.lists(st.lists(VALUES, min_size=3, max_size=3), max_size=5), st.integers(10, 60))
def test_the_table_without_rich_is_the_same(rows, width):
    header = ["cell", "b", "c d"]
    fast = formatting._ascii_table(header, rows, width)
    assert fast is None or fast == formatting._rich_table(header, rows, width)


def test_a_table_of_plain_words_needs_no_rich(monkeypatch):
    monkeypatch.setattr(formatting, "_rich_table", None)
    assert formatting.format_table(["a", "b"], [["1", "-"], ["", ""], ["three", "4"]]).splitlines() == [
        "a       b",
        "─────────",
        "1       -",
        "three   4",
    ]


@pytest.mark.parametrize(
    ("text", "size"), [("3.0 GB", 3_000_000_000), ("800 MB", 800_000_000), ("12kB", 12_000), ("2.01 GB", 2_010_000_000)]
)
def test_sizes_are_parsed(text, size):
    assert formatting.parse_bytes(text) == size


@pytest.mark.parametrize(
    "text", ["", "3", "0 GB", "-1 GB", "9" * 400 + " GB", "9" * 5000 + " GB", "1." + "0" * 400 + " GB"]
)
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match="is not a size such as"):
        formatting.parse_bytes(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (None, "unknown"),
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (10**6, "1.0 MB"),
        (46_100_000, "46.1 MB"),
        (10**9, "1.00 GB"),
        (2_726_289_279, "2.73 GB"),
    ],
)
def test_sizes_are_formatted(size, text):
    assert formatting.format_bytes(size) == text
