"""Which lines functions take up in the files that tracebacks of known failures go through, release by release.

They are kept apart from the other facts, in `facts/lines/`, because only `knowngood diagnose` needs them, and only for
a log with such a traceback. No command reads them yet; this does, with the floors of matrix.yaml:

    harvest_facts([], folder=Path("facts/lines"), floors=floors, notify=print, readers=LINE_READERS)
"""

from __future__ import annotations

import ast
from functools import partial
from typing import TYPE_CHECKING

from knowngood.index.artefact import read_text_member
from knowngood.index.releases import IndexedRelease, choose_wheel_by
from knowngood_facts.facts import python_source
from knowngood_facts.facts.fact_reader import FactReader, ReleaseReading, choose_sdist, choose_wheel_or_sdist

if TYPE_CHECKING:
    from collections.abc import Mapping

    from knowngood.index.artefact import Artefact

Ranges = dict[str, list[list[int]]]
"""Name of a function, as in a traceback -> first and last line of each function of that name."""

TRACEBACK_FILES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
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
"""Package -> its files -> the functions of interest; no names means all functions."""


def read_function_lines(
    files: Mapping[str, tuple[str, ...]], artefact: Artefact, _: IndexedRelease, reading: ReleaseReading
) -> None:
    """Record the function ranges of one release for each of `files` that it has."""
    for member, names in files.items():
        if member in artefact.members:
            reading.take(member, partial(_ranges, artefact, member, names), optional=True)


def _ranges(artefact: Artefact, member: str, names: tuple[str, ...]) -> Ranges | None:
    return find_function_ranges(python_source.parse_python(read_text_member(artefact, member), member), names) or None


def find_function_ranges(tree: ast.Module, names: tuple[str, ...] = ()) -> Ranges:
    """Return the ranges of the functions in a file, nested ones included; `names` restricts it to these names."""
    ranges: Ranges = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (not names or node.name in names):
            ranges.setdefault(node.name, []).append([node.lineno, node.end_lineno or node.lineno])
    return {name: sorted(ranges[name]) for name in sorted(ranges)}


_CHOOSERS = {
    "flash-attn": choose_sdist,
    "torch": choose_wheel_by("-cp311-", "-cp310-", "-cp312-"),
    "transformer-engine": choose_wheel_by("-any.whl"),
}

LINE_READERS: Mapping[str, FactReader] = {
    package: FactReader(
        package=package,
        revision=1,
        model=None,
        choose=_CHOOSERS.get(package, choose_wheel_or_sdist),
        read=partial(read_function_lines, files),
    )
    for package, files in TRACEBACK_FILES.items()
}
