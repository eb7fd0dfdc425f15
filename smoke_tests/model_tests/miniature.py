"""Shrinks a model's configuration to a miniature that keeps what attention depends on. Pure: dictionaries in and out.

Kept: the width of a head (of queries, keys and values each), how many query heads share a key-value head, the order
of the kinds of layers, the way of rotary embedding with all its parameters, the scale of the scores, sinks, norms,
how many experts a token goes to. Made smaller: widths, layers, vocabulary, the number of experts, and, so that they
matter within sequences of a hundred tokens, the sliding window, the chunk and the soft-cap of the scores.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

VOCABULARY = 160  # 128 tokens of text (smoke_tests/data.py), then the special ones
SPECIAL = 128  # the first special token
HIDDEN = 128
WINDOW = 40
SOFTCAP = 4.0  # scores of the miniature are of this size; the 50 of Gemma 2 would leave them as they are

WIDTHS = ("hidden_size", "n_embd", "d_model")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_layers_per_stack")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
WINDOWS = ("sliding_window", "attention_window_size", "attention_chunk_size", "sliding_window_size")
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
CHOSEN_EXPERTS = ("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_top_k", "moe_topk", "top_k_experts")
LAYER_INDICES = re.compile(r"layers$|_idxs$|_indices$")
DROPPED = ("quantization_config", "torch_dtype", "dtype", "auto_map", "transformers_version", "_name_or_path")
PARTS = ("attn_config", "ffn_config")
UNTAKEN = (*DROPPED, "output_attentions")
"""What a part's ``to_dict`` adds, and its class does not take."""
INTERMEDIATE = re.compile(r"(^|_)intermediate_size|^ffn_(size|dim)$|^n_inner$|(^|_)ffn_hidden_(size|dim)$")
RANDOM = re.compile(r"(dropout|_pdrop|dropout_prob)$|jitter")


@dataclass
class Miniature:
    """A shrunk configuration, and each change as ``field: before -> after``."""

    config: dict[str, Any]
    changes: list[str] = field(default_factory=list)

    def put(self, name: str, value: Any) -> None:
        """Change a field that the configuration has, and note the change."""
        before = self.config.get(name)
        if name in self.config and before != value:
            self.config[name] = value
            self.changes.append(f"{name}: {_short(before)} -> {_short(value)}")


def shrink(config: dict[str, Any], *, free_width: bool = True, heads: int = 2) -> Miniature:
    """Return the miniature of a causal model's complete configuration, its defaults included.

    With ``free_width`` the hidden size is independent of heads times head width, which most classes allow when
    ``head_dim`` is given; without, it is their product. At most ``heads`` heads of keys and values are kept.
    """
    if isinstance(config.get("text_config"), dict):
        return _shrink_composite(config, free_width=free_width, heads=heads)
    made = Miniature({name: value for name, value in config.items() if name not in DROPPED})
    _shrink_parts(made, heads)
    _choose_layers(made)
    _shrink_heads(made, free_width=free_width, most=heads)
    _shrink_experts(made)
    _shrink_recurrent_parts(made)
    for name in list(made.config):
        value = made.config[name]
        if RANDOM.search(name) and isinstance(value, (int, float)) and not isinstance(value, bool):
            made.put(name, 0.0)
        elif INTERMEDIATE.search(name) and isinstance(value, list):
            made.put(name, [128] * len(value))
        elif INTERMEDIATE.search(name) and isinstance(value, int) and value > 0:
            made.put(name, 64 if "moe" in name or "expert" in name else 128)
        elif name in WINDOWS and isinstance(value, int) and value > WINDOW:
            made.put(name, WINDOW)
    if isinstance(made.config.get("attn_logit_softcapping"), (int, float)):
        made.put("attn_logit_softcapping", min(made.config["attn_logit_softcapping"], SOFTCAP))
    _shrink_vocabulary(made)
    made.put("use_cache", value=False)
    return made


def _shrink_parts(made: Miniature, heads: int) -> None:
    """Shrink the configurations of attention and of experts that DBRX and MPT keep as parts of their own."""
    for name in PARTS:
        if not isinstance(made.config.get(name), dict):
            continue
        part = Miniature({field: value for field, value in made.config[name].items() if field not in UNTAKEN})
        part.put("kv_n_heads", heads)
        part.put("ffn_hidden_size", 128)
        part.put("moe_jitter_eps", 0.0)
        _shrink_experts(part)
        made.config[name] = part.config
        made.changes += [f"{name}.{change}" for change in part.changes]


