"""Contracts judged against a registry of one folder, and what a walk through source finds."""

from __future__ import annotations

import ast
import io
import json
import zipfile

import harvest_registry
import pytest
import stamina

from knowngood.core.errors import InputError
from knowngood.facts import call_shape, contract_definition, contract_table, python_source
from knowngood.facts.call_shape import CallShape
from knowngood.facts.contract_harvest import harvest_contracts
from knowngood.facts.contract_table import PairOutcome
from knowngood.index.package_index import SimpleIndex

CONTRACT = """\
title: A caller's backward
caller: {package: caller, from: 1.0, file: caller/attention.py}
callee: {package: callee, from: 2.0, file: callee/interface.py}
version: _callee_version
gate: {minimum: _callee_required, maximum: _callee_max_version}
given: {use_other: false}
uses:
  - {expression: varlen_backward(...), symbol: varlen_backward, inside: Ring.backward}
"""
CALLER = """\
from packaging.version import Version as V
_callee_version = V(installed("callee"))
_callee_required = V("2.1")
_callee_max_version = V("2.7")
_2_4_plus = _callee_version >= V("2.4")
try:
    from callee.interface import varlen_backward as backward_fn
except ImportError:
    backward_fn = None


def lengths(forward, layout, cu_seqlens=None):
    if layout == "thd":
        return [cu_seqlens, cu_seqlens]
    return []


def tile(kwargs, call, dout, q):
    more = lengths(False, "thd", cu_seqlens=q)
    return call(dout, q, *more, **kwargs)


class Ring:
    @staticmethod
    def backward(ctx, dout):
        chosen = None
        if ctx.use_other:
            chosen = other_fn
        else:
            chosen = backward_fn
        kwargs = {"scale": ctx.scale}
        if _2_4_plus:
            kwargs["alibi"] = None
        if SOFTCAP:
            kwargs.update(softcap=0.0)
        for step in range(ctx.size):
            inputs = [kwargs, chosen]
            if step == ctx.rank:
                dq = tile(*inputs, dout, ctx.q)
            else:
                dq = tile(*inputs, dout, ctx.k)
        return dq
"""
OLD = "def varlen_backward(dout, q, cu_q, cu_k, scale):\n    return dout, q\n"
ALIBI = "def varlen_backward(dout, q, cu_q, cu_k, scale, alibi, rng=None):\n    return dout, q\n"
SOFTCAP = "def varlen_backward(dout, q, cu_q, cu_k, scale, alibi, softcap, rng=None):\n    return dout, q\n"


def wheel(files):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return out.getvalue()


def put(registry, package, version, text, path):
    registry.files[f"{package}-{version}-py3-none-any.whl"] = wheel({path: text})


@pytest.fixture(autouse=True)
def _no_waiting():
    stamina.set_testing(True, attempts=3)  # no pauses; a busy machine may drop a connection
    yield
    stamina.set_testing(False)


@pytest.fixture
def registry():
    with harvest_registry.serve() as served:
        for version, soft in (("1.0", "False"), ("1.1", "True")):
            put(served, "caller", version, CALLER.replace("if SOFTCAP:", f"if {soft}:"), "caller/attention.py")
        put(served, "caller", "1.2", "def elsewhere(): pass\n", "caller/attention.py")
        put(served, "caller", "0.9", CALLER, "caller/attention.py")
        put(served, "caller", "2.0.dev1", CALLER, "caller/attention.py")
        for version, text in (
            ("2.0", OLD),
            ("2.1", OLD),
            ("2.4", ALIBI),
            ("2.5", ALIBI),
            ("2.6", SOFTCAP),
            ("2.7", SOFTCAP),
            ("2.8", SOFTCAP),
        ):
            put(served, "callee", version, text, "callee/interface.py")
        served.yanked.add("callee-2.5-py3-none-any.whl")
        yield served


@pytest.fixture
def run(registry, tmp_path):
    def call(text=CONTRACT, *, floors=None, name="small", **more):
        return harvest_contracts(
            {f"contracts/{name}.yaml": text},
            folder=lambda _: tmp_path / "contracts",
            floors=floors or {},
            notify=lambda _: None,
            index=SimpleIndex(registry.url),
            cache=tmp_path / "cache",
            **more,
        )

    return call


@pytest.fixture
def table(tmp_path):
    return lambda: contract_table.table_from_document(json.loads((tmp_path / "contracts" / "small.json").read_text()))


