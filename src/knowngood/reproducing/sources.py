"""Files of a published release, read out of its wheel or sdist: what a reproduction unpacks and does not install."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.version import Version

from knowngood.locks.contents import installed_path
from knowngood.reproducing.reproduce import CannotTryError

if TYPE_CHECKING:
    from knowngood.harvest.index import File

_METADATA = ("*.egg-info/PKG-INFO", "*.dist-info/METADATA")


def unpack(pin: str, globs: Sequence[str], python: str) -> Mapping[str, bytes]:
    """The files of a release that the globs name, and its metadata, so that its version can be asked for."""
    from knowngood.harvest.index import SimpleIndex, Unreadable
    from knowngood.harvest.run import open_artefact

    requirement = Requirement(pin)
    version = Version(next(iter(requirement.specifier)).version)
    index = SimpleIndex()
    try:
        files = [file for file in index.files(requirement.name) if file.version == version]
        if not files:
            raise CannotTryError(f"the registry has no {pin}")
        artefact = open_artefact(_fitting(files, python) or files[0], index)
        try:
            members = {installed_path(name): name for name in artefact.members}
            wanted = [name for name in members if any(fnmatch.fnmatch(name, glob) for glob in globs)]
            if not wanted:
                raise CannotTryError(f"{artefact.file.name} has no file {' or '.join(globs)}")
            about = [name for name in members if any(fnmatch.fnmatch(name, glob) for glob in _METADATA)]
            return {name: artefact.read(members[name]) for name in [*wanted, *about]}
        finally:
            artefact.close()
    except Unreadable as error:
        raise CannotTryError(f"{pin} cannot be read: {error}") from None


def _fitting(files: Sequence[File], python: str) -> File | None:
    """The wheel that an installer for that Python would take, else the sdist."""
    from packaging.utils import parse_wheel_filename

    from knowngood.locks.resolve import supported_tags

    order = {tag: rank for rank, tag in enumerate(supported_tags(python, "2.36"))}
    ranks = {
        file: min(order[tag] for tag in tags)
        for file in files
        if file.is_wheel and (tags := parse_wheel_filename(file.name)[3] & order.keys())
    }
    return min(ranks, key=lambda file: ranks[file]) if ranks else next((f for f in files if not f.is_wheel), None)
