"""A miniature keeps what attention depends on; element types are read from the names that GPUs showed."""

from __future__ import annotations

import pytest

from model_tests import element_types, miniature
from model_tests.miniature import HIDDEN, SOFTCAP, WINDOW, shrink

GEMMA = {
    "model_type": "gemma2",
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "sliding_window": 4096,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "attention_dropout": 0.1,
    "vocab_size": 256000,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "use_cache": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
QWEN = {
    "model_type": "qwen2",
    "hidden_size": 3584,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
}
DEEPSEEK = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "head_dim": 64,
    "n_routed_experts": 256,
    "n_group": 8,
    "topk_group": 4,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "moe_intermediate_size": 2048,
    "vocab_size": 129280,
}


def test_heads_scale_and_kinds_of_layers_stay_and_what_no_short_sequence_shows_shrinks():
    made = shrink(GEMMA)
    config = made.config
    assert (config["head_dim"], config["query_pre_attn_scalar"]) == (256, 256)
    assert config["num_attention_heads"] == 2 * config["num_key_value_heads"] == 4
    assert config["layer_types"] == ["sliding_attention", "full_attention"]
    assert config["num_hidden_layers"] == 2
    assert config["rope_parameters"] == GEMMA["rope_parameters"]
    assert config["final_logit_softcapping"] == 30.0
    assert (config["sliding_window"], config["attn_logit_softcapping"]) == (WINDOW, SOFTCAP)
    assert (config["hidden_size"], config["attention_dropout"], config["use_cache"]) == (HIDDEN, 0.0, False)
    assert {"sliding_window: 4096 -> 40", "attn_logit_softcapping: 50.0 -> 4.0"} <= set(made.changes)


def test_special_tokens_stay_apart_from_text_and_inside_the_vocabulary():
    config = shrink(GEMMA).config
    special = [config["eos_token_id"], config["pad_token_id"]]
    assert len(set(special)) == 2
    assert all(miniature.SPECIAL <= token < config["vocab_size"] for token in special)


