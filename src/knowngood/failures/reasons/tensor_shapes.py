"""What two tensors are whose sizes do not fit, by the line of code in which they meet. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from knowngood.compat.incident import Incident, OwnComponent
from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.failures.logs.last_errors import LastError
from knowngood.failures.names.name_situation import advise
from knowngood.failures.reasons.shape_numbers import (
    describe_compared_embeddings,
    describe_mask_of_labels,
    describe_packed_sum,
    describe_sharded_sum,
)

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
