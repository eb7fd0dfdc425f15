"""Rules and requirements as boxes: sets of values that do not go together."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from knowngood.core.errors import UsageError
from knowngood_facts.compat import rule_relations
from knowngood_facts.compat.dependency_markers import ResolutionTarget
from knowngood_facts.compat.metadata_store import specifier_mask
from knowngood_facts.compat.rule import REFERENCE, Condition, Rule
from knowngood_facts.compat.rule_relations import condition_holds
from knowngood_facts.compat.value_domain import ValueDomain, iterate_bits, specifiers_overlap, version_matches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from knowngood_facts.compat.factbook import DeclaredRequirement, Factbook


@dataclass(frozen=True, kw_only=True, slots=True)
class Box:
    """Values that do not go together or, where `unknown` is set, of which that is not known."""

    rule: Rule
    masks: Mapping[str, int]
    unknown: str | None = None
    """Which fact the rule needs that was not harvested; `None` when the rule could be evaluated."""


class _UnknownFact(Exception):  # noqa: N818 - it never leaves this module
    """A condition needs a fact that is not known."""


class _AbsentFact(Exception):  # noqa: N818 - it never leaves this module
    """The release has no such fact, so the rule does not concern it."""


@dataclass(frozen=True, kw_only=True)
class ValueSpace:
    """All variables with their domains, and the facts about each value."""

    book: Factbook
    domains: Mapping[str, ValueDomain]
    attributes: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    """Variable -> value -> attribute -> fact, for axes: `attn.implementation`, `gpu.family`."""

    def get(self, subject: str, value: str) -> Any:
        """Return what a subject (`torch`, `torch.cuda`) is for one value of its variable.

        Raises:
            _UnknownFact: the fact was not harvested.
            _AbsentFact: the value has no such fact.
        """
        variable, _, name = subject.partition(".")
        if not name:
            return value
        if value == "none":
            raise _AbsentFact
        if variable in self.attributes:
            fact = self.attributes[variable].get(value, {}).get(name)
        else:
            fact = self.book.fact(variable, value, name)
            if fact is None and self.book.reason(variable, value, name):
                raise _UnknownFact(f"{variable} {value}: {name}: {self.book.reason(variable, value, name)}")
        if fact is None:
            raise _AbsentFact
        return fact

    @cached_property
    def _cache(self) -> dict[tuple[str, str, str], tuple[int, int]]:
        return {}

    def masks(self, subject: str, relation: str, arguments: Sequence[Any]) -> tuple[int, int]:
        """Return the values for which a condition on a subject holds, and those for which that is not known."""
        key = (subject, relation, repr(arguments))
        masks = self._cache.get(key)
        if masks is None:
            masks = self._cache[key] = self._masks(subject, relation, arguments)
        return masks

    def _masks(self, subject: str, relation: str, arguments: Sequence[Any]) -> tuple[int, int]:
        variable, _, name = subject.partition(".")
        domain = self.domains[variable]
        if relation in ("spec", "any") and not name:
            mask = 0
            for text in arguments:
                mask |= domain.mask(str(text))
            return mask, 0
        true = unknown = 0
        for place, value in enumerate(domain.values):
            try:
                if _condition_is_met(relation, self.get(subject, value), arguments):
                    true |= 1 << place
            except _UnknownFact:
                unknown |= 1 << place
            except _AbsentFact:
                pass  # a condition on a fact that the release does not have does not hold
        return true, unknown

    def lacking(self, subject: str) -> int:
        """Return the values that have no such fact, and of which a rule can therefore require nothing."""
        variable, _, name = subject.partition(".")
        if not name:
            return 0
        key = (subject, "lacking", "")
        if key not in self._cache:
            lacking = 0
            for place, value in enumerate(self.domains[variable].values):
                try:
                    self.get(subject, value)
                except _AbsentFact:
                    lacking |= 1 << place
                except _UnknownFact:
                    pass
            self._cache[key] = (lacking | self.domains[variable].absent, 0)
        return self._cache[key][0]


def _condition_is_met(relation: str, value: Any, arguments: Sequence[Any]) -> bool:
    if relation == "any":
        return any(_condition_is_met("spec", value, [text]) for text in arguments)
    if relation == "spec":
        text = str(arguments[0])
        if isinstance(value, bool):
            return text == str(value).lower()
        return text in ("*", str(value)) or (text[:1] in "<>=!~" and version_matches(text, str(value)))
    try:
        return rule_relations.RELATIONS[relation](value, *arguments)
    except (AttributeError, TypeError, ValueError) as error:  # what the rule names is no value of this kind
        raise UsageError(
            f"the condition {relation!r} with {list(arguments)!r} does not fit {value!r}: {error}"
        ) from None


def compile_rules(
    space: ValueSpace, rules: Sequence[Rule], constants: Mapping[str, Any] | None = None
) -> Iterator[Box]:
    """Yield the boxes of rules; `constants` are the references with one fixed value (`wheel.torch`).

    Raises `UsageError`, with the rule and its file, for a condition that cannot be understood.
    """
    for rule in rules:
        try:
            yield from _compile_rule(space, rule, constants or {})
        except UsageError as error:
            raise UsageError(
                f"{rule.file}{': ' if rule.file else ''}{rule.id}: {error}{_describe_facts(rule)}"
            ) from None


def _describe_facts(rule: Rule) -> str:
    """Return in which files of facts the values of a rule are, for a message; empty for a rule without references."""
    files = [f"facts/{name}.json" for name in dict.fromkeys(text.partition(".")[0] for text in rule.references)]
    return f"; its values are from {' and '.join(files)}" if files else ""


SUBJECT_ALIASES: Mapping[str, str] = {"cuda": "torch.cuda"}
"""Short name of a subject in `forbid` -> the fact that it means."""


def box_from_combination(space: ValueSpace, rule: Rule, combination: Mapping[str, str]) -> Box | None:
    """Return the box of a forbidden combination; `None` when no known value lies in it.

    Subjects without facts are left out: the caller decides whether that is right.
    """
    masks: dict[str, int] = {}
    for name, text in combination.items():
        subject = SUBJECT_ALIASES.get(name, name)
        if subject.partition(".")[0] in space.domains:
            true, _ = space.masks(subject, "spec", [text])
            masks = _cut(masks, subject, true)
    attentions = _attentions(space, rule)
    if attentions is not None:
        masks = _cut(masks, "attn", attentions)
    return Box(rule=rule, masks=masks) if all(masks.values()) else None


def _attentions(space: ValueSpace, rule: Rule) -> int | None:
    """The attention settings under which a rule's conditions of use can hold; `None` when it asks for none.

    The attention setting is an axis too, so it can be part of a conflict.
    """
    if "attn" not in {*rule.given, *rule.unless} or "attn" not in space.domains:
        return None
    wanted, excluded = rule.given.get("attn"), rule.unless.get("attn")
    return sum(
        1 << place
        for place, name in enumerate(space.domains["attn"].values)
        if (wanted is None or condition_holds(wanted, name)) and not (excluded and condition_holds(excluded, name))
    )


def all_subjects_known(space: ValueSpace, combination: Mapping[str, str]) -> bool:
    """Whether every subject of a combination is an axis or a package with facts."""
    return all(SUBJECT_ALIASES.get(name, name).partition(".")[0] in space.domains for name in combination)


def _compile_rule(space: ValueSpace, rule: Rule, constants: Mapping[str, Any]) -> Iterator[Box]:
    for combination in rule.forbid:
        if (
            all_subjects_known(space, combination)
            and (box := box_from_combination(space, rule, combination)) is not None
        ):
            yield box
    if any(subject.partition(".")[0] not in space.domains for subject in rule.when):
        return  # a package without facts
    if missing := [subject for subject in rule.require if subject.partition(".")[0] not in space.domains]:
        # Where the rule applies, it cannot be told whether it holds.
        yield from _boxes_without_facts(space, rule, missing[0])
        return
    references = [name for name in rule.references if name not in constants]
    variables = list(dict.fromkeys(name for text in references for name in _variables(text)))
    if any(name not in space.domains for name in variables):
        return
    for masks, resolved, unknown in _group_by_facts(space, references, variables):
        yield from _boxes_of_case(space, rule, masks, {**constants, **resolved}, unknown)


def _boxes_without_facts(space: ValueSpace, rule: Rule, missing: str) -> Iterator[Box]:
    """The values for which a rule requires something of a package that has no facts; none when it needs other facts."""
    masks: dict[str, int] = {}
    for subject, condition in rule.when.items():
        if condition.references:
            return
        masks = _cut(masks, subject, space.masks(subject, condition.relation, condition.arguments)[0])
    if masks and all(masks.values()):
        yield Box(rule=rule, masks=masks, unknown=f"{rule.because}; there are no facts about {missing}")


def _variables(reference: str) -> list[str]:
    name, _, index = reference.partition("[")
    return list(dict.fromkeys([name.partition(".")[0], *([index[:-1].partition(".")[0]] if index else [])]))


def _group_by_facts(
    space: ValueSpace, references: Sequence[str], variables: Sequence[str]
) -> Iterator[tuple[dict[str, int], dict[str, Any], str | None]]:
    """Group the values of the referenced variables by their facts.

    Yields sets of values, the facts that they share, and why a fact is not known (else `None`).
    """
    groups: dict[str, tuple[dict[str, Any], str | None, dict[tuple[int, ...], int]]] = {}
    for kinds in itertools.product(*(_kinds_of_values(space, references, name) for name in variables)):
        chosen = {name: space.domains[name].values[place] for name, (place, _) in zip(variables, kinds, strict=True)}
        try:
            resolved: dict[str, Any] = {name: _resolve_reference(space, name, chosen) for name in references}
            unknown = None
        except _AbsentFact:
            continue
        except _UnknownFact as error:
            resolved, unknown = {}, str(error)
        _, _, group = groups.setdefault(repr((resolved, unknown)), (resolved, unknown, {}))
        *head, tail = [mask for _, mask in kinds] or [0]
        group[tuple(head)] = group.get(tuple(head), 0) | tail
    for resolved, unknown, group in groups.values():
        for masks in _merge_heads(group):
            yield dict(zip(variables, masks, strict=False)), resolved, unknown


def _kinds_of_values(space: ValueSpace, references: Sequence[str], variable: str) -> list[tuple[int, int]]:
    """Group the values of a variable that the references cannot tell apart: the place of one of them, and all.

    A table is looked up for many values (the binaries of each release for each CUDA), so it pays to do it once for
    values that are alike.
    """
    facts: dict[str, None] = {}
    for reference in references:
        name, _, index = reference.partition("[")
        for part in (name, index.removesuffix("]")):
            if part.partition(".")[0] == variable:
                facts[part] = None
    kinds: dict[str, tuple[int, int]] = {}
    for place, value in enumerate(space.domains[variable].values):
        try:
            kind = repr([space.get(name, value) for name in facts])
        except _AbsentFact:
            continue
        except _UnknownFact as error:
            kind = str(error)
        first, mask = kinds.get(kind, (place, 0))
        kinds[kind] = first, mask | 1 << place
    return list(kinds.values())


def _merge_heads(group: Mapping[tuple[int, ...], int]) -> Iterator[tuple[int, ...]]:
    """Yield sets of values for all variables, from the sets of the last variable for those of the others."""
    merged: dict[int, list[tuple[int, ...]]] = {}
    for head, tail in group.items():
        merged.setdefault(tail, []).append(head)
    for tail, heads in merged.items():
        if len(heads[0]) == 1:
            yield functools.reduce(operator.or_, (head[0] for head in heads)), tail
        else:
            yield from ((*head, tail) for head in heads)


def _resolve_reference(space: ValueSpace, reference: str, chosen: Mapping[str, str]) -> Any:
    name, _, index = reference.partition("[")
    fact = space.get(name, chosen[name.partition(".")[0]])
    if index:
        subject = index[:-1]
        key = str(space.get(subject, chosen[subject.partition(".")[0]])).removeprefix("sm_")
        if key not in fact:
            raise _AbsentFact
        fact = fact[key]
    return fact


def _boxes_of_case(  # noqa: C901 - the three-valued logic of one rule, clearer in one piece
    space: ValueSpace, rule: Rule, start: Mapping[str, int], known: Mapping[str, Any], unknown: str | None
) -> Iterator[Box]:
    masks = dict(start)
    unsure: list[dict[str, int]] = []
    for subject, condition in rule.when.items():
        if unknown and condition.references:
            continue
        true, maybe = space.masks(subject, condition.relation, fill_arguments(condition, known))
        if maybe:
            unsure.append(_cut(masks, subject, maybe))
        masks = _cut(masks, subject, true)
    possible = all(masks.values())
    reason = unknown or f"{rule.id}: a fact it needs is not known"
    if unsure:
        # For these values it is not known whether `when` holds, so neither is whether the rule applies.
        yield from (Box(rule=rule, masks=item, unknown=reason) for item in unsure if all(item.values()))
    if not possible:
        return
    for subject, condition in rule.require.items():
        variable = subject.partition(".")[0]
        domain = space.domains[variable]
        if unknown and condition.references:
            box = _cut(masks, variable, domain.all)
            if all(box.values()):
                yield Box(rule=rule, masks=box, unknown=unknown)
            continue
        true, maybe = space.masks(subject, condition.relation, fill_arguments(condition, known))
        false = domain.all & ~true & ~maybe & ~space.lacking(subject)
        for mask, why in ((false, unknown), (maybe, reason)):
            box = _cut(masks, variable, mask)
            if all(box.values()):
                yield Box(rule=rule, masks=box, unknown=why)


def _cut(masks: Mapping[str, int], subject: str, mask: int) -> dict[str, int]:
    variable = subject.partition(".")[0]
    return {**masks, variable: masks[variable] & mask if variable in masks else mask}


def fill_arguments(condition: Condition, known: Mapping[str, Any]) -> list[Any]:
    """Return a condition's arguments with references filled in; an argument that is one reference keeps its type."""
    filled: list[Any] = []
    for text in condition.arguments:
        whole = REFERENCE.fullmatch(text)
        filled.append(known[whole[1]] if whole else REFERENCE.sub(lambda match: str(known[match[1]]), text))
    return filled