def head_width(config: dict[str, Any]) -> int | None:
    """The width of a query head: stated, or the hidden size divided by the heads; ``None`` where neither is told."""
    if config.get("qk_nope_head_dim") is not None:
        return int(config["qk_nope_head_dim"]) + int(config["qk_rope_head_dim"])
    if config.get("head_dim"):
        return int(config["head_dim"])
    width, heads = _first(config, WIDTHS), _first(config, HEADS)
    return width // heads if width and heads else None


def head_widths(config: dict[str, Any]) -> set[int]:
    """The widths of query heads that the layers may have: that of all, and those of single layers."""
    single = config.get("per_layer_config") or {}
    stated = {said.get("head_dim") for said in single.values()} | {head_width(config)}
    return {width for width in stated if width is not None}


def _shrink_composite(config: dict[str, Any], *, free_width: bool, heads: int) -> Miniature:
    """A model with parts: its text is shrunk as any other; its tower for images keeps the width of a head."""
    made = Miniature({name: value for name, value in config.items() if name not in DROPPED})
    text = shrink(config["text_config"], free_width=free_width, heads=heads)
    made.config["text_config"] = text.config
    made.changes += [f"text_config.{change}" for change in text.changes]
    if isinstance(config.get("vision_config"), dict):
        vision = Miniature({name: value for name, value in config["vision_config"].items() if name not in DROPPED})
        width = _first(vision.config, ("embed_dim", "hidden_size")) // _first(vision.config, HEADS)
        vision.put("depth", 2)
        vision.put("num_heads", 2)
        if "embed_dim" in vision.config:
            vision.put("embed_dim", 2 * width)
            vision.put("hidden_size", text.config["hidden_size"])
        else:
            vision.put("hidden_size", 2 * width)
            vision.put("out_hidden_size", text.config["hidden_size"])
            vision.put("intermediate_size", 128)
        made.config["vision_config"] = vision.config
        made.changes += [f"vision_config.{change}" for change in vision.changes]
    _shrink_vocabulary(made)
    return made


def _choose_layers(made: Miniature) -> None:
    """Keep the first layer of each kind, two layers at least; a list with one entry a layer is cut alike."""
    count_name = next((name for name in LAYERS if isinstance(made.config.get(name), int)), None)
    if count_name is None:
        return
    count = made.config[count_name]
    indices = [name for name, value in made.config.items() if _numbers_layers(name, value, count)]
    lists = [
        name
        for name, value in made.config.items()
        if isinstance(value, (list, str))
        and len(value) == count
        and (isinstance(value, list) or "pattern" in name)
        and name not in indices
    ]
    single = {
        name: said for name, value in made.config.items() if "layer" in name and (said := _by_layer(value, count))
    }
    dense = made.config.get("first_k_dense_replace") or 0
    kinds: dict[Any, int] = {}
    for layer in range(count):
        kind = (
            *(str(made.config[name][layer]) for name in lists),
            *(layer in made.config[name] for name in indices),
            *(str(said.get(layer)) for said in single.values()),
            layer >= dense,
        )
        kinds.setdefault(kind, layer)
    chosen = sorted(kinds.values())
    least = max(2, made.config.get("decoder_sparse_step") or 1, len(made.config.get("block_types") or ()))
    others = [layer for layer in range(count) if layer not in chosen]
    chosen = sorted([*chosen, *others[: max(0, least - len(chosen))]])
    for name in lists:
        kept = [made.config[name][layer] for layer in chosen]
        made.put(name, "".join(kept) if isinstance(made.config[name], str) else kept)
    for name in indices:
        made.put(name, [place for place, layer in enumerate(chosen) if layer in made.config[name]])
    for name, said in single.items():
        made.put(name, {place: said[layer] for place, layer in enumerate(chosen) if layer in said})
    _count_layers(made, chosen, count)


