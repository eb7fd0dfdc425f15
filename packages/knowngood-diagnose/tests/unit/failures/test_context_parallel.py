"""Logs of torch's context parallelism in fp32, and of what looks like them.

All were made by two gloo processes with torch 2.11.0 and transformers 4.56.0: a Llama whose heads share keys and
values, under `context_parallel`. PLAIN took the plain kernel (sdpa_kernel(SDPBackend.MATH)), as fp32 does on a GPU.
SUMS took the CPU's kernel through `parallel_tests/ring_stand_in.py`, and a stand-in padded its sums to a multiple of
32, as the efficient kernel does on a GPU; its row of 64 tokens makes parts of 16. HEALTHY is the same with 128.
WITHOUT adds a plain tensor to the output of tensor parallelism. Frames of torch.nn and what torchrun says at the end
are left out.
"""

from __future__ import annotations

import io
import json

import pytest

from knowngood.cli.main import main

SITE = "/x/site-packages"
RING = f"{SITE}/torch/distributed/tensor/experimental/_context_parallel/_attention.py"
OLDER_RING = f"{SITE}/torch/distributed/tensor/experimental/_attention.py"
MIXED = (
    "RuntimeError: aten.add.Tensor got mixed torch.Tensor and DTensor, need to convert all torch.Tensor to DTensor"
    " before calling distributed operators!"
)
CLOSED = (
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer"
    " [127.0.0.1]:3476"
)
CALLS = f"""\
[rank0]: Traceback (most recent call last):
[rank0]:   File "/home/me/train.py", line 35, in <module>
[rank0]:     logits = model(input_ids=tokens, position_ids=places, use_cache=False).logits
[rank0]:   File "{SITE}/transformers/models/llama/modeling_llama.py", line 459, in forward
[rank0]:     outputs: BaseModelOutputWithPast = self.model(
[rank0]:   File "{SITE}/transformers/models/llama/modeling_llama.py", line 395, in forward
[rank0]:     hidden_states = decoder_layer(
[rank0]:   File "{SITE}/transformers/modeling_layers.py", line 94, in __call__
[rank0]:     return super().__call__(*args, **kwargs)
[rank0]:   File "{SITE}/transformers/models/llama/modeling_llama.py", line 294, in forward
[rank0]:     hidden_states, _ = self.self_attn(
[rank0]:   File "{SITE}/transformers/models/llama/modeling_llama.py", line 252, in forward
[rank0]:     attn_output, attn_weights = attention_interface(
[rank0]:   File "{SITE}/transformers/integrations/sdpa_attention.py", line 83, in sdpa_attention_forward
[rank0]:     attn_output = torch.nn.functional.scaled_dot_product_attention(
[rank0]:   File "{RING}", line 966, in inner_fn
[rank0]:     outputs = target_fn(*args, **kwargs)
"""
"""From the program to the ring, which takes the place of torch's function."""
PLAIN = f"""\
{CALLS}[rank0]: {MIXED}
"""
SUMS = f"""\
{CALLS}[rank0]:   File "/home/me/ring_stand_in.py", line 35, in _forward
[rank0]:     results = ring._templated_ring_attention(
[rank0]:   File "/home/me/stand_in.py", line 24, in padded
[rank0]:     return ours(group, dim, Padding(), *args, **kwargs)
[rank0]:   File "{RING}", line 475, in _templated_ring_attention
[rank0]:     sdpa_merger.step(out, logsumexp, partial)
[rank0]:   File "{RING}", line 213, in step
[rank0]:     self._merge_one(out, lse, partial)
[rank0]:   File "{RING}", line 182, in _merge_one
[rank0]:     out = out - F.sigmoid(block_lse - lse) * (out - block_out)
[rank0]: RuntimeError: The size of tensor a (32) must match the size of tensor b (16) at non-singleton dimension 2
[rank1]: Traceback (most recent call last):
[rank1]:   File "/home/me/train.py", line 37, in <module>
[rank1]:     loss.backward()
[rank1]:   File "{SITE}/torch/_tensor.py", line 631, in backward
[rank1]:     torch.autograd.backward(
[rank1]:   File "{SITE}/torch/autograd/__init__.py", line 381, in backward
[rank1]:     _engine_run_backward(
[rank1]:   File "{SITE}/torch/autograd/graph.py", line 869, in _engine_run_backward
[rank1]:     return Variable._execution_engine.run_backward(
[rank1]:   File "/home/me/ring_stand_in.py", line 53, in _backward
[rank1]:     results = ring._templated_ring_attention_backward(
[rank1]:   File "{RING}", line 517, in _templated_ring_attention_backward
[rank1]:     buffer = kv_rotater.next_buffer()
[rank1]:   File "{RING}", line 291, in next_buffer
[rank1]:     self._aggregated_buffer = _maybe_wait(self._aggregated_buffer)
[rank1]:   File "{RING}", line 109, in _maybe_wait
[rank1]:     return tensor.wait()
[rank1]:   File "{SITE}/torch/distributed/_functional_collectives.py", line 1048, in wait
[rank1]:     return wait_tensor(self.elem)
[rank1]:   File "{SITE}/torch/distributed/_functional_collectives.py", line 138, in wait_tensor
[rank1]:     return torch.ops._c10d_functional.wait_tensor(tensor)
[rank1]:   File "{SITE}/torch/_ops.py", line 1269, in __call__
[rank1]:     return self._op(*args, **kwargs)
[rank1]: {CLOSED}
"""
HEALTHY = """\
step 0: loss 4.1568
step 1: loss 3.9451
step 2: loss 3.7572
"""
WITHOUT = f"""\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/home/me/mixed.py", line 12, in <module>
[rank1]:     out = layer(torch.randn(4, 16)) + bias
[rank1]: {MIXED}
"""
SHARED_HEADS, PADDED_SUMS = "context-parallel-fp32-shared-heads", "context-parallel-fp32-padded-sums"


def diagnose(log, tmp_path, monkeypatch):
    path = tmp_path / "train.log"
    path.write_text(log)
    output = io.StringIO()
    monkeypatch.setattr("sys.stdout", output)
    code = main(["diagnose", "--json", str(path)])
    return code, [match["incident"] for match in json.loads(output.getvalue())["matches"]]


@pytest.mark.parametrize(
    ("log", "first"),
    [
        (PLAIN, SHARED_HEADS),
        (PLAIN.replace(RING, OLDER_RING), SHARED_HEADS),
        (PLAIN.replace("aten.add.Tensor got", "aten.add.Tensor: got"), SHARED_HEADS),
        (SUMS, PADDED_SUMS),
        (SUMS.replace(RING, OLDER_RING), PADDED_SUMS),
    ],
)
def test_context_parallelism_in_fp32_is_named(log, first, tmp_path, monkeypatch):
    code, names = diagnose(log, tmp_path, monkeypatch)
    assert (code, names[0]) == (0, first)


@pytest.mark.parametrize(
    ("log", "first"),
    [
        (WITHOUT, "mixed-dtensor"),
        (PLAIN.replace("aten.add.Tensor", "aten.addmm.default"), "mixed-dtensor"),
        (SUMS.replace("_merge_one", "_other"), "tensor-shapes"),
    ],
)
def test_other_errors_keep_their_answer(log, first, tmp_path, monkeypatch):
    code, names = diagnose(log, tmp_path, monkeypatch)
    assert (code, names[0]) == (0, first)
    assert not {SHARED_HEADS, PADDED_SUMS} & set(names)


def test_a_healthy_log_names_nothing(tmp_path, monkeypatch):
    assert diagnose(HEALTHY, tmp_path, monkeypatch) == (1, [])