@pytest.mark.parametrize(("free", "hidden"), [(True, HIDDEN), (False, 7 * 128)])
def test_seven_query_heads_share_one_of_keys_in_either_width(free, hidden):
    config = shrink(QWEN, free_width=free).config
    assert config["num_attention_heads"] == 7 * config["num_key_value_heads"]
    assert config["hidden_size"] == hidden
    assert config.get("head_dim", hidden // config["num_attention_heads"]) == 128


def test_the_three_widths_of_mla_stay_with_one_dense_and_one_layer_of_experts():
    config = shrink(DEEPSEEK).config
    assert (config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["v_head_dim"]) == (128, 64, 128)
    assert miniature.head_width(DEEPSEEK) == 192
    assert (config["num_hidden_layers"], config["first_k_dense_replace"]) == (2, 1)
    assert config["num_experts_per_tok"] == 8
    assert config["n_routed_experts"] == 16
    assert config["n_routed_experts"] % config["n_group"] == 0


def test_the_first_layer_of_each_kind_is_kept_in_order_with_its_place_in_lists_of_indices():
    config = shrink(
        {
            **QWEN,
            "num_hidden_layers": 6,
            "layer_types": ["linear_attention"] * 3 + ["full_attention"] + ["linear_attention"] * 2,
            "mlp_only_layers": [2],
        }
    ).config
    assert config["layer_types"] == ["linear_attention", "linear_attention", "full_attention"]
    assert config["mlp_only_layers"] == [1]
    assert config["num_hidden_layers"] == 3


def test_the_text_of_a_model_with_images_is_shrunk_and_its_tower_keeps_its_heads():
    config = shrink(
        {
            "model_type": "qwen2_vl",
            "image_token_id": 151655,
            "vision_start_token_id": 151652,
            "text_config": {**QWEN, "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}},
            "vision_config": {"depth": 32, "embed_dim": 1280, "num_heads": 16, "hidden_size": 3584, "patch_size": 14},
        }
    ).config
    assert config["text_config"]["rope_scaling"]["mrope_section"] == [16, 24, 24]
    vision = config["vision_config"]
    assert vision["embed_dim"] // vision["num_heads"] == 80
    assert (vision["hidden_size"], vision["patch_size"], vision["depth"]) == (HIDDEN, 14, 2)
    assert config["image_token_id"] != config["vision_start_token_id"]


def test_a_configuration_is_not_changed_by_shrinking_it():
    before = repr(GEMMA)
    shrink(GEMMA)
    assert repr(GEMMA) == before


NAMES = {
    "fmha_cutlassB_bf16_aligned_64x64_k64_sm80(PyTorchMemEffAttention::AttentionBackwardKernel<cutlass::arch::Sm80, "
    "cutlass::bfloat16_t, true, false, true, 64, 64, 6": "bf16",
    "fmha_cutlassF_f16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<cutlass::half_t, "
    "cutlass::arch::Sm80, true, 64, 64, 64, true, true>::Params)": "fp16",
    "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float, cutlass::arch::Sm80, "
    "true, 64, 64, 64, true, true>::Params)": "fp32",
    "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, cutlass::half_t, "
    "Flash_kernel_traits<64, 128, 128, 4, cutlass::half_t> >, fa": "fp16",
    "void pytorch_flash::flash_bwd_dot_do_o_kernel<true, Flash_bwd_kernel_traits<64, 128, 128, 8, 4, 4, 4, false, "
    "false, cutlass::bfloat16_t, Flash_kernel_traits<64,": "bf16",
    "kernel_cutlass_kernel_flash_attncuteflash_bwd_postprocessFlashAttentionBackwardPostprocess_object_at__"
    "tensorptrf32gmemalign16oi64div41_tensorptrf16gmemalign16oi": "fp16",
    "kernel_cutlass_kernel_flash_attncuteflash_bwd_preprocessFlashAttentionBackwardPreprocess_object_at__"
    "tensorptrbf16gmemalign16oi64div81i64div8_tensorptrbf16gmemal": "bf16",
    "kernel_cutlass_kernel_flash_attncuteflash_fwd_sm90FlashAttentionForwardSm90_object_at__tensor000o211121021": None,
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64_4x1x1_cga1x1x1_kernel0_0": None,
    "triton_tem_fused__to_copy_flex_attention_backward_mul_1": None,
}


@pytest.mark.parametrize("name", NAMES)
def test_the_element_type_of_a_kernel_is_read_from_names_that_were_recorded(name):
    assert element_types.element_type(name) == NAMES[name]


def test_a_run_in_bf16_that_computes_in_fp16_is_a_swap_and_an_unknown_type_is_none():
    assert [NAMES[name] for name in element_types.swapped_types(list(NAMES), "bf16")] == ["fp16"] * 3
    assert [NAMES[name] for name in element_types.swapped_types(list(NAMES), "fp16")] == ["bf16"] * 3
    assert element_types.swapped_types(list(NAMES), "fp32") == []


def test_a_class_that_divides_its_heads_may_keep_more_of_them():
    codegen = {"model_type": "codegen", "n_embd": 4096, "n_head": 16, "n_layer": 28, "vocab_size": 50400}
    made = shrink(codegen, free_width=False, heads=4).config
    assert (made["n_head"], made["n_embd"]) == (4, 1024)
    assert miniature.head_width(made) == miniature.head_width(codegen) == 256


def test_a_model_without_heads_has_no_width_and_keeps_its_size():
    mamba = {"model_type": "mamba", "hidden_size": 768, "num_hidden_layers": 32, "vocab_size": 50280}
    assert miniature.head_width(mamba) is None
    made = shrink(mamba).config
    assert (made["hidden_size"], made["num_hidden_layers"]) == (768, 2)


def test_what_is_said_of_single_layers_moves_with_them_and_makes_a_kind():
    gemma4 = {
        "model_type": "gemma4_text",
        "hidden_size": 2304,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "num_hidden_layers": 12,
        "intermediate_size": [9216] * 12,
        "per_layer_config": {"05": {"head_dim": 512}, "11": {"head_dim": 512}},
        "vocab_size": 262144,
        "vocab_size_per_layer_input": 262144,
        "id2label": {"0": "LABEL_0", "1": "LABEL_1"},
    }
    made = shrink(gemma4).config
    assert made["per_layer_config"] == {1: {"head_dim": 512}}
    assert (made["num_hidden_layers"], made["intermediate_size"]) == (2, [128, 128])
    assert made["vocab_size_per_layer_input"] == made["vocab_size"] == miniature.VOCABULARY
    assert made["id2label"] == gemma4["id2label"]
    assert miniature.head_widths(gemma4) == miniature.head_widths(made) == {256, 512}


def test_the_parts_of_dbrx_are_shrunk_and_nothing_is_random():
    dbrx = {
        "model_type": "dbrx",
        "d_model": 6144,
        "n_heads": 48,
        "num_key_value_heads": 8,
        "n_layers": 40,
        "attn_config": {"kv_n_heads": 8, "clip_qkv": 8, "output_attentions": False, "_name_or_path": ""},
        "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4, "moe_jitter_eps": 0.01},
        "router_jitter_noise": 0.01,
    }
    made = shrink(dbrx, free_width=False, heads=4).config
    assert made["attn_config"] == {"kv_n_heads": 4, "clip_qkv": 8}
    assert made["ffn_config"] == {"ffn_hidden_size": 128, "moe_num_experts": 8, "moe_top_k": 4, "moe_jitter_eps": 0.0}
    assert (made["n_heads"], made["num_key_value_heads"], made["router_jitter_noise"]) == (24, 4, 0.0)


def test_a_list_of_layers_is_none_with_an_entry_for_each():
    lfm2 = {
        "model_type": "lfm2",
        "hidden_size": 2560,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_hidden_layers": 4,
        "full_attn_idxs": [0, 1, 2, 3],
    }
    made = shrink(lfm2).config
    assert (made["num_hidden_layers"], made["full_attn_idxs"]) == (2, [0, 1])
    made = shrink({**lfm2, "full_attn_idxs": [2, 3]}).config
    assert (made["num_hidden_layers"], made["full_attn_idxs"]) == (2, [1])
    llama4 = {**lfm2, "full_attn_idxs": [0, 1, 2, 3], "moe_layers": [0, 1, 2, 3], "no_rope_layers": [1, 1, 1, 0]}
    made = shrink(llama4).config
    assert (made["num_hidden_layers"], made["moe_layers"], made["no_rope_layers"]) == (2, [0, 1], [1, 0])


def test_two_counts_of_layers_keep_their_ratio_and_experts_without_weights_are_few():
    longcat = {"model_type": "longcat_flash", "num_layers": 28, "num_hidden_layers": 56, "hidden_size": 6144}
    experts = {"n_routed_experts": 512, "zero_expert_num": 256, "moe_topk": 12}
    made = shrink({**longcat, **experts, "num_attention_heads": 64}).config
    assert (made["num_layers"], made["num_hidden_layers"]) == (1, 2)
    assert (made["n_routed_experts"], made["zero_expert_num"]) == (24, 4)
