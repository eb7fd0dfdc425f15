"""Which cell of a stack takes the place of the cell below it."""

from __future__ import annotations

import pytest
from samples import FA0, FA4, parsed, with_

from knowngood.core.cell import parse_cell
from knowngood.launch.stack_choice import find_stack_cell

SECTION = f"stacks:\n  trl: {{release: 1.16.0, on: [default, {FA0}]}}\n  ms-swift: {{release: 4.6.0, on: default}}\n"
STACKS = with_(
    ("aliases:\n", f"{SECTION}aliases:\n"),
    ("    flash-attn: 4.0.0b36\n", "    flash-attn: 4.0.0b36\n    framework: [none, trl==1.15.0]\n"),
)


class Tree:
    """The locks of these cells."""

    def __init__(self, *locked):
        self.locked = locked

    def load(self, cell):
        return str(cell) in self.locked or None


def chosen(cell, *wanted, locked=(f"{FA4}-trl1.16.0", f"{FA4}-ms-swift4.6.0", f"{FA4}-trl1.15.0")):
    return str(find_stack_cell(parsed(STACKS), Tree(*locked), parse_cell(cell), wanted))


@pytest.mark.parametrize("word", ["trl", "TRL", "trl==1.16", "trl>=1.15,<2", "trl[vlm]"])
def test_the_stack_has_the_trainer_in_a_release_that_is_asked_for(word):
    assert chosen(FA4, "datasets", word) == f"{FA4}-trl1.16.0"


@pytest.mark.parametrize("words", [(), ("peft",), ("trl==1.15",), ("trl=1",), ("trl>2",)])
def test_no_stack_has_what_is_asked_for(words):
    assert chosen(FA4, *words) == "None"


def test_the_name_of_a_trainer_is_written_in_any_way():
    assert chosen(FA4, "ms_swift") == f"{FA4}-ms-swift4.6.0"


def test_a_stack_that_is_not_locked_or_that_is_on_another_cell_is_not_taken():
    assert chosen(FA4, "trl", locked=()) == "None"
    assert chosen(FA0, "trl") == "None"
