"""Where functions stand in the files that tracebacks of known failures go through: release by release, line by line.

Kept apart from the other facts (`facts/lines/`), since only `knowngood diagnose` asks, and only of a log with such a
traceback.
"""

from __future__ import annotations

import ast
from functools import partial
from typing import TYPE_CHECKING

from knowngood.harvest import source
from knowngood.harvest.artefact import text
from knowngood.harvest.reading import Published, Reader, Reading, by_tags, sdist, wheel_or_sdist

if TYPE_CHECKING:
    from collections.abc import Mapping

    from knowngood.harvest.artefact import Artefact

Ranges = dict[str, list[list[int]]]
"""Function's name, as a traceback has it -> first and last line of each of that name."""

FILES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "transformers": {
        "transformers/models/llama/modeling_llama.py": (),
        "transformers/models/qwen2/modeling_qwen2.py": (),
        "transformers/modeling_flash_attention_utils.py": (),
        "transformers/modeling_utils.py": (
            "from_pretrained",
            "_autoset_attn_implementation",
            "_check_and_enable_flash_attn_2",
            "_flash_attn_2_can_dispatch",
            "_from_config",
            "_load_pretrained_model",
            "load_state_dict",
        ),
        "transformers/trainer.py": (
            "__init__",
            "train",
            "_inner_training_loop",
            "training_step",
            "compute_loss",
            "evaluate",
            "evaluation_loop",
            "prediction_step",
        ),
    },
    "flash-attn": {"flash_attn/flash_attn_interface.py": (), "flash_attn/bert_padding.py": ()},
    "transformer-engine": {
        "transformer_engine/pytorch/attention.py": ("forward", "backward", "attn_forward_func_with_cp")
    },
    "xtuner": {
        "xtuner/model/modules/dispatch/qwen2.py": (),
        "xtuner/model/modules/dispatch/llama.py": (),
    },
    "torch": {"torch/nn/modules/module.py": ("_call_impl", "_wrapped_call_impl")},
}
"""Package -> its files -> the functions of interest, all when none is named."""


def read(files: Mapping[str, tuple[str, ...]], artefact: Artefact, _: Published, reading: Reading) -> None:
    """Fill in the ranges of one release, for each file that it has."""
    for member, names in files.items():
        if member in artefact.members:
            reading.take(member, partial(_ranges, artefact, member, names), optional=True)


def _ranges(artefact: Artefact, member: str, names: tuple[str, ...]) -> Ranges | None:
    return ranges(source.parse(text(artefact, member), member), names) or None


def ranges(tree: ast.Module, names: tuple[str, ...] = ()) -> Ranges:
    """Where the functions of a file stand, those within others too."""
    found: Ranges = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (not names or node.name in names):
            found.setdefault(node.name, []).append([node.lineno, node.end_lineno or node.lineno])
    return {name: sorted(found[name]) for name in sorted(found)}


_CHOOSERS = {
    "flash-attn": sdist,
    "torch": by_tags("-cp311-", "-cp310-", "-cp312-"),
    "transformer-engine": by_tags("-any.whl"),
}

READERS: Mapping[str, Reader] = {
    package: Reader(
        package=package, revision=1, choose=_CHOOSERS.get(package, wheel_or_sdist), read=partial(read, files)
    )
    for package, files in FILES.items()
}
