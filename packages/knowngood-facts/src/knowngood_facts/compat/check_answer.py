"""Does this combination work: a verdict, findings, and the smallest change that helps. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from knowngood.core.errors import UsageError
from knowngood.core.gpus import UncoveredGpuError
from knowngood_facts.compat.broken_pairs import USES, find_broken_pairs, find_failing_calls
from knowngood_facts.compat.coverage import Coverage, find_coverage
from knowngood_facts.compat.demands import DemandProblem, find_minimal_causes, find_minimal_conflict, newest_boxes
from knowngood_facts.compat.dependency_markers import Dependency, ResolutionTarget, is_of_extra, parse_dependency
from knowngood_facts.compat.findings import (
    AXES,
    Finding,
    conditions_apply,
    fact_finding,
    fill_template,
    finding_from_box,
    sort_findings,
)
from knowngood_facts.compat.matrix_cells import (
    PublishedCells,
    find_evidence,
    find_published_cell,
    find_retired_cell,
    find_wanted_trainers,
)
from knowngood_facts.compat.query import DEFAULT_MACHINE, MACHINE, PackageSpec, Query
from knowngood_facts.compat.query_placement import QueryPlacement, place_query
from knowngood_facts.compat.query_resolution import (
    QueryResolution,
    conflicts_beside,
    resolve_query_packages,
    with_chains,
)
from knowngood_facts.compat.resolution_findings import describe_range, describe_requirements
from knowngood_facts.compat.search import SearchLimitError
from knowngood_facts.compat.suggestions import (
    check_problem,
    find_suggestions,
    stated_condition_boxes,
    with_releases_beyond_facts,
)
from knowngood_facts.compat.trainer_findings import MODEL_RUN, describe_model_runs, describe_trainers, was_seen_right
from knowngood_facts.compat.use_conditions import SettledQuery, settle_query
from knowngood_facts.compat.value_domain import NONE, iterate_bits, version_matches
from knowngood_facts.compat.waivers import waive_pairs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from knowngood_facts.compat.metadata_store import MetadataStore
    from knowngood_facts.compat.rule import Rule
    from knowngood_facts.compat.universe import Universe


class CheckVerdict(StrEnum):
    """What `check` says about a combination; the module's docstring has the meaning of each."""

    VERIFIED = "verified"
    COMPATIBLE = "compatible"
    BROKEN = "broken"
    UNKNOWN = "unknown"

    @property
    def exit_code(self) -> int:
        """The exit code of the command: 1 broken, 3 unknown, else 0."""
        return {"broken": 1, "unknown": 3}.get(self.value, 0)


@dataclass(frozen=True, kw_only=True)
class CheckAnswer:
    """The answer of `check` to a query."""

    verdict: CheckVerdict
    findings: tuple[Finding, ...]
    changes: Mapping[str, str] | None
    """The suggestion: package -> version, or `none` for a package to leave out."""
    cell: str | None
    """The published cell that has the combination, or the suggested one."""
    evidence: tuple[str, ...] = ()
    uncovered: Mapping[str, str] = field(default_factory=dict)
    """The packages, releases and extras that facts do not cover: name -> version or specifier."""
    covered: Mapping[str, str] = field(default_factory=dict)
    """The packages that facts cover: name -> version or specifier."""
    covered_verdict: CheckVerdict
    """The verdict about the covered packages alone."""
    coverage: Coverage = field(default_factory=Coverage)
    """What nobody read, and the day up to which the rest was read."""
    notes: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """The answer as `check --json` prints it."""
        suggestion = None
        if self.changes is not None or self.cell is not None:
            suggestion = {"changes": dict(self.changes or {}), "cell": self.cell}
        document: dict[str, Any] = {
            "verdict": str(self.verdict),
            "findings": [finding.document() for finding in self.findings],
            "suggestion": suggestion,
        }
        if self.evidence:
            document["evidence"] = list(self.evidence)
        if self.uncovered or self.coverage.lines:
            document["covered"] = dict(self.covered)
            document["covered_verdict"] = str(self.covered_verdict)
            document["uncovered"] = dict(self.uncovered)
        document |= self.coverage.document()
        return document | ({"notes": list(self.notes)} if self.notes else {})


