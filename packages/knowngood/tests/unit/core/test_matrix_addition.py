"""A new entry in matrix.yaml: a few lines more, and every other byte as it was."""

from __future__ import annotations

import difflib

import pytest
from hypothesis import given
from hypothesis import strategies as st

import samples
from knowngood.core.cell import parse_cell
from knowngood.core.errors import InputError
from knowngood.core.matrix_entries import insert_matrix_entry, render_matrix_entry

CELL = parse_cell("sm100-cu130-torch2.11.0-tf5.17.0-fa4.0.0b36-triton3.6.0-py311")
PLAIN = parse_cell("sm100-cu130-torch2.11.0-tf5.17.0-fa0-triton3.6.0-py311")
FRAMEWORK = parse_cell("sm90-cu130-torch2.11.0-tf4.57.6-fa0-triton3.6.0-py311-xtuner0.1.23")


def added_lines(before: str, after: str) -> list[str]:
    changes = [line for line in difflib.ndiff(before.splitlines(True), after.splitlines(True)) if line[0] != " "]
    assert all(line.startswith("+ ") for line in changes), changes
    return [line[2:] for line in changes]


@pytest.mark.parametrize("cell", [CELL, PLAIN, FRAMEWORK])
def test_the_new_matrix_has_the_cell_and_all_others(cell):
    addition = insert_matrix_entry(samples.MATRIX, "matrix.yaml", render_matrix_entry(cell, "debian12"))
    assert list(samples.parsed(addition.text).entries) == [*samples.parsed().entries, str(cell)]
    assert addition.text.splitlines(True)[addition.line - 1] == addition.entry.splitlines(True)[0]


def test_extras_are_requirements_of_the_entry():
    lines = render_matrix_entry(PLAIN, "debian12", ("trl>=0.9,<1",))
    assert 'with: ["trl>=0.9,<1"]' in lines
    matrix = samples.parsed(insert_matrix_entry(samples.MATRIX, "matrix.yaml", lines).text)
    assert "trl>=0.9,<1" in matrix.entry(PLAIN).extras


def test_the_projects_own_matrix_gets_five_lines_and_keeps_its_comments():
    text = (samples.ROOT / "matrix.yaml").read_text()
    addition = insert_matrix_entry(text, "matrix.yaml", render_matrix_entry(CELL, "debian12"))
    # The line before is the same as the last one, so it is open which of both was added.
    assert sorted(added_lines(text, addition.text)) == [
        "    base: debian12\n",
        "    flash-attn: 4.0.0b36\n",
        "    torch: 2.11.0\n",
        "    transformers: 5.17.0\n",
        "  - gpu: sm_100\n",
    ]
    assert addition.text.index("    flash-attn: 4.0.0b36\n    base: debian12\n\n# A stack is") > 0


LAYOUTS = {
    "the last section": "a: 1\ncells:\n  - gpu: x\n    torch: 1\n",
    "no newline at the end": "cells:\n  - gpu: x",
    "no indentation": "cells:\n- gpu: x\n  torch: 1\n# of the aliases\naliases:\n  a: b\n",
    "more indentation": "cells:\n    -   gpu: x\n        torch: 1\n\n\naliases: {}\n",
    "CRLF": "cells:\r\n  - gpu: x\r\n    torch: 1\r\n\r\naliases: {}\r\n",
    "comments inside": "cells: # all\n  # one\n  - gpu: x # x\n    # why\n    torch: 1\n    # end\n\n# next\na: {}\n",
    "a flow mapping": "cells:\n  - {gpu: x, torch: 1}\naliases: {}\n",
    "a block scalar": "cells:\n  - gpu: x\n    note: >-\n      two\n\n      lines\naliases: {}\n",
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_layout_of_the_file_is_kept(name):
    import yaml

    text = LAYOUTS[name]
    addition = insert_matrix_entry(text, "matrix.yaml", ["gpu: y", "base: z"])
    before, after = yaml.safe_load(text), yaml.safe_load(addition.text)
    assert after == {**before, "cells": [*before["cells"], {"gpu": "y", "base": "z"}]}
    new = addition.text.replace(addition.entry, "", 1)
    assert new in (text, text + "\n")
    assert addition.entry.count("\r\n") == (2 if "\r\n" in text else 0)


@given(st.lists(st.sampled_from(["", "# note", "  # note", "    # note"]), max_size=4))
def test_comments_after_the_last_entry_stay(notes):
    import yaml

    text = "\n".join(["cells:", "  - gpu: x", *notes, "aliases: {}", ""])
    addition = insert_matrix_entry(text, "matrix.yaml", ["gpu: y"])
    assert yaml.safe_load(addition.text) == {"cells": [{"gpu": "x"}, {"gpu": "y"}], "aliases": {}}
    assert addition.text.replace(addition.entry, "", 1) == text


@pytest.mark.parametrize("text", ["cells: [{gpu: x}]\n", "cells: []\n", "cells: x\n", "aliases: {}\n", "- a\n", ""])
def test_another_form_of_cells_is_refused(text):
    with pytest.raises(InputError, match=r"`cells` must be a list with entries"):
        insert_matrix_entry(text, "matrix.yaml", ["gpu: y"])
