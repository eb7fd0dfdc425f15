"""A query placed in the universe: which values of each variable it means, and what facts do not cover. Pure."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from packaging.version import Version

from knowngood.core.gpus import UncoveredGpuError
from knowngood.core.nearest_names import find_nearest_name, find_nearest_versions
from knowngood.core.package_names import canonical_name
from knowngood_facts.compat.broken_pairs import find_excluded_releases
from knowngood_facts.compat.build_forecast import forecast_build
from knowngood_facts.compat.demands import Demand
from knowngood_facts.compat.findings import AXES, Finding, conditions_apply, fact_finding
from knowngood_facts.compat.metadata_store import has_metadata
from knowngood_facts.compat.query import DEFAULT_MACHINE, MACHINE, PackageSpec, Query
from knowngood_facts.compat.rule_boxes import Box, all_subjects_known, box_from_combination, compile_rules
from knowngood_facts.compat.value_domain import NONE, ValueDomain, iterate_bits, specifiers_overlap, version_matches

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from knowngood_facts.compat.box_index import Assignment
    from knowngood_facts.compat.universe import Universe

FOREIGN_HOST = "host:aarch64"
"""The id of the finding about hosts that run no image for x86-64."""


@dataclass(kw_only=True)
class QueryPlacement:
    """What a query means in a universe."""

    universe: Universe
    demands: list[Demand] = field(default_factory=list)
    """What the query demands of axes and packages, in the order of the query."""
    assignment: Assignment = field(default_factory=dict)
    """The variables for which the query leaves one value."""
    as_written: dict[str, str] = field(default_factory=dict)
    """Variable -> its value as the user wrote it."""
    uncovered: dict[str, str] = field(default_factory=dict)
    """The packages of the query that facts do not cover: name -> version or specifier. An extra is one of them, as
    `transformers[vision]`, when facts do not say what it adds."""
    covered: dict[str, str] = field(default_factory=dict)
    """The packages of the query that facts cover: name -> version or specifier."""
    declared: dict[str, str] = field(default_factory=dict)
    """The packages of the query that have no facts about GPUs, and of which it is known what they require."""
    packages: list[PackageSpec] = field(default_factory=list)
    """The packages of the query, each once."""
    unknown_releases: dict[str, str] = field(default_factory=dict)
    """The packages with facts, but none about the release that the query names."""
    driver_branch: int = 0
    """The releases of the driver's branch, when the query names a branch; `assignment` has the newest."""
    implied_demands: list[Demand] = field(default_factory=list)
    """What the wheels' builds and extras imply for packages with facts."""
    findings: list[Finding] = field(default_factory=list)
    unknown: bool = False
    """The query names something that facts do not cover, so that the answer cannot be better than unknown."""
    wheel_boxes: list[tuple[Box, Mapping[str, str]]] = field(default_factory=list)
    """What the wheels of the query were not built for, each with the values of its wording."""
    partial_boxes: list[tuple[Box, Mapping[str, str]]] = field(default_factory=list)
    """What is forbidden together with uncovered packages, each with the versions of those packages."""
    machine: str = DEFAULT_MACHINE
    """The processor of the host: `x86_64`, `aarch64`, or the name of another that no image is for."""
    foreign_host: Finding | None = None
    """Why facts say little about the host of the query: no images but the cells for it are known to run there."""

    def demand(
        self, text: str, variable: str, mask: int, as_written: str | None = None, *, rebuild: bool = False
    ) -> None:
        """Add a demand on a variable."""
        self.demands.append(Demand(text=text, variable=variable, mask=mask, rebuild=rebuild))
        if mask and mask & (mask - 1) == 0:
            self.assignment[variable] = mask.bit_length() - 1
        if as_written is not None:
            self.as_written[variable] = as_written

    def may_lie_in(self, box: Box) -> bool:
        """Whether the stated values lie in a box; an attention setting that is not stated may be any."""
        stated = self.assignment
        return all(mask >> stated[name] & 1 if name in stated else name == "attn" for name, mask in box.masks.items())


