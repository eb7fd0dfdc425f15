"""Findings of `check` about uses of one package that the release of another breaks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from knowngood_facts.compat.broken_pairs import (
    boxes_of_broken_pairs,
    find_broken_pairs,
    find_excluded_releases,
    find_failing_calls,
)
from knowngood_facts.compat.value_domain import ReleaseDomain
from knowngood_facts.facts.broken_use_table import BrokenUse, BrokenUseTable, UseFailure


def use(module: str, target: str, *, keyword: str = "", place: str = "", callers: int, reached: int, callees: int):
    return BrokenUse(
        module=module,
        target=target,
        failure=UseFailure.KEYWORD if keyword else UseFailure.NAME,
        detail=keyword,
        place=place,
        callers=callers,
        reached=reached,
        callees=callees,
    )


TABLE = BrokenUseTable(
    package="app",
    releases=["1.0", "1.1", "1.2", "1.3"],
    callees={"lib": ["2.0.0", "2.1.0", "2.2.0"]},
    uses={
        "lib": [
            use("app.late", "lib:old", callers=0b0010, reached=0, callees=0b110),
            use("app.core", "lib:old", callers=0b0011, reached=0b0011, callees=0b110),
            use("app.run", "lib:go", keyword="fast", callers=0b0100, reached=0, callees=0b001),
            use("app.two", "lib.two", callers=0b0100, reached=0, callees=0b001),
            use("app.gap", "lib:gap", callers=0b1000, reached=0b1000, callees=0b010),
            use("app.three", "lib.three", callers=0b0100, reached=0, callees=0b001),
            use("app.inside", "lib:gone", place="run", callers=0b1111, reached=0, callees=0b111),
        ]
    },
)


def findings(**versions: str):
    return find_broken_pairs(versions, {"app": TABLE}.get)


def test_a_package_that_cannot_be_imported_is_an_error_with_the_nearest_releases_that_can() -> None:
    (finding,) = findings(app="1.1", lib="2.1.0")
    assert (finding.id, finding.severity, finding.packages) == ("uses:app:lib", "error", {"app": "1.1", "lib": "2.1.0"})
    assert finding.because == (
        "app 1.1 uses `old` of `lib`, gone since lib 2.1.0: fails at `import app` (in `app.core`); "
        "it uses `old` of `lib`, gone since lib 2.1.0: fails at `import app.late`"
    )
    assert [fix["change"] for fix in finding.fix] == [{"lib": "2.0.0"}, {"app": "1.2"}]


def exported_pair(*, needed: int) -> BrokenUseTable:
    lazy = use("app.late", "lib:old", callers=0b1111, reached=0, callees=0b110)
    lazy = replace(lazy, exported=0b1111, exports="Late, Later", needed=needed)
    return replace(TABLE, uses={"lib": [lazy]})


def test_a_name_that_is_exported_lazily_is_a_warning_and_an_error_where_the_package_is_for_it() -> None:
    versions = {"app": "1.1", "lib": "2.1.0"}
    (finding,) = find_broken_pairs(versions, {"app": exported_pair(needed=0)}.get)
    assert finding.severity == "warning"
    assert "fails at `from app import Late, Later` (in `app.late`)" in finding.because
    (finding,) = find_broken_pairs(versions, {"app": exported_pair(needed=0b0011)}.get)
    assert (finding.severity, [fix["change"] for fix in finding.fix]) == ("error", [{"lib": "2.0.0"}, {"app": "1.2"}])
    excluded = find_excluded_releases("app", "1.1", ["lib"], {"app": exported_pair(needed=0b0011)}.get)
    assert excluded["lib"].mask == 0b110


def test_functions_that_fail_are_one_line() -> None:
    (finding,) = find_failing_calls({"app": "1.1", "lib": "2.1.0"}, {"app": TABLE}.get)
    command = "`knowngood api --breaks app==1.1 lib==2.1.0` lists them"
    assert finding.because == f"functions that fail where they run: 1 of app with lib (`run`); {command}"
    assert list(find_failing_calls({"app": "1.1"}, {"app": TABLE}.get)) == []


def test_what_only_other_modules_need_is_told_with_the_command_for_the_rest() -> None:
    (finding,) = findings(app="1.2", lib="2.0")
    assert (finding.severity, finding.fix) == ("info", ())
    assert finding.because == (
        "app 1.2 passes `fast` to `lib.go`, a parameter new in lib 2.1.0: fails at `import app.run`; "
        "it imports `lib.two`, new in lib 2.1.0: fails at `import app.two`; "
        "and 1 more (`knowngood api --breaks app==1.2 lib==2.0.0`)"
    )


def test_what_only_some_releases_lack_is_neither_gone_nor_new() -> None:
    (finding,) = findings(app="1.3", lib="2.1.0")
    assert finding.because == "app 1.3 uses `gap` of `lib`, not in lib 2.1.0: fails at `import app` (in `app.gap`)"


@pytest.mark.parametrize(
    "versions",
    [
        {"app": "1.1", "lib": "2.0.0"},
        {"app": "1.3", "lib": "2.2.0"},
        {"app": "1.1"},
        {"lib": "2.1.0"},
        {"app": "1.1", "lib": "9.9"},
        {"app": "0.1", "lib": "2.1.0"},
    ],
)
def test_what_fits_is_inside_a_function_or_is_not_read_gives_no_finding(versions: dict[str, str]) -> None:
    assert findings(**versions) == []


APP, LIB = (
    ReleaseDomain("app", ["1.0", "1.0.1", "1.1", "1.2", "1.3"]),
    ReleaseDomain("lib", ["2.0.0", "2.1.0", "2.2.0"]),
)
"""The facts have a release of app that was withdrawn, so that nobody read it."""


def test_releases_that_cannot_be_imported_together_are_boxes_with_those_that_nobody_read_between_them() -> None:
    boxes = list(boxes_of_broken_pairs(["app", "lib"], {"app": APP, "lib": LIB}, {"app": TABLE}.get))
    assert [(APP.texts(box.masks["app"]), LIB.texts(box.masks["lib"])) for box in boxes] == [
        (["1.0", "1.1"], ["2.1.0", "2.2.0"]),
        (["1.0.1"], ["2.1.0", "2.2.0"]),
        (["1.3"], ["2.1.0"]),
    ]
    assert [box.rule.source for box in boxes[:2]] == [
        ("the sources of app {app} and lib {lib}",),
        ("the sources of the releases around app {app} and lib {lib}",),
    ]
    assert boxes[0].rule.id == "uses:app:lib"
    assert (
        boxes[0].rule.because
        == "app {app} uses `old` of `lib`, gone since lib 2.1.0: fails at `import app` (in `app.core`)"
    )


def test_there_are_no_boxes_about_a_package_without_facts() -> None:
    assert list(boxes_of_broken_pairs(["app"], {"app": APP}, {"app": TABLE}.get)) == []


def test_a_pinned_release_excludes_those_of_what_it_imports_and_of_what_imports_it() -> None:
    read = {"app": TABLE}.get
    callees = find_excluded_releases("app", "1.1", ["lib"], read)["lib"]
    assert LIB.texts(callees.mask_in(LIB)) == ["2.1.0", "2.2.0"]
    callers = find_excluded_releases("lib", "2.1.0", ["app"], read)["app"]
    assert APP.texts(callers.mask_in(APP)) == ["1.0", "1.0.1", "1.1", "1.3"]
    assert callers.reason.packages == {"app": "1.3", "lib": "2.1.0"}
    assert find_excluded_releases("app", "1.2", ["lib"], read) == {}
    assert find_excluded_releases("lib", "2.0.0", ["app"], read) == {}
