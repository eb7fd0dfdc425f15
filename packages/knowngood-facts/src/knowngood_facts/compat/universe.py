"""The universe of combinations: every harvested release on every axis, with all rules.

The rules are those of `rules/`, those of incidents, and those that follow from what packages declare about each other.
Pure: facts, rules and GPUs in, boxes out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from knowngood.core.attention import ATTENTION
from knowngood_facts.compat.box_index import BoxIndex
from knowngood_facts.compat.broken_pairs import ReadTable, boxes_of_broken_pairs, no_broken_uses
from knowngood_facts.compat.build_forecast import ReadBuilds, list_build_rules, no_builds
from knowngood_facts.compat.factbook import DRIVERS, Factbook
from knowngood_facts.compat.query import WHEEL_AT_HAND
from knowngood_facts.compat.rule import Condition, Rule
from knowngood_facts.compat.rule_boxes import (
    Box,
    ValueSpace,
    all_subjects_known,
    boxes_of_conflicting_bounds,
    boxes_of_outgrown_releases,
    boxes_of_requirements,
    compile_rules,
)
from knowngood_facts.compat.value_domain import NameDomain, ValueDomain
from knowngood_facts.compat.waivers import Waiver, apply_waivers

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from knowngood.core.gpus import GpuCatalog
    from knowngood_facts.compat.metadata_store import MetadataStore
    from knowngood_facts.compat.model_types import ModelTypes

REFERENCE_MODEL = "qwen2"
"""The model that is meant when a query states none: the one that the smoke suite trains."""

ALWAYS_INSTALLED = ("torch", "transformers", "triton")
"""The packages that every cell has."""

CELL_PACKAGES = ("torch", "transformers", "flash-attn", "flash-attn-4", "triton")
"""The packages of a cell's axes, in the order in which `pick` prefers the newest release."""


@dataclass(frozen=True, kw_only=True)
class Universe:
    """Everything that `check` and `pick` search: variables, facts and boxes."""

    index: BoxIndex
    gpus: GpuCatalog
    rules: tuple[Rule, ...]
    """Those of files, and what packages declare about Python, glibc and extras; their requirements are boxes only."""
    written_rules: tuple[Rule, ...]
    """The rules that come from files."""
    wheel_rules: tuple[Rule, ...]
    """The rules that ask what a wheel was built for (`{wheel.torch}`)."""
    waivers: tuple[Waiver, ...]
    """What matrix.yaml waives; the boxes are without it."""
    incidents: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """A rule's id -> the incidents that it covers; each has a page."""
    models: frozenset[str] = frozenset()
    """The architectures that runs of the model suite tried; rules and the words of people name others."""
    broken_uses: ReadTable = no_broken_uses
    """Gives what releases of others break in a package."""
    read_releases: Callable[[str], Sequence[str]] = lambda _: ()
    """Returns the releases of a package whose names the atlas has, oldest first."""
    read_builds: ReadBuilds = no_builds
    model_types: Callable[[], ModelTypes | None] = lambda: None
    """Returns which releases of transformers have which models, where that was read."""

    @property
    def space(self) -> ValueSpace:
        """The variables with their domains and facts."""
        return self.index.space

    @property
    def metadata(self) -> MetadataStore:
        """What packages require, also those without facts about GPUs."""
        return self.space.book.metadata

    @property
    def packages(self) -> tuple[str, ...]:
        """The packages that have facts."""
        return tuple(self.space.book.packages)

    @property
    def size(self) -> int:
        """The number of combinations, without those in which a package is absent."""
        product = 1
        for domain in self.index.domains.values():
            product *= max(len(domain.values), 1)
        return product

    @cached_property
    def conditional(self) -> list[tuple[int, Box]]:
        """The boxes that hold only under a condition of use, with their bits."""
        return [(bit, box) for bit, box in enumerate(self.index.boxes) if not (box.rule.always or box.unknown)]

    @cached_property
    def build_errors(self) -> int:
        """The boxes of what cannot be compiled."""
        return self.index.select(lambda box: box.rule.unless.items() == {WHEEL_AT_HAND} and not box.unknown)

    @cached_property
    def conditions(self) -> frozenset[str]:
        """The conditions of use that any rule asks about."""
        return frozenset(key for rule in self.rules for key in (*rule.given, *rule.unless))

    @cached_property
    def beyond_facts(self) -> list[tuple[Rule, Mapping[str, str]]]:
        """The forbidden combinations that name a package without facts, with their rules."""
        return [(rule, item) for rule in self.rules for item in rule.forbid if not all_subjects_known(self.space, item)]

    @cached_property
    def selectable(self) -> Mapping[str, int]:
        """What `pick` and suggestions may choose of each package.

        Neither a withdrawn release, nor a build of another index, nor a pre-release where there are final releases.
        """
        book, selectable = self.space.book, {}
        for name in self.packages:
            domain = self.index.domains[name]
            excluded = sum(
                1 << place for place, value in enumerate(domain.values) if "+" in value or book.yanked(name, value)
            )
            selectable[name] = (domain.final & ~excluded) | domain.absent
        return selectable

    @cached_property
    def _cache(self) -> dict[str, Any]:
        return {}

    @cached_property
    def question(self) -> dict[object, Any]:
        """What the searches for the present question keep."""
        return {}

    def begin_question(self) -> None:
        """Forget what was learned for earlier questions.

        It is true, but which of several true reasons a search finds, and which releases, depends on what it knows.
        """
        self.question.clear()
        self.index.searches.clear()

    def cached(self, name: str, compute: Callable[[], Any]) -> Any:
        """Return the result of `compute`, which is called only the first time for this name."""
        if name not in self._cache:
            self._cache[name] = compute()
        return self._cache[name]


