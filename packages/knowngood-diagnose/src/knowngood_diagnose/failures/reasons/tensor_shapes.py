"""What two tensors are whose sizes or dtypes do not fit, by the line of code and by the numbers. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

from knowngood.core.lazy_patterns import lazy_pattern
from knowngood_diagnose.failures.names.name_situation import advise
from knowngood_facts.compat.incident import Incident, OwnComponent

if TYPE_CHECKING:
    from knowngood_diagnose.failures.logs.last_errors import LastError

_SIZES = lazy_pattern(
    r"size of tensor a \((?P<a>\d+)\) must match the size of tensor b \((?P<b>\d+)\)"
    r".{0,40}?dimension (?P<dimension>\d+)"
    r"|expanded size of the tensor \((?P<to>\d+)\) must match the existing size \((?P<has>\d+)\)"
    r".{0,40}?dimension (?P<axis>\d+)"
)
_CHANNELS = lazy_pattern(r"to have (?P<taken>\d+) channels, but got (?P<given>\d+) channels")
_VIEWED = lazy_pattern(r"shape '\[.{1,60}\]' is invalid for input of size \d+")
_OF_IMAGES = lazy_pattern(r"_vl/|_vl_|vision|visual|pixel|patch|grid_thw", re.IGNORECASE)
_BATCHES = lazy_pattern(r"Expected input batch_size \((?P<rows>\d+)\) to match target batch_size \((?P<labels>\d+)\)")
_PRODUCT = lazy_pattern(
    r"shapes cannot be multiplied \((?P<rows>\d+)x(?P<given>\d+) and (?P<taken>\d+)x(?P<columns>\d+)\)"
)
_ROTARY = (
    "a is a dimension of the queries or keys, b of the rotary embedding's table. The positions were made for another "
    "length (position_ids with a dimension too many or of another batch, a sequence that was cut, padded or divided "
    "among ranks on one side only), or for heads of another size; or the code that makes them is of another release."
)
_MASK = (
    "One of them is the attention mask. It was made for another length than the keys have: a cache of earlier tokens "
    "that it leaves out, padding to another length, or code of another release that makes it."
)
_ADAPTER = (
    "a is the output of the layer, b what an adapter adds to it. The adapter was made for a layer of another width, or "
    "its code takes the output for as wide as the input, which keys and values of a model with grouped queries are not."
)
_POSITIONS = (
    "One of them is the table of positions: it is shorter than the sequence (max_position_embeddings), or was made for "
    "images or inputs of another size."
)


@dataclass(frozen=True, kw_only=True)
class _Place:
    """A line of code in which two tensors meet."""

    line: re.Pattern[str]
    title: str
    words: str
    fix: str


_PLACES = (
    _Place(
        line=lazy_pattern(r"\bcos\b.*\bsin\b"),
        title="The positions were made for another length or head size ({b}) than the queries and keys have ({a})",
        words=_ROTARY,
        fix="The release of transformers that the model's config.json names, when code of another project or of the "
        "model makes the positions; position_ids of the batch's own length, when the program makes them",
    ),
    _Place(
        line=lazy_pattern(r"\bmask\b|attention_mask|attn_mask|causal_mask|scaled_dot_product_attention"),
        title="The attention mask was made for another length: {a} and {b} do not fit",
        words=_MASK,
        fix="Where a project or the model's own code overrides the forward: the transformers that its "
        "requirements name. "
        "In your own code: a mask as long as input_ids with the cache, and texts cut to max_seq_length together with "
        "their mask",
    ),
    _Place(
        line=lazy_pattern(r"lora_|\bresult ?\+="),
        title="What the adapter adds has another width ({b}) than the layer's output ({a})",
        words=_ADAPTER,
        fix="The base model for which the adapter was trained",
    ),
    _Place(
        line=lazy_pattern(r"pos(?:ition)?_emb|position_embeddings|\+ ?(?:self\.)?(?:embed_)?positions?\b"),
        title="A sequence of {a} is longer than, or other than, the model's table of {b} positions",
        words=_POSITIONS,
        fix="Leave out, or cut, what is longer than the model takes (labels too: filter on the number of their tokens; "
        "truncation=True with max_length), or take a model with more positions",
    ),
)
"""A line of code -> what a and b are there."""


def describe_shapes(incident: Incident, error: LastError) -> Incident | None:
    """Return the failure with what its words and its line of code say of the two tensors; `None` for nothing."""
    return (
        describe_packed_sum(incident, error)
        or describe_sharded_sum(incident, error)
        or describe_mask_of_labels(incident, error)
        or describe_compared_embeddings(incident, error)
        or _describe_sum(incident, error)
        or _describe_product(incident, error)
        or _describe_channels(incident, error)
        or _describe_batches(incident, error)
        or _describe_pictures(incident, error)
    )


def _describe_sum(incident: Incident, error: LastError) -> Incident | None:
    """Two tensors that are added or multiplied element by element, or of which one is spread over the other."""
    sizes = _SIZES.search(error.message)
    code = error.frames[-1].code if error.frames else ""
    place = next((place for place in _PLACES if place.line.search(code)), None)
    if sizes is None or place is None:
        return None
    a, b = sizes["a"] or sizes["to"], sizes["b"] or sizes["has"]
    if "scaled_dot_product_attention" in code and error.frames[-1].installed and int(a) == 2 * int(b):
        return _describe_doubled_keys(incident, error, a, b)
    numbers = f"a has {a} and b has {b} in dimension {sizes['dimension'] or sizes['axis']}"
    because = f"In the line {code[:100]} {numbers}: {place.words[0].lower()}{place.words[1:]}"
    return replace(
        incident, title=place.title.format(a=a, b=b), because=because, fix=(advise(place.fix), *incident.fix)
    )


def _describe_doubled_keys(incident: Incident, error: LastError, keys: str, mask: str) -> Incident:
    """Keys that are exactly twice as many as the mask has: the same tokens were put into the cache a second time."""
    frame = error.frames[-1]
    return replace(
        incident,
        title=f"The keys ({keys}) are exactly twice as long as the mask ({mask}): most likely a cache grew in training",
        because=(
            f"In {'/'.join(frame.installed)}.py the mask has {mask} tokens and the keys {keys}, twice as many. That is "
            "so where a layer runs twice on the same tokens and adds to its key/value cache each time: gradient "
            "checkpointing computes it again in the backward pass while use_cache is on. Some releases of transformers "
            "do not turn the cache off there. (Or the cache of a step before was handed in.)"
        ),
        fix=(
            advise("model.config.use_cache = False (the text model's configuration too) before training"),
            advise("gradient_checkpointing off shows whether it is this; use_reentrant=False or True changes it too"),
            advise("Another transformers: the newest, or the one before the upgrade after which it failed"),
        ),
    )


def _describe_product(incident: Incident, error: LastError) -> Incident | None:
    """A product of matrices: which features came, and which the layer takes."""
    product = _PRODUCT.search(error.message)
    if product is None or product["given"] == product["taken"]:
        return None
    code = error.frames[-1].code if error.frames else ""
    given, taken = product["given"], product["taken"]
    if re.search(r"bnb|quant|dequantize|4bit", code) or taken == "1":
        because = (
            f"The input has {given} features and the weight has the shape {taken} x {product['columns']}: "
            "so long a row "
            "is a weight that bitsandbytes has packed (4 bits), which is used as if it were a plain one: a layer of "
            "another package or an old release took it over without unpacking it."
        )
        title = "A quantized weight is multiplied as if it were a plain one"
        return replace(incident, title=title, because=because)
    because = (
        f"The input has {given} features and the layer takes {taken}: look for these two numbers in the configuration "
        "(hidden_size, the width of the vision tower or the text encoder, the number of classes). Two "
        "parts that belong "
        "to different models are put together, or the input was flattened otherwise than the layer expects."
    )
    title = f"The input has {given} features, and the layer takes {taken}"
    return replace(incident, title=title, because=because)


def _describe_channels(incident: Incident, error: LastError) -> Incident | None:
    """A picture or a signal with another number of channels than the convolution takes."""
    stated = _CHANNELS.search(error.message)
    if stated is None:
        return None
    taken, given = stated["taken"], stated["given"]
    because = f"The convolution's weights are for {taken} channels, and the input has {given} in its second dimension."
    fix = (
        "Convert the input (image.convert('RGB') for pictures with transparency or in gray), or the number in_channels"
    )
    if {taken, given} & {"1", "3", "4"} == set():
        fix = "The configuration (in_channels, the latent's channels, the task) of the checkpoint that is loaded"
    title = f"The layer takes {taken} channels, and its input has {given}"
    return replace(incident, title=title, because=because, fix=(advise(fix), *incident.fix[:2]))


def _describe_pictures(incident: Incident, error: LastError) -> Incident | None:
    """The pixels of a model with images, which are not as many as the grid of the batch says."""
    frame = error.frames[-1] if error.frames else None
    if frame is None or not _VIEWED.search(error.message) or not _OF_IMAGES.search(f"{frame.path} {frame.code}"):
        return None
    because = (
        f"Line {frame.line} of {frame.short_file} cuts the pixels into the patches that the grid of the "
        "batch counts (image_grid_thw, video_grid_thw), and there are not so many: the two are of different images or "
        "videos. The collator has put rows together wrongly, images were left out or added on one side, or the reader "
        "of the video (decord, torchcodec, ffmpeg) gave other frames than it announced."
    )
    fix = (
        advise("Print pixel_values.shape and grid_thw.prod(-1).sum() of the batch: they must agree"),
        advise(
            "For videos: another reader, or one that fits its libraries (torchcodec with the ffmpeg that it names, or "
            "FORCE_QWENVL_VIDEO_READER=decord); for images: the processor and model of one release of transformers"
        ),
    )
    title = "The pixels and the grid of a batch with images or videos do not belong together"
    return replace(incident, title=title, because=because, fix=fix, component=OwnComponent.DATA)


def _describe_batches(incident: Incident, error: LastError) -> Incident | None:
    """A loss whose predictions and labels are not equally many."""
    stated = _BATCHES.search(error.message)
    if stated is None:
        return None
    rows, labels = int(stated["rows"]), int(stated["labels"])
    title = f"The loss gets {rows} predictions and {labels} labels"
    because = "Predictions and labels are paired one by one."
    if labels and rows and max(rows, labels) % min(rows, labels) == 0:
        times = max(rows, labels) // min(rows, labels)
        because += (
            f" One has {times} times as many as the other: labels for each token where the model gives one "
            "answer for a "
            "row, or the other way round (a class for the task, such as ForTokenClassification or "
            "ForSequenceClassification; problem_type for several labels in a row)."
        )
    else:
        because += " The sequences were cut, padded or divided (by images, by ranks, by a cache) on one side only."
    return replace(incident, title=title, because=because)


_FIRST_SIZES = lazy_pattern(
    r"size of tensor a \((?P<a>\d+)\) must match the size of tensor b \((?P<b>\d+)\).{0,40}?dimension 0"
)
_BROADCAST = lazy_pattern(
    r"output with shape \[(?P<has>[\d, ]+)\] doesn't match the broadcast shape \[(?P<wants>[\d, ]+)\]"
)
_PRODUCT_SIZES = lazy_pattern(r"cannot be multiplied \(\d+x(?P<first>\d+) and (?P<second>\d+)x\d+\)")
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
    stated = _PRODUCT_SIZES.search(error.message)
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


_TWO = lazy_pattern(r"got torch\.(?P<one>\w+) and torch\.(?P<other>\w+)")


def describe_mixed_dtypes(incident: Incident, error: LastError) -> Incident | None:
    """Say whose parameters have the two dtypes; `None` where the message does not name them."""
    dtypes = _TWO.search(error.message)
    if dtypes is None:
        return None
    pair = {dtypes["one"], dtypes["other"]}
    quantized = sorted(pair & {"int8", "uint8"})
    if not quantized:
        one, other = dtypes["one"], dtypes["other"]
        return replace(incident, title=f"FSDP cannot join parameters in {one} and in {other}")
    rest = next(iter(pair - set(quantized)), "another dtype")
    bits = "8 bits" if quantized == ["int8"] else "4 bits"
    without = advise("Without quantisation under FSDP, or with it and without FSDP (DDP, one GPU)")
    storage = advise(f"4 bits with bnb_4bit_quant_storage=torch.{rest}, so that all parameters have one dtype")
    return replace(
        incident,
        title=f"FSDP cannot join weights in {bits} ({quantized[0]}) with parameters in {rest}",
        because=(
            f"FSDP joins the parameters of a wrapped block into one tensor of one dtype. In {quantized[0]} are weights "
            f"that bitsandbytes quantised to {bits}, in {rest} the layers that it leaves (norms, embeddings), or an "
            "adapter."
        ),
        fix=(without, storage) if bits == "8 bits" else (storage, without),
    )
