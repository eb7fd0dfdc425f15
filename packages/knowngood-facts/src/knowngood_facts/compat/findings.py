"""Findings: the reasons of an answer, and when demands collide, by which rules and what has to change. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from knowngood.core.local_files import INCIDENTS_FOLDER
from knowngood_facts.compat.box_search import CACHE_LIMIT, Assignment, BoxIndex, BoxSearch, ValueSets
from knowngood_facts.compat.rule import REFERENCE, Rule
from knowngood_facts.compat.rule_relations import condition_holds
from knowngood_facts.compat.value_domain import NONE, ValueDomain, iterate_bits

if TYPE_CHECKING:
    from collections.abc import Iterable

    from knowngood_facts.compat.rule_boxes import Box, ValueSpace

AXES = frozenset({"gpu", "python", "driver", "nvcc", "glibc", "attn"})
"""The variables that are not packages: a fix cannot pin them."""

_RANK = {"error": 0, "warning": 1, "info": 2}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One reason for or against a combination: a rule, an incident, or a remark on the facts."""

    id: str
    kind: str
    severity: str
    packages: Mapping[str, str]
    because: str
    source: tuple[str, ...]
    confidence: str
    fix: tuple[Mapping[str, Any], ...] = ()
    when: Mapping[str, str] = field(default_factory=dict)
    incidents: tuple[str, ...] = ()
    """The incidents that this rule covers; each has a page."""
    undecided: bool = False
    """It holds only under conditions of use of which the query states none or not all."""

    @property
    def pages(self) -> tuple[str, ...]:
        """The pages with more about this finding."""
        names = (self.id,) if self.kind == "incident" else self.incidents
        return tuple(f"{INCIDENTS_FOLDER}/{name}.yaml" for name in names)

    def document(self) -> dict[str, Any]:
        """The finding as `check --json` prints it."""
        document: dict[str, Any] = {
            "id": self.id,
            "kind": self.kind,
            "severity": self.severity,
            "packages": dict(self.packages),
            "because": self.because,
            "source": list(self.source),
            "confidence": self.confidence,
            "fix": [dict(item) for item in self.fix],
        }
        document |= {"when": dict(self.when)} if self.when else {}
        return document | ({"incidents": list(self.incidents)} if self.incidents else {})


def sort_findings(findings: Sequence[Finding]) -> list[Finding]:
    """Sort findings, errors first; of findings with the same id keep the first."""
    by_id: dict[str, Finding] = {}
    for finding in sorted(findings, key=lambda item: (_RANK[item.severity], item.id)):
        by_id.setdefault(finding.id, finding)
    return list(by_id.values())


def finding_from_box(
    index: BoxIndex,
    box: Box,
    assignment: Mapping[str, int],
    as_written: Mapping[str, str],
    constants: Mapping[str, str],
) -> Finding:
    """Return the finding of a box that an assignment lies in.

    `as_written` has the values as the user wrote them: a driver's own version, not the release that it counts as.
    """
    rule, space = box.rule, index.space
    computed = rule.severity != "info" and rule.kind != "incident"
    fixes = [*rule.fix, *(_fixes(index, box, assignment) if computed else [])]
    return Finding(
        id=rule.id,
        kind=rule.kind,
        severity=rule.severity,
        packages={
            name: as_written.get(name, space.domains[name].text(assignment[name]))
            for name in box.masks
            if name in assignment
        },
        because=fill_template(space, rule.because, box, assignment, {**constants, **as_written}),
        source=tuple(fill_template(space, text, box, assignment, constants) for text in rule.source),
        confidence=rule.confidence,
        fix=tuple(fixes),
        when=dict(rule.given),
    )


def _fixes(index: BoxIndex, box: Box, assignment: Mapping[str, int]) -> list[dict[str, Any]]:
    """For each package of the rule, the nearest release with which the rule holds while the others are kept."""
    whole = index.boxes_of_rule.get(box.rule.id, 0) | index.errors
    kept = {variable: assignment[variable] for variable in box.masks if variable in assignment}
    fixes: list[dict[str, Any]] = []
    for name, mask in box.masks.items():
        domain = index.domains[name]
        if name in AXES or name not in assignment:
            continue
        others = domain.some & ~mask
        if domain.final >> assignment[name] & 1:
            others &= domain.final
        book = index.space.book
        fitting = (
            place
            for place in domain.nearest_places(others, 1 << assignment[name])
            if not book.yanked(name, domain.text(place)) and not index.find_broken({**kept, name: place}, whole)
        )
        place = next(fitting, None)
        if place is not None:
            note = "the nearest release for which this rule holds"
            fixes.append({"change": {name: domain.text(place)}, "note": note})
    return fixes


