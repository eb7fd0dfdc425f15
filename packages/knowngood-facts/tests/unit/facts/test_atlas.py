"""The atlas: rows of a module, the file, and names followed through imports, bases and lazy exports."""

from __future__ import annotations

from textwrap import dedent
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knowngood.core.errors import InputError
from knowngood_facts.facts.atlas_answer import answer_about_name
from knowngood_facts.facts.atlas_file import (
    AtlasFile,
    AtlasRow,
    AtlasTables,
    AtlasUse,
    ModuleRows,
    RowKind,
    parse_intervals,
    render_intervals,
)
from knowngood_facts.facts.atlas_lookup import AtlasLookup
from knowngood_facts.facts.module_rows import extract_module

if TYPE_CHECKING:
    from pathlib import Path


def extract(source: str, module: str = "pack.part", *, is_package: bool = False) -> ModuleRows:
    return extract_module(dedent(source), module, is_package=is_package, callees=frozenset({"torch", "peft"}))


def rows_of(source: str, **options: bool) -> set[tuple[str, str, str]]:
    return {(row.path, str(row.kind), row.detail) for row in extract(source, **options).rows}


def test_a_module_has_its_definitions_with_their_parameters() -> None:
    rows = rows_of(
        """
        import os
        from .other import helper as h
        LIMIT = 3
        TABLE = {"one": 1, "two": 2}
        def run(a, b=1, *, c="x", **rest): ...
        class Model(Base, torch.nn.Module):
            kind = "m"
            def __init__(self, config):
                self.config = config
            @property
            def device(self): ...
        class Names(ExplicitEnum):
            ADAM = "adamw_torch"
        """
    )
    assert rows >= {
        ("os", "i", ""),
        ("h", "i", "pack.other:helper"),
        ("LIMIT", "v", ""),
        ("TABLE[one]", "k", ""),
        ("run", "f", "a,b=1,*,c='x',**rest"),
        ("Model", "c", "Base,torch.nn.Module"),
        ("Model.kind", "v", ""),
        ("Model.config", "a", ""),
        ("Model.device", "p", ""),
        ("Names[adamw_torch]", "k", ""),
    }


def test_lazy_exports_are_read_in_all_their_forms() -> None:
    rows = rows_of(
        """
        _import_structure = {"config": ["Config"], "models.bert": ["BertModel"]}
        _SUBMOD_ATTRS = {"file_download": ["hf_hub_download"]}
        if is_torch_available():
            _import_structure["trainer"] = ["Trainer"]
            _import_structure["models.bert"].extend(["BertLayer"])
        if TYPE_CHECKING:
            from .hidden import Hidden
        else:
            import_structure = define_import_structure(Path(__file__).parent / "models", prefix="models")
        """,
        is_package=True,
    )
    assert rows >= {
        ("Config", "z", "pack.part.config"),
        ("hf_hub_download", "z", "pack.part.file_download"),
        ("BertModel", "z", "pack.part.models.bert"),
        ("Trainer", "z", "pack.part.trainer"),
        ("BertLayer", "z", "pack.part.models.bert"),
        ("*", "d", "pack.part.models"),
    }
    assert not any(path == "Hidden" for path, _, _ in rows)


def test_uses_have_their_place_and_the_guards_that_matter() -> None:
    uses = extract(
        """
        import torch.nn as nn
        from torch import softmax
        try:
            from peft import PeftModel
        except ImportError:
            PeftModel = None
        def run(x):
            if x > 3:
                softmax(x, dim=-1)
            if is_peft_available():
                from peft import LoraConfig
                LoraConfig(r=1, alpha=2)
            return nn.Linear(1)
        """
    ).uses
    assert set(uses) == {
        AtlasUse("torch.nn", "", ""),
        AtlasUse("torch:softmax", "", ""),
        AtlasUse("peft:PeftModel", "", "try ImportError"),
        AtlasUse("torch:softmax (1,dim)", "run", ""),
        AtlasUse("peft:LoraConfig", "run", "if is_peft_available()"),
        AtlasUse("peft:LoraConfig (0,r,alpha)", "run", "if is_peft_available()"),
        AtlasUse("torch.nn:Linear", "run", ""),
    }


