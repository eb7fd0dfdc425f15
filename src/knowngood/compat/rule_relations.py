"""The relations that a rule can require of a value, besides a specifier; one small pure function for each.

The rules of binary compatibility are NVIDIA's ("CUDA C++ Programming Guide", section on binary and PTX compatibility;
"CUDA C++ Best Practices", on architecture- and family-specific features).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from knowngood.compat.value_domain import version_matches
from knowngood.core.errors import UsageError
from knowngood.core.lazy_patterns import lazy_pattern

_ARCH = lazy_pattern(r"(\d+)([af]?)")


def parse_capability(text: str) -> tuple[int, int]:
    """Return the major and minor number of a compute capability.

    `sm_90`, `90` and `90a` are (9, 0), `121` is (12, 1). Raises `ValueError` for anything else.
    """
    digits = _ARCH.fullmatch(text.removeprefix("sm_"))
    if digits is None:
        raise ValueError(f"{text!r} is not an architecture; write for example sm_90")
    return int(digits[1][:-1]), int(digits[1][-1])


def code_runs_on_gpu(gpu: str, sass: Iterable[str], ptx: Iterable[str] = ()) -> bool:
    """Whether a binary with this machine code (SASS) and PTX runs on a GPU.

    Machine code runs within its major version, from its own minor version upwards: 80 runs on 8.6, but 86 not on 8.0
    and 100 not on 12.0. With the suffix `a` it runs only on that very capability, with `f` within the family from that
    minor version upwards. The driver compiles PTX for any equal or newer capability; `a` and `f` restrict PTX in the
    same way as machine code.
    """
    capability = parse_capability(gpu)
    return any(_sass_runs(capability, text) for text in sass) or any(_ptx_runs(capability, text) for text in ptx)


def _sass_runs(capability: tuple[int, int], arch: str) -> bool:
    built = parse_capability(arch)
    if arch.endswith("a"):
        return capability == built
    return capability[0] == built[0] and capability[1] >= built[1]


def _ptx_runs(capability: tuple[int, int], arch: str) -> bool:
    return _sass_runs(capability, arch) if arch[-1] in "af" else capability >= parse_capability(arch)


def condition_holds(wanted: str, stated: str) -> bool:
    """Whether a stated value (`2`, `bf16`, `false`) fulfils a condition of use (`>1`, `bf16|fp16`, `!right`)."""
    value = stated.strip().lower()
    if wanted.startswith("!") and not wanted.startswith("!="):
        return not condition_holds(wanted[1:], stated)
    if wanted[:1] in "<>=!~":
        try:
            return version_matches(wanted, value)
        except (UsageError, ValueError):
            return False
    return value in [text.strip().lower() for text in wanted.split("|")]


RELATIONS: Mapping[str, Callable[..., bool]] = {
    "runs": lambda gpu, sass, ptx=(): code_runs_on_gpu(gpu, sass, ptx or ()),
    "in": lambda value, allowed: value in allowed,
    "has": lambda value, item: item in value,
    "major-in": lambda capability, majors: parse_capability(capability)[0] in set(majors),
    "major-from": lambda capability, least: parse_capability(capability)[0] >= int(least),
    "same-major": lambda version, other: version.partition(".")[0] == str(other).partition(".")[0],
    "includes": lambda value, items: set(items) <= set(value),
    "key-of": lambda value, table: value in table,
}
"""Name in a rule -> the relation; its first argument is the subject's value, the others come from the rule."""
