"""The precisions in which the tiny model is trained, as people train.

``bf16`` and ``fp16`` keep fp32 master weights and compute under autocast; fp16 adds loss scaling and
clipping. The ``-pure`` twins hold the weights themselves in the low precision. They train with plain SGD:
AdamW's epsilon of 1e-8 is zero in fp16, and a pure fp16 model goes to NaN at its second AdamW step under
every attention setting (seen on an H200), which says nothing about attention.

torch is imported by nobody here: the names are torch's own and are looked up where they are used.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Precision:
    """How weights are held and computed, and how far from the fp64 reference the outcome may lie.

    ``loss`` bounds |loss - reference| / reference at the first step, ``gradient`` bounds ||g - r|| / ||r||
    for the worst parameter (by kind of weight: ``gradient_shares``); ``later_loss`` is for the steps after the first.
    docs/decisions/0201 has the measurements behind the numbers. ``schedule`` is
    transformers' name of the one by which the rate changes.
    """

    name: str
    weights: str
    autocast: str | None
    loss: float
    gradient: float
    later_loss: float
    scaled: bool = False
    clip: float | None = None
    optimizer: str = "adamw"
    schedule: str = "cosine"


PRECISIONS = {
    precision.name: precision
    for precision in (
        Precision("fp32", "float32", None, loss=1e-6, gradient=2e-5, later_loss=2e-6),
        Precision(
            "bf16", "float32", "bfloat16", loss=6e-4, gradient=8e-2, later_loss=2e-3, clip=1.0, schedule="linear"
        ),
        Precision(
            "fp16",
            "float32",
            "float16",
            loss=6e-5,
            gradient=8e-3,
            later_loss=3e-4,
            scaled=True,
            clip=1.0,
            schedule="constant",
        ),
        Precision(
            "bf16-pure",
            "bfloat16",
            None,
            loss=8e-4,
            gradient=8e-2,
            later_loss=2e-3,
            optimizer="sgd",
            schedule="constant",
        ),
        Precision(
            "fp16-pure",
            "float16",
            None,
            loss=1.5e-4,
            gradient=3e-2,
            later_loss=3e-4,
            optimizer="sgd",
            schedule="constant",
        ),
    )
}
