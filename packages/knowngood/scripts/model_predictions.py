"""Write what the model suite should observe with the transformers of an environment, before it runs there.

    python model_predictions.py SITE_PACKAGES [cpu|gpu]

It reads the sources of all families of the suite, and of every other model that has a run in `evidence/models`, and
writes `smoke_tests/model-predictions/transformers-RELEASE-DEVICE.json`. `cpu` is the default; `gpu` is one of sm_90
with flash-attn 2 and FlashAttention 4. The suite compares each prediction with what it observed. What the
sources leave open (which kernel of the hub stands in for a missing package) is not predicted.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Literal

from knowngood.core.local_files import write_atomically
from knowngood.evidence.model_runs import MODEL_RUNS_FOLDER
from knowngood.project import checkout
from knowngood.smoke.model_config import PREDICTIONS_FOLDER, PredictedModelCheck, read_families
from knowngood.smoke.predictions import PredictedOutcome

_FLASH = ("fa2", "fa3", "fa4")
_MASKED = ("sdpa-efficient", "sdpa-cudnn")
"""The kernels of SDPA for a GPU that take a mask, as the runs of the smoke suite show."""
_WIDEST_CUDNN = 128
"""Elements of a head; whether cuDNN takes wider ones is not predicted."""
_WIDEST_FLASH = 256
"""Elements of a head, as flash-attn 2 asks (`csrc/flash_attn/flash_api.cpp` of 2.8.3.post2)."""
_MASK_MAKERS = ("create_causal_mask", "mask_function")
"""What a model calls for its masks; the second is its name for one of two functions, where a window is optional."""
_WIDE_WINDOW = "(sliding_window, sliding_window)"
"""How transformers before 4.56 states the window: flash-attn does not count the token itself."""
_GROUPS_WITHOUT_MASK = "def use_gqa_in_sdpa(attention_mask"
"""The function by which transformers decides whether SDPA is given shared keys as they are."""
_WIDTHS = ("head_dim", "global_head_dim")
"""Fields of a configuration: the elements of a head, and of a head in layers without a window (Gemma 4)."""
_STATEFUL = re.compile(r"GatedDelta|Mamba|Mixer|LinearAttention")

Device = Literal["cpu", "gpu"]
"""`gpu` is one of sm_90, beside flash-attn 2 and FlashAttention 4."""

ModelPredictions = dict[str, PredictedModelCheck]
"""A glob over the ids of checks -> its prediction; of several that match, the longest counts."""


@dataclass(frozen=True, kw_only=True)
class FamilySources:
    """What the sources of a release say of a family's attention."""

    supports: Mapping[str, bool]
    """`_supports_sdpa`, `_supports_flash_attn`, `_supports_flash_attn_2`, as the models' base class states them."""
    knows_fa4: bool
    """Whether the release has a name for FlashAttention 4; one that has none calls the setting unknown."""
    compatible_flash: bool
    """Whether the models name the only flash attention implementations that they take."""
    passes_sinks: bool
    """Whether the module passes attention sinks (`s_aux`) to the attention function."""
    softcap: float | None
    """The default of `attn_logit_softcapping`, where the module passes it to the attention function."""
    sdpa_takes_softcap: bool
    """Whether the function of SDPA names the soft-cap, be it to apply or to refuse it."""
    masks_see_positions: bool
    """Whether the masks are made with `position_ids`, by which packed samples are found."""
    stateful: bool
    """Whether some layers carry a state from token to token beside attention."""
    one_head_width: bool
    """Whether keys and values have heads of one width."""
    head_width: int | None
    """Elements of a head by the configuration's defaults, where they say it."""
    wide_window: bool
    """Whether the model has a sliding window by its defaults, and flash-attn is given one token more than that."""
    passes_groups: bool
    """Whether query heads share keys by the defaults, and SDPA is given these as they are where there is no mask."""


def read_family_sources(modeling: str, configuration: str, sdpa: str, flash: str) -> FamilySources:
    """Read a family's two files, `integrations/sdpa_attention.py` and `modeling_flash_attention_utils.py`.

    Raises `SyntaxError` where one of the family's files is no Python.
    """
    tree = ast.parse(modeling)
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    stated: dict[str, ast.expr] = {}
    for node in classes:
        if node.name.endswith("PreTrainedModel"):
            stated |= {
                target.id: item.value
                for item in node.body
                if isinstance(item, ast.Assign)
                for target in item.targets
                if isinstance(target, ast.Name)
            }
    defaults = _read_defaults(configuration)
    key_width = (defaults.get("qk_nope_head_dim") or 0) + (defaults.get("qk_rope_head_dim") or 0)
    passed = {keyword.arg for node in ast.walk(tree) if isinstance(node, ast.Call) for keyword in node.keywords}
    return FamilySources(
        supports={
            name: isinstance(value, ast.Constant) and value.value is True
            for name, value in stated.items()
            if name.startswith("_supports_")
        },
        knows_fa4="flash_attention_4" in flash,
        compatible_flash="_compatible_flash_implementations" in stated,
        passes_sinks="s_aux" in passed,
        softcap=defaults.get("attn_logit_softcapping") if "softcap" in passed else None,
        sdpa_takes_softcap="softcap" in sdpa,
        masks_see_positions=_masks_see_positions(tree),
        stateful=any(_STATEFUL.search(node.name) for node in classes),
        one_head_width=key_width in (0, defaults.get("v_head_dim")),
        head_width=_head_width(defaults),
        wide_window=(
            "sliding_window" in passed
            and bool(defaults.get("sliding_window") and defaults.get("use_sliding_window", True))
            and _WIDE_WINDOW in flash
        ),
        passes_groups=_shares_keys(defaults) and _GROUPS_WITHOUT_MASK in sdpa,
    )


