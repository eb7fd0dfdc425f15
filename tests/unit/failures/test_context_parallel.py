"""Logs of torch's context parallelism in fp32, and of what looks like them.

All were made by two gloo processes with torch 2.11.0 and transformers 4.56.0: a Llama whose heads share keys and
values, under `context_parallel`. PLAIN took the plain kernel (sdpa_kernel(SDPBackend.MATH)), as fp32 does on a GPU.
HEALTHY took the CPU's kernel through `parallel_tests/ring_stand_in.py`, with a row of 128 tokens.
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
PLAIN = f"""\
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
[rank0]: {MIXED}
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
SHARED_HEADS = "context-parallel-fp32-shared-heads"


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
    ],
)
def test_other_errors_keep_their_answer(log, first, tmp_path, monkeypatch):
    code, names = diagnose(log, tmp_path, monkeypatch)
    assert (code, names[0]) == (0, first)
    assert SHARED_HEADS not in names


def test_a_healthy_log_names_nothing(tmp_path, monkeypatch):
    assert diagnose(HEALTHY, tmp_path, monkeypatch) == (3, [])
