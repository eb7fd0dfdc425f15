"""Names that modules get while they run: what Python has after an import, the atlas does not call gone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from atlas_samples import write_atlas
from knowngood_facts.facts.atlas_harvest import READER_REVISION

BOUND = {
    "the standard library": ("import os.path\nfrom typing import Unpack as U\nfrom functools import *", "os U partial"),
    "targets of every form": (
        "(a, [b, *c]), d = (1, (2, 3)), 4\nfor e, (f, g) in [(1, (2, 3))]: h = 1\nwith open(__file__) as i: j = 1",
        "a b c d e f g h i j",
    ),
    "an assignment in an expression, and what `match` takes": (
        "if (a := 1):\n    match [1, 2]:\n        case [b, *c]:\n            d = 1",
        "a b c d",
    ),
    "an `except*`": ("try:\n    a = 1\nexcept* ImportError:\n    a = 2", "a"),
    "globals()": ("globals()['a'] = 1\nglobals().update({'b': 1}, c=2)\nglobals().setdefault('d', 1)", "a b c d"),
    "globals() with names of a loop": ("for _n in ['a', 'b']:\n    globals()[_n] = 1", "a b"),
    "a function that gets globals()": ("def fill(names): names['a'] = 1\nfill(globals())", "a"),
    "a global of a function": ("def make():\n    global a\n    a = 1\nmake()", "a"),
    "sys.modules": (
        "import sys\nsetattr(sys.modules[__name__], 'a', 1)\nme = sys.modules[__name__]\nsetattr(me, 'b', 1)\nme.c = 1",
        "a b c",
    ),
    "exec": ("exec('a = 1')", "a"),
    "a __getattr__ that a call makes": ("def make(name): return lambda name: 1\n__getattr__ = make(__name__)", "a"),
    "a __getattr__ of another module": ("from .helper import __getattr__", "a"),
    "an object in the place of the module": (
        "import sys\nclass Own:\n    def __getattr__(self, name): return 1\nsys.modules[__name__] = Own()",
        "a",
    ),
    "another class of the module": (
        "import sys, types\nclass Own(types.ModuleType):\n    a = 1\nsys.modules[__name__].__class__ = Own",
        "a",
    ),
}


@pytest.mark.parametrize("kind", BOUND)
def test_what_a_module_binds_while_it_runs_is_not_called_gone(tmp_path: Path, kind: str) -> None:
    source, names = BOUND[kind]
    modules = {"lib": "", "lib.part": source, "lib.helper": "def __getattr__(name):\n    return 1"}
    before = {"lib": "", "lib.part": "\n".join(f"{name} = 1" for name in names.split())}
    lookup = write_atlas(tmp_path, "lib", before, modules)
    for name in names.split():
        presence = lookup.find_name(f"lib.part.{name}")
        assert (presence.present | presence.unclear) == 0b11, name
    # Python itself says that the names are there, so the table above cannot be wrong.
    imports = (
        f"import lib.part as m, sys; m = sys.modules['lib.part']; print(*[getattr(m, n) for n in {names.split()}])"
    )
    for module, text in modules.items():
        path = tmp_path / "lib" / ("__init__.py" if module == "lib" else f"{module.partition('.')[2]}.py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    subprocess.run([sys.executable, "-c", imports], cwd=tmp_path, check=True, capture_output=True)


def test_what_an_older_reader_left_out_of_earlier_releases_is_not_called_gone_there(tmp_path: Path) -> None:
    lookup = write_atlas(tmp_path, "lib", {"lib": "old = 1"}, {"lib": "import os\nnew = 1"})
    assert lookup.file.reader < READER_REVISION
    assert (lookup.find_name("lib.os").present, lookup.find_name("lib.os").unclear) == (0b10, 0b01)
    assert (lookup.find_name("lib.new").present, lookup.find_name("lib.new").unclear) == (0b10, 0)


def test_a_module_that_only_reads_its_names_has_those_that_are_shown(tmp_path: Path) -> None:
    source = """
        import sys
        names = list(globals())
        own = getattr(sys.modules[__name__], "names")
        def run(code):
            log(locals())
            exec(code)
    """
    lookup = write_atlas(tmp_path, "lib", {"lib": "a = 1"}, {"lib": source})
    assert (lookup.find_name("lib.a").present, lookup.find_name("lib.a").unclear) == (0b01, 0)


def test_what_is_deleted_is_gone_and_what_may_be_deleted_is_there(tmp_path: Path) -> None:
    lookup = write_atlas(tmp_path, "lib", {"lib": "import os\na = b = 1\ndel os, a\nif os:\n    del b"})
    assert [lookup.find_name(f"lib.{name}").present for name in ("os", "a", "b")] == [0, 0, 1]


LAZY = dedent("""
    import sys
    from .utils import Lazy
    _import_structure = {"core": ["Tokenizer", "old_name"]}
    sys.modules[__name__] = Lazy(__name__, globals()["__file__"], _import_structure, extra_objects={"VERSION": 1})
