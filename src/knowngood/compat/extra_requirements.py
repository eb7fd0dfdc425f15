"""What the extras of a query's packages say of its other packages, though nobody asked for the extra. Pure.

verl 0.9.1 requires no vLLM, and its extra `vllm` pins 0.24.0: the release that it is made for. Only extras that are
named after the other package count: those for tests and for tools bound many a package that they are not about.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from knowngood.compat.dependency_markers import Dependency, ResolutionTarget, is_of_extra, parse_dependency
from knowngood.compat.findings import Finding, fact_finding
from knowngood.compat.metadata_store import MetadataStore
from knowngood.compat.query import PackageSpec
from knowngood.compat.value_domain import version_matches

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
