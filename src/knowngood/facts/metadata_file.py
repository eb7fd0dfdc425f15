"""`facts/metadata/<package>.txt` as text: each release as its differences from the one before. Pure.

The text depends on the releases only, not on how they came in, so an incremental harvest writes what a full one would.
`package_metadata` explains and reads the format.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from packaging.version import Version

from knowngood.facts.package_metadata import SCHEMA, ReleaseMetadata


def render_package_metadata(name: str, releases: Iterable[ReleaseMetadata]) -> str:
    """Return the text of a package's file; the releases may come in any order."""
    lines = [f"{SCHEMA} {name}", f"regenerate: knowngood harvest --metadata {name}"]
    python = ""
    requirements: Collection[str] = ()
    extras: Collection[str] = ()
    wheels: Collection[str] = ()
    for release in sorted(releases, key=lambda release: Version(release.version)):
        lines.append(_head(release))
        if release.requires_python != python:
            python = release.requires_python
            lines.append(f"py {python}")
        if release.source != "none":  # what is not known ends nothing
            lines += _differences("r", requirements, release.requirements)
            lines += _differences("x", extras, release.extras)
            requirements, extras = release.requirements, release.extras
        lines += _differences("w", wheels, release.wheels)
        wheels = release.wheels
    return "\n".join(lines) + "\n"


def _head(release: ReleaseMetadata) -> str:
    words = ["=", release.version, release.uploaded or "-", release.source]
    words += ["sdist"] * release.has_sdist + ["yanked"] * release.yanked
    return " ".join(words)


def _differences(kind: str, before: Collection[str], after: Collection[str]) -> Iterator[str]:
    yield from (f"{kind}- {value}" for value in sorted(set(before) - set(after)))
    yield from (f"{kind}+ {value}" for value in sorted(set(after) - set(before)))