def test_an_import_by_a_call_is_a_use_like_any_other() -> None:
    uses = extract(
        """
        import importlib
        __import__("torch").declare_namespace(__name__)
        try:
            peft = importlib.import_module("peft.utils")
        except ImportError:
            peft = None
        part = importlib.import_module(".part", __name__)
        later = lambda: importlib.import_module("torch.later")
        """
    ).uses
    assert set(uses) == {AtlasUse("torch", "", ""), AtlasUse("peft.utils", "", "try ImportError")}


def test_a_source_that_is_not_python_is_said_to_be_so() -> None:
    assert extract("def (") == ModuleRows((AtlasRow("", RowKind.MODULE, "x"),), ())


@given(mask=st.integers(min_value=1, max_value=(1 << 40) - 1))
def test_intervals_keep_every_release(mask: int) -> None:
    assert parse_intervals(render_intervals(mask, 40), 40) == mask


def write_atlas(folder: Path, *releases: dict[str, str]) -> AtlasLookup:
    """Write the atlas of a package `pack` with these releases (module -> source), and open it."""
    tables = AtlasTables(package="pack", root="pack")
    for number, modules in enumerate(releases):
        rows = {}
        for module, source in modules.items():
            is_package = module.count(".") == 0
            read = extract_module(dedent(source), module, is_package=is_package, callees=frozenset())
            rows[module] = [f"{row.path}\t{row.kind}\t{row.detail}" for row in read.rows]
        tables.add_release(f"1.{number}", number, f"pack-1.{number}-py3-none-any.whl", rows)
    tables.write(folder)
    return AtlasLookup(AtlasFile(folder / "pack.atlas"))


def present(lookup: AtlasLookup, name: str) -> list[str]:
    mask = lookup.find_name(name).present
    return [release for place, release in enumerate(lookup.file.releases) if mask >> place & 1]


def test_a_name_is_followed_through_imports_lazy_exports_and_bases(tmp_path: Path) -> None:
    lookup = write_atlas(
        tmp_path,
        {
            "pack": "_import_structure = {'models': ['Model']}\nfrom .core import *\nfrom .core import old as renamed",
            "pack.models": "from .base import Base\nclass Model(Base):\n    def forward(self, x): ...",
            "pack.base": "class Base:\n    def save(self): ...",
            "pack.core": "def old(): ...\ndef _hidden(): ...",
        },
        {
            "pack": "_import_structure = {'models': ['Model']}\nfrom .core import *",
            "pack.models": "from .base import Base\nclass Model(Base):\n    def forward(self, x, y): ...",
            "pack.base": "class Base(Elsewhere): ...",
            "pack.core": "def new(): ...",
        },
    )
    assert present(lookup, "pack.Model") == ["1.0", "1.1"]
    assert present(lookup, "pack.Model.save") == ["1.0"]
    assert lookup.find_name("pack.Model.save").unclear == 0b10  # a base that the sources do not show may have it
    assert present(lookup, "pack.old") == ["1.0"]
    assert present(lookup, "pack.renamed") == ["1.0"]
    assert present(lookup, "pack.new") == ["1.1"]
    assert present(lookup, "pack._hidden") == []
    assert present(lookup, "pack.models") == ["1.0", "1.1"]
    assert present(lookup, "pack.nothing") == []
    assert lookup.find_name("pack.Model.forward").signatures == {"self,x": 0b01, "self,x,y": 0b10}


def test_a_name_that_moved_is_shown_where_it_is(tmp_path: Path) -> None:
    lookup = write_atlas(
        tmp_path,
        {"pack": "", "pack.old": "class Thing: ..."},
        {"pack": "", "pack.new": "class Thing: ..."},
    )
    answer = answer_about_name(lookup, "pack.old.Thing")
    assert [span.text() for span in answer.present] == ["until 1.0"]
    assert {home: spans[0].text() for home, spans in answer.elsewhere.items()} == {"pack.new:Thing": "since 1.1"}


def test_a_name_that_is_no_longer_exported_is_shown_where_it_is_defined(tmp_path: Path) -> None:
    other = "class Thing: ..."
    lookup = write_atlas(
        tmp_path,
        {"pack": "from .core import Thing", "pack.core": "class Thing: ...", "pack.a": other},
        {"pack": "", "pack.core": "class Thing: ...", "pack.a": other},
    )
    answer = answer_about_name(lookup, "pack.Thing")
    assert list(answer.elsewhere) == ["pack.core:Thing", "pack.a:Thing"]


