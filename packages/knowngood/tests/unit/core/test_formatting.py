from __future__ import annotations

import io

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


class Terminal(io.StringIO):
    def isatty(self):
        return True


ANSWER = """broken
  error: a sentence that is longer than the terminal is wide, so that it goes on below
  add it: knowngood add sm90-cu130-torch2.11.0-tf5.17.0-fa4.0.0b33-triton3.6.0-py311"""


def test_an_answer_is_wrapped_at_words_and_its_verdicts_are_in_colour(monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert formatting.format_answer(ANSWER, io.StringIO()) == ANSWER
    shown = formatting.format_answer(ANSWER, Terminal()).splitlines()
    assert shown[0] == "\x1b[31mbroken\x1b[0m"
    assert shown[1] == "  \x1b[31merror\x1b[0m: a sentence that is longer than the"
    assert shown[2].startswith("    terminal is")
    assert shown[-1] == ANSWER.splitlines()[-1]  # a command can be copied
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in formatting.format_answer(ANSWER, Terminal())


@pytest.mark.parametrize(
    "start", ["/usr/local/bin/docker run", "podman run", "mkdir -p -m 700 /tmp/c && apptainer exec"]
)
def test_commands_that_people_copy_stay_on_one_line(monkeypatch, start):
    monkeypatch.setenv("COLUMNS", "50")
    command = f"{start} --rm --shm-size 11g --volume /home/ann/work:/work python train.py"
    assert formatting.format_answer(command, Terminal()) == command