def _shares_keys(defaults: Mapping[str, Any]) -> bool:
    """Return whether several query heads have one head of keys and values."""
    groups = defaults.get("num_key_value_heads")
    return groups is not None and groups != defaults.get("num_attention_heads")


def _head_width(defaults: Mapping[str, Any]) -> int | None:
    """Return the widest that a field states, or what `hidden_size` and `num_attention_heads` make of it."""
    stated = [defaults.get(name) for name in _WIDTHS]
    if widths := [width for width in stated if isinstance(width, int)]:
        return max(widths)
    hidden, heads = defaults.get("hidden_size"), defaults.get("num_attention_heads")
    return hidden // heads if isinstance(hidden, int) and isinstance(heads, int) and heads else None


def _read_defaults(configuration: str) -> dict[str, Any]:
    """Return the default of each field of the configuration classes in a file that is a number, text or `None`.

    A field may be one that is taken out of further arguments: `kwargs.pop("global_head_dim", 512)`.
    """
    defaults: dict[str, Any] = {}
    for node in ast.walk(ast.parse(configuration)):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            pairs = [(node.target.id, node.value)]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "pop":
            match node.args:
                case [ast.Constant(value=str(name)), value]:
                    pairs = [(name, value)]
                case _:
                    continue
        elif isinstance(node, ast.FunctionDef) and node.name == "__init__":
            names = [argument.arg for argument in node.args.args]
            pairs = list(zip(names[len(names) - len(node.args.defaults) :], node.args.defaults, strict=True))
        else:
            continue
        defaults |= {name: value.value for name, value in pairs if isinstance(value, ast.Constant)}
    return defaults


def _masks_see_positions(tree: ast.Module) -> bool:
    """Return whether every call that makes a causal mask, or the arguments prepared for one, has `position_ids`."""
    answers: list[bool] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            keys = [key.value for key in node.value.keys if isinstance(key, ast.Constant)]
            if any(isinstance(target, ast.Name) and target.id == "mask_kwargs" for target in node.targets):
                answers.append("position_ids" in keys)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _MASK_MAKERS:
            names = [keyword.arg for keyword in node.keywords]
            if None not in names:
                answers.append("position_ids" in names)
    return bool(answers) and all(answers)


def predict_model_checks(model_type: str, sources: FamilySources, device: Device = "cpu") -> ModelPredictions:
    """Return the outcomes of a family's checks, on a CPU without packages of kernels or on a GPU with them."""
    outcomes = _cpu_outcomes(sources) if device == "cpu" else _gpu_outcomes(sources)
    return {
        f"{model_type}/{check}": {"outcome": outcome, "because": because}
        for check, outcome, because in (*_shared_outcomes(sources, device), *outcomes)
    }


_Outcomes = Iterator[tuple[str, PredictedOutcome, str]]


def _shared_outcomes(sources: FamilySources, device: Device) -> _Outcomes:
    yield "formulas/*", "pass", "eager attention follows the configuration in every family that was tried"
    for setting in ("eager", "sdpa", "sdpa-math"):
        yield from _right_outcomes(setting, sources)
    if not sources.supports.get("_supports_sdpa", False):
        for setting in ("sdpa-flash", *_MASKED):
            yield f"{setting}/*", "refused", "the model states no SDPA"
    elif device == "cpu" and not sources.one_head_width:
        yield "sdpa-flash/*", "refused", "torch's flash kernel for a CPU takes keys and values of one width"
    elif device == "cpu":
        yield from _right_outcomes("sdpa-flash", sources)


def _cpu_outcomes(sources: FamilySources) -> _Outcomes:
    yield "speed/*", "not-run", "time is measured on a GPU only"
    yield "flex/*", "refused", "FlexAttention has no backward on the CPU"
    for setting in _FLASH:
        if sources.compatible_flash and setting != "fa4":
            continue
        known = _states_flash(setting, sources) or (setting == "fa4" and not sources.knows_fa4)
        because = "no package of its kernels is installed" if known else "the model states no flash attention"
        yield f"{setting}/*", "not-run" if known else "refused", because
    if sources.supports.get("_supports_sdpa", False):
        for setting in _MASKED:
            yield f"{setting}/*", "refused", "torch has no such kernel for a CPU"


