"""The universe of combinations: every harvested release on every axis, the rules of `rules/`, and those that follow
from what packages declare. Pure: facts, rules and GPUs in, compiled boxes out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from knowngood.gpus import Gpus
from knowngood.solving.compiled import Compiled
from knowngood.solving.domain import Domain, bits
from knowngood.solving.factbook import DRIVERS, Factbook
from knowngood.solving.rules import Condition, Rule
from knowngood.solving.world import Box, World, compile_rules, has_facts

ATTENTION: Mapping[str, str] = {
    "sdpa": "sdpa",
    "eager": "eager",
    "sdpa-math": "sdpa",
    "sdpa-flash": "sdpa",
    "sdpa-efficient": "sdpa",
    "sdpa-cudnn": "sdpa",
    "flex": "flex_attention",
    "fa2": "flash_attention_2",
    "fa3": "flash_attention_3",
    "fa4": "flash_attention_4",
}
"""Attention setting (as in the smoke suite) -> transformers' `attn_implementation`."""

CELL_PACKAGES = ("torch", "transformers", "flash-attn", "flash-attn-4", "triton")
"""The packages of a cell's axes, in the order in which `pick` prefers the newest."""


@dataclass(frozen=True, kw_only=True)
class Universe:
    """What is known, ready to be asked."""

    compiled: Compiled
    gpus: Gpus
    rules: tuple[Rule, ...]
    written: tuple[Rule, ...]
    """Those of `rules` that come from files."""
    wheel_rules: tuple[Rule, ...]
    """Those that ask what a wheel was built for (`{wheel.torch}`)."""
    incidents: Mapping[str, tuple[str, ...]]
    """Rule's id -> the incidents that it says, each of which has a page."""
    bounds: Mapping[str, Mapping[str, Mapping[str, int]]]
    """Package without facts -> package with facts -> specifier on the former -> releases of the latter that say so."""

    @property
    def world(self) -> World:
        """Domains, facts, boxes."""
        return self.compiled.world

    @property
    def packages(self) -> tuple[str, ...]:
        """The packages that there are facts about."""
        return tuple(self.world.book.packages)

    @property
    def size(self) -> int:
        """How many combinations there are (absence of a package not counted)."""
        product = 1
        for domain in self.compiled.domains.values():
            product *= max(len(domain.values), 1)
        return product

    @cached_property
    def conditional(self) -> list[tuple[int, Box]]:
        """The boxes that count under a condition of use, with their bits."""
        return [(bit, box) for bit, box in enumerate(self.world.boxes) if not (box.rule.always or box.unknown)]

    @cached_property
    def conditions(self) -> frozenset[str]:
        """The conditions of use that any rule asks about."""
        return frozenset(key for rule in self.rules for key in (*rule.given, *rule.unless))

    @cached_property
    def beyond(self) -> list[tuple[Rule, Mapping[str, str]]]:
        """Forbidden combinations with packages that there are no facts about."""
        return [(rule, item) for rule in self.rules for item in rule.forbid if not has_facts(self.world, item)]

    @cached_property
    def _kept(self) -> dict[str, Any]:
        return {}

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """What `make` returns, made when first asked for under this name."""
        if name not in self._kept:
            self._kept[name] = make()
        return self._kept[name]


def build(
    book: Factbook, gpus: Gpus, rules: Sequence[Rule], incidents: Mapping[str, tuple[str, ...]] | None = None
) -> Universe:
    """The universe of these facts and rules."""
    domains = domains_of(book, gpus, rules)
    bounds = bounds_of(book, domains)
    declared = list(declared_rules(book))
    whole = [*rules, *declared]
    world = World(book=book, domains=domains, attributes=attributes_of(gpus))
    boxes = [*compile_rules(world, whole), *shared_bounds(bounds)]
    full = World(book=book, domains=world.domains, attributes=world.attributes, boxes=tuple(boxes))
    return Universe(
        compiled=Compiled(world=full),
        gpus=gpus,
        rules=tuple(whole),
        written=tuple(rules),
        wheel_rules=tuple(rule for rule in rules if any(name.startswith("wheel.") for name in rule.references)),
        incidents=incidents or {},
        bounds=bounds,
    )


def attributes_of(gpus: Gpus) -> dict[str, dict[str, dict[str, str]]]:
    """What rules can ask of an axis' value."""
    return {
        "attn": {name: {"implementation": implementation} for name, implementation in ATTENTION.items()},
        "gpu": {sm: {"family": gpus.family(sm)} for sm in gpus.names},
    }


def domains_of(book: Factbook, gpus: Gpus, rules: Sequence[Rule] = ()) -> dict[str, Domain]:
    """A domain for each axis and package.

    A driver, nvcc or glibc is as good as the greatest release at or below it that any fact or rule speaks of (0: none).
    """
    domains = {"gpu": Domain("gpu", gpus.names, key=lambda text: text.removeprefix("sm_"))}
    for name in dict.fromkeys([*CELL_PACKAGES, *book.packages]):
        domains[name] = Domain(name, book.versions(name), optional=True)
    pythons = {text for name in book.packages for listed in book.every(name, "pythons") for text in listed}
    # A rule speaks of 3.11, a requirement of >=3.11.2: the release stands for its last patch.
    domains["python"] = Domain("python", pythons, key=lambda text: text if text.count(".") > 1 else f"{text}.99")
    domains["driver"] = Domain("driver", {"0", *book.every("torch", "driver_minimum"), *_named(rules, "driver")})
    glibcs = {text for name in book.packages for text in book.every(name, "glibc")}
    domains["glibc"] = Domain("glibc", {"0", *glibcs, *_named(rules, "glibc")})
    floors = {floor for table in book.every("flash-attn", "sass") for floor in table.values()}
    nvccs = {"0", *floors, *book.versions(DRIVERS), *book.every("torch", "cuda"), *_named(rules, "nvcc")}
    domains["nvcc"] = Domain("nvcc", nvccs)
    domains["attn"] = _Names("attn", ATTENTION)
    return domains


