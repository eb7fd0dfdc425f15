"""The name that a typing mistake was meant to be."""

from __future__ import annotations

import pytest

from knowngood.core.nearest_names import find_nearest_name

NAMES = ("isort", "torch", "torchao", "trl", "unsloth", "unsloth-zoo", "vllm", "flash-attn", "transformers")


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("unslot", "unsloth"),
        ("tranformers", "transformers"),
        ("trasnformres", "transformers"),
        ("flash-atn", "flash-attn"),
        ("tlr", "trl"),
        ("axolotl", None),
        ("torch", None),
        ("numpy", None),
    ],
)
def test_the_nearest_name_is_near_in_its_letters(name: str, nearest: str | None):
    assert find_nearest_name(name, NAMES) == nearest