def test_every_pair_is_judged_exactly_at_the_boundaries(run, table):
    assert run().written == ["small"]
    found = {(a, b): (verdict.outcome, verdict.text) for a, b, verdict in table().pairs()}
    assert len(found) == 3 * 7
    missing = "TypeError: varlen_backward() missing 1 required positional argument: 'softcap'"
    strange = "TypeError: varlen_backward() got an unexpected keyword argument 'softcap'"
    refused = (PairOutcome.REFUSES, "takes callee >=2.1,<=2.7 only")
    assert [found["1.0", v] for v in ("2.0", "2.1", "2.4", "2.5")] == [refused, *[(PairOutcome.WORKS, "")] * 3]
    assert found["1.0", "2.6"] == found["1.0", "2.7"] == (PairOutcome.BREAKS, missing)
    assert found["1.1", "2.5"] == found["1.1", "2.1"] == (PairOutcome.BREAKS, strange)
    assert found["1.1", "2.6"] == found["1.1", "2.7"] == (PairOutcome.WORKS, "")
    assert found["1.1", "2.8"] == refused
    assert {found["1.2", version][0] for version in table().callees} == {PairOutcome.NOT_CALLED}


def test_withdrawn_releases_are_marked(run, table):
    run()
    assert table().yanked == {("callee", "2.5")}


def test_a_second_run_without_new_releases_reads_nothing(run, registry, tmp_path):
    run()
    before = (tmp_path / "contracts" / "small.json").read_bytes()
    registry.requests.clear()
    assert run().unchanged == ["small"]
    assert registry.requests == ["caller", "callee"]
    put(registry, "callee", "2.9", OLD, "callee/interface.py")
    registry.requests.clear()
    assert run().written == ["small"]
    assert set(registry.requests) == {"caller", "callee", "callee-2.9-py3-none-any.whl"}
    assert (tmp_path / "contracts" / "small.json").read_bytes() != before


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "symbol: varlen_backward",
            "symbol: varlen_bakward",
            "8:48: no release of callee has varlen_bakward",
        ),
        (
            "expression: varlen_backward(...)",
            "expression: run(...)",
            "8:18: no release of caller has run(...) in Ring.backward",
        ),
        ("callee/interface.py", "callee/interfaces.py", "3:44: no release of callee has callee/interfaces.py"),
        ("caller/attention.py", "caller/attn.py", "2:44: no release of caller has caller/attn.py"),
        (", from: 1.0", "", "2:19: matrix.yaml has no floor for caller"),
    ],
)
def test_a_name_that_no_release_has_is_an_error_in_the_contract(run, tmp_path, old, new, said):
    with pytest.raises(InputError) as caught:
        run(CONTRACT.replace(old, new))
    assert f"contracts/small.yaml:{said}" in str(caught.value)
    assert not (tmp_path / "contracts" / "small.json").exists()


def test_an_unknown_package_is_reported(run):
    report = run(CONTRACT.replace("package: callee", "package: nowhere"))
    assert report.failed == {"small": "the registry has no project nowhere (404)"}
    assert report.exit_code == 1


def test_a_release_that_cannot_be_read_is_unknown(run, registry, table):
    registry.faults["callee-2.4-py3-none-any.whl"] = "garbage"
    assert run().unknown == {"small": 2}
    assert table().verdict("1.0", "2.4").outcome is PairOutcome.UNKNOWN
    assert table().verdict("1.0", "2.5").outcome is PairOutcome.WORKS
    registry.faults.clear()
    assert run().written == ["small"]
    assert table().verdict("1.0", "2.4").outcome is PairOutcome.WORKS


def function(text):
    return python_source.list_functions(ast.parse(text)).__next__()[1]


def shape(positional=0, *keywords, more=False, unpacked=0, starred=False):
    return CallShape(positional=positional, keywords=keywords, more=more, unpacked=unpacked, starred=starred)


@pytest.mark.parametrize(
    ("signature", "call", "said"),
    [
        ("(a, b=1)", shape(1), None),
        ("(a, *rest, **more)", shape(5, "x"), None),
        ("(a, b)", shape(1), "TypeError: f() missing 1 required positional argument: 'b'"),
        ("(a, b, c)", shape(1), "TypeError: f() missing 2 required positional arguments: 'b' and 'c'"),
        ("(a)", shape(2), "TypeError: f() takes 1 positional argument but 2 were given"),
        ("(a, b)", shape(2, "b"), "TypeError: f() got multiple values for argument 'b'"),
        ("(a)", shape(1, "x"), "TypeError: f() got an unexpected keyword argument 'x'"),
        ("(a, *, x)", shape(1), "TypeError: f() missing 1 required keyword-only argument: 'x'"),
        ("(a)", shape(None, "x"), "TypeError: f() got an unexpected keyword argument 'x'"),
        ("(a, b, c)", shape(None), None),
    ],
)
def test_a_call_is_bound_as_python_binds_it(signature, call, said):
    assert call_shape.find_binding_error(call, function(f"def f{signature}: ..."), "f") == said