def build_universe(
    book: Factbook,
    gpus: GpuCatalog,
    rules: Sequence[Rule],
    waivers: tuple[Waiver, ...] = (),
    broken_uses: ReadTable = no_broken_uses,
) -> Universe:
    """Build the universe of these facts and rules without what `waivers` waive.

    `broken_uses` gives what releases of others break in a package.
    """
    domains = build_domains(book, gpus, rules)
    all_rules = [*rules, *declared_rules(book)]
    space = ValueSpace(book=book, domains=domains, attributes=build_attributes(gpus))
    frameworks = [name for name in book.packages if name not in CELL_PACKAGES]
    boxes = (
        *compile_rules(space, all_rules),
        *boxes_of_requirements(book, domains),
        *boxes_of_conflicting_bounds(book, domains),
        *boxes_of_outgrown_releases(book, domains, frameworks),
        *boxes_of_broken_pairs(book.packages, domains, broken_uses),
    )
    return Universe(
        index=BoxIndex(space=space, boxes=tuple(apply_waivers(space, boxes, waivers))),
        gpus=gpus,
        rules=tuple(all_rules),
        written_rules=tuple(rules),
        wheel_rules=tuple(rule for rule in rules if any(name.startswith("wheel.") for name in rule.references)),
        waivers=waivers,
        broken_uses=broken_uses,
    )


def build_attributes(gpus: GpuCatalog) -> dict[str, dict[str, dict[str, str]]]:
    """Return the attributes of the axes' values that rules can ask for: variable -> value -> attribute -> text."""
    return {
        "attn": {name: {"implementation": implementation} for name, implementation in ATTENTION.items()},
        "gpu": {sm: {"family": gpus.family(sm)} for sm in gpus.names},
    }


def build_domains(book: Factbook, gpus: GpuCatalog, rules: Sequence[Rule] = ()) -> dict[str, ValueDomain]:
    """Return a domain for each axis and package.

    A driver, nvcc or glibc counts as the greatest release at or below it that a fact or rule names (0: there is none),
    so those releases are the values of its domain.
    """
    domains = {"gpu": ValueDomain("gpu", gpus.names, key=lambda text: text.removeprefix("sm_"))}
    for name in dict.fromkeys([*CELL_PACKAGES, *book.packages]):
        domains[name] = ValueDomain(name, book.versions(name), optional=True)
    pythons = {text for name in book.packages for listed in book.every(name, "pythons") for text in listed}
    # A rule names 3.11 and a requirement >=3.11.2: the minor release is compared as its last patch.
    domains["python"] = ValueDomain("python", pythons, key=lambda text: text if text.count(".") > 1 else f"{text}.99")
    domains["driver"] = ValueDomain(
        "driver", {"0", *book.every("torch", "driver_minimum"), *_releases_in_rules(rules, "driver")}
    )
    glibcs = {text for name in book.packages for text in book.every(name, "glibc")}
    domains["glibc"] = ValueDomain("glibc", {"0", *glibcs, *_releases_in_rules(rules, "glibc")})
    floors = {floor for table in book.every("flash-attn", "sass") for floor in table.values()}
    nvccs = {"0", *floors, *book.versions(DRIVERS), *book.every("torch", "cuda"), *_releases_in_rules(rules, "nvcc")}
    domains["nvcc"] = ValueDomain("nvcc", nvccs)
    domains["attn"] = NameDomain("attn", ATTENTION)
    return domains


