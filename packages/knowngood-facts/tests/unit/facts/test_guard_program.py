"""Guards that ask a function of the caller's own sources, beside each release of the other package."""

from __future__ import annotations

from pathlib import Path

import pytest

from atlas_samples import write_atlas
from knowngood_facts.facts.broken_use_table import BrokenUse
from knowngood_facts.facts.broken_uses import find_broken_uses

LIB = (
    {"lib": "def old(x): ...", "lib.part": "class Part: ..."},
    {"lib": "", "lib.part": "class Part: ..."},
    {"lib": "def new(): ..."},
)
"""`old` is only in 1.0, `lib.part` until 1.1, `new` only in 1.2."""

IMPORTS = """
    import importlib.metadata
    import importlib.util
    import os
    from functools import lru_cache
    import torch
    from packaging import version

    LIB_MIN_VERSION = "1.2"
    ON_VALUES = {"1", "TRUE"}
    USE_LIB = os.environ.get("USE_LIB", "0").upper()

    def _is_package_available(pkg_name: str, return_version: bool = False):
        '''Whether a package is there.'''
        package_exists = importlib.util.find_spec(pkg_name) is not None
        package_version = "N/A"
        if package_exists:
            try:
                package_version = importlib.metadata.version(pkg_name)
            except importlib.metadata.PackageNotFoundError:
                package_exists = False
            logger.debug(f"Detected {pkg_name}")
        if return_version:
            return package_exists, package_version
        return package_exists

    _lib_available, _lib_version = _is_package_available("lib", return_version=True)
    _torch_available = _is_package_available("torch")

    try:
        import lib.part
        HAS_LIB_PART = True
    except ImportError:
        HAS_LIB_PART = False

    def is_plain_available():
        return _lib_available

    @lru_cache
    def is_recent_available(min_version: str = LIB_MIN_VERSION) -> bool:
        if not _torch_available:
            return False
        return _lib_available and version.parse(_lib_version) >= version.parse(min_version)

    def is_compared_available():
        if _is_package_available("lib"):
            return compare_versions(version.parse(importlib.metadata.version("lib")), ">=", "1.1")
        return False

    def is_strict_available():
        if importlib.util.find_spec("lib") is None:
            return False
        if version.parse(importlib.metadata.version("lib")) < version.parse("1.2"):
            raise ImportError("lib is too old")
        return True

    def is_chosen_available():
        if str(os.environ.get("APP_USE_LIB", "False")) == "True":
            return importlib.util.find_spec("lib") is not None

    def is_switched_available():
        return USE_LIB in ON_VALUES and _lib_available

    def is_gpu_available():
        return _lib_available and torch.cuda.is_available()

    def is_third_available():
        return _is_package_available("third")

    def is_with_third_available():
        return _lib_available and is_third_available()

    def is_counted_available():
        exists = importlib.util.find_spec("lib") is not None
        for distribution in importlib.metadata.distributions():
            count = 1
        return exists

    def is_searched_available():
        exists = importlib.util.find_spec("lib") is not None
        for distribution in importlib.metadata.distributions():
            if distribution.broken:
                return False
        return exists

    def is_part_available():
        return importlib.util.find_spec("lib.part") is not None
"""

MISSING = "try:\n    if not is_recent_available():\n        raise Missing\nexcept Missing:\n    pass"


def list_uses(folder: Path, *callers: dict[str, str]) -> list[BrokenUse]:
    lib = write_atlas(folder, "lib", *LIB)
    caller = write_atlas(folder, "app", *callers)
    return find_broken_uses(caller, {"lib": lib, "app": caller}.get).get("lib", [])


def list_callees(folder: Path, source: str) -> list[int]:
    modules = {"app": "", "app.imports": IMPORTS, "app.tools": "from app.imports import *", "app.core": source}
    return [use.callees for use in list_uses(folder, modules) if use.module == "app.core"]