_Domains = Mapping[str, ValueDomain]


def boxes_of_requirements(book: Factbook, domains: _Domains) -> Iterator[Box]:
    """Yield, for each requirement of a package with facts on another one, the releases that it excludes."""
    for package in book.packages:
        for item in book.requirements(package):
            other = item.dependency.name
            if other not in book.tables or other == package:
                continue
            pythons = _pythons_of_marker(item.dependency.marker, domains["python"])
            # A package that is required must be there, in a release that fulfils the specifier.
            refused = domains[other].all & ~specifier_mask(domains[other], item.dependency.specifier)
            masks = {package: _mask_of_releases(item, domains[package]), other: refused}
            if pythons != domains["python"].all:
                masks["python"] = pythons
            if all(masks.values()):
                yield Box(rule=_requirement_rule(package, other, item.dependency.specifier), masks=masks)


def boxes_of_conflicting_bounds(book: Factbook, domains: _Domains) -> Iterator[Box]:
    """Yield a box for each pair of packages whose bounds on a third package exclude each other."""
    bounds: dict[str, dict[str, list[DeclaredRequirement]]] = {}
    for package in book.packages:
        for item in book.requirements(package):
            if item.dependency.specifier and item.dependency.name not in book.tables:
                bounds.setdefault(item.dependency.name, {}).setdefault(package, []).append(item)
    for name, packages in bounds.items():
        for first, second in itertools.combinations(sorted(packages), 2):
            for one, two in itertools.product(packages[first], packages[second]):
                if not specifiers_overlap(one.dependency.specifier, two.dependency.specifier):
                    yield from _box_of_bounds(name, (first, one), (second, two), domains)


