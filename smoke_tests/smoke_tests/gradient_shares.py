"""What of a gradient is as expected: its projection on the expected one, and the size of the rest.

Rounding has no direction and faults have one. So the signed share ``<g, r> / <r, r> - 1`` of a right gradient is much
smaller than the norm of its error ``|g - r| / |r|``: a gradient that is 5% short in bf16 has a share of -5e-2, where
rounding alone reaches a few 1e-3 in a matrix. The error is bounded by the kind of weight too, since a vector (a norm, a
bias) has few elements to average over.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch

from smoke_tests.outcomes import Failed

KINDS = (
    ("lora", r"\.lora_[AB]\."),
    ("key bias", r"\bk_proj\.bias$"),  # moves all scores of a query alike but for the rotation: it nearly cancels
    ("bias", r"\.bias$"),
    ("norm", r"norm\.weight$"),
    ("query", r"\bq_proj\.weight$"),
    ("key", r"\bk_proj\.weight$"),
    ("value", r"\bv_proj\.weight$"),
    ("output", r"\bo_proj\.weight$"),
    ("mlp", r"\bmlp\."),
    ("embedding", r"embed_tokens|lm_head"),
)


@dataclass(frozen=True)
class Bound:
    """The largest signed share and size of an error that gradients of a kind may have, at first and at later steps."""

    share: float
    size: float
    later_share: float
    later_size: float


BOUNDS = {
    "fp32": {
        "query": Bound(5.4e-8, 4.5e-6, 2.8e-7, 7.0e-6),
        "key": Bound(9.6e-8, 4.4e-6, 3.8e-7, 7.2e-6),
        "value": Bound(1.2e-7, 3.6e-6, 1.5e-7, 4.2e-6),
        "output": Bound(1.1e-7, 3.5e-6, 1.1e-7, 3.9e-6),
        "mlp": Bound(9.4e-8, 3.3e-6, 1.9e-7, 4.0e-6),
        "embedding": Bound(2.5e-8, 3.5e-6, 1.3e-7, 5.0e-6),
        "norm": Bound(3.7e-7, 4.5e-6, 7.2e-7, 5.9e-6),
        "bias": Bound(6.7e-7, 4.6e-6, 7.7e-7, 8.0e-6),
        "key bias": Bound(5.2e-7, 4.7e-6, 2.9e-6, 8.1e-6),
        "lora": Bound(6.7e-7, 4.7e-6, 2.9e-6, 8.1e-6),
    },
    "bf16": {
        "query": Bound(3.6e-3, 4.1e-2, 5.3e-3, 7.3e-2),
        "key": Bound(5.3e-3, 4.2e-2, 7.5e-3, 7.6e-2),
        "value": Bound(2.6e-3, 3.4e-2, 3.0e-3, 4.2e-2),
        "output": Bound(2.7e-3, 3.4e-2, 2.7e-3, 3.9e-2),
        "mlp": Bound(2.0e-3, 3.2e-2, 1.8e-3, 3.9e-2),
        "embedding": Bound(2.7e-3, 3.5e-2, 2.9e-3, 5.1e-2),
        "norm": Bound(8.7e-3, 4.6e-2, 1.1e-2, 7.0e-2),
        "bias": Bound(1.3e-2, 4.5e-2, 2.0e-2, 8.5e-2),
        "key bias": Bound(2.3e-2, 5.6e-2, 2.5e-2, 8.3e-2),
        "lora": Bound(2.3e-2, 5.6e-2, 2.5e-2, 8.5e-2),
    },
    "fp16": {
        "query": Bound(2.0e-4, 4.5e-3, 1.4e-4, 7.4e-3),
        "key": Bound(1.5e-4, 4.5e-3, 1.6e-4, 7.7e-3),
        "value": Bound(6.8e-5, 3.9e-3, 1.3e-4, 4.8e-3),
        "output": Bound(1.5e-4, 3.7e-3, 2.6e-4, 4.4e-3),
        "mlp": Bound(1.8e-4, 3.6e-3, 6.9e-5, 4.4e-3),
        "embedding": Bound(8.1e-5, 3.7e-3, 6.2e-5, 5.4e-3),
        "norm": Bound(3.9e-4, 4.5e-3, 1.1e-3, 6.1e-3),
        "bias": Bound(4.8e-4, 4.9e-3, 6.9e-4, 7.8e-3),
        "key bias": Bound(3.6e-4, 4.2e-3, 1.8e-3, 7.7e-3),
        "lora": Bound(4.8e-4, 4.9e-3, 1.8e-3, 7.8e-3),
    },
    "bf16-pure": {
        "query": Bound(5.3e-3, 6.1e-2, 8.0e-3, 1.1e-1),
        "key": Bound(7.9e-3, 6.3e-2, 1.2e-2, 1.2e-1),
        "value": Bound(3.8e-3, 5.1e-2, 4.5e-3, 6.3e-2),
        "output": Bound(4.0e-3, 5.0e-2, 4.0e-3, 5.8e-2),
        "mlp": Bound(3.0e-3, 4.8e-2, 2.6e-3, 5.8e-2),
        "embedding": Bound(4.0e-3, 5.2e-2, 4.3e-3, 7.6e-2),
        "norm": Bound(1.4e-2, 6.8e-2, 1.6e-2, 1.1e-1),
        "bias": Bound(1.9e-2, 6.8e-2, 3.0e-2, 1.3e-1),
        "key bias": Bound(3.4e-2, 8.4e-2, 3.7e-2, 1.3e-1),
        "lora": Bound(3.4e-2, 8.4e-2, 3.7e-2, 1.3e-1),
    },
    "fp16-pure": {
        "query": Bound(1.1e-3, 1.3e-2, 1.6e-3, 2.2e-2),
        "key": Bound(1.6e-3, 1.3e-2, 2.3e-3, 2.3e-2),
        "value": Bound(7.6e-4, 1.1e-2, 8.9e-4, 1.3e-2),
        "output": Bound(7.9e-4, 1.0e-2, 7.9e-4, 1.2e-2),
        "mlp": Bound(5.9e-4, 9.5e-3, 5.2e-4, 1.2e-2),
        "embedding": Bound(8.0e-4, 1.1e-2, 8.5e-4, 1.6e-2),
        "norm": Bound(2.7e-3, 1.4e-2, 3.1e-3, 2.1e-2),
        "bias": Bound(3.7e-3, 1.4e-2, 5.9e-3, 2.6e-2),
        "key bias": Bound(6.8e-3, 1.7e-2, 7.4e-3, 2.5e-2),
        "lora": Bound(6.8e-3, 1.7e-2, 7.4e-3, 2.6e-2),
    },
}


def kind_of(name: str) -> str:
    """The kind of weight that a parameter is, of those that have bounds of their own."""
    return next((kind for kind, pattern in KINDS if re.search(pattern, name)), "other")


def shares(gradients: dict[str, torch.Tensor | None], expected: dict[str, torch.Tensor]) -> dict[str, Any]:
    """For each parameter the signed share along the expected gradient and the norm of the error, relative to it.

    Both are sent from the device at once. Raises ``Failed`` for a parameter without a gradient.
    """
    lines = []
    for name, wanted in expected.items():
        found = gradients.get(name)
        if found is None:
            raise Failed(f"wrong-gradient: {name} got no gradient")
        difference = found.double().to(wanted.device) - wanted
        square = wanted.square().sum()
        lines.append(torch.stack([(difference * wanted).sum() / square, (difference.square().sum() / square).sqrt()]))
    return dict(zip(expected, torch.stack(lines).tolist()))


def magnitude(value: float) -> float:
    """The size of a number, of which NaN has the largest."""
    return abs(value) if value == value else float("inf")  # noqa: PLR0124


def worst_by_kind(found: dict[str, tuple[float, float]]) -> dict[str, dict[str, Any]]:
    """For each kind of weight the worst signed share and the worst size of the error, and whose the two are."""
    worst: dict[str, dict[str, Any]] = {}
    for name, (share, size) in found.items():
        own = worst.setdefault(kind_of(name), {"share": 0.0, "share_of": name, "size": 0.0, "size_of": name})
        for part, value in (("share", share), ("size", size)):
            if magnitude(value) > magnitude(own[part]):
                own[part], own[f"{part}_of"] = value, name
    return worst


def faults_in(worst: dict[str, dict[str, Any]], dtype: str, number: int) -> list[str]:
    """What is further off than gradients of a dtype are at a step, the kind that is furthest above its bound first."""
    found = []
    for kind, own in worst.items():
        bound = BOUNDS[dtype][kind]
        share, size = (bound.share, bound.size) if number == 1 else (bound.later_share, bound.later_size)
        over = max(magnitude(own["share"]) / share, magnitude(own["size"]) / size)
        if not over <= 1.0:
            text = (
                f"{kind} weights are off by {100 * own['share']:+.3g}% along the expected gradient"
                f" ({100 * share:.2g}% is allowed) and by {own['size']:.1e} in all ({size:.1e})"
            )
            found.append((over, text))
    return [text for _, text in sorted(found, reverse=True)]
