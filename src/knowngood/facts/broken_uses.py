"""Which uses of one package break with which releases of another, computed from the atlas of both. Pure.

A use is broken with a release of the callee that lacks the name, or whose signature lacks a keyword that is passed.
Only what is certain counts: the name must be there in some release, the sources must tell, and a use under a `try`, a
condition on a version or on another package is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from knowngood.facts.atlas_lookup import AtlasLookup
from knowngood.facts.broken_use_table import BrokenUse
from knowngood.facts.module_reach import find_reached_modules

_CATCHES = re.compile(
    r"try [\w.,]*\b(?:ImportError|ModuleNotFoundError|Exception|BaseException|AttributeError|TypeError)\b"
)
_ASKS_ELSE = re.compile(r"version|signature|hasattr|find_spec|^unless |^except |['\"]\d+(?:\.\d+)+", re.IGNORECASE)
"""What shows that a condition asks for more than whether a package is there; the last is a release, as in
`is_accelerate_available("1.10.1")`."""


def find_broken_uses(
    caller: AtlasLookup,
    open_callee: Callable[[str], AtlasLookup | None],
    is_shared: Callable[[str], bool] = lambda _: False,
) -> dict[str, list[BrokenUse]]:
    """Return the callee's package -> uses of it that break, in the order of the caller's modules.

    `open_callee` gives the atlas that has a top-level module, or `None`. `is_shared` says whether another package has a
    module too (flash-attn-4 has `flash_attn.cute`): what is missing in one may come from the other.
    """
    reach = find_reached_modules(caller)
    broken: dict[str, dict[tuple[str, str, str, bool], BrokenUse]] = {}
    for module in list(caller.file.modules()):
        if not module.startswith("@"):
            continue
        for use, place, guard, callers in caller.file.rows(module):
            target, _, shape = use.partition(" ")
            callee = open_callee(target.partition(":")[0].partition(".")[0])
            if callee is None or callee.file.package == caller.file.package:
                continue
            if not _is_certain(guard, callee.file.root) or is_shared(target.partition(":")[0]):
                continue
            for keyword, callees in _broken_with(callee, target, shape):
                own = module[1:]
                key = (own, target, keyword, bool(place))
                table = broken.setdefault(callee.file.package, {})
                before = table.get(key)
                mask = callers | (before.callers if before else 0)
                table[key] = BrokenUse(
                    module=own,
                    target=target,
                    keyword=keyword,
                    place=before.place if before else place,
                    callers=mask,
                    reached=mask & reach.get(own, 0) if not place else 0,
                    callees=callees,
                )
    return {package: list(table.values()) for package, table in sorted(broken.items())}


def _is_certain(guard: str, callee: str) -> bool:
    """Whether the use runs for certain where the callee is installed."""
    if _CATCHES.search(guard):
        return False
    for part in guard.split(" & ") if guard else ():
        if part.startswith("try "):
            continue
        if _ASKS_ELSE.search(part) or callee not in part:
            return False
    return True


def _broken_with(callee: AtlasLookup, target: str, shape: str) -> Iterator[tuple[str, int]]:
    """Yield (keyword or empty, the callee's releases that break the use)."""
    dotted = target.replace(":", ".")
    presence = callee.find_name(dotted)
    if not shape:
        missing = callee.every & ~presence.present & ~presence.unclear
        if missing and presence.present:
            yield "", missing
        return
    signatures = presence.signatures
    if not signatures and presence.kinds.get("class"):
        signatures = callee.find_name(f"{dotted}.__init__").signatures
    words = shape.strip("()").split(",")
    for keyword in (word for word in words[1:] if word != "*"):
        lacking = having = 0
        for parameters, mask in signatures.items():
            names = {part.partition("=")[0] for part in parameters.split(",")}
            if keyword in names:
                having |= mask
            elif not any(name.startswith("**") for name in names):
                lacking |= mask
        if lacking & ~having and having:
            yield keyword, lacking & ~having