def check_query(universe: Universe, query: Query, published: PublishedCells, *, suggest: bool = True) -> CheckAnswer:
    """Answer whether the combination of a query works; without `suggest`, no change is searched for.

    Raises:
        UsageError: a name is not known, or the query's GPU name means several GPUs whose verdicts differ.
    """
    universe.begin_question()
    settled = settle_query(universe, query)
    placements = _place_for_each_gpu(universe, settled.query)
    answers = [_judge(placement, settled, published) for placement in placements.values()]
    if len({answer.verdict for answer in answers}) > 1:
        verdicts = "; ".join(
            f"{universe.gpus.describe(gpu)}: {answer.verdict}" for gpu, answer in zip(placements, answers, strict=True)
        )
        raise UsageError(f"{query.gpu} is more than one GPU, and they differ here ({verdicts}); say which")
    first = answers[0]
    if not suggest or first.verdict is not CheckVerdict.BROKEN:
        return first
    for placement, answer in zip(placements.values(), answers, strict=True):
        for changes in _find_changes(placement, settled.query, answer):
            changed = replace(settled, query=_changed_query(settled.query, changes))
            suggested = [
                (item, _judge(item, changed, published))
                for item in _place_for_each_gpu(universe, changed.query).values()
            ]
            if all(_is_met(*item) for item in suggested) and all(
                _was_model_tried(placed, settled.query, first, published) for placed, _ in suggested
            ):
                return replace(first, changes=changes, cell=suggested[0][1].cell)
    return first


def find_query_coverage(universe: Universe, query: Query) -> Coverage:
    """Return how far an answer to a query looks, and what nobody read; raises what `check_query` raises."""
    universe.begin_question()
    query = settle_query(universe, query).query
    placement = next(iter(_place_for_each_gpu(universe, query).values()))
    machine = query.stated_conditions[MACHINE]
    resolved = resolve_query_packages(universe, [*placement.packages, *query.constraints], query.axes, machine)
    return find_coverage(placement, query, resolved)


def _find_changes(placement: QueryPlacement, query: Query, answer: CheckAnswer) -> Iterator[Mapping[str, str]]:
    """Yield changes of pins that may help: of broken uses, then by rules alone, then so that the list resolves."""
    conditions = query.stated_conditions
    for finding in answer.findings:
        if finding.severity == "error" and finding.id.startswith(USES):
            yield from (item["change"] for item in finding.fix)
    resolved = resolve_query_packages(
        placement.universe, [*placement.packages, *query.constraints], query.axes, conditions[MACHINE]
    )
    yield from find_suggestions(placement, conditions, answer.findings, resolved)


def _place_for_each_gpu(universe: Universe, query: Query) -> dict[str, QueryPlacement]:
    """The query placed for each GPU that its name means; under an empty name when it states none."""
    if query.gpu is None:
        return {"": place_query(universe, query)}
    try:
        gpus = universe.gpus.find_capabilities(query.gpu)
    except UncoveredGpuError:
        return {"": place_query(universe, query)}  # the placement says so
    return {gpu: place_query(universe, query, [gpu]) for gpu in gpus}


def _changed_query(query: Query, changes: Mapping[str, str]) -> Query:
    """The query with other pins; a changed package loses its build."""
    pins = {name: text if text == NONE else f"=={text}" for name, text in changes.items()}
    packages = (
        replace(package, specifier=pins[package.name], local=None, wheel=None) if package.name in pins else package
        for package in query.packages
    )
    return replace(query, packages=tuple(packages))


def _is_met(placement: QueryPlacement, answer: CheckAnswer) -> bool:
    """Whether a suggestion holds: nothing is broken, and unknown is only what the query itself left unknown."""
    return answer.covered_verdict in (CheckVerdict.COMPATIBLE, CheckVerdict.VERIFIED) or (
        answer.covered_verdict is CheckVerdict.UNKNOWN
        and (placement.unknown or placement.foreign_host is not None)
        and not find_unknown_facts(placement)
    )