@pytest.mark.parametrize(
    ("condition", "callees"),
    [
        ("is_plain_available()", 0b110),
        ("is_recent_available()", 0b100),
        ("is_recent_available('1.1')", 0b110),
        ("is_recent_available(min_version='1.1')", 0b110),
        ("is_compared_available()", 0b110),
        ("is_strict_available()", 0b100),
        ("is_counted_available()", 0b110),
        ("is_searched_available()", 0),
        ("is_part_available()", 0b010),
        ("HAS_LIB_PART", 0b010),
        ("not HAS_LIB_PART", 0b100),
        ("is_chosen_available()", 0),
        ("not is_chosen_available()", 0b110),
        ("is_switched_available()", 0),
        ("is_gpu_available()", 0),
        ("is_third_available()", 0),
        ("is_with_third_available()", 0),
        ("is_third_available() or is_plain_available()", 0b110),
        ("sys.version_info >= (3, 8) and is_plain_available()", 0b110),
        ("sys.version_info >= (3, 12) and is_plain_available()", 0),
        ("DEBUG and is_plain_available()", 0),
        ("__name__ == '__main__'", 0),
    ],
)
def test_the_function_of_a_guard_tells_with_which_releases_the_import_runs(
    tmp_path: Path, condition: str, callees: int
) -> None:
    source = f"from app.tools import *\nif {condition}:\n    from lib import old"
    assert list_callees(tmp_path, source) == [callees] * bool(callees)


@pytest.mark.parametrize(
    ("condition", "callees"),
    [
        ("is_gpu_available()", 0b110),
        ("is_with_third_available()", 0b110),
        ("args.fast and is_recent_available()", 0b100),
        ("is_third_available()", 0),
        ("is_chosen_available()", 0),
        ("'x' in inspect.signature(args.run).parameters", 0),
    ],
)
def test_inside_a_function_only_what_rules_the_use_out_counts(tmp_path: Path, condition: str, callees: int) -> None:
    source = f"import lib\nfrom app.tools import *\ndef go(args):\n    if {condition}:\n        lib.old(1)"
    assert list_callees(tmp_path, source) == [callees] * bool(callees)


def test_a_guard_that_changed_counts_for_the_releases_that_have_it(tmp_path: Path) -> None:
    core = "from app.imports import is_lib_available\nif is_lib_available():\n    from lib import old"
    head = "import importlib\nfrom packaging.version import parse\n"
    loose = f"{head}def is_lib_available():\n    return importlib.util.find_spec('lib') is not None"
    strict = f"{head}def is_lib_available():\n    return parse(importlib.metadata.version('lib')) >= parse('1.2')"
    uses = list_uses(
        tmp_path,
        {"app": "", "app.imports": loose, "app.core": core},
        {"app": "", "app.imports": strict, "app.core": core},
        {"app": "", "app.imports": loose + "\n# again", "app.core": core},
    )
    assert {(use.callers, use.callees) for use in uses} == {(0b101, 0b110), (0b010, 0b100)}


def test_a_function_of_another_package_is_decided_by_its_name(tmp_path: Path) -> None:
    source = "from other.utils import is_lib_available\nif is_lib_available():\n    from lib import old"
    assert list_callees(tmp_path, source) == [0b110]
    negated = (
        "from other.utils import is_lib_available\nif not is_lib_available():\n    pass\nelse:\n    from lib import old"
    )
    assert list_callees(tmp_path, negated) == [], "it may ask for a GPU too"


@pytest.mark.parametrize(
    ("source", "callees"),
    [
        ("if not is_recent_available():\n    raise ImportError\nfrom lib import old", 0b100),
        ("if not torch.cuda.is_available():\n    raise ImportError\nfrom lib import old", 0b110),
        ("with contextlib.suppress(ImportError):\n    from lib import old", 0),
        ("try:\n    from lib import old\nexcept ImportError:\n    raise ImportError('install lib')", 0b110),
        (f"{MISSING}\nelse:\n    from lib import old", 0b100),
        ("import lib\nx = lib.old if is_recent_available() else None", 0b100),
        ("import lib\nx = is_recent_available() and lib.old", 0b100),
        ("import lib\ndef go(x=lib.old): ...", 0b110),
        ("import lib\ndef go(x: lib.old): ...", 0b110),
        ("from __future__ import annotations\nimport lib\ndef go(x: lib.old): ...\ny: lib.old = 1", 0),
        ("import lib\ndef go():\n    x: lib.old = 1", 0),
    ],
)
def test_what_stands_around_a_use_decides_whether_it_runs(tmp_path: Path, source: str, callees: int) -> None:
    future = "from __future__ import annotations\n"
    lines = f"{future if future in source else ''}import torch\nfrom app.tools import *\n{source.removeprefix(future)}"
    assert list_callees(tmp_path, lines) == [callees] * bool(callees)
