"""A request placed in the universe: which value of each variable it means, what facts do not cover. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field

from knowngood.errors import UsageError
from knowngood.solving.domain import Domain, bits, holds
from knowngood.solving.explain import Demand
from knowngood.solving.findings import AXES, Finding, applies, fact
from knowngood.solving.query import Request, Wanted
from knowngood.solving.universe import Universe, meet
from knowngood.solving.world import Box, compile_rules, forbidden, has_facts

FAMILIAR = frozenset({"accelerate", "peft", "trl", "deepspeed", "vllm", "bitsandbytes", "datasets", "flash-attn-3"})
"""Packages that are known by name only, besides those that packages with facts require."""


@dataclass(kw_only=True)
class Placed:
    """See the module's text."""

    universe: Universe
    demands: list[Demand] = field(default_factory=list)
    """What was asked of axes and packages, in the order of asking."""
    point: dict[str, int] = field(default_factory=dict)
    """The variables that have one value."""
    shown: dict[str, str] = field(default_factory=dict)
    """Variable -> its value as it was written."""
    uncovered: dict[str, str] = field(default_factory=dict)
    """Packages that facts do not cover: name -> as it was asked for."""
    bounded: list[Demand] = field(default_factory=list)
    """What those imply for packages with facts."""
    findings: list[Finding] = field(default_factory=list)
    unknown: bool = False
    """Something was named that facts do not cover."""
    tags: list[tuple[Box, Mapping[str, str]]] = field(default_factory=list)
    """What wheels were built for, as boxes, with the constants of their wording."""
    beyond: list[tuple[Box, Mapping[str, str]]] = field(default_factory=list)
    """What is forbidden beside packages without facts, as boxes, with the versions of those."""

    def demand(self, text: str, variable: str, mask: int, shown: str | None = None, *, rebuild: bool = False) -> None:
        """Add a demand on a variable."""
        self.demands.append(Demand(text=text, variable=variable, mask=mask, rebuild=rebuild))
        if mask and mask & (mask - 1) == 0:
            self.point[variable] = mask.bit_length() - 1
        if shown is not None:
            self.shown[variable] = shown

    def lies_in(self, box: Box) -> bool:
        """Whether what was stated lies in a box; an attention that was not stated may."""
        point = self.point
        return all(mask >> point[name] & 1 if name in point else name == "attn" for name, mask in box.masks.items())


def place(universe: Universe, request: Request, gpus: list[str] | None = None) -> Placed:
    """Raises `UsageError` for a name that nobody knows."""
    placed = Placed(universe=universe)
    domains = universe.compiled.domains
    if request.gpu is not None:
        names = gpus or universe.gpus.find(request.gpu)
        mask = sum(1 << domains["gpu"].index[name] for name in names)
        placed.demand(f"gpu={request.gpu}", "gpu", mask)
    for name, text in request.axes.items():
        _axis(placed, domains[name], name, text)
    if request.attn is not None:
        placed.demand(f"attn={request.attn}", "attn", domains["attn"].mask(request.attn))
    for wanted in request.packages:
        _package(placed, wanted)
    _beyond(placed, request)
    return placed


def _beyond(placed: Placed, request: Request) -> None:
    """The forbidden combinations that the versions of packages without facts fulfil."""
    world = placed.universe.world
    for rule, combination in placed.universe.beyond:
        others = {name: text for name, text in combination.items() if name in placed.uncovered}
        rest = {name: text for name, text in combination.items() if name not in others}
        if not others or not has_facts(world, rest):
            continue
        if all(_inside(text, placed.uncovered[name]) for name, text in others.items()):
            box = forbidden(world, rule, rest)
            if box is not None:
                placed.beyond.append((box, {name: placed.uncovered[name] for name in others}))
                if len(box.masks) == 1 and rule.severity == "error" and applies(rule, request.stated):
                    [(variable, mask)] = box.masks.items()
                    text = " ".join(f"{name}{placed.uncovered[name]}" for name in others)
                    whole = world.domains[variable].all
                    placed.bounded.append(Demand(text=text, variable=variable, mask=whole & ~mask))


def _inside(condition: str, said: str) -> bool:
    """Whether a version is in a range; a range that was asked for is no version, and so not known to be."""
    try:
        return condition == "*" or holds(condition, said)
    except ValueError:
        return False


def _axis(placed: Placed, domain: Domain, name: str, text: str) -> None:
    if name == "python":
        release = ".".join(text.split(".")[:2])
        mask = 1 << domain.index[release] if release in domain.index else 0
    else:
        # As good as the greatest release at or below it that any fact speaks of.
        below = domain.mask(f"<={text}")
        mask = 1 << (below.bit_length() - 1) if below else 0
    if mask:
        placed.demand(f"{name}={text}", name, mask, shown=text)
        return
    placed.unknown = True
    reach = f"{domain.values[0]} to {domain.values[-1]}" if domain.values else "nothing"
    placed.findings.append(
        fact(f"unknown:{name}", "info", {name: text}, f"the facts speak of {name} {reach}, not of {text}", ["facts/"])
    )


