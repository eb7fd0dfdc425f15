from __future__ import annotations

import pytest

from smoke_tests import data, environment, outcomes
from smoke_tests.refusals import KNOWN, recognise
from smoke_tests.settings import SETTINGS, families_in, kernel_fault

FA2 = ["void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64>>", "void flash::flash_bwd_dq_dk_dv_loop_kernel<>"]
TORCH_FLASH = [name.replace("flash::", "pytorch_flash::") for name in FA2]
FA4 = ["kernel_cutlass_kernel_flash_attncuteflash_fwd_sm90FlashAttentionForwardSm90_object_at"]
CUDNN = [
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7",
    "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26",
]


@pytest.mark.parametrize(
    ("names", "family"),
    [
        (FA2, "flash-attn-2"),
        (TORCH_FLASH, "torch-flash"),
        (FA4, "flash-attn-4"),
        (CUDNN, "cudnn"),
        (["fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel)"], "torch-efficient"),
        (["aten::_scaled_dot_product_flash_attention_for_cpu"], "torch-cpu-flash"),
        (["triton_tem_fused_flex_attention_0"], "flex"),
        (["aten::mm", "triton_poi_fused_add_0", "softmax_warp_forward"], None),
    ],
)
def test_a_kernel_belongs_to_one_family(names, family):
    assert list(families_in(names)) == ([family] if family else [])


@pytest.mark.parametrize(
    ("setting", "names", "fault"),
    [
        ("fa2", FA2, None),
        ("fa2", TORCH_FLASH, "torch-flash ran"),
        ("fa2", FA2[:1], "no backward kernel"),
        ("fa2", [], "no kernel of flash-attn-2"),
        ("fa2", ["aten::mm"], "no kernel of flash-attn-2"),
        ("sdpa", CUDNN, None),
        ("sdpa-flash", CUDNN, "cudnn ran"),
        ("eager", [], None),
        ("eager", CUDNN, "cudnn ran"),
    ],
)
def test_a_profile_proves_a_setting_or_says_what_ran_instead(setting, names, fault):
    found = kernel_fault(SETTINGS[setting], names, on_gpu=True)
    assert (found is None) is (fault is None)
    assert fault is None or fault in found


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (NotImplementedError("FlexAttention does not support backward on CPU. Please set ..."), "refused"),
        (RuntimeError("No available kernel. Aborting execution."), "refused"),
        (RuntimeError("No viable backend for scaled_dot_product_attention was found."), "refused"),
        (RuntimeError("FlashAttention only support fp16 and bf16 data type"), "refused"),
        (RuntimeError("FlashAttention only supports Ampere GPUs or newer."), "refused"),
        (ImportError("...: FlashAttention4 is not available on CPU. Please make sure you are on any"), "refused"),
        (ImportError("...: the package flash_attn seems to be not installed. Please refer"), "not-run"),
        (ImportError("...: the package for FlashAttention2 doesn't seem to be installed."), "not-run"),
        (ValueError('Specified `attn_implementation="flex_attention"` is not supported. The only'), "not-run"),
        (AssertionError("inputs must be float16, bfloat16, fp8 e4m3fn, or fp8 e5m2"), "refused"),
        (TypeError("Qwen2ForCausalLM.forward() got an unexpected keyword argument 'cu_seq_lens_q'"), "not-run"),
        (TypeError("Qwen2ForCausalLM.forward() got an unexpected keyword argument 'use_cache'"), "fail"),
        (outcomes.NotRun("no peft"), "not-run"),
        (outcomes.Failed("too far"), "fail"),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), "fail"),
        (ImportError("undefined symbol: _ZN3c104cuda"), "fail"),
        (MemoryError(), "fail"),
    ],
)
def test_only_a_known_error_is_a_refusal(error, outcome):
    made = outcomes.from_exception(error)
    assert made["outcome"] == outcome
    assert made["reason"]


def test_no_refusal_takes_an_empty_message_or_another_libraries_error():
    assert recognise(RuntimeError("")) is None
    assert recognise(KeyError("layers")) is None
    assert {refusal.outcome for refusal in KNOWN} == {"refused", "not-run"}


def test_the_suite_hash_follows_names_and_bytes(tmp_path):
    (tmp_path / "a.py").write_text("x")
    first = environment.suite_hash(tmp_path)
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    renamed = environment.suite_hash(tmp_path)
    (tmp_path / "b.py").write_text("y")
    assert len({first, renamed, environment.suite_hash(tmp_path)}) == 3


def test_the_data_can_be_learned_only_by_looking_back():
    rows = data.sequences(data.RAGGED)
    followers = {}
    for row in rows:
        for token, target in zip(row[:-1], data.targets(row)[:-1], strict=True):
            followers.setdefault(token, set()).add(target)
    assert any(len(found) > 1 for found in followers.values())
    assert all(data.targets(row)[-1] == data.IGNORED for row in rows)