def _box_of_bounds(
    name: str, first: tuple[str, DeclaredRequirement], second: tuple[str, DeclaredRequirement], domains: _Domains
) -> Iterator[Box]:
    """Yield the box of two bounds on a package that exclude each other; none when no Python has both."""
    masks = {package: _mask_of_releases(item, domains[package]) for package, item in (first, second)}
    pythons = domains["python"].all
    for _, item in (first, second):
        pythons &= _pythons_of_marker(item.dependency.marker, domains["python"])
    if pythons != domains["python"].all:
        masks["python"] = pythons
    (one, one_item), (two, two_item) = first, second
    one_text, two_text = (item.dependency.specifier for item in (one_item, two_item))
    rule = Rule(
        id=f"bounds:{one}:{two}:{name}",
        require={},
        because=f"{one} {{{one}}} requires {name}{one_text}, {two} {{{two}}} {name}{two_text}",
        source=(f"{{source:{one}}}", f"{{source:{two}}}"),
    )
    if all(masks.values()):
        yield Box(rule=rule, masks=masks)


def _requirement_rule(package: str, other: str, specifier: str) -> Rule:
    return Rule(
        id=f"requires:{package}:{other}",
        require={},
        because=f"{package} {{{package}}} requires {other}{specifier}",
        source=(f"{{source:{package}}}",),
    )