def fill_template(
    space: ValueSpace, text: str, box: Box, assignment: Mapping[str, int], known: Mapping[str, str]
) -> str:
    """Fill the references (`{torch.sass}`, `{source:torch}`) of a rule's text; `known` has the values of some."""

    def fill(match: re.Match[str]) -> str:
        return _value(space, match[1], box, assignment, known)

    text = re.sub(r"\{source:([a-z0-9-]+)\}", lambda match: _source(space, match[1], box, assignment), text)
    return REFERENCE.sub(fill, text)


def _source(space: ValueSpace, package: str, box: Box, assignment: Mapping[str, int]) -> str:
    domain = space.domains[package]
    place = assignment.get(package, next(iterate_bits(box.masks.get(package, domain.some)), 0))
    return space.book.source(package, domain.text(place))


def _value(space: ValueSpace, reference: str, box: Box, assignment: Mapping[str, int], known: Mapping[str, str]) -> str:
    if reference in known:
        return known[reference]
    name, _, index = reference.partition("[")
    variable = name.partition(".")[0]
    if variable not in space.domains:
        return f"{{{reference}}}"
    domain = space.domains[variable]
    mask = 1 << assignment[variable] if variable in assignment else box.masks.get(variable, domain.some)
    if "." not in name:
        return describe_versions(space, variable, mask)
    try:
        fact = space.get(name, domain.text(next(iterate_bits(mask), 0)))
        if index:
            subject = index[:-1]
            axis = subject.partition(".")[0]
            fact = fact[str(space.get(subject, space.domains[axis].text(assignment[axis]))).removeprefix("sm_")]
    except Exception:  # noqa: BLE001 - this is only a word of a sentence; the rule was evaluated without it
        return "unknown"
    if isinstance(fact, Mapping):
        return ", ".join(fact)
    return ", ".join(map(str, fact)) if isinstance(fact, (list, tuple)) else str(fact)


def describe_versions(space: ValueSpace, variable: str, mask: int) -> str:
    """Describe a set of versions: `2.6.0`, `2.4.0 to 2.6.0`, or `none`."""
    names = space.domains[variable].texts(mask)
    names = [name for name in names if name != NONE] or names
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}" if names else NONE


def fact_finding(id_: str, severity: str, packages: Mapping[str, str], because: str, source: Sequence[str]) -> Finding:
    """Return a finding about the facts themselves."""
    return Finding(
        id=id_,
        kind="fact",
        severity=severity,
        packages=packages,
        because=because,
        source=tuple(source),
        confidence="artefact",
    )


def conditions_apply(rule: Rule, conditions: Mapping[str, str]) -> bool | None:
    """Whether a rule's conditions of use hold; `None` when the stated conditions do not decide it."""
    if any(key in conditions and condition_holds(text, conditions[key]) for key, text in rule.unless.items()):
        return False
    answers = [
        condition_holds(text, conditions[key]) if key in conditions else None for key, text in rule.given.items()
    ]
    if any(answer is False for answer in answers):
        return False
    return None if None in answers else True


@dataclass(frozen=True, kw_only=True)
class Demand:
    """A demand of a query: the values that one variable may have, and the text by which the user knows it."""

    text: str
    variable: str
    mask: int
    owner: str = ""
    """The package from which this follows (a wheel compiled against a torch); the demand is given up with it."""
    rebuild: bool = False
    """The demand is of one build, and another build of the same release may do."""
    reason: Finding | None = None
    """Why the other values are refused, where no rule says it."""


def apply_demands(index: BoxIndex, demands: Iterable[Demand], base: ValueSets) -> dict[str, int]:
    """Return the values that all these demands leave of `base`."""
    sets = dict(base)
    for demand in demands:
        everything = index.domains[demand.variable].all
        sets[demand.variable] = sets.get(demand.variable, everything) & demand.mask
    return sets


@dataclass(frozen=True, kw_only=True)
class DemandProblem:
    """Demands to be met without breaking a rule of `among`; the values of `base` are allowed besides them."""

    index: BoxIndex
    demands: tuple[Demand, ...]
    base: ValueSets
    among: int
    order: Mapping[str, Sequence[int]] = field(default_factory=dict)
    first: tuple[str, ...] = ()
    """The variables that get the best values before the others."""

    def solve(self, demands: Sequence[Demand]) -> Assignment | None:
        """Return the best assignment that meets these demands; `None` when there is none."""
        search = BoxSearch(index=self.index, among=self.among, order=self.order, first=self.first)
        return search.find_best(apply_demands(self.index, demands, self.base))

    def possible(self, demands: Sequence[Demand]) -> bool:
        """Whether these demands can be met together."""
        sets = apply_demands(self.index, demands, self.base)
        return all(sets.values()) and BoxSearch(index=self.index, among=self.among).exists(sets)


