"""What is measured: a point is one way of training one shape. Its id has what is not default, in order."""

from __future__ import annotations

from dataclasses import dataclass, fields

WORDS = {
    "layout": ("dense", "padded", "packed"),
    "compiled": ("", "compiled", "compiled-layers"),
    "memory": ("", "checkpointing"),
    "loss": ("", "chunked"),
    "optimizer": ("", "adamw-foreach"),
    "weights": ("", "fp32-weights"),
    "tuned": ("", "lora"),
    "mask": ("", "causal"),
    "loop": ("", "trainer", "trl", "unsloth"),
    "cache": ("", "warm"),
}
"""Field of a point -> its values, the default first."""
TRAINERS = ("trl", "unsloth")
"""The loops that take rows or load the model by themselves, timed as they come, with checkpointing or without."""


@dataclass(frozen=True)
class Point:
    """One way of training.

    ``parse_point(str(point)) == point``. A step has ``rows`` rows of ``length`` tokens; packed, they are documents in
    one row.
    """

    shape: str
    setting: str
    length: int
    rows: int
    layout: str = "dense"
    compiled: str = ""  # the model as a whole, or each of its layers
    memory: str = ""
    loss: str = ""  # transformers' own, or from chunks of tokens whose logits are not kept
    optimizer: str = ""  # torch's fused AdamW
    weights: str = ""  # bf16, or fp32 under autocast
    tuned: str = ""  # all weights, or adapters beside them
    mask: str = ""  # what transformers makes, or none at all: the kernel's own causal one
    loop: str = ""  # the plain loop of this suite, or that of a trainer with its defaults
    cache: str = ""  # kernels are compiled into an empty folder, or taken from that of the same point before

    def __str__(self) -> str:
        words = [getattr(self, name) for name, values in WORDS.items() if getattr(self, name) != values[0]]
        return "/".join([self.shape, self.setting, f"{self.length}x{self.rows}", *words])


def parse_point(text: str) -> Point:
    """Return the point with this id; raises ``ValueError``, which says what is wrong."""
    shape, _, rest = text.partition("/")
    setting, _, rest = rest.partition("/")
    size, *words = rest.split("/")
    length, _, rows = size.partition("x")
    if not (length.isdecimal() and rows.isdecimal() and int(length) and int(rows)):
        raise ValueError(f"{text!r} is not SHAPE/SETTING/LENGTHxROWS with more words, such as {PLANS['table'][0]}")
    named = {value: name for name, values in WORDS.items() for value in values if value}
    unknown = [word for word in words if word not in named]
    if unknown:
        raise ValueError(f"{text!r}: {unknown[0]!r} is none of {', '.join(named)}")
    point = Point(shape, setting, int(length), int(rows), **{named[word]: word for word in words})
    if point.loop in TRAINERS and set(words) - {point.loop, "checkpointing"}:
        raise ValueError(f"{text!r}: beside {point.loop} only `checkpointing` can stand")
    return point


_REFERENCE = "qwen2.5-1.5b"
PLANS = {
    "table": (
        *(f"{_REFERENCE}/{setting}/4096x2" for setting in ("sdpa", "fa2", "fa4")),
        f"{_REFERENCE}/fa2/4096x2/compiled",
        f"{_REFERENCE}/sdpa/4096x2/compiled",
        *(f"{_REFERENCE}/{setting}/1024x8" for setting in ("sdpa", "fa2", "eager")),
        *(f"{_REFERENCE}/{setting}/8192x1" for setting in ("sdpa", "fa2")),
        f"{_REFERENCE}/sdpa/4096x2/checkpointing",
        f"{_REFERENCE}/sdpa-flash/4096x2",
        f"{_REFERENCE}/flex/4096x2",
        f"{_REFERENCE}/flex/8192x1",
    ),
    "reach": (
        f"{_REFERENCE}/sdpa/4096x2/compiled/causal",
        f"{_REFERENCE}/sdpa/4096x4/compiled/chunked/causal",
        f"{_REFERENCE}/fa2/4096x4/compiled/chunked",
        f"{_REFERENCE}/sdpa/4096x4/compiled/causal",
        f"{_REFERENCE}/sdpa/4096x2/compiled-layers/chunked/causal",
        f"{_REFERENCE}/fa2/4096x2/compiled/warm",
    ),
    "layouts": (
        *(f"{_REFERENCE}/{setting}/4096x2/packed" for setting in ("fa2", "sdpa", "flex")),
        *(f"{_REFERENCE}/{setting}/4096x2/padded" for setting in ("fa2", "sdpa")),
        f"{_REFERENCE}/fa2/4096x2/packed/compiled",
        f"{_REFERENCE}/sdpa/4096x2/fp32-weights",
        f"{_REFERENCE}/sdpa/4096x2/adamw-foreach",
        f"{_REFERENCE}/sdpa/4096x2/chunked",
    ),
    "shapes": (
        "qwen2.5-0.5b/sdpa/4096x2",
        "qwen2.5-0.5b/fa2/4096x2",
        "qwen2.5-7b/sdpa/4096x2/lora",
        "qwen2.5-7b/fa2/4096x2/lora",
        "qwen3-4b/sdpa/4096x2",
        "qwen3-4b/fa2/4096x2",
        "qwen3-30b-a3b-6-layers/sdpa/4096x2",
        "qwen3-30b-a3b-6-layers/fa2/4096x2",
    ),
    "trainer": (
        f"{_REFERENCE}/sdpa/4096x4/compiled/chunked/causal/trainer",
        f"{_REFERENCE}/fa2/4096x4/compiled/chunked/trainer",
        f"{_REFERENCE}/sdpa/4096x2/trainer",
    ),
    **{loop: tuple(f"{_REFERENCE}/sdpa/4096x2/{way}{loop}" for way in ("", "checkpointing/")) for loop in TRAINERS},
    "node": (f"{_REFERENCE}/sdpa/4096x2",),
    "tiny": ("tiny/sdpa/128x2", "tiny/eager/128x2", "tiny/sdpa/128x2/chunked", "tiny/sdpa/128x2/packed"),
}
"""Points by the name of a plan, in the order of what they say."""


def choose_points(plans: list[str], ids: list[str]) -> list[Point]:
    """Return the points of these plans, then those with these ids, each once."""
    return list(dict.fromkeys(map(parse_point, [*(text for plan in plans for text in PLANS[plan]), *ids])))


def differing_fields(left: Point, right: Point) -> list[str]:
    """Return the names of the fields in which two points differ."""
    return [field.name for field in fields(left) if getattr(left, field.name) != getattr(right, field.name)]