def _releases_in_rules(rules: Iterable[Rule], axis: str) -> set[str]:
    """The releases of an axis that rules name."""
    conditions = [table[axis] for rule in rules for table in (rule.when, rule.require) if axis in table]
    texts = [text for condition in conditions for text in condition.arguments if "{" not in text]
    texts += [item[axis] for rule in rules for item in rule.forbid if axis in item]
    return {release for text in texts for release in re.findall(r"\d+(?:\.\d+)*", text)}


def find_needed_packages(rules: Iterable[Rule], packages: Collection[str]) -> set[str]:
    """Return what rules about these packages alone require: transformer-engine 1.11 needs flash-attn, by a rule."""
    needed: set[str] = set()
    for rule in rules:
        when = {subject.partition(".")[0] for subject in rule.when}
        if when and when <= set(packages):
            needed |= {subject.partition(".")[0] for subject in rule.require}
    return needed


def declared_rules(book: Factbook) -> Iterator[Rule]:
    """Yield the rules that packages declare: what they require of Python, glibc and headers, what their extras pin."""
    packages = book.packages
    for package in packages:
        if any(book.every(package, "requires_python")):
            yield _declared_rule(
                package, "python", f"{{{package}.requires_python}}", f"{package} {{{package}}} requires"
            )
        if any(book.every(package, "pythons")):
            yield Rule(
                id=f"wheel:{package}:python",
                require={"python": Condition(relation="in", arguments=(f"{{{package}.pythons}}",))},
                because=f"{package} {{{package}}} has wheels for Python {{{package}.pythons}} only",
                source=(f"{{source:{package}}}",),
            )
        if any(book.every(package, "glibc")):
            floor = f">={{{package}.glibc}}"
            yield _declared_rule(
                package, "glibc", floor, f"the binaries of {package} {{{package}}} need", kind="binary"
            )
        yield from _model_rules(book, package)
        yield from _extra_rules(book, package)
    yield from list_build_rules(book)


def _model_rules(book: Factbook, package: str) -> Iterator[Rule]:
    """Yield a rule for each model of which some release of a package demands a lowest transformers."""
    for model in sorted({model for table in book.every(package, "model_minimums") for model in table}):
        floor = f">={{{package}.model_minimums:{model}}}"
        yield Rule(
            id=f"model:{package}:{model}",
            require={"transformers": Condition(relation="spec", arguments=(floor,))},
            given={} if model == REFERENCE_MODEL else {"model": model},
            unless={"model": f"!{model}"} if model == REFERENCE_MODEL else {},
            because=f"{package} {{{package}}} asserts transformers {floor} for {model}",
            source=(f"{{source:{package}}}",),
        )


def _extra_rules(book: Factbook, package: str) -> Iterator[Rule]:
    """Yield a rule for each package that an extra of another one pins: present, it is the release of that pin."""
    extras = {name for table in book.every(package, "extras") for extra in table.values() for name in extra}
    for other in sorted(extras & set(book.packages)):
        text = f"{{{package}.extra:{other}}}"
        yield Rule(
            id=f"extra:{package}:{other}",
            when={other: Condition(relation="spec", arguments=("*",))},
            require={other: Condition(relation="spec", arguments=(text,))},
            because=f"{package} {{{package}}} goes with {other}{text} only, as its extra says",
            source=(f"{{source:{package}}}",),
        )


def _declared_rule(package: str, axis: str, condition: str, because: str, kind: str = "requires") -> Rule:
    return Rule(
        id=f"{kind}:{package}:{axis}",
        require={axis: Condition(relation="spec", arguments=(condition,))},
        because=f"{because} {axis} {condition}",
        source=(f"{{source:{package}}}",),
    )