def _package(placed: Placed, wanted: Wanted) -> None:
    universe = placed.universe
    if wanted.name not in universe.packages:
        _uncovered(placed, wanted)
        return
    domain = universe.compiled.domains[wanted.name]
    mask = domain.mask(wanted.specifier)
    local = _variant_name(wanted, domain)
    if local is not None:
        mask = 1 << domain.index[local]
    else:
        mask &= ~sum(1 << place for place, value in enumerate(domain.values) if "+" in value)
    if not mask:
        placed.unknown = True
        placed.findings.append(_no_facts(universe, wanted))
        return
    if not wanted.version and wanted.specifier != "none" and mask & domain.final:
        mask &= domain.final | (0 if domain.final else mask)
    if wanted.specifier or local:
        shown = _shown(wanted, domain, mask)
        placed.demand(_text(wanted), wanted.name, mask, shown=shown, rebuild=wanted.wheel is not None)
    else:
        placed.demand(_text(wanted), wanted.name, domain.final)
    _yanked(placed, wanted.name, mask)
    if wanted.wheel is not None:
        _tags(placed, wanted)


def _variant_name(wanted: Wanted, domain: Domain) -> str | None:
    if wanted.local is None or wanted.version is None:
        return None
    name = f"{wanted.version}+{wanted.local}"
    return name if name in domain.index else None


def _text(wanted: Wanted) -> str:
    return f"{wanted.text}+{wanted.local}" if wanted.local else wanted.text


def _shown(wanted: Wanted, domain: Domain, mask: int) -> str | None:
    if mask & (mask - 1):
        return None
    text = domain.text(mask.bit_length() - 1)
    return f"{text}+{wanted.local}" if wanted.local and "+" not in text else text


def _no_facts(universe: Universe, wanted: Wanted) -> Finding:
    book = universe.world.book
    known = book.versions(wanted.name)
    near = difflib.get_close_matches(wanted.version or wanted.specifier, known, 1, 0)
    return fact(
        f"unknown:{wanted.name}",
        "info",
        {wanted.name: wanted.version or wanted.specifier},
        f"there are no facts about {_text(wanted)}; the nearest known release is {near[0] if near else 'none'}, "
        f"the newest {book.latest(wanted.name)} (`knowngood harvest {wanted.name}` reads new ones)",
        [f"facts/{wanted.name}.json"],
    )


def _yanked(placed: Placed, name: str, mask: int) -> None:
    domain = placed.universe.compiled.domains[name]
    if mask & (mask - 1) or mask & domain.absent:
        return
    version = domain.text(mask.bit_length() - 1)
    if placed.universe.world.book.yanked(name, version):
        because = f"{name} {version} was withdrawn from the registry; installers take it only when it is pinned"
        source = [placed.universe.world.book.source(name, version)]
        placed.findings.append(fact(f"yanked:{name}", "warning", {name: version}, because, source))


def _uncovered(placed: Placed, wanted: Wanted) -> None:
    universe = placed.universe
    known = {*universe.packages, *universe.bounds, *FAMILIAR}
    if wanted.name not in known and wanted.named:
        near = difflib.get_close_matches(wanted.name, known, 1, 0)
        raise UsageError(f"there is no package {wanted.name!r} in the facts; the nearest known name is {near[0]}")
    said = wanted.version or wanted.specifier
    placed.uncovered[wanted.name] = said
    for package, table in universe.bounds.get(wanted.name, {}).items():
        domain = universe.compiled.domains[package]
        refused = 0
        for specifier, mask in table.items():
            if specifier and said and not meet(specifier, wanted.specifier):
                refused |= mask
        if refused:
            text = f"{wanted.name}{wanted.specifier}"
            placed.bounded.append(Demand(text=text, variable=package, mask=domain.all & ~refused))
    if wanted.named:
        placed.unknown = True
        because = f"there are no facts about {wanted.name}; what packages with facts require of it was looked at"
        placed.findings.append(fact(f"unknown:{wanted.name}", "info", {wanted.name: said}, because, ["facts/"]))


def _tags(placed: Placed, wanted: Wanted) -> None:
    assert wanted.wheel is not None  # noqa: S101 - the caller looked
    world = placed.universe.world
    constants = wanted.wheel.constants() | {
        "wheel.name": wanted.name,
        "wheel.local": wanted.local or "of its file name",
    }
    for box in compile_rules(world, placed.universe.wheel_rules, constants):
        if all(name in constants for name in box.rule.references):
            placed.tags.append((box, constants))
            if len(box.masks) == 1:
                [(variable, mask)] = box.masks.items()
                rest = world.domains[variable].all & ~mask
                placed.bounded.append(Demand(text=_text(wanted), variable=variable, mask=rest, owner=wanted.name))


def stated_packages(placed: Placed) -> dict[str, str]:
    """Every package that has one version, as it was written."""
    names: dict[str, str] = {}
    for name, place_ in placed.point.items():
        if name not in AXES:
            names[name] = placed.shown.get(name) or placed.universe.compiled.domains[name].text(place_)
    return names


def allowed(universe: Universe) -> dict[str, int]:
    """What `pick` and suggestions may choose: no withdrawn release, none of another index."""
    book = universe.world.book
    made = {}
    for name in universe.packages:
        domain = universe.compiled.domains[name]
        taken = sum(1 << place for place, value in enumerate(domain.values) if "+" in value or book.yanked(name, value))
        made[name] = (domain.final & ~taken) | domain.absent
    return made


def single(mask: int) -> int | None:
    """The one place of a set of one."""
    return next(bits(mask)) if mask and mask & (mask - 1) == 0 else None