def test_a_method_is_bound_with_its_instance():
    text = call_shape.find_binding_error(
        shape(1, "seq_len"), function("def forward(self, x, position_ids): ..."), "Rotary.forward"
    )
    assert text == "TypeError: Rotary.forward() got an unexpected keyword argument 'seq_len'"


@pytest.mark.parametrize(
    ("call", "sizes", "said"),
    [
        (shape(1, unpacked=4), [4], None),
        (shape(1, unpacked=4), [5], "ValueError: too many values to unpack (expected 4)"),
        (shape(1, unpacked=5), [4], "ValueError: not enough values to unpack (expected 5, got 4)"),
        (shape(1, unpacked=4, starred=True), [5], None),
        (
            shape(1, unpacked=4, starred=True),
            [3],
            "ValueError: not enough values to unpack (expected at least 4, got 3)",
        ),
        (shape(1, unpacked=2), [1], None),
        (shape(1, unpacked=2), [], None),
    ],
)
def test_unpacking(call, sizes, said):
    assert call_shape.find_unpacking_error(call, sizes) == said
    if said and len(sizes) == 1:  # Python's own words
        names = [f"n{i}" for i in range(call.unpacked)] + (["*rest"] if call.starred else [])
        with pytest.raises(ValueError, match="unpack") as caught:
            exec(f"{', '.join(names)} = values", {"values": iter(range(sizes[0]))})  # noqa: S102
        assert str(caught.value) == said.removeprefix("ValueError: ")


PADDING = """\
title: An actor's call
caller: {package: actor, from: 1.0, file: actor/actor.py}
callee: {package: model, from: 1.0, file: model/modeling.py}
inside: Actor.forward
uses:
  - expression: self.model(...)
    symbol: Model
    raises: ValueError
    saying: padding_side
    under: [use_cache]
    spared_by:
      - {argument: use_cache, value: "False"}
      - {assigns: self.model.config.use_cache, value: "False", inside: Actor.__init__}
"""


def test_a_raise_under_a_condition_that_the_caller_makes_false(run, registry, table):
    init = (
        "class Actor:\n    def __init__(self):\n        {}\n    def forward(self, x):\n        return self.model(x{})\n"
    )
    for version, parts in {
        "1.0": ("pass", ""),
        "1.1": ("self.model.config.use_cache = False", ""),
        "1.2": ("pass", ", use_cache=False"),
        "1.3": ("pass", ", use_cache=True"),
    }.items():
        put(registry, "actor", version, init.format(*parts), "actor/actor.py")
    model = "class Model:\n    def forward(self, x, use_cache):\n        if {}:\n            raise ValueError('{}')\n"
    for version, parts in {
        "1.0": ("use_cache", "with padding_side=right"),
        "1.1": ("use_cache", "other"),
        "1.2": ("x", "with padding_side=right"),
    }.items():
        put(registry, "model", version, model.format(*parts), "model/modeling.py")
    run(PADDING)
    found = {(a, b): verdict for a, b, verdict in table().pairs()}
    broken = {pair for pair, verdict in found.items() if verdict.outcome is PairOutcome.BREAKS}
    assert broken == {("1.0", "1.0"), ("1.3", "1.0")}
    assert found["1.0", "1.0"].text == "ValueError: with padding_side=right"
    assert found["1.1", "1.0"].text.startswith("Actor.__init__ sets self.model.config.use_cache = False")
    assert found["1.2", "1.0"].text.startswith("the call passes use_cache=False")


IMPORT = """\
title: A norm that is imported
caller: {package: user, from: 1.0, file: user/model.py}
callee: {package: kernels, from: 1.0, file: kernels/ops/norm.py}
uses:
  - {expression: from kernels.ops.norm import rms_norm, absent: [norm_ext]}
"""


def test_an_import_is_followed_and_may_be_caught(run, registry, table):
    guarded = "try:\n    from kernels.ops.norm import rms_norm\nexcept ImportError:\n    rms_norm = None\n"
    put(registry, "user", "1.0", guarded, "user/model.py")
    put(registry, "user", "1.1", "from kernels.ops.norm import rms_norm\n", "user/model.py")
    for version, files in {
        "1.0": {
            "kernels/ops/norm.py": "from kernels.ops.base import f\ndef rms_norm(): ...\n",
            "kernels/ops/base.py": "import norm_ext\n",
        },
        "1.1": {"kernels/ops/norm.py": "import torch\ndef rms_norm(): ...\n"},
        "1.2": {"kernels/ops/norm.py": "def layer_norm(): ...\n"},
        "1.3": {"kernels/ops/other.py": ""},
    }.items():
        inits = {"kernels/__init__.py": "", "kernels/ops/__init__.py": ""}
        registry.files[f"kernels-{version}-py3-none-any.whl"] = wheel({**inits, **files})
    run(IMPORT)
    found = {(a, b): verdict for a, b, verdict in table().pairs()}
    assert {found["1.0", version].outcome for version in ("1.0", "1.2", "1.3")} == {PairOutcome.REFUSES}
    assert [found["1.1", version].text for version in ("1.0", "1.1", "1.2", "1.3")] == [
        "ModuleNotFoundError: No module named 'norm_ext'",
        "",
        "ImportError: cannot import name 'rms_norm' from 'kernels.ops.norm'",
        "ModuleNotFoundError: No module named 'kernels.ops.norm'",
    ]


