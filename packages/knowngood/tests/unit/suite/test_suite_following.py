"""TransformerEngine's calls of flash-attn, followed in sources like theirs."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from smoke_tests.following import Anything, Undecided, Walk, stub
from smoke_tests.framework_transformer_engine import bound

FLAGS = """
from flash_attn.flash_attn_interface import _flash_attn_varlen_forward as _varlen_fwd
from flash_attn.flash_attn_interface import _flash_attn_varlen_backward as _varlen_bwd
class Utils:
    v2_4_plus = False
    def set_version():
        Utils.v2_4_plus = Utils.version >= PkgVersion("2.4")
        Utils.v2_6_0_plus = Utils.version >= PkgVersion("2.6.0")
"""
RING = """
def arguments(forward, qkv_format, cu_seqlens=None, dq=None):
    if forward:
        return [cu_seqlens]
    return [dq, cu_seqlens]

def tile(flash_attn_bwd, kwargs, q, dq, causal_):
    if not use_flash_attn_3 and Utils.v2_4_plus:
        kwargs["alibi"] = None
    kwargs["causal"] = causal_
    flash_attn_bwd(q, *arguments(False, qkv_format, dq=dq), **kwargs)

class AttnFuncWithCPAndKVP2P:
    @staticmethod
    def forward(ctx, q, causal, softmax_scale, cp_size, use_flash_attn_3, fp8):
        from backends import _varlen_fwd
        flash_attn_fwd = _varlen_fwd
        kwargs = {"scale": softmax_scale}
        if FLAG:
            kwargs["softcap"] = 0.0
        if fp8:
            raise NotImplementedError
        inputs, out = [None, None], [None] * cp_size
        for i in range(cp_size):
            with torch.cuda.stream(streams[i % 2]):
                if causal:
                    out[i], _ = flash_attn_fwd(inputs[i % 2], *arguments(True, qkv_format, q), causal=True, **kwargs)
                else:
                    out[i], _ = flash_attn_fwd(inputs[i % 2], *arguments(True, qkv_format, q), causal=False, **kwargs)

    @staticmethod
    def backward(ctx, dout):
        from backends import _varlen_bwd
        kwargs = {"scale": ctx.softmax_scale}
        if ctx.fp8:
            return _varlen_bwd()
        if FLAG:
            kwargs["softcap"] = ctx.softcap
        grads = tile(_varlen_bwd, kwargs, dout, torch.empty_like(dout), causal_=True)
"""
WITH_SOFTCAP = """
def _flash_attn_varlen_forward(q, lengths, scale, causal, softcap=0.0): ...
def _flash_attn_varlen_backward(dout, dq, lengths, scale, causal, alibi, softcap): ...
"""


@pytest.fixture
def engine(tmp_path):
    def made(flag: str = "Utils.v2_6_0_plus", ring: str = RING) -> Path:
        (tmp_path / "utils.py").write_text(FLAGS)
        (tmp_path / "context_parallel.py").write_text(ring.replace("FLAG", flag) + "# flash_attn\n")
        return tmp_path

    return made


@pytest.fixture
def interface(tmp_path):
    path = tmp_path / "interface" / "flash_attn_interface.txt"
    path.parent.mkdir()
    path.write_text(WITH_SOFTCAP)
    return path


def test_calls_that_fit_are_counted_on_both_sides_of_what_nothing_decides(engine, interface):
    calls, wrong = bound(engine(), interface, "2.6.3")
    assert wrong == []
    assert calls == {"_flash_attn_varlen_forward": 4, "_flash_attn_varlen_backward": 2}


@pytest.mark.parametrize(
    ("flag", "version", "said"),
    [
        ("False", "2.6.3", "_flash_attn_varlen_backward() missing 1 required positional argument: 'softcap'"),
        ("Utils.v2_6_0_plus", "2.5.8", "missing 1 required positional argument: 'softcap'"),
        ("Utils.v2_6_0_plus", "2.3.0", "missing 2 required positional arguments: 'alibi' and 'softcap'"),
    ],
)  # fmt: skip
def test_a_call_that_does_not_fit_is_said_in_pythons_words(engine, interface, flag, version, said):
    _, wrong = bound(engine(flag), interface, version)
    assert len(wrong) == 1
    assert wrong[0].startswith("AttnFuncWithCPAndKVP2P.backward: ")
    assert wrong[0].endswith(said)


def test_a_keyword_that_is_not_taken(engine, interface):
    interface.write_text(WITH_SOFTCAP.replace(", softcap=0.0", ""))
    (said,) = bound(engine(), interface, "2.6.3")[1]
    assert said.startswith("AttnFuncWithCPAndKVP2P.forward: TypeError: _flash_attn_varlen_forward() ")
    assert said.endswith("got an unexpected keyword argument 'softcap'")


def test_a_framework_that_calls_nothing_has_not_passed(engine, interface):
    assert bound(engine(ring="class Attention: ...\n"), interface, "2.6.3")[1] == [
        "no backward call is found under padded sequences",
        "no forward call is found under padded sequences",
        "no backward call is found under packed sequences",
        "no forward call is found under packed sequences",
    ]


def test_what_is_not_known_decides_nothing():
    unknown = Anything({"fp8": False})
    assert unknown.ctx.fp8 is False
    for test in (lambda: bool(unknown), lambda: bool(unknown == 1), lambda: [*unknown], lambda: unknown[0] and 1):
        with pytest.raises(Undecided):
            test()
    tree = ast.parse("def f(x):\n    if x is None:\n        return 1\n    return 2\n")
    assert Walk(tree, {}, {}).known["f"](None) == 1
    assert Walk(tree, {}, {}).known["f"](3) == 2


def test_a_function_that_calls_itself_ends():
    tree = ast.parse("def f(x):\n    return f(x + 1)\n")
    assert isinstance(Walk(tree, {}, {}).known["f"](1), Anything)


def test_a_stub_takes_what_its_function_takes():
    (function,) = ast.parse("def f(a: Tensor, /, b=[1], *, c: int = torch.x, **more) -> None: ...").body
    assert isinstance(function, ast.FunctionDef)
    assert stub(function)(1, c=2) == {"a": 1, "b": None, "c": 2, "more": {}}
    with pytest.raises(TypeError, match=r"f\(\) missing 1 required positional argument: 'a'"):
        stub(function)(c=2)