def find_minimal_conflict(problem: DemandProblem) -> list[Demand]:
    """Return demands that cannot be met together, none of which can be left out; empty when all can be met."""
    kept = list(problem.demands)
    if problem.possible(kept):
        return []
    for demand in problem.demands:
        fewer = [item for item in kept if item is not demand]
        if not problem.possible(fewer):
            kept = fewer
    return kept


def find_minimal_rules(problem: DemandProblem, demands: Sequence[Demand]) -> list[int]:
    """Return one box for each rule of a minimal set of rules that together exclude these demands."""
    sets = apply_demands(problem.index, demands, problem.base)
    cache, key = problem.index.conflict_cache, (problem.among, tuple(sorted(sets.items())))
    if key not in cache:
        if len(cache) > CACHE_LIMIT:
            cache.clear()
        cache[key] = _minimal_rules(problem, sets)
    return cache[key]


def _minimal_rules(problem: DemandProblem, sets: ValueSets) -> list[int]:
    boxes = problem.index.boxes
    by_rule: dict[str, int] = {}
    for bit in iterate_bits(problem.among):
        by_rule[boxes[bit].rule.id] = by_rule.get(boxes[bit].rule.id, 0) | 1 << bit

    def proof(names: Iterable[str] | None) -> int | None:
        among = problem.among if names is None else sum(by_rule[name] for name in names)
        return BoxSearch(index=problem.index, among=among).prove_impossible(sets)

    used = proof(None)
    if used is None:
        return []
    kept = list(dict.fromkeys(boxes[bit].rule.id for bit in iterate_bits(used)))
    for name in list(kept):
        fewer = [item for item in kept if item != name]
        if proof(fewer) is not None:
            kept = fewer
    last = proof(kept) or 0
    chosen: dict[str, int] = {}
    # Of the boxes of one rule, the one about the newest releases is the most useful to a user.
    for bit in sorted(
        iterate_bits(last), key=lambda place: -sum(mask.bit_length() for mask in boxes[place].masks.values())
    ):
        chosen.setdefault(boxes[bit].rule.id, bit)
    return [chosen[name] for name in kept if name in chosen]


def find_relaxation(
    problem: DemandProblem, demand: Demand, others: Sequence[Demand], within: int | None = None
) -> tuple[int, Assignment] | None:
    """Return the nearest value of a demand's variable that goes with the other demands, and an assignment with it.

    Only values at a distance of less than `within` releases count. `None` when there is no such value.
    """
    domain = problem.index.domains[demand.variable]
    if not problem.possible(others):
        return None
    allowed = apply_demands(problem.index, others, problem.base).get(demand.variable, domain.all)
    outside = problem.index.outside[demand.variable]
    tried: set[int] = set()
    for place in domain.nearest_places(allowed & ~demand.mask, demand.mask):
        if outside[place] in tried or (within is not None and domain.distance(place, demand.mask) >= within):
            continue
        tried.add(outside[place])
        one = [*others, Demand(text="", variable=demand.variable, mask=1 << place)]
        if problem.possible(one):
            assignment = problem.solve(one)
            return None if assignment is None else (place, assignment)
    return None


@dataclass(frozen=True, kw_only=True)
class PinChange:
    """New places of variables, and what they cost in all; see `move_cost`."""

    places: Mapping[str, int]
    cost: int


def find_smallest_change(problem: DemandProblem, changeable: Sequence[Demand]) -> PinChange | None:
    """Return the new places of the fewest variables that have to change; `None` when no change helps.

    Of the changes of as many variables, the one with the least sum of costs is taken.
    """
    index = problem.index
    assignment, _ = index.split_fixed(apply_demands(index, problem.demands, problem.base), problem.among)
    # A change helps only when it changes a variable of every rule that is broken now.
    broken = [frozenset(index.boxes[bit].masks) for bit in iterate_bits(index.find_broken(assignment, problem.among))]
    for count in range(1, len(changeable) + 1):
        best: PinChange | None = None
        for chosen in itertools.combinations(changeable, count):
            changed = {demand.variable for demand in chosen}
            changed |= {demand.variable for demand in problem.demands if demand.owner in changed}
            if any(scope.isdisjoint(changed) for scope in broken):
                continue
            changes = _ChangeSearch.of(problem, chosen)
            if changes is not None:
                best = changes.cheaper(best)
        if best is not None:
            return best
    return None


_TORCH, _BACK, _TORCH_BACK, _LEFT_OUT = 100, 1_000, 10_000, 100_000
"""What another torch, an older release, an older torch, and a package that is left out cost besides the distance."""

_FOLLOWERS = frozenset({"triton"})
"""Packages that only follow another one (triton follows torch's pin): to move them back costs nothing more."""