def _count_layers(made: Miniature, chosen: list[int], count: int) -> None:
    """Set what counts layers instead of listing them to that of the chosen ones."""
    dense = made.config.get("first_k_dense_replace") or 0
    if dense:
        made.put("first_k_dense_replace", sum(layer < dense for layer in chosen))
    if made.config.get("attn_layer_period"):  # Jamba counts instead of listing
        for part in ("attn_layer", "expert_layer"):
            made.put(f"{part}_period", 2)
            made.put(f"{part}_offset", 1)
    if made.config.get("use_sliding_window"):
        made.put("max_window_layers", 1)
    made.put("num_nextn_predict_layers", 0)
    made.put("num_kv_shared_layers", 0)
    for name in LAYERS:
        if isinstance(made.config.get(name), int):  # LongCat's layers are two of the others
            made.put(name, max(1, made.config[name] * len(chosen) // count))


def _numbers_layers(name: str, value: Any, count: int) -> bool:
    """Whether a field lists layers by their numbers (``mlp_only_layers``), and not something of each layer."""
    if not isinstance(value, list) or not LAYER_INDICES.search(name):
        return False
    return all(type(layer) is int and layer < count for layer in value) and value == sorted(set(value))


def _by_layer(value: Any, count: int) -> dict[int, Any]:
    """A field that says something of single layers, by their numbers (Gemma 4's `per_layer_config`); else nothing."""
    if not isinstance(value, dict) or not all(str(key).isdigit() and int(key) < count for key in value):
        return {}
    return {int(key): said for key, said in value.items()}


def _shrink_heads(made: Miniature, *, free_width: bool, most: int) -> None:
    """Fewer heads of the same width, with as many query heads to a key-value head as before."""
    heads_name = next((name for name in HEADS if isinstance(made.config.get(name), int)), None)
    width_name = next((name for name in WIDTHS if isinstance(made.config.get(name), int)), None)
    if heads_name is None or width_name is None:
        return
    width, heads = head_width(made.config), made.config[heads_name]
    shared = made.config.get("num_key_value_heads") or heads
    if made.config.get("kv_lora_rank"):
        made.put("kv_lora_rank", min(made.config["kv_lora_rank"], 64))
        if made.config.get("q_lora_rank"):
            made.put("q_lora_rank", min(made.config["q_lora_rank"], 96))
        made.put("num_key_value_heads", 4)
        made.put(heads_name, 4)
        made.put(width_name, HIDDEN)
        return
    group = heads // shared
    kept = min(shared, most)
    if not free_width and most == 2 and kept * group * width > 1024:
        kept = 1
    made.put("num_key_value_heads", kept)
    made.put(heads_name, kept * group)
    if free_width:
        made.put(width_name, HIDDEN)
        if not made.config.get("head_dim"):
            made.config["head_dim"] = width
            made.changes.append(f"head_dim: stated as {width}, which hidden_size over heads was")
    else:
        made.put(width_name, kept * group * width)


def _shrink_experts(made: Miniature) -> None:
    """As many experts to a token as before, chosen among twice as many; groups of experts stay."""
    chosen = _first(made.config, CHOSEN_EXPERTS) or 2
    groups = made.config.get("n_group") or 1
    for name in EXPERTS:
        if isinstance(made.config.get(name), int) and made.config[name] > 1:
            wanted = max(4, 2 * chosen, 2 * groups)
            made.put(name, min(made.config[name], -(-wanted // groups) * groups))
    if isinstance(made.config.get("zero_expert_num"), int):  # LongCat's, which return what they are given
        made.put("zero_expert_num", min(made.config["zero_expert_num"], 4))


def _shrink_recurrent_parts(made: Miniature) -> None:
    """Fewer heads of linear attention and of state-space layers, each as wide as before; shorter chunks."""
    keys, values = made.config.get("linear_num_key_heads"), made.config.get("linear_num_value_heads")
    if keys and values:
        made.put("linear_num_key_heads", 2)
        made.put("linear_num_value_heads", 2 * (values // keys))
    width = made.config.get("mamba_d_head")
    if isinstance(width, int) and "mamba_n_heads" in made.config:
        inner = made.config.get("mamba_expand", 2) * made.config["hidden_size"]
        heads = inner // width
        made.put("mamba_n_heads", heads)
        made.put("mamba_d_ssm", heads * width)
        if isinstance(made.config.get("mamba_n_groups"), int):
            made.put("mamba_n_groups", min(made.config["mamba_n_groups"], 2))
    if {
        "state_size",
        "expand",
        "num_heads",
        "head_dim",
    } <= made.config.keys():  # Mamba 2 alone, whose heads are no attention's
        made.put("num_heads", made.config["expand"] * made.config["hidden_size"] // made.config["head_dim"])
        made.put("n_groups", 2)
    for name in ("mamba_chunk_size", "chunk_size"):
        if isinstance(made.config.get(name), int) and made.config[name] > 32:
            made.put(name, 32)


def _shrink_vocabulary(made: Miniature) -> None:
    """A small vocabulary; each special token gets a number of its own behind the tokens of text."""
    for name in ("vocab_size", "vocab_size_per_layer_input"):
        made.put(name, VOCABULARY)
    special = sorted(
        name
        for name, value in made.config.items()
        if name.endswith(("_token_id", "_token_index")) and isinstance(value, (int, list))
    )
    for place, name in enumerate(special):
        made.put(name, SPECIAL + place)


def _first(config: dict[str, Any], names: tuple[str, ...]) -> Any:
    return next((config[name] for name in names if isinstance(config.get(name), int)), None)


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
