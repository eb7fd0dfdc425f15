"""The relations that a rule can require of a value, besides a specifier; one small pure function for each.

The rules of binary compatibility are NVIDIA's ("CUDA C++ Programming Guide", section on binary and PTX compatibility;
"CUDA C++ Best Practices", on architecture- and family-specific features).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from knowngood.core.errors import UsageError
from knowngood.core.gpus import code_runs_on_gpu, parse_capability
from knowngood_facts.compat.value_domain import version_matches


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
