"""What one release on the index declares: the file that is read for it, and its metadata in the form that is kept."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from packaging.metadata import parse_email
from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from knowngood.facts.fact_reader import IndexedRelease, choose_wheel_by
from knowngood.facts.package_metadata import MetadataSource, ReleaseMetadata
from knowngood.index.artefact import PublishedFile, UnreadableError

if TYPE_CHECKING:
    from collections.abc import Iterable

_STATIC_SINCE = Version("2.2")
"""The metadata version from which an sdist says which of its fields are dynamic (PEP 643)."""
_choose_linux_wheel = choose_wheel_by("-cp311-cp311-", "-none-any", "-cp311-", "-abi3-", "-cp310-", "-cp312-")


def choose_metadata_file(release: IndexedRelease) -> PublishedFile:
    """Return the file whose metadata stands for the release.

    A wheel for CPython 3.11 on Linux x86_64, else for any platform, else any wheel, else the sdist: releases whose
    wheels declare different things are rare, and resolvers read one wheel too.
    """
    wheels = (file for file in release.files if file.is_wheel)
    return _choose_linux_wheel(release) or next(wheels, release.files[0])


def describe_release(release: IndexedRelease, known: ReleaseMetadata | None = None) -> ReleaseMetadata:
    """Return what the index's page states of a release, with the requirements of `known`, or else none."""
    days = [file.uploaded for file in release.files if file.uploaded]
    kept = known or ReleaseMetadata(
        version=str(release.version),
        requires_python=next((file.requires_python for file in release.files if file.requires_python), ""),
        requirements=(),
        extras=(),
        wheels=(),
        has_sdist=False,
        yanked=False,
        source="none",
        uploaded="",
    )
    return replace(
        kept,
        wheels=tuple(sorted({_tags_of_name(file.name) for file in release.files if file.is_wheel})),
        has_sdist=any(not file.is_wheel for file in release.files),
        yanked=release.yanked,
        uploaded=min(days, default=kept.uploaded),
    )


def read_release_metadata(release: IndexedRelease, fetch: Callable[[PublishedFile], bytes]) -> ReleaseMetadata:
    """Return what a release declares; `fetch` returns the metadata of a file.

    Raises:
        UnreadableError: the chosen file has no metadata, or it cannot be read.
    """
    published = choose_metadata_file(release)
    raw, _ = parse_email(fetch(published))
    if not raw.get("name"):
        raise UnreadableError(f"the metadata of {published.name} has no name")
    described = describe_release(release)
    python = _join_words(raw.get("requires_python", "")) or described.requires_python
    described = replace(described, requires_python=python)
    source: MetadataSource = "wheel" if published.is_wheel else "sdist"
    if source == "sdist" and not _is_static(raw.get("metadata_version", ""), raw.get("dynamic", ())):
        return described
    return replace(
        described,
        requirements=tuple(sorted({spell_requirement(line) for line in raw.get("requires_dist", ())})),
        extras=tuple(sorted({_join_words(name) for name in raw.get("provides_extra", ())})),
        source=source,
    )


def spell_requirement(text: str) -> str:
    """Return a requirement in the one spelling of `packaging`; as it is, with single spaces, when it does not parse.

    Builders spell the same requirement in several ways (`torch (>=1.4)`, `torch>=1.4`); one spelling keeps the files
    small and their differences readable.
    """
    try:
        return str(Requirement(text))
    except InvalidRequirement:
        return _join_words(text)


def _is_static(version: str, dynamic: Iterable[str]) -> bool:
    """Whether an sdist's requirements are those of every wheel that is built from it."""
    try:
        is_new = Version(version) >= _STATIC_SINCE
    except InvalidVersion:
        return False
    return is_new and not {"requires-dist", "provides-extra"} & {name.lower() for name in dynamic}


def _tags_of_name(name: str) -> str:
    return "-".join(name.removesuffix(".whl").split("-")[-3:])


def _join_words(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()
