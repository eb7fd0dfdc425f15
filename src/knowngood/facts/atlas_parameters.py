"""In which releases a function takes a keyword, and in which it must be given. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from knowngood.facts.atlas_file import RowKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from knowngood.facts.atlas_lookup import AtlasLookup


@dataclass(kw_only=True)
class ParameterPresence:
    """What the signatures of one function say of one parameter, over all releases, as bits."""

    accepted: int = 0
    """The releases that take it as a keyword."""
    named: int = 0
    """Those of them that name it, and do not merely take any keyword."""
    required: int = 0
    """Those of them in which it has no default."""
    refused: int = 0
    """The releases whose signature neither has it nor takes any keyword."""
    names: dict[str, int] = field(default_factory=dict)
    """Every parameter that some release has -> those releases."""
    words: tuple[str, ...] = ()
    """The deprecation's own words that name the parameter."""
    successor: str = ""
    """The parameter that takes its place, by those words."""


def find_parameter(lookup: AtlasLookup, dotted: str, parameter: str) -> ParameterPresence:
    """Return where a parameter of a function, a method or a class is.

    A class without `__init__` is taken for a dataclass, whose fields are its parameters.
    """
    presence = ParameterPresence()
    reached = lookup.find_name(dotted)
    signatures = dict(reached.signatures)
    constructed = reached.kinds.get("class", 0)
    owner = dotted.removesuffix(".__init__")
    if constructed or owner != dotted:
        made = lookup.find_name(f"{owner}.__init__")
        signatures = dict(made.signatures)
        if owner != dotted:
            constructed = lookup.find_name(owner).kinds.get("class", 0)
    names = presence.names
    written = 0
    for signature, mask in signatures.items():
        written |= mask
        parameters = parse_signature(signature)
        for name in parameters:
            if name != "self" and not name.startswith("*"):
                names[name] = names.get(name, 0) | mask
        if parameter in parameters:
            presence.accepted |= mask
            presence.named |= mask
            presence.required |= 0 if parameters[parameter] else mask
        elif not any(name.startswith("**") for name in parameters):
            presence.refused |= mask
        else:
            presence.accepted |= mask
    fields = constructed & ~written
    if fields:
        here = lookup.find_name(f"{owner}.{parameter}").kinds.get("variable", 0)
        presence.accepted |= here & fields
        presence.named |= here & fields
        presence.refused |= fields & ~here
        for name, mask in _fields(lookup, lookup.find_name(owner).homes):
            names[name] = names.get(name, 0) | (mask & fields)
    _take_deprecations(presence, _find_words(lookup, dotted, owner, parameter), parameter)
    return presence


def _take_deprecations(presence: ParameterPresence, words: Iterator[tuple[str, int]], parameter: str) -> None:
    """Note the successor, and that a decorator still takes the parameter by its old name."""
    for text, mask in words:
        if text in presence.words:
            continue
        presence.words += (text,)
        if re.match(r"(?:\w+\.)*deprecate_kwarg\b", text):
            quoted = re.findall(r"'(\w+)'", text)
            presence.successor = next((name for name in quoted if name != parameter and name in presence.names), "")
            presence.accepted |= mask
            presence.named |= mask
            presence.refused &= ~mask


def _find_words(lookup: AtlasLookup, dotted: str, owner: str, parameter: str) -> Iterator[tuple[str, int]]:
    """Yield the decorators of a function that deprecate a parameter, as written."""
    homes = lookup.find_name(dotted).homes | lookup.find_name(f"{owner}.__init__").homes
    places = {(home.partition(":")[0], home.partition(":")[2]) for home in homes}
    for place, path in places:
        for row, kind, detail, mask in lookup.file.rows(place):
            if row == path and kind == RowKind.WORDS and f"'{parameter}'" in detail:
                yield detail, mask


def parse_signature(text: str) -> dict[str, bool]:
    """Return parameter -> whether it has a default, from a signature such as `self,q,*,causal=False,**kwargs`."""
    return {part.partition("=")[0]: "=" in part for part in text.split(",") if part not in {"*", "/", ""}}


def takes_positions(text: str, count: int) -> bool:
    """Return whether a function with this signature takes so many positional arguments, `self` among them."""
    places = 0
    for part in text.split(","):
        if part.startswith("*"):
            return places >= count or (part != "*" and not part.startswith("**"))
        places += part not in {"/", ""}
    return places >= count


def _fields(lookup: AtlasLookup, homes: dict[str, int]) -> Iterator[tuple[str, int]]:
    """Yield the variables of the classes that are defined in these places, with their releases."""
    for home in homes:
        module, _, path = home.partition(":")
        for name, kind, _, mask in lookup.file.rows(module):
            if kind == RowKind.VALUE and name.startswith(f"{path}.") and not name.startswith(f"{path}._"):
                yield name.removeprefix(f"{path}."), mask
