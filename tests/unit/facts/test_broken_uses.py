"""Uses of one package by another that some releases break, computed from the atlas of both."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

from knowngood.facts.atlas_file import AtlasFile, AtlasTables
from knowngood.facts.atlas_lookup import AtlasLookup
from knowngood.facts.atlas_rows import extract_module
from knowngood.facts.broken_use_table import BrokenUse
from knowngood.facts.broken_uses import find_broken_uses


def write_atlas(folder: Path, package: str, *releases: dict[str, str]) -> AtlasLookup:
    """Write the atlas of a package whose releases are 1.0, 1.1 and so on, and open it."""
    tables = AtlasTables(package=package)
    for number, modules in enumerate(releases):
        rows = {}
        for module, source in modules.items():
            is_package = "." not in module
            read = extract_module(dedent(source), module, is_package=is_package, callees=frozenset({"lib"}) - {package})
            rows[module] = [f"{row.path}\t{row.kind}\t{row.detail}" for row in read.rows]
            if read.uses:
                rows[f"@{module}"] = [f"{use.target}\t{use.place}\t{use.guard}" for use in read.uses]
        tables.add_release(f"1.{number}", number, f"{package}-1.{number}-py3-none-any.whl", rows)
    tables.write(folder)
    return AtlasLookup(AtlasFile(folder / f"{package}.atlas"))


LIB = (
    {"lib": "def old(x): ...\ndef run(a): ...", "lib.part": "class Part: ..."},
    {"lib": "def run(a, b=1): ...", "lib.part": "class Part: ..."},
    {"lib": "def run(a, b=1): ...\ndef new(): ..."},
)


def broken_uses(folder: Path, *callers: dict[str, str]) -> list[BrokenUse]:
    lib = write_atlas(folder, "lib", *LIB)
    caller = write_atlas(folder, "app", *callers)
    return find_broken_uses(caller, {"lib": lib, "app": caller}.get).get("lib", [])


def test_an_import_of_what_is_gone_breaks_with_the_releases_without_it(tmp_path: Path) -> None:
    uses = broken_uses(
        tmp_path,
        {"app": "from .core import go", "app.core": "from lib import old\ndef go(): ..."},
        {"app": "", "app.core": "from lib import old"},
        {"app": "", "app.core": "from lib import run"},
    )
    assert [(use.module, use.target, use.place) for use in uses] == [("app.core", "lib:old", "")]
    assert (uses[0].callers, uses[0].callees) == (0b011, 0b110)
    assert uses[0].reached == 0b001, "only in 1.0 does `import app` import it"


def test_a_module_that_is_gone_and_a_keyword_that_was_not_there_yet_break(tmp_path: Path) -> None:
    uses = broken_uses(tmp_path, {"app": "import lib.part\nimport lib\ndef go():\n    lib.run(1, b=2)\n    lib.new()"})
    assert {(use.target, use.keyword, use.place, use.callees) for use in uses} == {
        ("lib.part", "", "", 0b100),
        ("lib:run", "b", "go", 0b001),
        ("lib:new", "", "go", 0b011),
    }


def test_a_use_under_a_guard_is_not_held_against_it(tmp_path: Path) -> None:
    guarded = """
        import inspect
        import lib
        try:
            from lib import old
        except ImportError:
            old = None
        if lib.__version__ >= "2":
            from lib import new
        if is_other_available():
            from lib import new as other
        if is_lib_available("1.2"):
            from lib import new as newer
        def go():
            if "b" in inspect.signature(lib.run).parameters:
                lib.run(1, b=2)
            if hasattr(lib, "old"):
                lib.old(1)
    """
    assert broken_uses(tmp_path, {"app": guarded}) == []


def test_a_use_where_the_package_is_installed_counts(tmp_path: Path) -> None:
    uses = broken_uses(tmp_path, {"app": "if is_lib_available():\n    from lib import old"})
    assert [use.callees for use in uses] == [0b110]


def test_a_name_that_no_release_has_is_not_held_against_it(tmp_path: Path) -> None:
    assert broken_uses(tmp_path, {"app": "from lib import never"}) == []


def test_what_another_package_with_the_same_module_may_have_is_not_broken(tmp_path: Path) -> None:
    lib = write_atlas(tmp_path, "lib", *LIB)
    caller = write_atlas(tmp_path, "app", {"app": "from lib import old\nimport lib.part"})
    uses = find_broken_uses(caller, {"lib": lib, "app": caller}.get, lambda module: module == "lib.part")
    assert [use.target for use in uses["lib"]] == ["lib:old"]