def _mask_of_releases(item: DeclaredRequirement, domain: ValueDomain) -> int:
    return sum(1 << domain.index[version] for version in item.versions)


def _pythons_of_marker(marker: str, pythons: ValueDomain) -> int:
    """Return the Pythons of a domain for which a marker holds."""
    if not marker:
        return pythons.all
    return sum(1 << place for place in iterate_bits(pythons.all) if _target(pythons.text(place)).fulfils(marker))


_TARGETS: dict[str, ResolutionTarget] = {}


def _target(python: str) -> ResolutionTarget:
    """Return the target of a Python; what it has evaluated once it keeps."""
    if python not in _TARGETS:
        _TARGETS[python] = ResolutionTarget(python=python)
    return _TARGETS[python]


OUTGROWN = "outgrown:"
"""How the ids of these rules begin."""

_BOUNDED = ("torch", "transformers")


def boxes_of_outgrown_releases(
    book: Factbook, domains: Mapping[str, ValueDomain], frameworks: Iterable[str]
) -> Iterator[Box]:
    """Yield, for each framework, its older releases with what is newer than its newest release takes.

    Only releases that declare nothing against the newer package are in a box; the requirements of the others exclude
    it already.
    """
    for name in frameworks:
        domain = domains[name]
        final = [place for place in iterate_bits(domain.final) if not book.yanked(name, domain.values[place])]
        if not final:
            continue
        newest = domain.values[final[-1]]
        for package in _BOUNDED:
            bound = book.requires(name, newest).get(package, "")
            above = _above(domains[package], bound)
            older = [
                place
                for place in range(final[-1])
                if above & domains[package].mask(book.requires(name, domain.values[place]).get(package, ""))
            ]
            if above and older:
                rule = Rule(
                    id=f"{OUTGROWN}{name}:{package}",
                    require={},
                    because=(
                        f"{name} {{{name}}} declares nothing against {package} {{{package}}}, but its newest release, "
                        f"{newest}, takes {package}{bound}: no release of {name} was made for a newer {package}"
                    ),
                    source=(f"{{source:{name}}}", book.source(name, newest)),
                    severity="warning",
                )
                yield Box(rule=rule, masks={name: sum(1 << place for place in older), package: above})


def _above(domain: ValueDomain, bound: str) -> int:
    """Return the releases that are newer than all that `bound` takes; none without a bound."""
    taken = domain.mask(bound) & domain.some if bound else 0
    return domain.some & ~((1 << taken.bit_length()) - 1) if taken else 0