def place_query(universe: Universe, query: Query, gpus: list[str] | None = None) -> QueryPlacement:
    """Place a query in the universe, for these GPUs instead of all that the query's name means.

    Raises:
        UsageError: the name of the GPU is not known; the text has the nearest.
    """
    placement = QueryPlacement(universe=universe)
    domains = universe.index.domains
    if query.gpu is not None:
        _place_gpu(placement, query.gpu, gpus)
    _place_machine(placement, query.gpu, query.stated_conditions[MACHINE])
    for name, text in query.axes.items():
        _place_axis(placement, domains[name], name, text)
    if query.attn is not None:
        placement.demand(f"attn={query.attn}", "attn", domains["attn"].mask(query.attn))
    packages, contradictions = merge_repeated_packages(query.packages)
    placement.findings += contradictions
    placement.packages = packages
    # Of a release without facts about GPUs its requirements say all that a query without hardware asks.
    hardware = bool({"driver", "nvcc", "glibc"} & query.axes.keys()) or bool(query.gpu or query.attn)
    for package in packages:
        _place_package(placement, package, hardware=hardware)
    for package in packages:
        _place_extras(placement, package)
        if package.name in placement.declared and package.version:
            exclude_broken_releases(placement, package.name, package.version, package.text, owner=package.name)
    if model := query.conditions.get("model"):
        from knowngood_facts.compat.model_types import demand_model  # few queries name a model

        demand_model(placement, model)
    if query.axes.get("python", "").endswith("t"):
        _apply_free_threading(placement, query.axes["python"])
    _apply_partial_rules(placement, query)
    return placement


def _place_gpu(placement: QueryPlacement, text: str, names: list[str] | None) -> None:
    universe = placement.universe
    try:
        meant = universe.gpus.find_capabilities(text)
    except UncoveredGpuError as error:
        placement.unknown = True
        placement.findings.append(fact_finding("unknown:gpu", "info", {"gpu": text}, str(error), ["matrix.yaml"]))
        return
    index = universe.index.domains["gpu"].index
    placement.demand(f"gpu={text}", "gpu", sum(1 << index[name] for name in names or meant))


def _place_machine(placement: QueryPlacement, gpu: str | None, machine: str) -> None:
    """Say what is not known of a host that is not of x86-64; a rule says which torch has CUDA on aarch64."""
    placement.machine = machine
    try:
        arm = gpu is not None and placement.universe.gpus.has_arm_host(gpu)
    except UncoveredGpuError:
        return
    if machine == DEFAULT_MACHINE and not arm:
        return
    demand = {"gpu": gpu} if arm and gpu else {MACHINE: machine}
    host = f"the host of {gpu} has a CPU of Arm (aarch64)" if arm else f"the host is of {machine}"
    if machine == DEFAULT_MACHINE:
        because = f"{host}, where nothing for x86-64 runs"
    else:
        because = (
            f"{host}; the facts about GPU code and the C library are read from the wheels for x86-64, so what runs "
            "there is known only of the cells for it (`knowngood cells host=aarch64`)"
        )
    placement.foreign_host = fact_finding(FOREIGN_HOST, "error", demand, because, ["matrix.yaml"])


def _apply_partial_rules(placement: QueryPlacement, query: Query) -> None:
    """Add the forbidden combinations whose packages without facts have a forbidden version in the query."""
    space = placement.universe.space
    builds = (forecast_build(*item, placement.universe.read_builds) for item in placement.uncovered.items())
    for rule, combination in itertools.chain(placement.universe.beyond_facts, *builds):
        others = {name: text for name, text in combination.items() if name in placement.uncovered}
        rest = {name: text for name, text in combination.items() if name not in others}
        if not others or not all_subjects_known(space, rest):
            continue
        if all(_is_inside(text, placement.uncovered[name]) for name, text in others.items()):
            box = box_from_combination(space, rule, rest)
            if box is not None:
                placement.partial_boxes.append((box, {name: placement.uncovered[name] for name in others}))
                if len(box.masks) == 1 and rule.severity == "error" and conditions_apply(rule, query.stated_conditions):
                    text = " ".join(f"{name}{placement.uncovered[name]}" for name in others)
                    _forbid(placement, box, text)


def _forbid(placement: QueryPlacement, box: Box, text: str, owner: str = "") -> None:
    """Demand a value outside of a box that has one variable."""
    [(variable, mask)] = box.masks.items()
    rest = placement.universe.space.domains[variable].all & ~mask
    placement.implied_demands.append(Demand(text=text, variable=variable, mask=rest, owner=owner))


def _is_inside(condition: str, version: str) -> bool:
    """Whether a version fulfils a condition; a range is not a version, so it is not known to."""
    try:
        return condition == "*" or version_matches(condition, version)
    except ValueError:
        return False