def move_cost(domain: ValueDomain, place: int, anchor: int) -> int:
    """Return what it costs to move a package from the values of `anchor` to a place.

    The cost is the distance in releases. Moving torch costs more than that, moving another package back more than
    moving any forward, moving torch back still more, and leaving a package out the most.
    """
    distance = domain.distance(place, anchor)
    if place >= len(domain.values):
        return distance + _LEFT_OUT
    anchors = anchor & domain.some
    is_torch = domain.name == "torch"
    if place >= (anchors & -anchors).bit_length() - 1 or domain.name in _FOLLOWERS:
        return distance + _TORCH * is_torch
    return distance + (_TORCH_BACK if is_torch else _BACK)


_FEW = 3
"""Up to so many values are tried one by one; for more it is first searched whether any can fit."""


@dataclass(frozen=True, kw_only=True)
class _ChangeSearch:
    """The ways to change a few demands while the others are kept."""

    problem: DemandProblem
    open: list[tuple[str, int]]
    """The variables that are neither kept nor changed, with their allowed values."""
    assignment: Assignment
    """The kept variables that have one value."""
    live: int
    """The boxes in which those values lie."""
    ways: list[tuple[str, list[tuple[int, int]]]]
    """Variable -> (cost, place), cheapest first; one of each group, none that collides with what is kept."""

    @classmethod
    def of(cls, problem: DemandProblem, chosen: Sequence[Demand]) -> _ChangeSearch | None:
        """Prepare what does not depend on the values tried; `None` when what is kept collides by itself."""
        index = problem.index
        given_up = {demand.variable for demand in chosen}
        kept = [item for item in problem.demands if item not in chosen and item.owner not in given_up]
        sets = apply_demands(index, kept, problem.base)
        assignment, live = index.split_fixed(sets, problem.among)
        for name in given_up & assignment.keys():
            # When the other demands leave one value for it, that value is a way like any other.
            del assignment[name]
        live = problem.among
        for name, place in assignment.items():
            live &= ~index.outside[name][place]
        if live & index.within(frozenset(assignment)):
            return None
        ways = []
        for demand in chosen:
            domain = index.domains[demand.variable]
            allowed = sets.get(demand.variable, domain.all) & ~(0 if demand.rebuild else demand.mask)
            outside = index.outside[demand.variable]
            within = index.within(frozenset((*assignment, demand.variable)))
            kinds: dict[int, tuple[int, int]] = {}
            for cost, place in _ways(index, demand.variable, allowed, demand.mask):
                left = live & ~outside[place]
                if not left & within and left not in kinds:
                    kinds[left] = (cost, place)
            if not kinds:
                return None
            ways.append((demand.variable, list(kinds.values())))
        # The variable with the fewest ways first: it fails soonest.
        ways.sort(key=lambda way: len(way[1]))
        open_, live = index.open_variables(sets, {*assignment, *given_up}, live)
        if len(ways) > 1 or len(ways[0][1]) > _FEW:
            free = [*open_, *((name, sum(1 << place for _, place in places)) for name, places in ways)]
            if not BoxSearch(index=index, among=problem.among).decide(free, live, frozenset(assignment)):
                return None
        return cls(problem=problem, open=open_, assignment=assignment, live=live, ways=ways)

    def cheaper(self, best: PinChange | None) -> PinChange | None:
        """Return the cheaper one of `best` and the cheapest of these changes."""
        return self._extend({}, self.live, 0, best)

    def _extend(self, places: dict[str, int], live: int, spent: int, best: PinChange | None) -> PinChange | None:
        index = self.problem.index
        if len(places) == len(self.ways):
            done = frozenset((*self.assignment, *places))
            search = BoxSearch(index=index, among=self.problem.among)
            return PinChange(places=places, cost=spent) if search.decide(self.open, live, done) else best
        variable, ways = self.ways[len(places)]
        within = index.within(frozenset((*self.assignment, *places, variable)))
        outside = index.outside[variable]
        for cost, place in ways:
            if best is not None and spent + cost >= best.cost:
                break
            left = live & ~outside[place]
            if not left & within:
                best = self._extend({**places, variable: place}, left, spent + cost, best)
        return best


def _ways(index: BoxIndex, name: str, allowed: int, anchor: int) -> list[tuple[int, int]]:
    """Costs and places of a set, cheapest first, one of each group that no box tells apart."""
    key = (name, allowed, anchor)
    ways = index.way_cache.get(key)
    if ways is None:
        domain, outside = index.domains[name], index.outside[name]
        cheapest: dict[int, tuple[int, int]] = {}
        for cost, place in sorted((move_cost(domain, place, anchor), -place) for place in iterate_bits(allowed)):
            cheapest.setdefault(outside[-place], (cost, -place))
        ways = index.way_cache[key] = list(cheapest.values())
    return ways
