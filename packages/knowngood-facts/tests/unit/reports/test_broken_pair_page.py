"""docs/broken-pairs.md: what it shows of a table, and that the committed page is current."""

from __future__ import annotations

from pathlib import Path

from knowngood_facts.facts.atlas_lookup import atlas_folder
from knowngood_facts.facts.broken_use_table import BrokenUse, BrokenUseTable, UseFailure, read_broken_use_tables
from knowngood_facts.reports.broken_pair_page import render_broken_pairs


def use(module: str, name: str, *, place: str = "", callers: int, reached: int = 0, callees: int = 0b10) -> BrokenUse:
    return BrokenUse(
        module=module,
        target=f"transformers:{name}",
        failure=UseFailure.NAME,
        detail="",
        place=place,
        callers=callers,
        reached=reached,
        callees=callees,
    )


def test_imports_that_fail_alike_are_one_row_and_functions_are_left_out() -> None:
    uses = [
        use("app.core", "gone", callers=0b11, reached=0b01),
        use("app.more", "old", callers=0b10),
        use("app.run", "late", place="run", callers=0b11),
    ]
    table = BrokenUseTable(
        package="app",
        releases=["1.0", "1.1"],
        callees={"transformers": ["4.0.0", "5.0.0"]},
        uses={"transformers": uses},
    )
    rows = [line for line in render_broken_pairs([table]).splitlines() if line.startswith("|")]
    assert rows[2:] == [
        "| until 1.0 | since 5.0.0 | `import app` | `gone` |",
        "| since 1.1 | since 5.0.0 | `app.core`, `app.more` | `gone`, `old` |",
    ]


def test_a_package_without_a_failing_import_is_left_out() -> None:
    table = BrokenUseTable(
        package="app",
        releases=["1.0"],
        callees={"transformers": ["4.0.0", "5.0.0"]},
        uses={"transformers": [use("app.run", "late", place="run", callers=1)]},
    )
    assert "app" not in render_broken_pairs([table]).partition("told")[2]
    assert "| " not in render_broken_pairs([table])


def test_the_committed_page_is_that_of_the_tables() -> None:
    page = Path(__file__).parents[5] / "docs" / "broken-pairs.md"
    assert page.read_text(encoding="utf-8") == render_broken_pairs(read_broken_use_tables(atlas_folder()))
