"""Uses of one package by another that some releases break, computed from the atlas of both."""

from __future__ import annotations

from pathlib import Path

import pytest

from atlas_samples import write_atlas
from knowngood_facts.facts.broken_use_table import BrokenUse
from knowngood_facts.facts.broken_uses import find_broken_uses

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
    assert {(use.target, use.detail, use.place, use.callees) for use in uses} == {
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


def test_a_keyword_for_a_part_breaks_where_only_its_class_is_called_for_the_attribute(tmp_path: Path) -> None:
    """As `self.accelerator.unwrap_model(model, keep_torch_compile=...)` of transformers 4.52 with accelerate 1.2."""
    lib = ({"lib": "class Part:\n    def run(self, a): ..."}, {"lib": "class Part:\n    def run(self, a, b=1): ..."})
    app = """
        from lib import Part
        class App:
            def __init__(self):
                self.part = None
                self.other = Part()
            def make(self):
                self.part = Part(1)
                self.other = self.choose()
            def go(self):
                self.part.run(1, b=2)
                self.other.run(1, b=2)
    """
    caller = write_atlas(tmp_path, "app", {"app": app})
    uses = find_broken_uses(caller, {"lib": write_atlas(tmp_path, "lib", *lib), "app": caller}.get)["lib"]
    assert [(use.target, use.detail, use.place, use.callees) for use in uses] == [("lib:Part.run", "b", "App.go", 0b01)]


def test_a_name_that_no_release_has_is_not_held_against_it(tmp_path: Path) -> None:
    assert broken_uses(tmp_path, {"app": "from lib import never"}) == []


def test_what_another_package_with_the_same_module_may_have_is_not_broken(tmp_path: Path) -> None:
    lib = write_atlas(tmp_path, "lib", *LIB)
    caller = write_atlas(tmp_path, "app", {"app": "from lib import old\nimport lib.part"})
    uses = find_broken_uses(caller, {"lib": lib, "app": caller}.get, lambda module: module == "lib.part")
    assert [use.target for use in uses["lib"]] == ["lib:old"]


CALLS = (
    {
        "lib": """
            class Base:
                def __init__(self, model, tokenizer=None): ...
                def compute(self, model, inputs): ...
                def step(self, model):
                    return self.compute(model, 1)
                def save(self): ...
            def unpad(x):
                return x, 1, 2
        """
    },
    {
        "lib": """
            class Base:
                def __init__(self, model, processor=None): ...
                def compute(self, model, inputs, count=None): ...
                def step(self, model):
                    with self.context():
                        return self.compute(model, 1, count=3)
            def unpad(x):
                if x:
                    return x, 1, 2, 3
                return None, 1, 2, 3
        """
    },
)


def failures(folder: Path, source: str, *more: dict[str, str]) -> set[tuple[str, str, str, str, int]]:
    lib = write_atlas(folder, "lib", *CALLS)
    caller = write_atlas(folder, "app", {"app": "", "app.core": source}, *more)
    uses = find_broken_uses(caller, {"lib": lib, "app": caller}.get).get("lib", [])
    return {(use.target, use.failure, use.detail, use.place, use.callees) for use in uses}


def test_what_is_passed_to_the_base_by_super_breaks_when_the_base_lacks_it(tmp_path: Path) -> None:
    source = """
        from lib import Base
        class Middle(Base): ...
        class Trainer(Middle):
            def __init__(self, tokenizer):
                super().__init__(1, tokenizer=tokenizer)
        class Own(Base):
            def __init__(self, tokenizer): ...
        class Other(Own):
            def __init__(self):
                super().__init__(tokenizer=1)
    """
    assert failures(tmp_path, source) == {("lib:Base.__init__", "keyword", "tokenizer", "Trainer.__init__", 0b10)}


def test_an_inherited_method_that_is_gone_breaks(tmp_path: Path) -> None:
    source = """
        from lib import Base
        class Trainer(Base):
            def keep(self): ...
            def run(self):
                self.keep()
                self.save()
    """
    assert failures(tmp_path, source) == {("lib:Base.save", "name", "", "Trainer.run", 0b10)}


def test_an_override_without_what_the_base_passes_breaks(tmp_path: Path) -> None:
    source = """
        from lib import Base
        class Old(Base):
            def compute(self, model, inputs): ...
        class New(Base):
            def compute(self, model, inputs, count=None): ...
        class Any(Base):
            def compute(self, model, inputs, **more): ...
    """
    assert failures(tmp_path, source) == {("lib:Base.compute", "override", "count", "Old.compute", 0b10)}


def test_unpacking_another_number_of_values_breaks(tmp_path: Path) -> None:
    source = """
        from lib import unpad
        def three():
            a, b, c = unpad(1)
        def four():
            a, b, c, d = unpad(1)
        def some():
            a, b, *rest = unpad(1)
    """
    assert failures(tmp_path, source) == {
        ("lib:unpad", "values", "3", "three", 0b10),
        ("lib:unpad", "values", "4", "four", 0b01),
    }


@pytest.mark.parametrize(
    ("condition", "name", "callees"),
    [
        ("version.parse(lib.__version__) >= version.parse('1.1')", "new", 0b010),
        ("not is_lib_available('1.2')", "new", 0b011),
        ("is_lib_version('<', '1.2')", "new", 0b011),
        ("lib.__version__ < '1.1'", "new", 0b001),
        ("version.parse(importlib.metadata.version('lib')) < Version('1.1') and is_lib_available()", "new", 0b001),
        ("is_lib_version('>=', '1.1') or is_other_available()", "old", 0b110),
        ("is_installed('lib')", "new", 0b011),
        ("check_if_lib_greater('1.1')", "old", 0b100),
        ("is_other_version('>=', '1.1')", "old", 0),
        ("SOME_VERSION > 3", "old", 0),
        ("not is_lib_available():\n    pass\nelif True", "old", 0),
    ],
)
def test_a_condition_on_the_callee_release_is_decided(tmp_path: Path, condition: str, name: str, callees: int) -> None:
    uses = broken_uses(tmp_path, {"app": f"import lib\nif {condition}:\n    from lib import {name}"})
    assert [use.callees for use in uses if use.target != "lib"] == [callees] * bool(callees)


def test_a_handler_runs_where_the_import_that_is_tried_fails(tmp_path: Path) -> None:
    source = """
        try:
            from lib import new
        except ImportError:
            from lib import old
        try:
            from lib import new
        except ImportError:
            try:
                from lib import old as more
            except ImportError:
                more = None
    """
    uses = broken_uses(tmp_path, {"app": source})
    assert [(use.target, use.callees) for use in uses] == [("lib:old", 0b010)]
