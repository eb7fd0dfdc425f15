import ast

import pytest

from knowngood.harvest import source
from knowngood.harvest.index import Unreadable

MODULE = source.parse(
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
    return source.function(MODULE, name)


def test_signature_is_the_source_without_annotations():
    assert source.signature(named("plain")) == "(a, /, b='x', *args, c=None, **more)"


@pytest.mark.parametrize(
    ("name", "sizes"),
    [("plain", [1, 2]), ("applied", [1, 3]), ("calls", []), ("starred", []), ("silent", []), ("under_if", [2])],
)
def test_returned_counts_values(name, sizes):
    assert source.returned(named(name), MODULE) == sizes


def test_version_floors_in_the_order_of_the_source():
    assert source.version_floors(named("available")) == ["2.1.0", "2.0.4"]


def test_imports_that_must_succeed():
    modules, taken = source.imported(MODULE, "pkg.sub.module", is_package=False)
    assert modules == ["triton", "os.path", "pkg.sub", "pkg.sub.ops.rotary", "pkg.other"]
    assert taken == ["pkg.sub.sibling", "pkg.sub.ops.rotary.apply", "pkg.other.thing"]
    assert "pkg.sub.module.sibling" in source.imported(MODULE, "pkg.sub.module", is_package=True)[1]


def test_text_that_is_not_python_is_a_reason():
    with pytest.raises(Unreadable, match=r"setup\.py does not parse as Python"):
        source.parse("def (:", "setup.py")


def test_assigned_finds_the_value_under_try():
    tree = source.parse("try:\n    A: int = 3\nexcept E:\n    A = 4\n", "x")
    assert ast.literal_eval(source.assigned(tree, "A")) == 3
    assert source.assigned(tree, "B") is None