def _judge(placement: QueryPlacement, settled: SettledQuery, published: PublishedCells) -> CheckAnswer:
    universe, query = placement.universe, settled.query
    conditions = query.stated_conditions
    condition_boxes = stated_condition_boxes(universe, conditions)
    findings = [*placement.findings, *find_broken_rules(placement, conditions)]
    findings += find_missing_host_wheels(placement)
    among = universe.index.errors | universe.index.unknown_errors | condition_boxes
    resolved = resolve_query_packages(
        universe, [*placement.packages, *query.constraints], query.axes, conditions[MACHINE]
    )
    settled_releases = resolved.resolution.settled if resolved is not None else {}
    foreign = placement.foreign_host
    if foreign and not find_published_cell(published, placement, among, settled_releases):
        findings.append(replace(foreign, severity="warning"))
    else:
        foreign = None
    findings += _find_driver_branch_limits(placement, conditions, findings)
    if resolved is not None:
        findings = with_chains(findings, resolved.findings)
        # What is declared comes before what the sources show.
        findings += conflicts_beside(resolved.findings, [item for item in findings if not item.id.startswith(USES)])
    findings += _describe_model(placement, conditions, published)
    stated = {finding.id for finding in findings}
    broken_uses = [finding for finding in _find_broken_uses(placement, resolved) if finding.id not in stated]
    findings += conflicts_beside(broken_uses, findings)
    broken = any(finding.severity == "error" for finding in findings)
    if not broken:
        collision = find_collision(placement, universe.index.errors | condition_boxes, resolved)
        if collision is not None:
            findings.append(collision)
            broken = True
    unknown_facts = find_unknown_facts(placement)
    findings += unknown_facts
    evidence: tuple[str, ...] = ()
    without_facts = {name: text for name, text in placement.uncovered.items() if name not in placement.declared}
    coverage = find_coverage(placement, query, resolved)
    if broken:
        verdict = covered_verdict = CheckVerdict.BROKEN
    elif (
        unknown_facts
        or placement.unknown
        or foreign
        or not has_known_package(placement)
        or (resolved is not None and resolved.resolution.given_up)
    ):
        verdict = covered_verdict = CheckVerdict.UNKNOWN
    else:
        # A run shows nothing of a use that could not be read, such as a model of an architecture that no rule knows.
        evidence, verified = ((), False) if settled.notes else find_evidence(published, placement, query)
        covered_verdict = CheckVerdict.VERIFIED if verified else CheckVerdict.COMPATIBLE
        complete = coverage.is_complete or (verified and not query.unread)
        verdict = covered_verdict if complete else CheckVerdict.UNKNOWN
    cell = None if verdict.exit_code else find_published_cell(published, placement, among, settled_releases)
    retired = find_retired_cell(published, placement, among) if cell is None else None
    if cell is None and not broken:
        wanted = find_wanted_trainers(placement.packages, published.cells)
        findings += describe_trainers(placement, published, wanted, offered=())
    if resolved is not None and not broken:
        findings += _find_install_problems(placement, resolved, conditions, findings)
        target = resolved.resolution.target
        findings += find_passed_over_extras(placement.packages, settled_releases, universe.metadata, target)
    return CheckAnswer(
        verdict=verdict,
        findings=tuple(_with_incidents(universe, finding) for finding in sort_findings(findings)),
        changes=None,
        cell=cell,
        evidence=evidence,
        uncovered={**without_facts, **placement.unknown_releases},
        covered={**placement.covered, **placement.declared},
        covered_verdict=covered_verdict,
        coverage=coverage,
        notes=(
            *settled.notes,
            *([retired] if retired else []),
            *_resolution_notes(placement, resolved),
        ),
    )


def _describe_model(
    placement: QueryPlacement, conditions: Mapping[str, str], published: PublishedCells
) -> list[Finding]:
    """Return what the runs of the model suite saw of the model and the attention setting that a query states."""
    if "model" not in conditions or "attn" not in conditions:
        return []
    transformers = _stated_transformers(placement)
    return list(describe_model_runs(conditions, transformers, published.seen_models, published.read_run_incidents))


def _was_model_tried(placement: QueryPlacement, query: Query, first: CheckAnswer, published: PublishedCells) -> bool:
    """Return whether a run saw the model right after a suggested change, where a run is what speaks against it now.

    Another release is no cure merely because nobody ran it.
    """
    against = [item for item in first.findings if item.id.startswith(MODEL_RUN) and item.severity == "error"]
    release = _stated_transformers(placement)
    return not against or was_seen_right(query.stated_conditions, release, published.seen_models)


def _stated_transformers(placement: QueryPlacement) -> str | None:
    return next((package.version for package in placement.packages if package.name == "transformers"), None)


