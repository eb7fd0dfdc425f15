"""Packages that a user adds to a cell: what is asked for, and the wheels that it takes. The cell's own pins never move.

A resolution is kept in the cache under everything that was asked, so that the same words need no index again.
"""

from __future__ import annotations

import hashlib
import json
import re
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from knowngood.core.data_files import read_data_text
from knowngood.core.errors import KnowngoodError, MissingError, UsageError
from knowngood.core.local_files import cache_folder, write_atomically
from knowngood.core.package_names import parse_requirement_text

if TYPE_CHECKING:
    from knowngood.core.matrix import Matrix
    from knowngood.lock.lock_tree import CellLock
    from knowngood.lock.resolver import PinnedFile, ResolverRequest

REQUIREMENTS_FILE = "requirements.txt"
LONGEST_LAG = timedelta(days=365)
"""How much older than a cell's transformers a release may be that nobody named."""

_FORMAT = 2
"""Raised by one when the same question has another answer, so that none from before is taken."""
_LONGEST_REASON = 400


class UnfitCellError(KnowngoodError):
    """A cell that cannot serve what was asked for (exit 1); another one may."""


@dataclass(frozen=True, kw_only=True, order=True)
class AddedPackage:
    """One wheel that a cell does not have."""

    name: str
    version: str
    sha256: str

    def __str__(self) -> str:
        return f"{self.name}=={self.version} --hash=sha256:{self.sha256}"


def find_requirements_file(program: Sequence[str]) -> Path | None:
    """Return the requirements.txt beside the script that a program's words name, `None` when there is none."""
    script = next((Path(word) for word in program if word.endswith(".py") and Path(word).is_file()), None)
    path = script.parent / REQUIREMENTS_FILE if script else None
    return path if path and path.is_file() else None


def read_requirement_file(path: Path) -> tuple[str, ...]:
    """Return the requirements in a file, without comments.

    Raises `UsageError` for an option, such as another index or an editable project: a build has neither.
    """
    text = re.sub(r"\\\r?\n", " ", read_data_text(path))
    requirements = []
    for number, line in enumerate(text.splitlines(), 1):
        requirement = re.sub(r"(^|\s)#.*", "", line).strip()
        if requirement.startswith(("-", ".", "/")):
            raise UsageError(
                f"{path}:{number}: {requirement}: only packages of the index can be added; name them with --with and "
                "turn the file off with --no-requirements"
            )
        if requirement:
            requirements.append(re.sub(r"\s+--hash[= ]\S+", "", requirement))
    return tuple(requirements)


def added_packages_request(matrix: Matrix, lock: CellLock, wanted: Sequence[str]) -> ResolverRequest:
    """Return what the resolver is asked for packages beside a cell. Pure, but for the day.

    Raises:
        UsageError: a text is not a requirement.
        UnfitCellError: a requirement contradicts a version that the cell has.
    """
    from packaging.requirements import InvalidRequirement
    from packaging.utils import canonicalize_name

    from knowngood.lock import cell_locking

    versions = {item.name: item.version for item in lock.distributions}
    made_here = {item.name for item in lock.distributions if item.made_here or item.source}
    open_requirements = []
    for text in wanted:
        try:
            requirement = parse_requirement_text(text)
        except InvalidRequirement:
            raise UsageError(f"{text!r} is not a requirement; one is written like trl==1.16") from None
        name = canonicalize_name(requirement.name)
        locked = versions.get(name)
        if locked and not requirement.specifier.contains(locked, prereleases=True):
            raise UnfitCellError(
                f"{text} does not fit: {lock.cell} has {requirement.name} {locked}, and the versions of a cell do not "
                "move"
            )
        is_there = name in made_here or (locked and not requirement.extras)
        open_requirements += [] if is_there else [text]
    own = cell_locking.resolver_request(matrix.entry(lock.cell), matrix)
    return replace(
        own,
        requirements=tuple(open_requirements),
        constraints=tuple(f"{name}=={version}" for name, version in versions.items() if name not in made_here),
        excludes=tuple(sorted({*own.excludes, *made_here})),  # they are in the image, and no index has a wheel
        sources=(),
        locked_at=datetime.now(UTC).date().isoformat(),
    )