def _place_axis(placement: QueryPlacement, domain: ValueDomain, name: str, text: str) -> None:
    if name == "python":
        release = ".".join(text.removesuffix("t").split(".")[:2])
        mask = 1 << domain.index[release] if release in domain.index else 0
    else:
        # A driver, nvcc or glibc counts as the greatest release at or below it that facts or rules name.
        branch = domain.mask(f"=={text}.*") if name == "driver" and text.isdigit() else 0
        below = domain.mask(f"<={text}")
        mask = 1 << ((below | branch).bit_length() - 1) if below | branch else 0
        placement.driver_branch |= branch and branch | 1 << (below.bit_length() - 1)
    if mask:
        placement.demand(f"{name}={text}", name, mask, as_written=text)
        return
    placement.unknown = True
    reach = f"{domain.values[0]} to {domain.values[-1]}" if domain.values else "nothing"
    because = f"the facts speak of {name} {reach}, not of {text}"
    placement.findings.append(fact_finding(f"unknown:{name}", "info", {name: text}, because, ["facts/"]))


def _apply_free_threading(placement: QueryPlacement, python: str) -> None:
    """Add that a package with binaries needs wheels for the free-threaded Python; the others run with any."""
    release = ".".join(python.removesuffix("t").split(".")[:2]) + "t"
    space = placement.universe.space
    for name in dict.fromkeys(("torch", *placement.covered)):
        domain = space.domains[name]
        refused = 0
        for place, version in enumerate(domain.values):
            has_binaries = space.book.fact(name, version, "pythons") is not None
            wheels = space.book.fact(name, version, "free_threaded")
            if has_binaries and wheels is not None and release not in wheels:
                refused |= 1 << place
            elif has_binaries and wheels is None and placement.assignment.get(name) == place:
                placement.unknown = True
                because = f"the facts do not say whether {name} {version} has a wheel for Python {release}"
                source = [space.book.source(name, version)]
                finding = fact_finding(f"unknown:{name}:python", "info", {name: version}, because, source)
                placement.findings.append(finding)
        demands = [item.mask for item in placement.demands if item.variable == name]
        if refused and demands and not demands[0] & ~refused:
            placement.findings.append(_no_wheel_finding(placement, name, release))
        elif refused:
            text = f"python={python}"
            placement.implied_demands.append(Demand(text=text, variable=name, mask=domain.all & ~refused))


def _no_wheel_finding(placement: QueryPlacement, name: str, python: str) -> Finding:
    version = placement.covered[name]
    return Finding(
        id=f"wheel:{name}:free-threaded",
        kind="rule",
        severity="error",
        packages={name: version, "python": python},
        because=f"{name} {version} has no wheel for Python {python} (free-threaded)",
        source=(f"facts/{name}.json, free_threaded",),
        confidence="artefact",
    )


def _place_package(placement: QueryPlacement, package: PackageSpec, *, hardware: bool) -> None:
    universe = placement.universe
    if package.name not in universe.packages:
        _place_uncovered(placement, package)
        return
    domain = universe.index.domains[package.name]
    mask = domain.mask(package.specifier)
    variant = f"{package.version}+{package.local}" if package.local is not None and package.version else None
    if variant in domain.index:
        mask = 1 << domain.index[variant]
    else:
        variant = None
        mask &= ~sum(1 << place for place, value in enumerate(domain.values) if "+" in value)
    wanted = package.version or package.specifier
    if not mask and not hardware and has_metadata(universe.metadata, package):
        placement.declared[package.name] = wanted
        return
    if not mask:
        placement.unknown = True
        placement.unknown_releases[package.name] = wanted
        placement.findings.append(_no_facts_finding(universe, package))
        return
    placement.covered[package.name] = wanted
    if not package.version and package.specifier != "none" and mask & domain.final:
        mask &= domain.final
    text = _text_with_local(package)
    if package.specifier or variant:
        as_written = _value_as_written(package, domain, mask)
        placement.demand(text, package.name, mask, as_written=as_written, rebuild=package.wheel is not None)
    else:
        placement.demand(text, package.name, domain.final)
    _add_yanked_finding(placement, package.name, mask)
    if package.wheel is not None:
        _apply_wheel_rules(placement, package, package.wheel.constants())


def _text_with_local(package: PackageSpec) -> str:
    return f"{package.text}+{package.local}" if package.local else package.text


def _value_as_written(package: PackageSpec, domain: ValueDomain, mask: int) -> str | None:
    if mask & (mask - 1):
        return None
    text = domain.text(mask.bit_length() - 1)
    return f"{text}+{package.local}" if package.local and "+" not in text else text


def _no_facts_finding(universe: Universe, package: PackageSpec) -> Finding:
    book = universe.space.book
    asked_for = package.version or package.specifier
    near = find_nearest_versions(asked_for, book.versions(package.name))
    because = (
        f"there are no facts about {_text_with_local(package)}; the nearest known release is "
        f"{near[0] if near else 'none'}, the newest {book.latest(package.name)} "
        f"(`knowngood harvest {package.name}` reads new ones)"
    )
    source = [f"facts/{package.name}.json"]
    return fact_finding(f"unknown:{package.name}", "info", {package.name: asked_for}, because, source)