def _find_broken_uses(placement: QueryPlacement, resolved: QueryResolution | None) -> list[Finding]:
    """Return what the packages whose release is pinned, or follows from the pins, break in each other."""
    versions = dict(resolved.resolution.settled) if resolved is not None else {}
    versions |= {package.name: package.version for package in placement.packages if package.version}
    universe = placement.universe
    named = {package.name: versions[package.name] for package in placement.packages if package.name in versions}
    return [
        *waive_pairs(find_broken_pairs(versions, universe.broken_uses), versions, universe.waivers),
        *find_failing_calls(named, universe.broken_uses),
    ]


INSTALLED = "installed:"
"""With this begins the id of a finding about the releases that an installer takes today."""


def _find_install_problems(
    placement: QueryPlacement, resolved: QueryResolution, conditions: Mapping[str, str], findings: Sequence[Finding]
) -> Iterator[Finding]:
    """Yield a warning for each error that the newest releases have, where the query leaves the release open.

    That some releases fit is the verdict; an installer takes the newest that declare to fit.
    """
    universe, domains = placement.universe, placement.universe.index.domains
    chosen = {name: text for name, text in resolved.resolution.versions.items() if name in universe.packages}
    places = {
        name: domains[name].index[text]
        for name, text in chosen.items()
        if name not in placement.assignment and text in domains[name].index
    }
    installed = replace(placement, assignment={**placement.assignment, **places}, findings=[])
    versions = resolved.resolution.versions
    named = {package.name for package in placement.packages}
    pairs = find_broken_pairs(versions, universe.broken_uses, callers=named | chosen.keys())
    free = {name: text for name, text in versions.items() if name not in resolved.resolution.settled}
    stated = {finding.id for finding in findings}
    for finding in (*find_broken_rules(installed, conditions), *waive_pairs(pairs, versions, universe.waivers)):
        taken = [f"{name} {free[name]}" for name in finding.packages if name in free]
        if finding.severity == "error" and taken and finding.id not in stated:
            because = f"an installer takes {' and '.join(taken)} today: {finding.because}"
            yield replace(finding, id=INSTALLED + finding.id, severity="warning", because=because)


def _resolution_notes(placement: QueryPlacement, resolved: QueryResolution | None) -> tuple[str, ...]:
    """Return what was looked at of what packages require; nothing where the rules state all of it."""
    if resolved is None or resolved.findings or not (resolved.resolution.given_up or placement.declared):
        return ()
    return resolved.notes


def has_known_package(placement: QueryPlacement) -> bool:
    """Whether the query demands something of a package that has facts."""
    return bool(placement.declared) or any(
        demand.variable in placement.universe.packages for demand in placement.demands
    )


def find_broken_rules(placement: QueryPlacement, conditions: Mapping[str, str]) -> list[Finding]:
    """Return a finding for each rule that the stated values break by themselves."""
    index = placement.universe.index
    findings: list[Finding | None] = []
    for bit in iterate_bits(index.find_broken(placement.assignment, index.everything & ~index.all_unknown)):
        box = index.boxes[bit]
        finding = finding_from_box(index, box, placement.assignment, placement.as_written, {})
        findings.append(_under_conditions(box.rule, finding, conditions))
    if "attn" not in placement.assignment:
        # Incidents under some attention settings only, when no setting is stated.
        for _, box in placement.universe.conditional:
            if box.rule.forbid and "attn" in box.masks and placement.may_lie_in(box):
                finding = finding_from_box(index, box, placement.assignment, placement.as_written, {})
                findings.append(_under_conditions(box.rule, finding, conditions))
    for box, constants in placement.wheel_boxes:
        if box.rule.severity == "error" and placement.may_lie_in(box):
            findings.append(finding_from_box(index, box, placement.assignment, placement.as_written, constants))
    for box, others in placement.partial_boxes:
        if placement.may_lie_in(box):
            finding = finding_from_box(index, box, placement.assignment, placement.as_written, {})
            finding = replace(finding, packages={**others, **finding.packages})
            findings.append(_under_conditions(box.rule, finding, conditions))
    return [finding for finding in findings if finding is not None]


