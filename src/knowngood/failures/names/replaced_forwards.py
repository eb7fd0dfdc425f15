"""A function that stands in the place of a package's own forward, and does not take what the package passes. Pure.

Projects put a forward of their own into a model's class (for flash attention, for longer texts). The package's file
that calls the part then passes what its own class takes, and the function in its place is of another age.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from knowngood.compat.incident import Fix, Incident, IncidentKind, IncidentSeverity, OwnComponent
from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.facts.atlas_answer import describe_spans, spans_of_mask
from knowngood.facts.atlas_parameters import parse_signature
from knowngood.failures.logs.logged_errors import FaultKind, LoggedError
from knowngood.failures.names.name_places import list_frame_packages
from knowngood.failures.names.name_situation import (
    NameCause,
    advise,
    find_caller,
    list_defining_packages,
    ranges_of_mask,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from knowngood.facts.atlas_lookup import AtlasLookup
    from knowngood.failures.names.atlas_shelf import AtlasShelf

_CALLS_PART = lazy_pattern(r"\bself\.(?P<part>\w+)\(|(?:= |\b)(?P<looped>\w+)\($")
"""A call of a part of the model; of one in a loop, the arguments stand in the lines below."""


_OF_A_MODEL = lazy_pattern(r"(?:For[A-Z]\w+|Model)$")
"""How the names of transformers' models end."""


def explain_replaced_forward(error: LoggedError, shelf: AtlasShelf) -> NameCause | None:
    """Return that a patched forward refuses a keyword which the package passes to its own class.

    `None` where the package's own class may be the one that refuses, or where no class in the calling file takes it.
    """
    fault, caller = error.fault, find_caller(error, shelf)
    if fault.kind is FaultKind.KEYWORD and fault.owner.endswith(".forward"):
        return _explain_derived_model(error, shelf)
    is_own = "." in fault.owner and fault.owner.rpartition(".")[2] == "forward"
    if fault.kind is not FaultKind.KEYWORD or is_own or caller is None or caller.lookup is None:
        return None
    call = _CALLS_PART.search(caller.frame.code)
    if call is None or fault.owner == "__init__" or caller.frame.function != "forward":
        return None
    part = call["part"] or call["looped"]
    lookup = caller.lookup
    owners = dict(_list_takers(lookup, caller.module, fault.name))
    if fault.owner != "forward" and any(True for _ in lookup.definitions_of(fault.owner)):
        return None  # a function of the package itself
    if not owners:
        return None
    short = part.replace("_", "").lower().removeprefix("self")
    owner = next((name for name in owners if short[:4] in name.lower()), next(iter(owners)))
    return _describe(error, lookup, f"{caller.file}, line {caller.frame.line}", part, owner, owners[owner])


def _explain_derived_model(error: LoggedError, shelf: AtlasShelf) -> NameCause | None:
    """A model of a project that derives from one of transformers, by its name, and overrides forward as of old."""
    fault, lookup = error.fault, shelf.open("transformers")
    name = fault.owner.removesuffix(".forward").rpartition(".")[2]
    words = re.findall(r"[A-Z][a-z0-9]+|[A-Z]+(?![a-z])", name)
    packages = {"transformers", *list_frame_packages(error, shelf)}
    if lookup is None or packages.intersection(list_defining_packages(name, shelf)):
        return None
    for start in range(1, len(words) - 1):
        base = "".join(words[start:])
        every = lookup.find_name(f"transformers.{base}").present if _OF_A_MODEL.search(base) else 0
        signatures = lookup.find_name(f"transformers.{base}.forward").signatures.items() if every else ()
        takes = sum(mask for text, mask in signatures if fault.name in parse_signature(text))
        if takes:
            return _describe_derived(error, lookup, name, base, takes, every & ~takes)
    return None


