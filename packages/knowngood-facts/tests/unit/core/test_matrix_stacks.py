"""`stacks` of matrix.yaml: a trainer with what it is used with, on cells that are there already; in both readers."""

from __future__ import annotations

import pytest
from test_matrix_entries import both

from knowngood.core.cell import parse_cell
from knowngood.core.errors import InputError, UsageError
from knowngood.core.selection import CellFilter
from samples import FA0, FA2, FA4, parsed, with_

STACK = """\
stacks:
  trl:
    release: 1.16.0
    extras: quantization
    with: [datasets, "peft<1"]
    on: [default, {cell}]
"""


def text_with(stack: str = STACK.format(cell=FA0), *changes: tuple[str, str]) -> str:
    return with_(("aliases:\n", f"{stack}aliases:\n"), *changes)


def refused(*changes: tuple[str, str]) -> list[str]:
    with pytest.raises(InputError) as caught:
        parsed(text_with(STACK.format(cell=FA0), *changes))
    return str(caught.value).splitlines()


def test_a_stack_is_a_cell_on_each_cell_that_it_names():
    assert both(text_with()) == [FA4, FA2, FA0, f"{FA4}-trl1.16.0", f"{FA0}-trl1.16.0"]


def test_the_cell_of_a_stack_is_that_of_the_cell_below_with_what_comes_along():
    matrix = parsed(text_with())
    entry = matrix.entries[f"{FA0}-trl1.16.0"]
    assert (str(entry.below), entry.base) == (FA0, "debian12")
    assert entry.extras == ("pytest",)
    assert entry.companions == ("trl[quantization]", "datasets", "peft<1")
    assert str(parse_cell(f"{FA0}-trl1.16.0")) == str(entry.cell)


def test_what_a_stack_moves_is_written_in_any_way():
    matrix = parsed(text_with(STACK.format(cell=FA0), ("    extras: quantization\n", "    moves: Typing_Extensions\n")))
    assert matrix.entries[f"{FA0}-trl1.16.0"].moves == ("typing-extensions",)


def test_cells_without_a_stack_stay_as_they_were():
    before, after = parsed(), parsed(text_with())
    assert all(after.entries[name] == entry for name, entry in before.entries.items())


def test_an_alias_may_name_the_cell_of_a_stack():
    matrix = parsed(text_with(STACK.format(cell=FA0), ("aliases:\n", f"aliases:\n  trl: {FA4}-trl1.16.0\n")))
    assert [str(cell) for cell in matrix.select_cells(["trl"])] == [f"{FA4}-trl1.16.0"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("on: [default,", "on: [defalt,"), "37:10: 'defalt' is no cell of this file; the nearest is"),
        (("release: 1.16.0", "release: one"), "34:14: 'one' is not a version of the trainer (PEP 440)"),
        (("release: 1.16.0", "releas: 1.16.0"), "34:5: unknown key 'releas'; did you mean 'release'?"),
        (("    extras: quantization\n    with: [datasets,", "    with: [data sets,"), "is not a requirement (PEP 508)"),
        (("  trl:\n", "  TRL:\n"), "33:3: 'TRL' is not written like the package of a trainer, such as trl or ms-swift"),
        (("on: [default,", f"on: [{FA4},"), None),
        (
            ("    extras: quantization\n", "    moves: [typer, Transformers]\n"),
            "`moves` names Transformers, an axis; a trainer that needs another has a cell of its own",
        ),
        ((f", {FA0}]", ", default]"), f"the cell {FA4}-trl1.16.0 is there already; remove one of them"),
        (("  trl:\n    release: 1.16.0", "  xtuner:\n    release: 0.1.22"), "xtuner 0.1.22 is not among the releases"),
        (
            ("    flash-attn: 4.0.0b36\n", "    flash-attn: 4.0.0b36\n    framework: xtuner==0.1.23\n"),
            f"'{FA4}' is no cell of this file; the nearest is {FA4}-xtuner0.1.23",
        ),
    ],
)
def test_what_is_wrong_with_a_stack_is_a_sentence_with_its_place(change, message):
    if message is None:
        assert len(both(text_with(STACK.format(cell=FA0), change))) == 5
        return
    assert any(message in line for line in refused(change)), refused(change)


def test_a_stack_cannot_be_on_a_cell_with_a_framework_or_on_a_retired_one():
    framed = ("    flash-attn: [2.8.3.post2, none]\n", "    flash-attn: none\n    framework: xtuner==0.1.23\n")
    lines = refused(framed, (f", {FA0}]", f", {FA0}-xtuner0.1.23]"))
    assert lines == [
        f"matrix.yaml:38:19: {FA0}-xtuner0.1.23 has a framework of its own, xtuner 0.1.23; name a cell without one"
    ]
    gone = ("[2.8.3.post2, none]\n", "[2.8.3.post2, none]\n    retired: {on: 2026-11-01}\n")
    assert "was retired on 2026-11-01" in refused(gone)[0]


def test_a_stack_is_selected_by_its_name_whatever_its_release():
    chosen = parsed(text_with()).select_cells(["stack=trl,gpu=sm_90"])
    assert [str(cell) for cell in chosen] == [f"{FA4}-trl1.16.0", f"{FA0}-trl1.16.0"]
    assert CellFilter("stack=none").matches(parse_cell(FA4))
    assert not CellFilter("stack=none").matches(chosen[0])
    assert CellFilter("stack!=trl").matches(parse_cell(FA4))
    assert not CellFilter("stack=tr").matches(chosen[0])


def test_a_stack_has_no_order():
    with pytest.raises(UsageError, match=r"'stack>trl': a stack takes = or !=, as in stack=trl"):
        CellFilter("stack>trl")
