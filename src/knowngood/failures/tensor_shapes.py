"""What two tensors are whose sizes do not fit, by the line of code in which they meet. Pure."""

from __future__ import annotations

import re
from dataclasses import replace

from knowngood.compat.incident import Incident
from knowngood.failures.last_errors import LastError

SHAPES_INCIDENT = "tensor-shapes"
"""The known failure that says of any two tensors that their shapes do not fit."""
_SIZES = re.compile(
    r"size of tensor a \((?P<a>\d+)\) must match the size of tensor b \((?P<b>\d+)\)"
    r".{0,40}?dimension (?P<dimension>\d+)"
)
_PRODUCT = re.compile(
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
_PLACES = (
    (re.compile(r"\bcos\b.*\bsin\b"), _ROTARY),
    (re.compile(r"\bmask\b|attention_mask|attn_mask|causal_mask"), _MASK),
    (re.compile(r"lora_|\bresult ?\+="), _ADAPTER),
    (re.compile(r"pos(?:ition)?_emb|position_embeddings"), _POSITIONS),
)
"""A line of code -> what a and b are there."""


def describe_shapes(incident: Incident, error: LastError | None) -> Incident:
    """Return the failure with what its line of code says of the two tensors; unchanged where that is not known."""
    if error is None or incident.id != SHAPES_INCIDENT:
        return incident
    sentence = _describe_sum(error) or _describe_product(error)
    return replace(incident, because=f"{incident.because} {sentence}") if sentence else incident


def _describe_sum(error: LastError) -> str:
    """What is known of two tensors that are added or multiplied element by element."""
    sizes = _SIZES.search(error.message)
    code = error.frames[-1].code if error.frames else ""
    words = next((words for pattern, words in _PLACES if pattern.search(code)), "")
    if sizes is None or not words:
        return ""
    numbers = f"a has {sizes['a']} and b has {sizes['b']} in dimension {sizes['dimension']}"
    return f"Here {numbers}, in the line {code[:100]}: {words[0].lower()}{words[1:]}"


def _describe_product(error: LastError) -> str:
    """What is known of a product of matrices: which features came, and which the layer takes."""
    product = _PRODUCT.search(error.message)
    if product is None:
        return ""
    return (
        f"The input has {product['given']} features and the layer takes {product['taken']}: look for these two numbers "
        "in the configuration (hidden_size, the width of the vision tower, the number of classes)."
    )