def _find_driver_branch_limits(
    placement: QueryPlacement, conditions: Mapping[str, str], findings: list[Finding]
) -> list[Finding]:
    """Return a warning for each rule that only older releases of the driver's branch break.

    The branch is placed as its newest release, so what that breaks is among `findings` already.
    """
    limits: dict[str, Finding] = {}
    domain = placement.universe.index.domains["driver"]
    newest = placement.assignment.get("driver")
    for place in iterate_bits(placement.driver_branch):
        if place == newest:
            continue
        older = replace(placement, assignment={**placement.assignment, "driver": place}, findings=[])
        for finding in find_broken_rules(older, conditions):
            if finding.severity == "error" and finding.id not in [item.id for item in findings]:
                least = domain.text(place + 1)
                because = f"of the driver's branch only releases from {least} on will do: {finding.because}"
                limits[finding.id] = replace(
                    finding, id=f"branch:{finding.id}", severity="warning", because=because, fix=()
                )
    return list(limits.values())


def _under_conditions(rule: Rule, finding: Finding, conditions: Mapping[str, str]) -> Finding | None:
    """A finding under its rule's conditions of use: none when they are excluded, a warning when they are not stated."""
    if rule.always:
        return finding
    apply = conditions_apply(rule, conditions)
    if apply is False or (apply is None and rule.severity != "error"):
        return None
    return replace(finding, severity="warning", undecided=True) if apply is None else finding


def _with_incidents(universe: Universe, finding: Finding) -> Finding:
    """A finding with the known failures that its rule covers."""
    incidents = universe.incidents.get(finding.id)
    return replace(finding, incidents=incidents) if incidents else finding


def find_unknown_facts(placement: QueryPlacement) -> list[Finding]:
    """Return a finding for each rule about the stated values that needs a fact which is not known.

    Whether a wheel loads is one, where its name does not say it and nothing excludes it.
    """
    index = placement.universe.index
    findings = []
    wheels = [(box, constants) for box, constants in placement.wheel_boxes if placement.may_lie_in(box)]
    for box, constants in wheels if all(box.rule.severity != "error" for box, _ in wheels) else ():
        finding = finding_from_box(index, box, placement.assignment, placement.as_written, constants)
        findings.append(replace(finding, id=f"unknown:{finding.id}", kind="fact", severity="info", fix=()))
    for bit in iterate_bits(index.find_broken(placement.assignment, index.unknown_errors)):
        box = index.boxes[bit]
        if not box.rule.given:
            packages = {name: index.domains[name].text(placement.assignment[name]) for name in box.masks}
            findings.append(fact_finding(f"unknown:{box.rule.id}", "info", packages, f"{box.unknown}", ["facts/"]))
    return findings


def find_collision(placement: QueryPlacement, among: int, resolved: QueryResolution | None) -> Finding | None:
    """Return the chain of causes as one finding, when no choice of what the query leaves open breaks no rule.

    `among` are the bits of the boxes that count.
    """
    problem = check_problem(placement, among, resolved)
    try:
        if problem.possible(problem.demands):
            return None
        opened = with_releases_beyond_facts(problem)
        if opened.possible(opened.demands):
            # A release without facts, which rules do not speak of, would do by what packages require.
            problem = check_problem(placement, among, None)
            if problem.possible(problem.demands):
                return None
        return _collision_finding(placement, problem)
    except SearchLimitError:
        return None


def _collision_finding(placement: QueryPlacement, problem: DemandProblem) -> Finding:
    """The minimal conflict of a problem that has no solution."""
    space = placement.universe.space
    demands = find_minimal_conflict(problem)
    causes = find_minimal_causes(problem, demands)
    boxes = newest_boxes(causes)
    masks: dict[str, int] = {}
    for demand in demands:
        before = masks.get(demand.variable, problem.domain(demand.variable).all)
        masks[demand.variable] = before & demand.mask or before
    assignment = {name: place for name, place in placement.assignment.items() if name in masks}
    because = [fill_template(space, box.rule.because, box, assignment, placement.as_written) for box in boxes]
    sources = [fill_template(space, text, box, assignment, {}) for box in boxes for text in box.rule.source]
    reasons = [demand.reason for demand in demands if demand.reason is not None]
    because = [*(reason.because for reason in reasons), *because]
    sources = [*(text for reason in reasons for text in reason.source), *sources]
    if problem.resolution is not None:
        wanted = {name: problem.wish(name, mask).mask for name, mask in masks.items() if name not in AXES}
        listed = [package for package in placement.packages if package.name in masks]
        texts, read = describe_requirements(problem.resolution, listed, wanted, causes)
        because, sources = [*texts, *because], [*read, *sources]
    return Finding(
        id="collision:" + "+".join(masks),
        kind="rule",
        severity="error",
        packages={
            name: placement.as_written.get(name) or describe_range(problem.domain(name), mask)
            for name, mask in masks.items()
        },
        because="no choice of what was left open fits: " + "; ".join(dict.fromkeys(because)),
        source=tuple(dict.fromkeys(sources)),
        confidence=boxes[0].rule.confidence if boxes else "artefact",
    )


