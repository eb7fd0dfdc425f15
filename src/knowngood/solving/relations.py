"""What a condition of a rule can say of a value, besides a specifier: one small pure function a relation.

The rules of binary compatibility are NVIDIA's ("CUDA C++ Programming Guide", section on binary and PTX compatibility;
"CUDA C++ Best Practices", on architecture- and family-specific features).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

_ARCH = re.compile(r"(\d+)([af]?)")


def sm(text: str) -> tuple[int, int]:
    """Major and minor of a compute capability: `sm_90`, `90` and `90a` are (9, 0), `121` is (12, 1)."""
    digits = _ARCH.fullmatch(text.removeprefix("sm_"))
    if digits is None:
        raise ValueError(f"{text!r} is not an architecture")
    return int(digits[1][:-1]), int(digits[1][-1])


def runs(gpu: str, sass: Iterable[str], ptx: Iterable[str] = ()) -> bool:
    """Whether a binary with this machine code and PTX runs on a GPU.

    Machine code runs within its major version, from its own minor upwards: 80 runs on 8.6, 86 not on 8.0, 100 not on
    12.0. With the suffix `a` it runs on that very capability; with `f` within the family from that minor upwards.
    PTX is compiled by the driver for any equal or newer capability; `a` and `f` restrict it as they do machine code.
    """
    have = sm(gpu)
    return any(_runs(have, text) for text in sass) or any(_compiles(have, text) for text in ptx)


def _runs(have: tuple[int, int], text: str) -> bool:
    built = sm(text)
    return have == built if text.endswith("a") else have[0] == built[0] and have[1] >= built[1]


def _compiles(have: tuple[int, int], text: str) -> bool:
    return _runs(have, text) if text[-1] in "af" else have >= sm(text)


def _runs_condition(value: str, sass: Any, ptx: Any = ()) -> bool:
    return runs(value, sass, ptx or ())


def _in(value: str, allowed: Any) -> bool:
    return value in allowed


def _has(value: Any, item: str) -> bool:
    return item in value


def _major_in(value: str, majors: Iterable[int]) -> bool:
    return sm(value)[0] in set(majors)


def _major_from(value: str, least: int) -> bool:
    return sm(value)[0] >= int(least)


def _major(value: str, wanted: str) -> bool:
    """The same first number: `13.0` and `13.2`."""
    return value.partition(".")[0] == str(wanted).partition(".")[0]


def _key(value: str, table: Mapping[str, Any]) -> bool:
    return value in table


def condition_holds(wanted: str, stated: str) -> bool:
    """Whether a stated value (`2`, `bf16`, `false`) fulfils a rule's condition (`>1`, `bf16|fp16`, `!right`)."""
    from knowngood.errors import UsageError
    from knowngood.solving.domain import holds

    said = stated.strip().lower()
    if wanted.startswith("!") and not wanted.startswith("!="):
        return not condition_holds(wanted[1:], stated)
    if wanted[:1] in "<>=!~":
        try:
            return holds(wanted, said)
        except UsageError:
            return False
        except ValueError:
            return False
    return said in [text.strip().lower() for text in wanted.split("|")]


NAMED: Mapping[str, Callable[..., bool]] = {
    "runs": _runs_condition,
    "in": _in,
    "has": _has,
    "major-in": _major_in,
    "major-from": _major_from,
    "same-major": _major,
    "key-of": _key,
}
"""Name in a rule -> the relation; its first argument is the subject's value, the others are the rule's."""
