"""What releases require, read from the index: so that packages that pin one another are moved together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from knowngood.harvest.index import File, Index, SimpleIndex, Unreadable
from knowngood.harvest.metadata import parse_metadata
from knowngood.harvest.reading import Published, by_tags
from knowngood.harvest.run import open_artefact, releases

if TYPE_CHECKING:
    from knowngood.nightly.moves import Move

_AT_ONCE = 4

Requirements = dict[tuple[str, str], dict[str, SpecifierSet]]


def read(moves: Iterable[Move], python: str, say: Callable[[str], None], index: Index | None = None) -> Requirements:
    """The requirements of both releases of each package; what cannot be read is left out, and then known to nobody."""
    source = index or SimpleIndex()
    listed = list(moves)
    say(f"reading what {len(listed)} packages require")

    def of(move: Move) -> Requirements:
        try:
            published = {str(one.version): one for one in releases(move.name, source.files(move.name))}
        except Unreadable:
            return {}
        wanted = [version for version in (move.old, move.new) if version]
        return {
            (move.name, version): found
            for version in wanted
            if (one := published.get(_normal(version))) and (found := _of(one, python, source)) is not None
        }

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return {key: value for found in pool.map(of, listed) for key, value in found.items()}


def _of(published: Published, python: str, index: Index) -> dict[str, SpecifierSet] | None:
    file = _chosen(published, python)
    if file is None:
        return None
    try:
        artefact = open_artefact(file, index)
    except Unreadable:
        return None
    try:
        member = next(name for name in artefact.members if name.endswith(".dist-info/METADATA"))
        wanted = parse_metadata(artefact.read(member)).on(python)
    except (Unreadable, StopIteration, OSError):
        return None
    finally:
        artefact.close()
    return {name: requirement.specifier for name, requirement in wanted.items()}


def _chosen(published: Published, python: str) -> File | None:
    interpreter = "cp" + python.replace(".", "")
    return by_tags("-none-any", f"-{interpreter}-")(published)


def _normal(version: str) -> str:
    try:
        return Version(version).public
    except InvalidVersion:
        return version