EXTRA = "extra:"
"""The ids of these findings begin so."""


def find_passed_over_extras(
    packages: Sequence[PackageSpec], settled: Mapping[str, str], store: MetadataStore, target: ResolutionTarget
) -> Iterator[Finding]:
    """Yield where a package has an extra that names another release of a package of the query than the query has.

    Args:
        packages: the packages of the query.
        settled: the releases that these can have only, by name.
        store: the metadata.
        target: the machine and the Python that markers are asked about.
    """
    versions = {package.name: settled[package.name] for package in packages if package.name in settled}
    for package in packages:
        if package.name not in versions:
            continue
        passed_over: dict[str, dict[str, list[str]]] = {}
        for extra, dependency in _requirements_of_extras(package, versions, store, target):
            texts = passed_over.setdefault(dependency.name, {})
            texts.setdefault(dependency.specifier, []).append(extra)
        for name, by_specifier in passed_over.items():
            if all(not version_matches(specifier, versions[name]) for specifier in by_specifier):
                yield _describe(package.name, name, versions, by_specifier)


def _requirements_of_extras(
    package: PackageSpec, versions: Mapping[str, str], store: MetadataStore, target: ResolutionTarget
) -> Iterator[tuple[str, Dependency]]:
    """Yield what a package's extras require of the packages they are named after, but for extras that are asked for."""
    releases = store.find_package(package.name)
    place = None if releases is None else releases.domain.index.get(versions[package.name])
    if releases is None or place is None:
        return
    for line, mask in releases.requirements.items():
        if not (mask >> place & 1 and is_of_extra(line)):
            continue
        dependency = parse_dependency(line)
        if dependency is None or dependency.name not in versions or not dependency.specifier:
            continue
        for extra in sorted(dependency.marked_extras - set(package.extras)):
            if extra.startswith(dependency.name) and target.fulfils(dependency.marker, extra):
                yield extra, dependency


def _describe(
    package: str, other: str, versions: Mapping[str, str], by_specifier: Mapping[str, Sequence[str]]
) -> Finding:
    named = ", ".join(
        f"{other}{specifier} for its extra{'s' * (len(extras) > 1)} {', '.join(extras)}"
        for specifier, extras in by_specifier.items()
    )
    because = f"{package} {versions[package]} names {named}; you have {versions[other]}"
    packages = {package: versions[package], other: versions[other]}
    return fact_finding(f"{EXTRA}{package}:{other}", "info", packages, because, [f"the metadata of {package}"])


def find_missing_host_wheels(placement: QueryPlacement) -> Iterator[Finding]:
    """Yield a warning for each pinned release that has to be compiled on the host, because its wheels are for others.

    A release without a source archive cannot be installed there, which the resolution says. For x86-64 nothing is
    yielded: what has no wheel for it, rules and resolution say.
    """
    machine = placement.machine
    for package in placement.packages if machine != DEFAULT_MACHINE else ():
        known = placement.universe.metadata.find_package(package.name)
        release = known.declarations.releases.get(package.version) if known and package.version else None
        if release is None or not release.has_sdist or not release.wheels:
            continue
        platforms = (tag.rpartition("-")[2] for tag in release.wheels)
        if any("any" in name.split(".") or ("linux" in name and name.endswith(machine)) for name in platforms):
            continue
        name = f"{package.name} {package.version}"
        because = f"{name} has no wheel for Linux on {machine}, only its source archive, which is compiled there"
        pins = {package.name: str(package.version)}
        yield fact_finding(
            f"wheel:{machine}:{package.name}", "warning", pins, because, [f"{name}: its files in the index"]
        )
