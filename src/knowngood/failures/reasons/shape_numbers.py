"""What the numbers of two shapes say by themselves: a packed weight, one generated token, two embeddings. Pure."""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod

from knowngood.compat.incident import Incident, OwnComponent
from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.failures.logs.last_errors import LastError
from knowngood.failures.names.name_situation import advise

_FIRST_SIZES = lazy_pattern(
    r"size of tensor a \((?P<a>\d+)\) must match the size of tensor b \((?P<b>\d+)\).{0,40}?dimension 0"
)
_BROADCAST = lazy_pattern(
    r"output with shape \[(?P<has>[\d, ]+)\] doesn't match the broadcast shape \[(?P<wants>[\d, ]+)\]"
)
_PRODUCT = lazy_pattern(r"cannot be multiplied \(\d+x(?P<first>\d+) and (?P<second>\d+)x\d+\)")
_PAIR = lazy_pattern(
    r"(?:matmul|mm|einsum)\(\s*(?P<first>[\w.]+), ?(?P<second>[\w.]+?)\.(?:t\(\)|T\b|transpose|mT\b)"
    r"|(?P<left>[\w.]+) ?@ ?(?P<right>[\w.]+?)\.(?:t\(\)|T\b|transpose|mT\b)"
)
_PROJECTOR = lazy_pattern(r"projector|vision_tower|mm_proj|image_newline|visual_proj|vision_proj", re.IGNORECASE)
_MOST_ROWS = 1_000_000
"""No layer has so many rows: a weight that has is stored in another form."""
_OF_WEIGHTS = lazy_pattern(r"weight|state_dict|checkpoint|lora|param", re.IGNORECASE)
_MOST_SHARDS = 17
_MOST_LAYERS = 9
_QUERIES = 4
"""Attention scores have four dimensions: batch, heads, queries, keys."""


def describe_packed_sum(incident: Incident, error: LastError) -> Incident | None:
    """A weight of millions of rows, to which one of the layer's own shape is added: it is packed or flattened."""
    sizes = _FIRST_SIZES.search(error.message)
    if sizes is None:
        return None
    large, small = sorted((int(sizes["a"]), int(sizes["b"])), reverse=True)
    if large < _MOST_ROWS or small * 100 > large:
        return None
    is_packed = 2 * large % small == 0
    width = 2 * large // small if is_packed else 0
    code = error.frames[-1].code if error.frames else ""
    kind = f"{large} bytes hold {2 * large} values of 4 bits, which is {small} x {width}" if is_packed else ""
    because = (
        f"One side has {large} rows and the other {small}. No layer has so many rows: the weight is stored packed"
        + (f" to 4 bits (nf4): {kind}" if is_packed else " (4 bits), or flattened and divided by FSDP or ZeRO")
        + ". It is used here as if it were a plain weight"
        + (f", in the line {code[:100]}." if code else ".")
    )
    fixes = (
        advise(
            "Load the base model without quantization (bf16) for this step: merging or fusing a LoRA, or adding to "
            "weights, needs plain ones; or dequantize them first (bitsandbytes.functional.dequantize_4bit)"
        ),
        advise("A newer commit or release of what adds to the weights, which unpacks quantized ones"),
        advise("peft's own merge_and_unload knows quantized layers"),
    )
    title = f"A {'4-bit packed' if is_packed else 'packed or divided'} weight is used as if it were a plain one"
    return replace(incident, title=title, because=because, fix=fixes)


def describe_mask_of_labels(incident: Incident, error: LastError) -> Incident | None:
    """Scores of one generated token that meet the mask of a whole sequence."""
    stated = _BROADCAST.search(error.message)
    if stated is None:
        return None
    has, wants = ([int(number) for number in stated[side].split(",")] for side in ("has", "wants"))
    is_step = len(has) == len(wants) == _QUERIES and has[:3] == wants[:3] and has[2] == 1 and has[3] < wants[3]
    if not is_step:
        return None
    because = (
        f"The scores have the shape {has} (batch, heads, queries, keys): one token is generated, and {has[3]} is there "
        f"so far. What is added to them counts {wants[3]} keys: a mask of the whole target. A mask of the decoder "
        "(decoder_attention_mask in the batch) is as long as the labels, and generate at evaluation begins with one "
        "token; or a cache of another step was handed in."
    )
    fixes = (
        advise(
            "Leave decoder_attention_mask out of what the data set and the collator return: the loss takes -100 in the "
            "labels for padding, and generate makes its own mask"
        ),
        advise("Drop it before generate only: inputs.pop('decoder_attention_mask') in prediction_step"),
    )
    title = f"A mask for {wants[3]} keys meets {has[3]} generated: most likely a decoder_attention_mask in the batch"
    return replace(incident, title=title, because=because, fix=fixes, component=OwnComponent.YOUR_CODE)