METHOD = """\
title: A forward that is put in
caller: {package: trainer, from: 1.0, file: trainer/patch.py}
callee: {package: model, from: 1.0, file: model/modeling.py}
inside: forward
reached_by: {name: FlashAttention, otherwise: nothing is replaced}
uses:
  - {expression: self._flash(...), symbol: FlashAttention._flash}
  - {expression: self.heads, symbol: FlashAttention}
"""


def test_methods_and_attributes_are_looked_up_through_bases(run, registry, table):
    put(
        registry,
        "trainer",
        "1.0",
        "T = {'FlashAttention': 1}\ndef forward(self, x):\n    return self._flash(x, self.heads)\n",
        "trainer/patch.py",
    )
    base = "class Base(Module):\n    def __init__(self):\n        self.heads = 1\n    def _flash(self, q, k): ...\n"
    for version, text in {
        "1.0": base + "class FlashAttention(Base): ...\n",
        "1.1": base.replace("def _flash", "def _flash2") + "class FlashAttention(Base): ...\n",
        "1.2": base.replace("self.heads", "self.num_heads") + "class FlashAttention(Base): ...\n",
        "1.3": base + "class Attention(Base): ...\n",
        "1.4": "from elsewhere import Base\nclass FlashAttention(Base):\n    def _flash(self, q, k): ...\n",
    }.items():
        put(registry, "model", version, text, "model/modeling.py")
    run(METHOD)
    found = {b: verdict for _, b, verdict in table().pairs()}
    assert found["1.0"].outcome is PairOutcome.WORKS
    assert found["1.1"].text == "AttributeError: 'FlashAttention' object has no attribute '_flash'"
    assert found["1.2"].text == "AttributeError: 'FlashAttention' object has no attribute 'heads'"
    assert found["1.3"].silent
    assert found["1.4"].outcome is PairOutcome.UNKNOWN  # a base that is not in sight: nothing is claimed


def test_a_call_that_cannot_be_followed_is_unknown(run, registry, table):
    text = "class Ring:\n    def backward(ctx):\n        return ctx.kernels.varlen_backward(1)\n"
    put(registry, "caller", "1.3", text, "caller/attention.py")
    run()
    assert {table().verdict("1.3", version).outcome for version in table().callees} == {PairOutcome.UNKNOWN}


def test_the_contract_of_these_tests_is_valid():
    assert contract_definition.parse_contract(CONTRACT, "contracts/small.yaml").version == ("_callee_version",)


def test_the_table_does_not_depend_on_the_cache(run, tmp_path):
    run()
    before = (tmp_path / "contracts" / "small.json").read_bytes()
    assert run(refresh=True).unchanged == ["small"]
    (tmp_path / "contracts" / "small.json").unlink()
    run()
    assert (tmp_path / "contracts" / "small.json").read_bytes() == before


def test_a_strange_source_leaves_the_other_pairs_judged(run, registry, table):
    chain = "x = " + " + ".join(["1"] * 20_000)
    put(registry, "caller", "1.3", CALLER.replace("        chosen = None", f"        {chain}"), "caller/attention.py")
    put(registry, "callee", "2.2", "def varlen_backward(:\n", "callee/interface.py")
    put(registry, "callee", "2.3", "", "callee/other.py")
    run()
    assert table().verdict("1.3", "2.4").outcome is PairOutcome.UNKNOWN
    assert table().verdict("1.0", "2.2").outcome is PairOutcome.UNKNOWN
    assert table().verdict("1.0", "2.3").text == "ModuleNotFoundError: No module named 'callee.interface'"
    assert table().verdict("1.0", "2.4").outcome is PairOutcome.WORKS


def test_a_registry_that_does_not_answer_is_asked_once(tmp_path):
    report = harvest_contracts(
        {f"contracts/{name}.yaml": CONTRACT for name in ("one", "two")},
        folder=lambda _: tmp_path,
        floors={},
        notify=lambda _: None,
        index=SimpleIndex("http://127.0.0.1:9/simple"),
        cache=tmp_path / "cache",
    )
    assert list(report.failed) == ["one"]
    assert "the registry does not answer" in report.failed["one"]
    assert report.exit_code == 4
