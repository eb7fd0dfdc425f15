"""`exclude` and `retired` of an item of `cells`, in both readers of matrix.yaml."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knowngood.core.errors import InputError
from knowngood.core.matrix_entries import RetiredCellError, expand_product, is_excluded
from knowngood.core.yaml_document import parse_yaml_data
from knowngood.lock.cell_locking import lock_inputs_digest
from knowngood_facts.compat.matrix_cells import cells_from_matrix
from samples import FA0, FA2, FA4, KNOWLEDGE, MATRIX, parsed, with_

FLASH = "    flash-attn: [2.8.3.post2, none]\n"
"""The last lists of the second item, line 30 of the file."""


class Book:
    """The part of the facts that the quick reader uses."""

    def fact(self, _package, version, name):
        return getattr(KNOWLEDGE.torch[version], name)


def both(text: str) -> list[str]:
    """The ids that both readers take from a file, retired ones marked; they must agree."""
    whole = parsed(text)
    exact = [f"{name} {entry.retired}" for name, entry in whole.entries.items()]
    quick = cells_from_matrix(parse_yaml_data(text, "matrix.yaml"), Book())
    assert [f"{cell} {retirement}" for cell, retirement in quick.items()] == exact
    return list(whole.entries)


def refused(*changes: tuple[str, str]) -> list[str]:
    with pytest.raises(InputError) as caught:
        parsed(with_(*changes))
    return str(caught.value).splitlines()


def excluding(text: str, lists: str = FLASH) -> tuple[str, str]:
    return FLASH, f"{lists}    exclude:\n      - {text}\n"


def test_an_exclude_takes_combinations_out_of_the_product():
    wide = with_(
        ("transformers: 4.57.6", "transformers: [4.57.6, 5.17.0]"),
        (
            "  - gpu: sm_90\n    torch: 2.11.0\n    transformers: [",
            "  - gpu: [sm_90, sm_100]\n    torch: 2.11.0\n    transformers: [",
        ),
    )
    names = both(wide)
    left = both(
        wide.replace(
            FLASH, excluding("{gpu: sm_100, flash-attn: 2.8.3.post2}\n      - {gpu: sm_90, transformers: 5.17.0}")[1]
        )
    )
    gone = [name for name in names if name not in left]
    assert len(names) == 9
    assert len(gone) == 4
    assert all(("sm100" in name and "fa2.8.3" in name) or ("sm90" in name and "tf5.17.0" in name) for name in gone)


@pytest.mark.parametrize(
    "text", ["flash-attn: none", 'flash-attn: "0"', "flash-attn: [none]", "{flash-attn: none, gpu: sm_90}"]
)
def test_no_flash_attn_is_excluded_in_any_spelling(text):
    assert both(with_(excluding(text))) == [FA4, FA2]


def test_a_framework_is_excluded_as_it_is_written_in_the_list():
    lists = f"{FLASH}    framework: [none, xtuner==0.1.23]\n"
    names = both(with_(excluding("{flash-attn: none, framework: xtuner==0.1.23}", lists)))
    assert names == [FA4, FA2, f"{FA2}-xtuner0.1.23", FA0]


def test_a_combination_that_is_excluded_needs_no_wheel():
    torches = ("    torch: 2.11.0\n    transformers: 4.57.6", "    torch: [2.11.0, 2.10.0]\n    transformers: 4.57.6")
    assert "no wheel for Python 3.11" in refused(torches)[0]
    assert both(with_(torches, excluding("torch: 2.10.0"))) == [FA4, FA2, FA0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{gpu: sm_100}", "32:15: the exclude names gpu sm_100, but this item has sm_90"),
        ("{flash-attn: 4.0.0b36}", "32:22: the exclude names flash-attn 4.0.0b36, but this item has 2.8.3.post2, 0"),
        ("{tourch: 2.11.0, gpu: sm_90}", "32:10: unknown key 'tourch'; did you mean 'torch'?"),
        ("{torch: two, gpu: sm_90}", "32:17: 'two' is not a version of torch (PEP 440), as in 2.11.0 or 4.0.0b36"),
        (
            "{}",
            (
                "32:9: an exclude names values on at least one of gpu, base, torch, "
                "transformers, flash-attn, framework, host"
            ),
        ),
        (
            "flash-attn: none\n      - {flash-attn: none, torch: 2.11.0}",
            "33:9: this exclude matches nothing that the ones before it leave; remove it",
        ),
        ("gpu: sm_90", "32:7: the excludes leave nothing of this item; remove the item instead"),
        (
            "flash-attn: none\n      - flash-attn: 2.8.3.post2",
            "32:7: the excludes leave nothing of this item; remove the item instead",
        ),
    ],
)
def test_an_exclude_that_makes_no_sense_is_refused_at_its_place(text, message):
    lines = [line for line in refused(excluding(text)) if "the alias" not in line]
    assert lines[0] == f"matrix.yaml:{message}"


def test_excludes_and_retirement_do_not_change_what_a_lock_follows_from():
    before = parsed()
    after = parsed(with_(excluding("flash-attn: none"), (FLASH, f"{FLASH}    retired: {{on: 2026-11-01}}\n")))
    for name in (FA4, FA2):
        assert lock_inputs_digest(before.entries[name], before) == lock_inputs_digest(after.entries[name], after)


AXES = st.fixed_dictionaries(
    {axis: st.lists(st.sampled_from("abc"), min_size=1, unique=True) for axis in ("gpu", "torch", "transformers")}
)


@given(AXES, st.lists(AXES, max_size=3))
def test_what_is_left_matches_no_exclude_and_nothing_else_is_gone(lists, excludes):
    lists = lists | {"base": ["debian12"]}
    every = expand_product(lists, [])
    left = expand_product(lists, excludes)
    assert [point for point in every if not any(is_excluded(point, item) for item in excludes)] == left


RETIRED = FLASH + "    retired: {on: 2026-11-01, for: " + FA4 + "}\n"


def test_a_retired_item_retires_all_its_cells():
    matrix = parsed(with_((FLASH, RETIRED)))
    assert both(with_((FLASH, RETIRED))) == [FA4, FA2, FA0]
    assert list(matrix.retired) == [FA2, FA0]
    assert matrix.retired[FA0].sentence(FA0) == f"{FA0} was retired on 2026-11-01; its successor is {FA4}"


@pytest.mark.parametrize("successor", ["", ", for: none"])
def test_a_retired_cell_may_have_no_successor(successor):
    matrix = parsed(with_((FLASH, f"{FLASH}    retired: {{on: 2026-11-01{successor}}}\n")))
    assert matrix.retired[FA2].sentence(FA2) == f"{FA2} was retired on 2026-11-01; it has no successor"


@pytest.mark.parametrize("words", [[], ["*"], ["sm90-*"], ["torch=2.11.0"], ["default", "transformers>=4"]])
def test_lists_and_globs_leave_retired_cells_out(words):
    matrix = parsed(with_((FLASH, RETIRED)))
    assert [str(cell) for cell in matrix.select_cells(words)] == [FA4]
    assert FA4 in [str(cell) for cell in matrix.select_all_cells(words)]


@pytest.mark.parametrize("word", [FA2, "old", "transformers<5", "*tf4*fa2*"])
def test_naming_a_retired_cell_names_its_successor(word):
    matrix = parsed(with_((FLASH, RETIRED), ("aliases:\n", f"aliases:\n  old: {FA2}\n")))
    with pytest.raises(RetiredCellError, match=f"{FA2} was retired on 2026-11-01; its successor is {FA4}") as caught:
        matrix.select_cells(["default", word])
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{on: 2026-13-01}", "31:19: '2026-13-01' is not a day of the calendar"),
        ("{for: none}", "31:14: the key 'on' is missing in cells[1].retired"),
        ("{on: 2026-11-01, four: none}", "31:31: unknown key 'four'; did you mean 'for'?"),
        (
            f"{{on: 2026-11-01, for: {FA2}}}",
            f"31:36: the successor {FA2} is retired itself; name one that is not, or `none`",
        ),
        (
            f"{{on: 2026-11-01, for: {FA4.replace('b36', 'b35')}}}",
            f"31:36: the successor '{FA4.replace('b36', 'b35')}' is no cell of this file; the nearest is {FA4}",
        ),
        ("{on: 2026-11-01, for: default}", "31:36: the successor 'default' is no cell of this file; the nearest is"),
        ("yes", "31:14: cells[1].retired must be a mapping (KEY: VALUE lines)"),
    ],
)
def test_a_retirement_that_makes_no_sense_is_refused_at_its_place(text, message):
    (line,) = refused((FLASH, f"{FLASH}    retired: {text}\n"))
    assert line.startswith(f"matrix.yaml:{message}")


def test_the_sample_has_what_these_tests_change():
    assert MATRIX.splitlines()[29] + "\n" == FLASH