def _describe_derived(  # noqa: PLR0913, PLR0917 - one step of `_explain_derived_model`
    error: LoggedError, lookup: AtlasLookup, name: str, base: str, takes: int, lacks: int
) -> NameCause:
    keyword, releases = error.fault.name, lookup.file.releases
    spans = describe_spans(spans_of_mask(takes, releases)) if lacks else "in every release that was read"
    because = (
        f"{name} is a class of the project, which by its name derives from transformers' {base} and overrides forward. "
        f"transformers passes {keyword} to it, as its own {base}.forward takes it {spans}; the override was written "
        "for a transformers that did not."
    )
    fixes = [
        Fix(change={"transformers": text}, note=f"does not pass {keyword}: its {base} does not take it", cost="a pin")
        for text in ranges_of_mask(lacks, releases)[:1]
    ]
    fixes += [
        advise(f"In the project: the parameter {keyword}=None (or **kwargs) in {name}.forward; it need not be used"),
        advise("A newer commit of the project, or the transformers that its requirements name"),
    ]
    title = f"{name} overrides forward of an older transformers: it does not take `{keyword}`, which this one passes"
    incident = Incident(
        id=f"name:{name}.forward({keyword}=)",
        title=title,
        kind=IncidentKind.SIGNATURE_CHANGED,
        severity=IncidentSeverity.FAILURE,
        component=OwnComponent.YOUR_CODE,
        because=because,
        fix=tuple(fixes),
        source=("the message and the atlas",),
        confidence="artefact",
    )
    return NameCause(error=error, incident=incident, package="transformers", is_likely=True)


def _list_takers(lookup: AtlasLookup, module: str, keyword: str) -> Iterator[tuple[str, int]]:
    """Yield the classes of a module whose forward takes a keyword, with those releases."""
    for path in dict.fromkeys(row[0] for row in lookup.file.rows(module) if row[0].endswith(".forward")):
        signatures = lookup.find_name(f"{module}.{path}").signatures.items()
        if takes := sum(mask for text, mask in signatures if keyword in parse_signature(text)):
            yield path.removesuffix(".forward"), takes


def _describe(  # noqa: PLR0913, PLR0917 - one step of `explain_replaced_forward`
    error: LoggedError, lookup: AtlasLookup, place: str, part: str, owner: str, takes: int
) -> NameCause:
    package, keyword, releases = lookup.file.package, error.fault.name, lookup.file.releases
    lacks = lookup.find_name(f"{lookup.file.root}.{owner}").present & ~takes
    spans = describe_spans(spans_of_mask(takes, releases)) if lacks else "in every release that was read"
    named = "" if error.fault.owner == "forward" else f" ({error.fault.owner})"
    because = (
        f"{place}, calls its own part {part} with {keyword}; {package}'s own {owner}.forward takes it {spans}. "
        f"So another function{named} runs in its place: a patch of the project or of a package (for flash attention, "
        f"longer texts, quantized layers), which was written for an older {package}."
    )
    fixes = [
        advise(f"A newer commit or release of what patches {owner}.forward, written for this {package}"),
        advise(
            f"The {package} that the project's requirements name, which does not pass {keyword}; or the newest of both"
        ),
        advise(
            f"In the patch: the parameter {keyword}=None, and **kwargs behind it; or do not patch (sdpa has the same)"
        ),
    ]
    fixes += [
        Fix(change={package: text}, note=f"its own {owner} does not take {keyword}", cost="a pin")
        for text in ranges_of_mask(lacks, releases)[-1:]
    ]
    incident = Incident(
        id=f"name:{owner}.forward({keyword}=)",
        title=f"A patched forward of {package}'s {owner} does not take `{keyword}`, which {package} passes",
        kind=IncidentKind.SIGNATURE_CHANGED,
        severity=IncidentSeverity.FAILURE,
        component=OwnComponent.YOUR_CODE,
        because=because,
        fix=tuple(fixes),
        source=("the message, its traceback and the atlas",),
        confidence="artefact",
    )
    return NameCause(error=error, incident=incident, package=package, is_likely=True)
