"""Errors of Python about None, a key or a name: what was not loaded, not saved, or not of the same release."""

from __future__ import annotations

import pytest

BEGIN = "Traceback (most recent call last):\n"
CASES = {
    "folder-hides-package": (
        (
            '  File "/x/site-packages/openrlhf/utils/utils.py", line 4, in <module>\n    from datasets import Dataset\n'
            "ImportError: cannot import name 'Dataset' from 'datasets' "
            "(/tmp/ray/working_dir_files/_pkg_1/datasets/__init__.py)\n"
        ),
        ("your-code", "A local datasets hides", "Rename"),
    ),
    "older-than-read": (
        (
            '  File "/x/site-packages/peft/utils/other.py", line 24, in <module>\n'
            "    from accelerate.utils import is_npu_available\nImportError: cannot import name "
            "'is_npu_available' from "
            "'accelerate.utils' (/x/site-packages/accelerate/utils/__init__.py)\n"
        ),
        ("accelerate", "does not have `is_npu_available`", "accelerate"),
    ),
    "either-side": (
        (
            '  File "/x/site-packages/unsloth/__init__.py", line 62, in <module>\n'
            "    from triton.common.build import libcuda_dirs\nModuleNotFoundError: No module named 'triton.common'\n"
        ),
        ("unsloth", "an older or a newer one runs", "a newer unsloth"),
    ),
    "class-of-its-own-question": (
        (
            '  File "/x/site-packages/vllm/engine/async_llm_engine.py", line 398, in from_engine_args\n   '
            " engine = cls(\n"
            '  File "/x/site-packages/transformers/configuration_utils.py", line 263, in __getattribute__\n'
            "    return super().__getattribute__(key)\n"
            "AttributeError: 'Qwen2MoeConfig' object has no attribute 'mlp_only_layers'\n"
        ),
        ("transformers", "does not have `mlp_only_layers` of Qwen2MoeConfig yet", "transformers"),
    ),
    "wrapped-module": (
        (
            '  File "/x/Megatron-LM/megatron/core/models/gpt/gpt_layer_specs.py", line 63, in get_spec\n'
            "    linear_qkv=TELayerNormColumnParallelLinear,\n"
            "NameError: name 'TELayerNormColumnParallelLinear' is not defined\n"
        ),
        ("transformer-engine", "not installed", "transformer-engine"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_left_it_out_is_named(name, first_match):
    log, (component, title, remedy) = CASES[name]
    match = first_match(BEGIN + log)
    assert match["component"] == component
    assert title in match["title"]
    assert any(
        remedy in f"{fix.get('note', '')} {fix.get('install', '')} {fix.get('change', '')}" for fix in match["fix"]
    )
