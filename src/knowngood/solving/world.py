"""The world that rules speak of: a domain for each axis and package, and every rule as sets of values that collide.

A `Box` is a set for each of a few variables; an assignment that lies in all of them breaks the rule. A rule becomes
a handful of boxes (releases with the same facts share one). With one bit a box, a combination is checked by one AND
a variable, and a search over 10^9 combinations tests a partial one in microseconds: see `solving.solve`. Pure.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from knowngood.solving import relations
from knowngood.solving.domain import Domain, bits, holds
from knowngood.solving.factbook import Factbook
from knowngood.solving.relations import condition_holds
from knowngood.solving.rules import REFERENCE, Condition, Rule

Values = Mapping[str, str]
"""Variable -> value's name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Box:
    """Values that do not go together, or (`unknown`) of which it is not known."""

    rule: Rule
    masks: Mapping[str, int]
    unknown: str | None = None
    """Why it is not known, where the rule needs a fact that was not harvested."""


class _Unknown(Exception):  # noqa: N818 - it never leaves this module
    """A fact that the condition needs is not known."""


class _Absent(Exception):  # noqa: N818 - it never leaves this module
    """The release has no such thing: the rule has nothing to say of it."""


@dataclass(frozen=True, kw_only=True)
class World:
    """Domains, facts and boxes."""

    book: Factbook
    domains: Mapping[str, Domain]
    attributes: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    """Variable -> value -> attribute, for those that are no packages: `attn.implementation`, `gpu.family`."""
    boxes: tuple[Box, ...] = ()

    def get(self, subject: str, value: str) -> Any:
        """The value of `torch` or `torch.cuda`, for one value of the variable."""
        variable, _, name = subject.partition(".")
        if not name:
            return value
        if value == "none":
            raise _Absent
        if variable in self.attributes:
            found = self.attributes[variable].get(value, {}).get(name)
        else:
            found = self.book.fact(variable, value, name)
            if found is None and self.book.reason(variable, value, name):
                raise _Unknown(f"{variable} {value}: {name}: {self.book.reason(variable, value, name)}")
        if found is None:
            raise _Absent
        return found

    @cached_property
    def _cache(self) -> dict[tuple[str, str, str], tuple[int, int]]:
        return {}

    def masks(self, subject: str, relation: str, arguments: Sequence[Any]) -> tuple[int, int]:
        """The values for which a condition holds, and those for which it is not known."""
        key = (subject, relation, repr(arguments))
        known = self._cache.get(key)
        if known is None:
            known = self._cache[key] = self._masks(subject, relation, arguments)
        return known

    def _masks(self, subject: str, relation: str, arguments: Sequence[Any]) -> tuple[int, int]:
        variable, _, name = subject.partition(".")
        domain = self.domains[variable]
        if relation in ("spec", "any") and not name:
            found = 0
            for text in arguments:
                found |= domain.mask(str(text))
            return found, 0
        true = unknown = 0
        for place, value in enumerate(domain.values):
            try:
                if _holds(relation, self.get(subject, value), arguments):
                    true |= 1 << place
            except _Unknown:
                unknown |= 1 << place
            except _Absent:
                # No such thing in this release: a condition on it does not hold, a demand on it is not made.
                pass
        return true, unknown

    def lacking(self, subject: str) -> int:
        """The values that have no such fact (of which nothing can be demanded)."""
        variable, _, name = subject.partition(".")
        if not name:
            return 0
        key = (subject, "lacking", "")
        if key not in self._cache:
            found = 0
            for place, value in enumerate(self.domains[variable].values):
                try:
                    self.get(subject, value)
                except _Absent:
                    found |= 1 << place
                except _Unknown:
                    pass
            self._cache[key] = (found | self.domains[variable].absent, 0)
        return self._cache[key][0]


def _holds(relation: str, value: Any, arguments: Sequence[Any]) -> bool:
    if relation == "any":
        return any(_holds("spec", value, [text]) for text in arguments)
    if relation == "spec":
        text = str(arguments[0])
        if isinstance(value, bool):
            return text == str(value).lower()
        return text in ("*", str(value)) or (text[:1] in "<>=!~" and holds(text, str(value)))
    return relations.NAMED[relation](value, *arguments)


def compile_rules(world: World, rules: Sequence[Rule], constants: Mapping[str, Any] | None = None) -> Iterator[Box]:
    """The boxes of rules; `constants` are references with a fixed value (`wheel.torch`)."""
    for rule in rules:
        yield from _compile(world, rule, constants or {})


NICKNAMES: Mapping[str, str] = {"cuda": "torch.cuda"}
"""What `forbid` calls a fact."""


def forbidden(world: World, rule: Rule, combination: Mapping[str, str]) -> Box | None:
    """What a combination forbids; nothing when it holds no known value. Subjects without facts are left out."""
    masks: dict[str, int] = {}
    for name, text in combination.items():
        subject = NICKNAMES.get(name, name)
        if subject.partition(".")[0] in world.domains:
            true, _ = world.masks(subject, "spec", [text])
            masks = _cut(masks, subject, true)
    attentions = _attentions(world, rule)
    if attentions is not None:
        masks = _cut(masks, "attn", attentions)
    return Box(rule=rule, masks=masks) if all(masks.values()) else None


def _attentions(world: World, rule: Rule) -> int | None:
    """The attention settings under which its conditions can hold: as an axis they can be part of a conflict."""
    if "attn" not in {*rule.given, *rule.unless} or "attn" not in world.domains:
        return None
    wanted, excluded = rule.given.get("attn"), rule.unless.get("attn")
    return sum(
        1 << place
        for place, name in enumerate(world.domains["attn"].values)
        if (wanted is None or condition_holds(wanted, name)) and not (excluded and condition_holds(excluded, name))
    )


