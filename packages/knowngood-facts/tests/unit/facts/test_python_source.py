import ast
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from knowngood.index.artefact import UnreadableError
from knowngood_facts.facts import python_source

MODULE = python_source.parse_python(
    """
import triton, os.path
from . import sibling
from .ops.rotary import apply
from ..other import thing
try:
    import optional
except ImportError:
    optional = None

class Func:
    @staticmethod
    def forward(ctx, q):
        if ctx:
            return q
        return q, q, q

def plain(a: int, /, b: str = "x", *args, c=None, **more) -> int:
    def inner():
        return 1, 2, 3, 4, 5
    return a if b else (a, b)

def applied(q):
    return Func.apply(q)

def calls(q):
    return other(q)

def starred(q):
    return (*q, 1)

def silent(): ...

if x:
    def under_if(): return 1, 2

def available():
    if cuda:
        return version.parse(v) >= version.parse("2.1.0")
    return parse(v) >= Version("2.0.4") and y >= 3
""",
    "module.py",
)


def named(name):
    return python_source.find_function(MODULE, name)


def test_signature_is_the_source_without_annotations():
    assert python_source.render_signature(named("plain")) == "(a, /, b='x', *args, c=None, **more)"


@pytest.mark.parametrize(
    ("name", "sizes"),
    [("plain", [1, 2]), ("applied", [1, 3]), ("calls", []), ("starred", []), ("silent", []), ("under_if", [2])],
)
def test_returned_counts_values(name, sizes):
    assert python_source.count_returned_values(named(name), MODULE) == sizes


def test_version_floors_in_the_order_of_the_source():
    assert python_source.version_floors(named("available")) == ["2.1.0", "2.0.4"]


def test_imports_that_must_succeed():
    modules, taken = python_source.list_imports(MODULE, "pkg.sub.module", is_package=False)
    assert modules == ["triton", "os.path", "pkg.sub", "pkg.sub.ops.rotary", "pkg.other"]
    assert taken == ["pkg.sub.sibling", "pkg.sub.ops.rotary.apply", "pkg.other.thing"]
    assert "pkg.sub.module.sibling" in python_source.list_imports(MODULE, "pkg.sub.module", is_package=True)[1]


def test_text_that_is_not_python_is_a_reason():
    with pytest.raises(UnreadableError, match=r"setup\.py does not parse as Python"):
        python_source.parse_python("def (:", "setup.py")


def test_assigned_finds_the_value_under_try():
    tree = python_source.parse_python("try:\n    A: int = 3\nexcept E:\n    A = 4\n", "x")
    assert ast.literal_eval(python_source.find_assigned_value(tree, "A")) == 3
    assert python_source.find_assigned_value(tree, "B") is None


def test_one_thread_parses_at_a_time(monkeypatch):
    """CPython 3.11 fails with a SystemError when two do and the garbage collector runs in between."""
    both, parse, met = threading.Barrier(2), ast.parse, []

    def parse_slowly(text):
        with contextlib.suppress(threading.BrokenBarrierError):
            met.append(both.wait(0.1))  # the first waits in vain, the second finds the barrier broken
        return parse(text)

    monkeypatch.setattr("knowngood_facts.facts.python_source.ast", SimpleNamespace(parse=parse_slowly))
    with ThreadPoolExecutor(2) as pool:
        trees = list(pool.map(python_source.parse_python, ["a = 1", "b = 2"], ["a.py", "b.py"]))
    assert [ast.unparse(tree) for tree in trees] == ["a = 1", "b = 2"]
    assert not met
