"""Builds of torch that are not the registry's default, `2.11.0+cu126`: what of the facts still holds for them. Pure."""

from __future__ import annotations

import re
from typing import Any

from knowngood.solving.factbook import Factbook


def torch_variant(book: Factbook, version: str, local: str) -> Factbook | None:
    """The facts with that build in them; `None` when it is the default build, or when there are no facts at all."""
    known = next((name for name in book.versions("torch") if _same(name, version)), None)
    if known is None:
        return None
    cuda = re.fullmatch(r"cu(\d{2,3})", local)
    built = f"{cuda[1][:-1]}.{cuda[1][-1]}" if cuda else None
    if built == book.fact("torch", known, "cuda"):
        return None
    facts: dict[str, Any] = {}
    if built:
        facts["cuda"] = built
        requires = book.fact("torch", known, "triton_requires")
        if requires:
            facts["requires"] = {"triton": requires}
    why = f"the facts are of the default index's build (CUDA {book.fact('torch', known, 'cuda')}), not of +{local}"
    return book.with_variant("torch", known, local, facts, why)


def _same(one: str, two: str) -> bool:
    from packaging.version import Version

    return Version(one) == Version(two)