def resolve_added_packages(matrix: Matrix, lock: CellLock, wanted: Sequence[str]) -> tuple[AddedPackage, ...]:
    """Return the wheels that a cell lacks for these requirements; none when it has all that they need.

    Raises:
        UnfitCellError: they contradict the cell's lock, or what goes with it is of another time; with the reason.
        MissingError: the index did not answer.
    """
    from knowngood.lock import resolver

    request = added_packages_request(matrix, lock, wanted)
    if not request.requirements:
        return ()
    question = {name: value for name, value in request.document().items() if name != "locked_at"} | {"format": _FORMAT}
    path = _resolutions() / f"{hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()}.json"
    if (kept := _load_resolution(path)) is not None:
        return kept
    open_requirements = [text for text in request.requirements if _is_without_version(text)]
    # The resolver also says when the cell's transformers was uploaded, by which those are judged.
    dates = (f"transformers=={lock.cell.transformers}",) if open_requirements else ()
    try:
        pinned = resolver.resolve_distributions(replace(request, requirements=(*request.requirements, *dates)))
    except resolver.NoSolutionError as error:
        raise UnfitCellError(
            f"{', '.join(wanted)} cannot be added to {lock.cell}, whose versions do not move: {error}"
        ) from None
    for text in open_requirements:
        _refuse_outdated_release(text, request, pinned, lock)
    present = {item.name for item in lock.distributions}
    added = tuple(
        sorted(
            AddedPackage(name=item.name, version=item.version, sha256=item.sha256)
            for item in pinned
            if item.name not in present
        )
    )
    write_atomically(path, json.dumps([asdict(item) for item in added], indent=1) + "\n")
    return added


def _is_without_version(text: str) -> bool:
    requirement = parse_requirement_text(text)
    return not (requirement.specifier or requirement.url)


def _refuse_outdated_release(text: str, request: ResolverRequest, pinned: Sequence[PinnedFile], lock: CellLock) -> None:
    """Raise `UnfitCellError` where the resolver went back more than a year for a package that has no version.

    An index has releases from before packages declared what they need. They go with anything by what they declare.
    """
    from packaging.utils import canonicalize_name

    from knowngood.lock import resolver

    files = {item.name: item for item in pinned}
    own, file = files.get("transformers"), files.get(canonicalize_name(parse_requirement_text(text).name))
    if own is None or file is None or not (own.uploaded and file.uploaded):
        return
    if date.fromisoformat(own.uploaded) - date.fromisoformat(file.uploaded) <= LONGEST_LAG:
        return
    newest = find_newest_release(file.name)
    if newest is None or newest == file.version:
        return  # nothing newer exists, so the cell is not the reason
    try:
        resolver.resolve_distributions(replace(request, requirements=(f"{file.name}=={newest}",)))
        reason = "the other packages that were named hold it back"
    except resolver.NoSolutionError as error:
        reason = textwrap.shorten(str(error), _LONGEST_REASON, placeholder=" ...")
    raise UnfitCellError(
        f"the newest {file.name} that goes with {lock.cell} is {file.version} of {file.uploaded}, more than a year "
        f"older than its transformers {own.version} of {own.uploaded}; {newest} does not go with it: {reason}; to "
        f"take the old one, name it: --with {file.name}=={file.version}"
    )


def find_newest_release(name: str) -> str | None:
    """Return the newest final release of a package on the index, also one without a wheel; `None` without one.

    Raises `MissingError` when the index does not answer.
    """
    from knowngood.index.artefact import UnreadableError
    from knowngood.index.package_index import SimpleIndex

    try:
        versions = {file.version for file in SimpleIndex().files(name) if not file.yanked}
    except UnreadableError as error:
        raise MissingError(f"the index does not list the releases of {name}: {error}") from None
    return str(max(final)) if (final := [version for version in versions if not version.is_prerelease]) else None


def _resolutions() -> Path:
    return cache_folder() / "added"


def _load_resolution(path: Path) -> tuple[AddedPackage, ...] | None:
    """Return a kept resolution; only a cache, so one that cannot be read counts as absent."""
    try:
        return tuple(AddedPackage(**item) for item in json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