def _add_yanked_finding(placement: QueryPlacement, name: str, mask: int) -> None:
    domain = placement.universe.index.domains[name]
    if mask & (mask - 1) or mask & domain.absent:
        return
    version = domain.text(mask.bit_length() - 1)
    book = placement.universe.space.book
    if book.yanked(name, version):
        because = f"{name} {version} was withdrawn from the registry; installers take it only when it is pinned"
        source = [book.source(name, version)]
        placement.findings.append(fact_finding(f"yanked:{name}", "warning", {name: version}, because, source))


def _place_uncovered(placement: QueryPlacement, package: PackageSpec) -> None:
    """Note a package without facts about GPUs."""
    universe, name = placement.universe, package.name
    wanted = package.version or package.specifier
    placement.uncovered[name] = wanted
    if has_metadata(universe.metadata, package):
        placement.declared[name] = wanted
        return
    releases = universe.metadata.find_package(name)
    if releases is not None:
        placement.findings.append(_no_release_finding(package, releases.domain))
    elif package.explicit:
        near = find_nearest_name(name, (*universe.packages, *universe.metadata.names()))
        hint = f" (did you mean {near}?)" if near else ""
        because = f"there are no facts about {name}{hint}; nothing about it was looked at"
        placement.findings.append(fact_finding(f"unknown:{name}", "info", {name: wanted}, because, ["facts/"]))


def _no_release_finding(package: PackageSpec, domain: ValueDomain) -> Finding:
    """Say that a package whose metadata is known has no such release."""
    wanted = package.version or package.specifier
    if not domain.values:
        because = f"the index has no release of {package.name}"
        return fact_finding(f"unknown:{package.name}", "info", {package.name: wanted}, because, ["facts/metadata/"])
    near = find_nearest_versions(wanted, domain.values, 2)
    newest = domain.text(domain.newest_first(domain.some)[0])
    because = (
        f"no release of {package.name} that is known is {_text_with_local(package).removeprefix(package.name)}; the "
        f"nearest {'is' if len(near) == 1 else 'are'} {' and '.join(near)}, the newest is {newest}"
    )
    return fact_finding(f"unknown:{package.name}", "info", {package.name: wanted}, because, ["facts/metadata/"])


def _place_extras(placement: QueryPlacement, package: PackageSpec) -> None:
    """Add what the extras of a pinned release require; one that facts do not know counts as a package without facts."""
    universe = placement.universe
    domain = universe.index.domains.get(package.name)
    place = placement.assignment.get(package.name) if domain else None
    for extra in package.extras:
        requires = None
        if domain is not None and place is not None and place < len(domain.values):
            requires = universe.space.book.extra_requires(package.name, domain.text(place), extra)
        if requires is None:
            _place_declared_extra(placement, package, extra)
            continue
        text = f"{package.name}[{extra}]{package.specifier}"
        for name in requires.keys() & set(universe.packages):
            mask = universe.index.domains[name].mask(requires[name])
            placement.implied_demands.append(Demand(text=text, variable=name, mask=mask))


def exclude_broken_releases(placement: QueryPlacement, name: str, version: str, text: str, owner: str = "") -> None:
    """Demand releases that can be imported with one of a package without facts; of those with facts there are boxes.

    Args:
        placement: it gets the demands.
        name: the package.
        version: its release.
        text: what the demand is called.
        owner: the package with which the demand is given up, when the query names one.
    """
    universe = placement.universe
    excluded = find_excluded_releases(name, version, universe.packages, universe.broken_uses)
    for other, releases in excluded.items():
        domain = universe.index.domains[other]
        mask = domain.all & ~releases.mask_in(domain)
        demand = Demand(text=text, variable=other, mask=mask, owner=owner, reason=releases.reason)
        placement.implied_demands.append(demand)


def _place_declared_extra(placement: QueryPlacement, package: PackageSpec, extra: str) -> None:
    """Note an extra of which only the metadata says what it adds, or that installers ignore it."""
    name, wanted = f"{package.name}[{extra}]", package.version or package.specifier
    placement.uncovered[name] = wanted
    known = placement.universe.metadata.find_package(package.name)
    places = iterate_bits(known.wanted(package) & known.domain.some) if known else ()
    releases = [known.releases[place] for place in places] if known else []
    if not releases or all(release.source == "none" for release in releases):
        return
    placement.declared[name] = wanted
    extras = {canonical_name(text) for release in releases for text in release.extras}
    if extra not in extras:
        near = find_nearest_name(extra, extras)
        hint = f" (did you mean {near}?)" if near else ""
        because = f"{package.text} has no extra {extra}{hint}; installers ignore it with a warning"
        finding = fact_finding(f"no-extra:{name}", "warning", {package.name: wanted}, because, ["facts/metadata/"])
        placement.findings.append(finding)