""")
CORE = "class Tokenizer: ...\nclass TokenizerFast: ...\ndef old_name(): ..."


def test_a_table_of_lazy_exports_says_what_is_gone_but_for_names_that_its_class_asks_for(tmp_path: Path) -> None:
    """Transformers 5 gives `XTokenizer` for `XTokenizerFast`, which its table does not have."""
    utils = "class Lazy(ModuleType):\n    def __getattr__(self, name):\n        if name.endswith('Fast'): ..."
    lookup = write_atlas(
        tmp_path,
        "lib",
        {
            "lib": LAZY.replace("old_name", "old_name', 'TokenizerFast").replace('"', "'"),
            "lib.core": CORE,
            "lib.utils": "",
        },
        {"lib": LAZY.replace('"old_name"', ""), "lib.core": CORE, "lib.utils": utils},
    )
    told = {name: lookup.find_name(f"lib.{name}") for name in ("TokenizerFast", "old_name", "VERSION")}
    assert {name: (one.present, one.unclear) for name, one in told.items()} == {
        "TokenizerFast": (0b01, 0b10),
        "old_name": (0b01, 0),
        "VERSION": (0b11, 0),
    }


def test_a_module_that_is_put_into_sys_modules_is_not_called_gone(tmp_path: Path) -> None:
    put = """
        import sys, types
        def alias(name): sys.modules[name] = types.ModuleType(name)
        alias(f"{__name__}.old")
        for part in parts:
            alias(f"{__name__}.models.{part}.old_{part}")
    """
    lookup = write_atlas(
        tmp_path,
        "lib",
        {"lib": "", "lib.old": "X = 1", "lib.gone": "", "lib.models.a.old_a": "X = 1", "lib.models.a.gone": ""},
        {"lib": put},
    )
    for name in ("lib.old", "lib.old.X", "lib.models.a.old_a", "lib.models.a.old_a.X"):
        assert (lookup.find_name(name).present, lookup.find_name(name).unclear) == (0b01, 0b10), name
    for name in ("lib.gone", "lib.models.a.gone"):
        assert (lookup.find_name(name).present, lookup.find_name(name).unclear) == (0b01, 0), name


FINDER = dedent(r"""
    import re, sys
    from importlib.machinery import ModuleSpec
    OLD = {"old_part": "part"}
    PATTERN = re.compile(rf"{re.escape(__name__)}\.models\.(\w+)\.image_(?!pil_)(\w+)_fast")
    class Finder:
        def find_spec(self, name, path=None, target=None):
            if PATTERN.fullmatch(name) or name.rpartition(".")[2] in OLD:
                return ModuleSpec(name, self)
        def create_module(self, spec): return None
        def exec_module(self, module): module.found = f"{__name__}.{OLD}"
    sys.meta_path.append(Finder())
""")


def test_what_a_finder_of_a_package_answers_for_is_not_called_gone(tmp_path: Path) -> None:
    """Transformers serves its old modules so since 5.21."""
    files = {"lib": FINDER, "lib.models": "", "lib.models.bert": ""}
    names = ["lib.old_part", "lib.models.bert.image_bert_fast"]
    before = {
        **dict.fromkeys(files, ""),
        **dict.fromkeys([*names, "lib.gone", "lib.models.bert.image_gone"], "found = 1"),
    }
    lookup = write_atlas(tmp_path, "lib", before, files)
    for name in names:
        assert lookup.find_name(f"{name}.found").unclear == 0b10, name
    for name in ("lib.gone", "lib.models.bert.image_gone"):
        assert (lookup.find_name(name).present, lookup.find_name(name).unclear) == (0b01, 0)
    for module, text in files.items():
        path = tmp_path / module.replace(".", "/") / "__init__.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    imports = "; ".join(f"from {name} import found" for name in names)
    subprocess.run([sys.executable, "-c", imports], cwd=tmp_path, check=True, capture_output=True)