def has_facts(world: World, combination: Mapping[str, str]) -> bool:
    """Whether all of a combination is about axes and packages with facts."""
    return all(NICKNAMES.get(name, name).partition(".")[0] in world.domains for name in combination)


def _compile(world: World, rule: Rule, constants: Mapping[str, Any]) -> Iterator[Box]:
    for combination in rule.forbid:
        if has_facts(world, combination) and (box := forbidden(world, rule, combination)) is not None:
            yield box
    subjects = [*rule.when, *rule.require]
    if any(subject.partition(".")[0] not in world.domains for subject in subjects):
        return  # a package nobody has facts about
    references = [name for name in rule.references if name not in constants]
    variables = list(dict.fromkeys(name for text in references for name in _variables(text)))
    if any(name not in world.domains for name in variables):
        return
    for masks, resolved, unknown in _cases(world, references, variables):
        known = {**constants, **resolved}
        yield from _boxes(world, rule, masks, known, unknown)


def _variables(reference: str) -> list[str]:
    name, _, index = reference.partition("[")
    return [name.partition(".")[0], *([index[:-1]] if index else [])]


def _cases(  # noqa: C901 - grouping by facts is one thought
    world: World, references: Sequence[str], variables: Sequence[str]
) -> Iterator[tuple[dict[str, int], dict[str, Any], str | None]]:
    """Sets of values of the referenced variables with the same facts, those facts, and why one is not known."""
    if not variables:
        yield {}, {}, None
        return
    groups: dict[str, tuple[dict[str, Any], str | None, dict[tuple[int, ...], int]]] = {}
    domains = [world.domains[name] for name in variables]
    for places in itertools.product(*(range(len(domain.values)) for domain in domains)):
        chosen = dict(zip(variables, (d.values[p] for d, p in zip(domains, places, strict=True)), strict=True))
        try:
            resolved: dict[str, Any] = {name: _resolve(world, name, chosen) for name in references}
            unknown = None
        except _Absent:
            continue
        except _Unknown as error:
            resolved, unknown = {}, str(error)
        _, _, group = groups.setdefault(repr((resolved, unknown)), (resolved, unknown, {}))
        group[places[:-1]] = group.get(places[:-1], 0) | 1 << places[-1]
    for resolved, unknown, group in groups.values():
        merged: dict[int, list[tuple[int, ...]]] = {}
        for head, tail in group.items():
            merged.setdefault(tail, []).append(head)
        for tail, heads in merged.items():
            if len(variables) == 1:
                yield {variables[0]: tail}, resolved, unknown
            elif len(variables) == 2:
                first = sum(1 << head[0] for head in heads)
                yield {variables[0]: first, variables[1]: tail}, resolved, unknown
            else:
                for head in heads:
                    masks = {name: 1 << place for name, place in zip(variables, head, strict=False)}
                    yield {**masks, variables[-1]: tail}, resolved, unknown


def _resolve(world: World, reference: str, chosen: Values) -> Any:
    name, _, index = reference.partition("[")
    found = world.get(name, chosen[name.partition(".")[0]])
    if index:
        key = chosen[index[:-1]].removeprefix("sm_")
        if key not in found:
            raise _Absent
        found = found[key]
    return found


def _boxes(  # noqa: C901 - the three-valued logic of one rule stands in one place
    world: World, rule: Rule, start: Mapping[str, int], known: Mapping[str, Any], unknown: str | None
) -> Iterator[Box]:
    masks = dict(start)
    unsure: list[dict[str, int]] = []
    for subject, condition in rule.when.items():
        if unknown and condition.references:
            continue
        true, maybe = world.masks(subject, condition.relation, arguments(condition, known))
        if maybe:
            unsure.append(_cut(masks, subject, maybe))
        masks = _cut(masks, subject, true)
    possible = all(masks.values())
    reason = unknown or f"{rule.id}: a fact it needs is not known"
    if unsure:
        # What `when` asks is not known of these: neither is whether the rule holds.
        yield from (Box(rule=rule, masks=item, unknown=reason) for item in unsure if all(item.values()))
    if not possible:
        return
    for subject, condition in rule.require.items():
        variable = subject.partition(".")[0]
        domain = world.domains[variable]
        if unknown and condition.references:
            box = _cut(masks, variable, domain.all)
            if all(box.values()):
                yield Box(rule=rule, masks=box, unknown=unknown)
            continue
        true, maybe = world.masks(subject, condition.relation, arguments(condition, known))
        false = domain.all & ~true & ~maybe & ~world.lacking(subject)
        for mask, why in ((false, unknown), (maybe, reason)):
            box = _cut(masks, variable, mask)
            if all(box.values()):
                yield Box(rule=rule, masks=box, unknown=why)


def _cut(masks: Mapping[str, int], subject: str, mask: int) -> dict[str, int]:
    variable = subject.partition(".")[0]
    return {**masks, variable: masks[variable] & mask if variable in masks else mask}


def arguments(condition: Condition, known: Mapping[str, Any]) -> list[Any]:
    """A condition's arguments with its references filled in; a text that is one reference alone keeps its type."""
    made: list[Any] = []
    for text in condition.arguments:
        whole = REFERENCE.fullmatch(text)
        made.append(known[whole[1]] if whole else REFERENCE.sub(lambda match: str(known[match[1]]), text))
    return made


def values(world: World, variable: str, mask: int) -> list[str]:
    """The names of a set of values, ascending."""
    domain = world.domains[variable]
    return [domain.text(bit) for bit in bits(mask)]
