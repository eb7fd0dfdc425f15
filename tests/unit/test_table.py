from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from knowngood import table

VALUES = st.text(st.sampled_from("ab [/]\\-:.✓ 字\t\n"), max_size=8)


@given(st.lists(st.lists(VALUES, min_size=3, max_size=3), max_size=5), st.integers(10, 60))
def test_a_table_is_the_same_the_fast_way(rows, width):
    header = ["cell", "b", "c d"]
    fast = table._plain(header, rows, width)
    assert fast is None or fast == table._rich(header, rows, width)


def test_a_table_of_plain_words_is_made_the_fast_way(monkeypatch):
    monkeypatch.setattr(table, "_rich", None)
    assert table.text(["a", "b"], [["1", "-"], ["", ""], ["three", "4"]]).splitlines() == [
        "a       b",
        "─────────",
        "1       -",
        "three   4",
    ]
