"""Files of a published release, read out of its wheel or sdist: a reproduction unpacks them and does not install them.

An edge: it reads from the package index. It is a module of its own because `scripts/reproduce_offline.py run` does
without it, on machines that lack the libraries imported here.
"""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import parse_wheel_filename
from packaging.version import Version

from knowngood.facts.harvest_run import open_artefact
from knowngood.index.artefact import PublishedFile, UnreadableError
from knowngood.index.package_index import SimpleIndex
from knowngood.index.wheel_contents import installed_path
from knowngood.lock.resolver import supported_tags
from knowngood.reproductions.reproduction import CannotTryError, pinned_version

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_METADATA = ("*.egg-info/PKG-INFO", "*.dist-info/METADATA")


def unpack_release(pin: str, globs: Sequence[str], python: str) -> Mapping[str, bytes]:
    """Return the files of a published release that match the globs, and its metadata, which holds its version.

    `pin` is `NAME==VERSION`; of several wheels the one for the Python release `python` is read. Raises
    `CannotTryError` for a release or a file that the index does not have.
    """
    requirement = Requirement(pin)
    version = Version(pinned_version(requirement))
    index = SimpleIndex()
    try:
        files = [file for file in index.files(requirement.name) if file.version == version]
        if not files:
            raise CannotTryError(f"the registry has no {pin}")
        artefact = open_artefact(_choose_file(files, python) or files[0], index)
        try:
            members = {installed_path(name): name for name in artefact.members}
            matches = [name for name in members if any(fnmatch.fnmatch(name, glob) for glob in globs)]
            if not matches:
                raise CannotTryError(f"{artefact.file.name} has no file {' or '.join(globs)}")
            metadata = [name for name in members if any(fnmatch.fnmatch(name, glob) for glob in _METADATA)]
            return {name: artefact.read(members[name]) for name in [*matches, *metadata]}
        finally:
            artefact.close()
    except UnreadableError as error:
        raise CannotTryError(f"{pin} cannot be read: {error}") from None


def _choose_file(files: Sequence[PublishedFile], python: str) -> PublishedFile | None:
    """Return the wheel that an installer would choose for that Python, else the sdist, else `None`."""
    order = {tag: rank for rank, tag in enumerate(supported_tags(python, "2.36"))}
    ranks = {
        file: min(order[tag] for tag in tags)
        for file in files
        if file.is_wheel and (tags := parse_wheel_filename(file.name)[3] & order.keys())
    }
    return min(ranks, key=lambda file: ranks[file]) if ranks else next((f for f in files if not f.is_wheel), None)
