"""What of a gradient is as expected: its projection on the expected one, and the size of the rest.

Rounding has no direction and faults have one. So the signed share ``<g, r> / <r, r> - 1`` of a right gradient is much
smaller than the norm of its error ``|g - r| / |r|``: a gradient that is 5% short in bf16 has a share of -5e-2, where
rounding alone reaches a few 1e-3 in a matrix. The error is bounded by the kind of weight too, since a vector (a norm, a
bias) has few elements to average over.
"""

from __future__ import annotations

import re
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