def _apply_wheel_rules(placement: QueryPlacement, package: PackageSpec, constants: Mapping[str, str]) -> None:
    """Add what a wheel was not built for, by the rules that ask about wheels (`{wheel.torch}`)."""
    constants = {**constants, "wheel.name": package.name, "wheel.local": package.local or "of its file name"}
    constants |= _constants_of_torch(placement.universe, constants.get("wheel.torch"))
    for box in compile_rules(placement.universe.space, placement.universe.wheel_rules, constants):
        if all(name in constants for name in box.rule.references):
            placement.wheel_boxes.append((box, constants))
            if len(box.masks) == 1 and box.rule.severity == "error":
                _forbid(placement, box, _text_with_local(package), owner=package.name)


def _constants_of_torch(universe: Universe, minor: str | None) -> dict[str, str]:
    """Return what facts say of the torch, a minor release, that a wheel was compiled against."""
    domain = universe.index.domains["torch"]
    mask = domain.mask(f"=={minor}.*") & domain.final if minor else 0
    check = universe.space.book.fact("torch", domain.text(mask.bit_length() - 1), "cuda_check") if mask else None
    return {"wheel.cuda_check": check} if check else {}


def stated_packages(placement: QueryPlacement) -> dict[str, str]:
    """Return every package of the query that has one version, with that version as the user wrote it."""
    return {
        name: placement.as_written.get(name) or placement.universe.index.domains[name].text(place)
        for name, place in placement.assignment.items()
        if name not in AXES
    }


def merge_repeated_packages(packages: Iterable[PackageSpec]) -> tuple[list[PackageSpec], list[Finding]]:
    """Return each package once, in the order of the query, and an error for each whose mentions contradict each other.

    Such a package is not among the returned ones.
    """
    by_name: dict[str, list[PackageSpec]] = {}
    for package in packages:
        by_name.setdefault(package.name, []).append(package)
    merged, errors = [], []
    for mentions in by_name.values():
        clash = find_contradiction(mentions)
        if clash is None:
            merged.append(mentions[0] if len(mentions) == 1 else _merge(mentions))
        else:
            errors.append(_contradiction_finding(*clash))
    return merged, errors


def find_contradiction(mentions: Sequence[PackageSpec]) -> tuple[PackageSpec, PackageSpec] | None:
    """Return two mentions of a package that no environment can fulfil together; `None` when there are none."""
    pairs = ((one, two) for place, one in enumerate(mentions) for two in mentions[place + 1 :])
    return next(((one, two) for one, two in pairs if not _go_together(one, two)), None)


def _go_together(one: PackageSpec, two: PackageSpec) -> bool:
    if NONE in (one.specifier, two.specifier):
        return one.specifier == two.specifier
    if one.version and two.version:
        same_build = one.local is None or two.local is None or one.local.lower() == two.local.lower()
        return Version(one.version) == Version(two.version) and same_build
    if one.version or two.version:
        pin, other = (one, two) if one.version else (two, one)
        return not other.specifier or version_matches(other.specifier, str(pin.version))
    return not one.specifier or not two.specifier or specifiers_overlap(one.specifier, two.specifier)


def _merge(mentions: Sequence[PackageSpec]) -> PackageSpec:
    """One package that means all mentions, which go together: the most exact one, else all ranges."""
    pins = [item for item in mentions if item.version or item.specifier == NONE]
    exact = max(pins, key=lambda item: (item.wheel is not None, item.local is not None), default=None)
    ranges = dict.fromkeys(item.specifier for item in mentions if item.specifier)
    return replace(
        exact or replace(mentions[0], specifier=",".join(ranges)),
        explicit=any(item.explicit for item in mentions),
        extras=tuple(dict.fromkeys(extra for item in mentions for extra in item.extras)),
    )


def _contradiction_finding(one: PackageSpec, two: PackageSpec) -> Finding:
    texts = [f"{item.text}+{item.local}" if item.local else item.text for item in (one, two)]
    return Finding(
        id=f"asked-twice:{one.name}",
        kind="rule",
        severity="error",
        packages={one.name: " and ".join(item.version or item.specifier for item in (one, two))},
        because=f"{one.name} is asked for twice, as {texts[0]} and as {texts[1]}; no environment has both: keep one",
        source=("the question itself",),
        confidence="artefact",
    )