def test_a_release_between_two_others_takes_its_place(tmp_path: Path) -> None:
    tables = AtlasTables(package="pack", root="pack")
    tables.add_release("1.0", 0, "a", {"pack": ["\tm\tp", "x\tv\t"]})
    tables.add_release("1.2", 1, "c", {"pack": ["\tm\tp", "x\tv\t"]})
    tables.add_release("1.1", 1, "b", {"pack": ["\tm\tp"]})
    tables.write(tmp_path)
    lookup = AtlasLookup(AtlasFile(tmp_path / "pack.atlas"))
    assert lookup.file.releases == ["1.0", "1.1", "1.2"]
    assert present(lookup, "pack.x") == ["1.0", "1.2"]


def test_a_file_gives_back_the_tables_and_the_same_bytes(tmp_path: Path) -> None:
    lookup = write_atlas(tmp_path, {"pack": "x = 1", "pack.a": "y = 2"}, {"pack": "x = 1"})
    assert lookup.file.tables().render() == (tmp_path / "pack.atlas").read_bytes()


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-3], lambda b: b"{}\n" + b, lambda _: b"", lambda b: b[:-9] + b"x" * 9]
)
def test_a_damaged_file_is_named(tmp_path: Path, damage: object) -> None:
    write_atlas(tmp_path, {"pack": "x = 1", "pack.a": "y = 2"})
    path = tmp_path / "pack.atlas"
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(InputError, match=r"pack\.atlas"):
        AtlasFile(path).rows("pack")


def test_a_folder_that_is_exported_lazily_gives_what_its_modules_list(tmp_path: Path) -> None:
    names = [f"Name{number}" for number in range(8)]
    lookup = write_atlas(
        tmp_path,
        {
            "pack": "_import_structure = define_import_structure('models')",
            "pack.models.a": f"__all__ = {names}\n" + "\n".join(f"class {name}: ..." for name in names),
            "pack.models.b": "class Hidden: ...",
        },
    )
    assert [present(lookup, f"pack.{name}") for name in names] == [["1.0"]] * 8  # one by one, then from the index
    assert present(lookup, "pack.Hidden") == []


LAZY = """
__all__ = ["Model", "Twice"]
MODULE_ATTRS = {"Model": ".entry.model:Model", "Twice": ".entry.model:Twice"}
def __getattr__(name): ...
"""


def test_what_getattr_gives_is_in_all_and_is_found_by_its_one_definition(tmp_path: Path) -> None:
    twice = "class Twice: ..."
    lookup = write_atlas(
        tmp_path,
        {"pack": "from .entry.model import Model", "pack.entry.model": "class Model:\n    def run(self, a): ...\n"},
        {"pack": LAZY, "pack.entry.model": f"class Model:\n    def run(self, b): ...\n{twice}", "pack.other": twice},
    )
    assert present(lookup, "pack.Model") == ["1.0", "1.1"]
    assert lookup.find_name("pack.Model.run").signatures == {"self,a": 0b01, "self,b": 0b10}
    assert present(lookup, "pack.Twice") == ["1.1"]  # it is there, and which of the two it is is not known
    assert lookup.find_name("pack.Twice.run").unclear == 0b10
    assert lookup.find_name("pack.unlisted").unclear == 0b10


def test_a_name_in_all_that_no_source_defines_is_not_called_there(tmp_path: Path) -> None:
    lookup = write_atlas(tmp_path, {"pack": "__all__ = ['stack']"}, {"pack": LAZY.replace("Twice", "stack")})
    name = lookup.find_name("pack.stack")
    assert (name.present, name.unclear) == (0, 0b10)  # without `__getattr__`, `__all__` may list what is gone


def test_a_submodule_that_is_gone_does_not_come_from_getattr(tmp_path: Path) -> None:
    lookup = write_atlas(
        tmp_path,
        {"pack": "", "pack.worker": "", "pack.worker.worker": "class Worker: ..."},
        {"pack": LAZY, "pack.v1": ""},
    )
    name = lookup.find_name("pack.worker.worker.Worker")
    assert (name.present, name.unclear) == (0b01, 0)