def _named(rules: Iterable[Rule], axis: str) -> set[str]:
    """The releases of an axis that rules write out."""
    conditions = [table[axis] for rule in rules for table in (rule.when, rule.require) if axis in table]
    texts = [text for condition in conditions for text in condition.arguments if "{" not in text]
    texts += [item[axis] for rule in rules for item in rule.forbid if axis in item]
    return {found for text in texts for found in re.findall(r"\d+(?:\.\d+)*", text)}


class _Names(Domain):
    """Names without an order; the one to fall back on stands first."""

    unordered = True

    def __init__(self, name: str, values: Iterable[str]) -> None:
        super().__init__(name, ())
        self.values = tuple(values)
        self.index = {value: place for place, value in enumerate(self.values)}
        self.some = self.all = (1 << len(self.values)) - 1

    def _read(self, condition: str) -> int:
        return self.some if condition in ("*", "any") else super()._read(condition)

    @property
    def final(self) -> int:
        return self.some


def declared_rules(book: Factbook) -> Iterator[Rule]:
    """What packages require of each other and of Python, as their metadata says."""
    packages = book.packages
    for package in packages:
        if any(book.every(package, "requires_python")):
            yield _declared(package, "python", f"{{{package}.requires_python}}", f"{package} {{{package}}} requires")
        if any(book.every(package, "pythons")):
            yield Rule(
                id=f"wheel:{package}:python",
                require={"python": Condition(relation="in", arguments=(f"{{{package}.pythons}}",))},
                because=f"{package} {{{package}}} has wheels for Python {{{package}.pythons}} only",
                source=(f"{{source:{package}}}",),
            )
        if any(book.every(package, "glibc")):
            floor = f">={{{package}.glibc}}"
            yield _declared(package, "glibc", floor, f"the binaries of {package} {{{package}}} need", kind="binary")
        wanted = {name for version in book.versions(package) for name in book.requires(package, version)}
        for other in sorted(wanted & set(packages) - {package}):
            text = f"{{{package}.requires:{other}}}"
            yield Rule(
                id=f"requires:{package}:{other}",
                require={other: Condition(relation="spec", arguments=(text,))},
                because=f"{package} {{{package}}} requires {other}{text}",
                source=(f"{{source:{package}}}",),
            )


def _declared(package: str, axis: str, condition: str, because: str, kind: str = "requires") -> Rule:
    return Rule(
        id=f"{kind}:{package}:{axis}",
        require={axis: Condition(relation="spec", arguments=(condition,))},
        because=f"{because} {axis} {condition}",
        source=(f"{{source:{package}}}",),
    )


def bounds_of(book: Factbook, domains: Mapping[str, Domain]) -> dict[str, dict[str, dict[str, int]]]:
    """What packages with facts say of those without: see `Universe.bounds`."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    for package in book.packages:
        for place, version in enumerate(domains[package].values):
            for name, specifier in book.requires(package, version).items():
                if name not in book.tables:
                    table = found.setdefault(name, {}).setdefault(package, {})
                    table[specifier] = table.get(specifier, 0) | 1 << place
    return found


def shared_bounds(bounds: Mapping[str, Mapping[str, Mapping[str, int]]]) -> Iterator[Box]:
    """Pairs of releases whose bounds on a third package exclude each other."""
    for name, packages in bounds.items():
        for first, second in _pairs(sorted(packages)):
            for one, one_mask in packages[first].items():
                for two, two_mask in packages[second].items():
                    if one and two and not meet(one, two):
                        rule = Rule(
                            id=f"bounds:{first}:{second}:{name}",
                            require={},
                            because=f"{first} {{{first}}} requires {name}{one}, {second} {{{second}}} {name}{two}",
                            source=(f"{{source:{first}}}", f"{{source:{second}}}"),
                        )
                        yield Box(rule=rule, masks={first: one_mask, second: two_mask})


def _pairs(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    return ((one, two) for place, one in enumerate(names) for two in names[place + 1 :])


@lru_cache(maxsize=10_000)
def meet(one: str, two: str) -> bool:
    """Whether some version fulfils both: it suffices to try the versions they name, and one just above each."""
    named = re.findall(r"\d[^,\s*]*", f"{one},{two}")
    tried = [text.rstrip(".") for text in named]
    domain = Domain("it", [*tried, *(f"{text}.0.1" for text in tried if text.replace(".", "").isdigit())])
    return bool(domain.mask(one) & domain.mask(two))


def names_of(universe: Universe, variable: str, mask: int) -> list[str]:
    """The names of a set of values."""
    domain = universe.compiled.domains[variable]
    return [domain.text(bit) for bit in bits(mask)]
