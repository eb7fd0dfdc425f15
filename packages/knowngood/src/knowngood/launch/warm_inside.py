"""Runs in a cell's image, with its Python: the first training step under each setting that compiles at first use.

    warm_inside.py            each setting in a process of its own; the last line is JSON, the seconds of each
    warm_inside.py SETTING    one of them

A tiny Qwen2 is made on the spot. FlashAttention 4 compiles a kernel for each size of a head and each number of heads
that share keys, so those of common models are compiled for it.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
import time
from typing import Any

SETTINGS = {
    "compile": ("sdpa", "torch", True),
    "flex": ("flex_attention", "torch", False),
    "fa4": ("flash_attention_4", "flash_attn.cute", False),
}
"""By name: what transformers calls it, the module that it needs, and whether the model is compiled as a whole."""
LIMIT_SECONDS = 900
HEAD_SIZES = (64, 128)
SHARING = (1, 2, 4, 8)
"""How many heads share keys and values."""


def list_shapes(setting: str) -> list[tuple[int, int]]:
    """Return (head size, heads that share keys) for each model of a setting; the first one is measured."""
    if setting != "fa4":
        return [(64, 2)]
    return [(64, 2), *((size, sharing) for size in HEAD_SIZES for sharing in SHARING if (size, sharing) != (64, 2))]


def measure_setting(setting: str) -> dict[str, Any]:
    """Return the seconds of the first step under a setting, and of all of its models."""
    torch: Any = importlib.import_module("torch")
    implementation, _, whole = SETTINGS[setting]
    gpu = torch.cuda.is_available()
    if not (gpu or whole):
        sys.exit("it trains on a GPU only")
    transformers: Any = importlib.import_module("transformers")
    half = gpu and torch.cuda.get_device_capability() >= (8, 0)
    seconds: list[float] = []
    for size, sharing in list_shapes(setting):
        config = transformers.Qwen2Config(
            vocab_size=320,
            hidden_size=8 * size,
            intermediate_size=1024,
            num_hidden_layers=2,
            num_attention_heads=8,
            num_key_value_heads=8 // sharing,
            use_cache=False,
        )
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=implementation)
        model = model.to(device="cuda" if gpu else "cpu", dtype=torch.bfloat16 if half else torch.float32)
        step = torch.compile(model) if whole else model
        tokens = torch.randint(0, 320, (2, 128), device=model.device)
        start = time.perf_counter()
        step(input_ids=tokens, labels=tokens).loss.backward()
        if gpu:
            torch.cuda.synchronize()
        seconds.append(round(time.perf_counter() - start, 3))
    return {"first_step": seconds[0], "all": round(sum(seconds), 3)}


def run_setting(setting: str) -> dict[str, Any]:
    """Return what a process of its own measured for a setting, or why it did not train."""
    module = SETTINGS[setting][1]
    try:
        present = importlib.util.find_spec(module) is not None
    except ImportError:
        present = False
    if not present:
        return {"problem": f"{module} is not in the image"}
    try:
        result = subprocess.run(
            [sys.executable, __file__, setting], capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return {"problem": f"it did not end within {LIMIT_SECONDS} s"}
    lines = [line for line in (result.stderr if result.returncode else result.stdout).splitlines() if line.strip()]
    if result.returncode:
        print(result.stderr, file=sys.stderr)
        return {"problem": lines[-1][:300] if lines else f"exit code {result.returncode}"}
    return dict(json.loads(lines[-1]))


if __name__ == "__main__":
    answer = measure_setting(sys.argv[1]) if len(sys.argv) > 1 else {name: run_setting(name) for name in SETTINGS}
    print(json.dumps(answer))
