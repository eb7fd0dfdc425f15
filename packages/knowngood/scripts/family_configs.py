"""Write `OUT/FAMILY/config.json` for every causal family of the transformers that is installed.

    python scripts/family_configs.py OUT

Each has the defaults of its configuration class. What a class leaves empty and its model needs is filled in
(`FILLED`). `certify` takes such a folder, and `scripts/gpu_models.py` several. The sweep of docs/decisions/0901 was
made from these.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from transformers.models.auto.configuration_auto import CONFIG_MAPPING  # type: ignore[import-not-found,unused-ignore]
from transformers.models.auto.modeling_auto import (  # type: ignore[import-not-found,unused-ignore]
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
)

LFM2_LAYERS = (["conv", "conv", "full_attention"] + ["conv", "conv", "conv", "full_attention"] * 8)[:32]
HYBRID_LAYERS = (["linear_attention"] * 5 + ["full_attention"]) * 5 + ["linear_attention"] * 2
SCALED = {"attention_multiplier": 0.0625}
FILLED: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("granitemoe", "granitemoeshared", "granite_swa", "granitemoe_swa"), SCALED),
    "granitemoehybrid": {**SCALED, "layer_types": HYBRID_LAYERS, "num_hidden_layers": 32},
    "bamba": {"attn_layer_indices": [9, 18, 27]},
    "lfm2": {"layer_types": LFM2_LAYERS},
    "lfm2_moe": {"layer_types": LFM2_LAYERS},
    "deepseek_v2": {"num_experts_per_tok": 6, "n_group": 1, "topk_group": 1},
    "dots1": {"n_routed_experts": 128, "n_shared_experts": 2, "num_experts_per_tok": 6},
}
LEFT_OUT = {"lfm2": ["full_attn_idxs"]}
"""Fields that say the same as one that is filled in."""


def make_config(family: str, model: str | tuple[str, ...]) -> dict[str, Any]:
    """Return a family's configuration as it stands in a `config.json`."""
    fields = CONFIG_MAPPING[family]().to_dict()
    fields["model_type"] = fields.get("model_type") or family
    fields["architectures"] = [model if isinstance(model, str) else model[0]]
    fields |= FILLED.get(family, {})
    return {name: value for name, value in fields.items() if name not in LEFT_OUT.get(family, ())}


def main(out: str) -> None:
    """Write one file for each family, and say which has none, and why."""
    for family, model in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items()):
        try:
            text = json.dumps(make_config(family, model), indent=1, default=str)
        except Exception as error:  # noqa: BLE001 - a configuration may raise anything; the others are still written
            print(f"{family}: {type(error).__name__}: {str(error).splitlines()[0]}")
            continue
        path = Path(out, family, "config.json")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