def describe_compared_embeddings(incident: Incident, error: LastError) -> Incident | None:
    """Two embeddings that are compared, and have different widths; or features that a projector was not made for."""
    stated = _PRODUCT.search(error.message)
    frame = error.frames[-1] if error.frames else None
    if stated is None or frame is None or stated["first"] == stated["second"]:
        return None
    first, second = stated["first"], stated["second"]
    pair = _PAIR.search(frame.code)
    if pair is not None:
        names = [pair["first"] or pair["left"], pair["second"] or pair["right"]]
        because = (
            f"{frame.code[:120]} compares {names[0]}, which has {first} features, with {names[1]}, which has {second}. "
            "Each should be brought to a common width first: one of the two has no projection (it is left out or "
            "commented out for this kind of encoder), or the two encoders are of different models."
        )
        fixes = (
            advise(
                f"The encoder for which the project is written (another one of its versions, such as the ViT in place "
                f"of the ResNet), or a projection of {first} to {second} after it"
            ),
            advise("Print both shapes above that line, and look for a projection in the code of either encoder"),
        )
        title = f"{names[0]} has {first} features and {names[1]} {second}: one of them lacks its projection"
        return replace(incident, title=title, because=because, fix=fixes)
    if not any(_PROJECTOR.search(f"{item.path} {item.code}") for item in error.frames):
        return None
    because = (
        f"The features of the images are {first} wide, and the projector takes {second}: the vision tower that is "
        "loaded is another one than that for which the projector's weights were trained."
    )
    times = int(second) // int(first)
    if 1 < times < _MOST_LAYERS and int(second) == times * int(first):
        return _describe_layers(incident, first, second, times)
    fixes = (
        advise("The vision tower that the checkpoint's config.json names (mm_vision_tower, vision_config)"),
        advise("Or train the projector anew for this tower (pretraining), without the old projector's weights"),
    )
    title = f"The vision tower gives {first} features, and the projector takes {second}"
    return replace(incident, title=title, because=because, fix=fixes)


def _describe_layers(incident: Incident, first: str, second: str, times: int) -> Incident:
    because = (
        f"The features of the images are {first} wide, and the projector takes {second}, exactly {times} times as "
        f"many: those of {times} layers of the vision tower (or of {times} towers or neighbours) side by side. Here "
        "the code passes those of one only."
    )
    fixes = (
        advise(
            f"The project's own vision tower and its setting of layers (mm_vision_select_layer, select_feature), which "
            f"return the {times} together; not the tower of the project that it was derived from"
        ),
        advise("The tower that the checkpoint's config.json names, when the project takes one layer"),
    )
    title = f"The projector takes the features of {times} layers ({second}), and gets those of one ({first})"
    return replace(incident, title=title, because=because, fix=fixes)


def describe_sharded_sum(incident: Incident, error: LastError) -> Incident | None:
    """Two weights of which one is exactly a few times the other: one side is divided into shards."""
    sizes = _FIRST_SIZES.search(error.message)
    code = error.frames[-1].code if error.frames else ""
    if sizes is None or not _OF_WEIGHTS.search(code):
        return None
    large, small = sorted((int(sizes["a"]), int(sizes["b"])), reverse=True)
    times = large // small if small else 0
    if not 1 < times < _MOST_SHARDS or large != times * small:
        return None
    because = (
        f"In the line {code[:100]} a weight of {small} rows meets one of {large}, exactly {times} times as many: one "
        f"side is the whole weight, and the other one of {times} parts of it (a checkpoint in {times} files for as "
        "many GPUs, tensor parallel ranks, or queries, keys and values in one)."
    )
    fixes = (
        advise(f"Join the {times} files of the checkpoint first, or take the model in the form of one (the hub's)"),
        advise("A newer commit of the script, which takes the part of the other side that belongs to each file"),
    )
    title = f"One side is a whole weight, the other most likely one of its {times} parts ({large} and {small} rows)"
    return replace(incident, title=title, because=because, fix=fixes)


def is_packed_to_four_bits(packed: list[str], plain: list[str]) -> bool:
    """Whether one shape is that of a weight in 4 bits, two values a byte, and the other that of the same weight."""
    numbers = [int(text) for text in packed if text], [int(text) for text in plain if text]
    return len(numbers[0]) == len(packed) and numbers[0][-1:] == [1] and 2 * prod(numbers[0]) == prod(numbers[1])