def _gpu_outcomes(sources: FamilySources) -> _Outcomes:
    if sources.supports.get("_supports_sdpa", False):
        yield from _gpu_sdpa_outcomes(sources)
    if sources.supports.get("_supports_flex_attn", False) and sources.one_head_width:
        yield from _right_outcomes("flex", sources)
    if not sources.compatible_flash:
        yield from _fa2_outcomes(sources)


def _gpu_sdpa_outcomes(sources: FamilySources) -> _Outcomes:
    """The packed and padded layouts have a mask under SDPA, which decides what its kernels take."""
    for layout in ("left-padded", "packed"):
        yield f"sdpa-flash/*/{layout}", "refused", "torch's flash kernel for a GPU takes no mask"
    wide = sources.head_width is None or sources.head_width > _WIDEST_CUDNN
    for setting in _MASKED:
        if sources.one_head_width and not (setting == "sdpa-cudnn" and wide):
            yield from _right_outcomes(setting, sources)
    if sources.passes_groups:
        yield "sdpa-efficient/*/dense", "refused", "without a mask it is given shared keys, which it does not take"


def _fa2_outcomes(sources: FamilySources) -> _Outcomes:
    if not _states_flash("fa2", sources):
        yield "fa2/*", "refused", "the model states no flash attention"
        return
    if sources.passes_sinks:
        yield "fa2/*", "fail", "the model has attention sinks, and the functions of flash-attn 2 take none"
    elif sources.wide_window:
        yield "fa2/*", "fail", "the model has a sliding window, which is one token too wide under flash-attn 2"
    elif (sources.head_width or 0) > _WIDEST_FLASH:
        yield "fa2/*", "refused", f"flash-attn 2 has no kernel for heads wider than {_WIDEST_FLASH}"
    else:
        yield from _right_outcomes("fa2", sources)
    for layouts in ("*", "packed", "packed-varlen"):  # of several globs that match, the longest counts
        yield f"fa2/fp32/{layouts}", "refused", "flash-attn 2 has kernels for bf16 and fp16 alone"


def _states_flash(setting: str, sources: FamilySources) -> bool:
    known = sources.supports.get("_supports_flash_attn", False)
    return known or (setting == "fa2" and sources.supports.get("_supports_flash_attn_2", False))


def _right_outcomes(setting: str, sources: FamilySources) -> _Outcomes:
    """What a setting does whose kernels are there and take the model's heads."""
    scaled_dot_product = setting.startswith("sdpa")
    if scaled_dot_product and not sources.supports.get("_supports_sdpa", False):
        yield f"{setting}/*", "refused", "the model states no SDPA"
    elif scaled_dot_product and sources.softcap is not None:
        what = "raises an error for it" if sources.sdpa_takes_softcap else "ignores it"
        yield f"{setting}/*", "fail", f"the model has a soft-cap of {sources.softcap} and the function of SDPA {what}"
    else:
        yield f"{setting}/*", "pass", "its rule of attention is one that this setting has"
        if sources.stateful:
            because = "layers that carry a state are not told where a packed sample begins"
            for layout in ("packed", "packed-varlen") if setting == "fa2" else ("packed",):
                yield f"{setting}/*/{layout}", "fail", because
        elif setting != "fa2" and not sources.masks_see_positions:
            yield f"{setting}/*/packed", "fail", "the masks are made without position_ids"


def main(site_packages: str, device: Device = "cpu") -> None:
    """Write the predictions for the transformers of an environment."""
    root = Path(site_packages)
    release = next(item.version for item in distributions(path=[str(root)]) if item.name == "transformers")
    project = checkout.find_project()
    sdpa = (root / "transformers/integrations/sdpa_attention.py").read_text(encoding="utf-8")
    flash = (root / "transformers/modeling_flash_attention_utils.py").read_text(encoding="utf-8")
    predictions = {}
    families = {str(fields["model_type"]) for fields in read_families(project.model_suite).values()}
    families |= {path.name for path in (project.evidence / MODEL_RUNS_FOLDER).iterdir()}
    for model_type in sorted(families):
        folder = root / "transformers/models" / model_type.removesuffix("_text")
        if folder.is_dir():
            modeling, configuration = (
                (folder / f"{kind}_{folder.name}.py").read_text(encoding="utf-8")
                for kind in ("modeling", "configuration")
            )
            sources = read_family_sources(modeling, configuration, sdpa, flash)
            predictions |= predict_model_checks(model_type, sources, device)
    path = project.root / PREDICTIONS_FOLDER / f"transformers-{release}-{device}.json"
    write_atomically(path, json.dumps(predictions, indent=1) + "\n")
    print(f"{len(predictions)} predictions: {path}")


if __name__ == "__main__":
    main(*sys.argv[1:])  # type: ignore[arg-type]
