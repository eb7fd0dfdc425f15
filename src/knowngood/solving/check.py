"""Does this combination work: findings, a verdict, and the smallest change that helps. Pure.

`broken`: at least one error. `unknown`: something that facts do not cover, and no error. `verified`: a run was seen
with exactly this. `compatible`: rules and facts allow it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from knowngood.solving.domain import bits
from knowngood.solving.explain import Demand, Problem, minimal_conflict, minimal_rules, sets_of
from knowngood.solving.findings import Finding, applies, of_box, ordered, word
from knowngood.solving.placing import Placed, place
from knowngood.solving.published import Published, cell_with, proves
from knowngood.solving.query import Request
from knowngood.solving.rules import Rule
from knowngood.solving.solve import Search
from knowngood.solving.suggesting import given_boxes, problem_of, suggestion
from knowngood.solving.universe import Universe
from knowngood.solving.verdict import Result, Verdict


def check(universe: Universe, request: Request, published: Published, *, suggest: bool = True) -> Result:
    """The answer. Raises `UsageError` for names that nobody knows, or a family whose GPUs differ here."""
    from knowngood.errors import UsageError

    gpus = universe.gpus.find(request.gpu) if request.gpu is not None else [None]
    results = [_check(universe, request, published, suggest, [gpu] if gpu else None) for gpu in gpus]
    verdicts = {result.verdict for result in results}
    if len(verdicts) > 1:
        told = "; ".join(
            f"{universe.gpus.describe(str(gpu))}: {result.verdict}" for gpu, result in zip(gpus, results, strict=True)
        )
        raise UsageError(f"{request.gpu} is more than one GPU, and they differ here ({told}); say which")
    return results[0]


def _check(universe: Universe, request: Request, published: Published, suggest: bool, gpus: list[str] | None) -> Result:
    placed = place(universe, request, gpus)
    given = given_boxes(universe, request.stated)
    found = [*placed.findings, *direct(placed, request.stated)]
    broken = any(finding.severity == "error" for finding in found)
    if not broken:
        collision = indirect(placed, given)
        found += collision
        broken = bool(collision)
    not_known = unknown_boxes(placed, found) or placed.unknown or not covers(placed)
    changes = cell = None
    evidence: tuple[str, ...] = ()
    if broken:
        verdict = Verdict.BROKEN
        if suggest:
            changes, cell = suggestion(placed, request.stated, published)
    elif not_known:
        verdict = Verdict.UNKNOWN
    else:
        evidence, verified = proves(published, placed, request)
        verdict = Verdict.VERIFIED if verified else Verdict.COMPATIBLE
        cell = cell_with(published, placed, placed.point)
    return Result(
        verdict=verdict,
        findings=tuple(_linked(universe, finding) for finding in ordered(found)),
        changes=changes,
        cell=cell,
        evidence=evidence,
        uncovered=placed.uncovered,
        notes=_notes(universe, request),
    )


def covers(placed: Placed) -> bool:
    """Whether anything was asked about that there are facts of."""
    return any(demand.variable in placed.universe.packages for demand in placed.demands)


def direct(placed: Placed, used: Mapping[str, str]) -> list[Finding]:
    """The rules that the stated values break, each on its own."""
    compiled = placed.universe.compiled
    found = []
    for bit in bits(compiled.broken(placed.point, compiled.everything & ~compiled.unknown_any)):
        box = compiled.boxes[bit]
        made = _under(box.rule, _worded(placed, bit), used)
        if made is not None:
            found.append(made)
    if "attn" not in placed.point:
        found += _whatever_attention(placed, used)
    for box, constants in placed.tags:
        if placed.lies_in(box):
            found.append(of_box(compiled, box, placed.point, placed.shown, constants))
    for box, others in placed.beyond:
        if placed.lies_in(box):
            worded = of_box(compiled, box, placed.point, placed.shown, {})
            made = _under(box.rule, replace(worded, packages={**others, **worded.packages}), used)
            if made is not None:
                found.append(made)
    return [*found, *_bounds(placed)]


def _whatever_attention(placed: Placed, used: Mapping[str, str]) -> list[Finding]:
    """The incidents under some attention settings, when none was stated."""
    universe = placed.universe
    found = (
        _under(box.rule, of_box(universe.compiled, box, placed.point, placed.shown, {}), used)
        for _, box in universe.conditional
        if box.rule.forbid and "attn" in box.masks and placed.lies_in(box)
    )
    return [made for made in found if made is not None]


def _under(rule: Rule, finding: Finding, used: Mapping[str, str]) -> Finding | None:
    """A finding under its conditions of use: none when they are excluded, a warning when they were not stated."""
    if rule.always:
        return finding
    holds = applies(rule, used)
    if holds is False or (holds is None and rule.severity != "error"):
        return None
    return replace(finding, severity="warning") if holds is None else finding


def _linked(universe: Universe, finding: Finding) -> Finding:
    """With the incidents that its rule says."""
    known = universe.incidents.get(finding.id)
    return replace(finding, incidents=known) if known else finding


def _worded(placed: Placed, bit: int) -> Finding:
    """`of_box`, kept: in a batch the same pairs of releases break the same rules."""
    universe = placed.universe
    box = universe.compiled.boxes[bit]
    kept: dict[object, Finding] = universe.once("findings", dict)
    key = (bit, *((name, placed.point[name], placed.shown.get(name)) for name in box.masks))
    known = kept.get(key)
    if known is None:
        if len(kept) > _KEPT:
            kept.clear()
        known = kept[key] = of_box(universe.compiled, box, placed.point, placed.shown, {})
    return known


_KEPT = 20_000
"""Findings after which those of a long batch are made anew."""


def _bounds(placed: Placed) -> list[Finding]:
    """Stated packages without facts that a stated one with facts excludes."""
    found = []
    world = placed.universe.world
    for name, said in placed.uncovered.items():
        for package, table in placed.universe.bounds.get(name, {}).items():
            if package not in placed.point or placed.point[package] >= len(world.domains[package].values):
                continue
            version = world.domains[package].text(placed.point[package])
            bound = next((text for text, mask in table.items() if mask >> placed.point[package] & 1), "")
            demand = next((d for d in placed.bounded if d.variable == package and d.text.startswith(name)), None)
            if demand is None or demand.mask >> placed.point[package] & 1:
                continue
            found.append(
                Finding(
                    id=f"requires:{package}:{name}",
                    kind="rule",
                    severity="error",
                    packages={package: version, name: said},
                    because=f"{package} {version} requires {name}{bound}",
                    source=(world.book.source(package, version),),
                    confidence="artefact",
                    fix=({"change": {name: bound}, "note": "any release in this range"},),
                )
            )
    return found


def unknown_boxes(placed: Placed, found: list[Finding]) -> bool:
    """Whether a rule about the stated values needs a fact that is not known; adds what to the findings."""
    from knowngood.solving.findings import fact

    compiled = placed.universe.compiled
    hit = False
    for bit in bits(compiled.broken(placed.point, compiled.unknown)):
        box = compiled.boxes[bit]
        if box.rule.given:
            continue
        packages = {name: compiled.domains[name].text(placed.point[name]) for name in box.masks}
        found.append(fact(f"unknown:{box.rule.id}", "info", packages, f"{box.unknown}", ["facts/"]))
        hit = True
    return hit


def indirect(placed: Placed, given: int) -> list[Finding]:
    """No single rule is broken, but no choice of what was left open fits: the chain of causes, as one finding."""
    problem = problem_of(placed, given)
    search = Search(compiled=problem.compiled, among=problem.among)
    if search.exists(sets_of(problem.compiled, problem.demands, problem.base)):
        return []
    return [collision(placed, problem)]


def collision(placed: Placed, problem: Problem) -> Finding:
    """The minimal conflict of a problem that has no solution."""
    world = placed.universe.world
    demands = minimal_conflict(problem)
    chain = minimal_rules(problem, demands)
    boxes = [world.boxes[bit] for bit in chain]
    point = {name: place_ for name, place_ in placed.point.items() if any(d.variable == name for d in demands)}
    because = [word(world, box.rule.because, box, point, placed.shown) for box in boxes]
    sources = [word(world, text, box, point, {}) for box in boxes for text in box.rule.source]
    names = [demand.variable for demand in demands]
    shown = {name: placed.shown.get(name, _range(placed, name, demands)) for name in dict.fromkeys(names)}
    return Finding(
        id="collision:" + "+".join(dict.fromkeys(names)),
        kind="rule",
        severity="error",
        packages=shown,
        because="no choice of what was left open fits: " + "; ".join(dict.fromkeys(because)),
        source=tuple(dict.fromkeys(sources)),
        confidence=boxes[0].rule.confidence if boxes else "artefact",
    )


def _range(placed: Placed, name: str, demands: Sequence[Demand]) -> str:
    from knowngood.solving.findings import span

    mask = placed.universe.compiled.domains[name].all
    for demand in demands:
        if demand.variable == name:
            mask &= demand.mask
    return span(placed.universe.world, name, mask)


def _notes(universe: Universe, request: Request) -> tuple[str, ...]:
    import difflib

    made = []
    for key in request.used:
        if key not in universe.conditions:
            near = difflib.get_close_matches(key, universe.conditions, 1)
            made.append(f"no rule asks about {key!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    return tuple(made)
