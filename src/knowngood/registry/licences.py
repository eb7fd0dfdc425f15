"""The licences of the locked wheels, read from their METADATA and kept in `docker/licences.json`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from email.parser import HeaderParser
from typing import TYPE_CHECKING, TypedDict

from knowngood.core.data_files import load_json
from knowngood.core.errors import MissingError
from knowngood.core.local_files import write_atomically
from knowngood.core.notify import Notify

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from knowngood.index.artefact import PublishedFile
    from knowngood.index.package_index import SimpleIndex
    from knowngood.lock.cell_lock import Distribution

_LONGEST_LICENCE_NAME = 100
"""Characters; a longer field holds the whole text of the licence and not its name."""


def licences_path(root: Path) -> Path:
    """Return the path of the committed file."""
    return root / "docker" / "licences.json"


class _LicenceItem(TypedDict):
    wheel: str
    licence: str | None


def load_licences(root: Path) -> Mapping[str, str]:
    """Return sha256 of a wheel -> licence; a wheel that is not in it has no known licence."""
    return {sha256: licence for sha256, licence in _read_licences_file(licences_path(root)).items() if licence}


def _read_licences_file(file: Path) -> dict[str, str | None]:
    try:
        remedy = "remove it and run `knowngood sbom --refresh-licences`"
        stored = load_json(file, dict[str, _LicenceItem], remedy=remedy)
    except FileNotFoundError:
        return {}
    return {sha256: item["licence"] for sha256, item in stored.items()}


def refresh_licences(root: Path, wheels: Iterable[Distribution], notify: Notify) -> tuple[int, bool]:
    """Read missing licences from the index and drop those of wheels that no lock has.

    A wheel that names no licence is kept as such; one that is on no index is left out. Returns the number of wheels
    with a licence, and whether the file changed.
    """
    from knowngood.index.package_index import SimpleIndex
    from knowngood.lock import wheelhouse

    kept = _read_licences_file(licences_path(root))
    wanted = {item.sha256: item for item in wheels if item.file.endswith(".whl")}
    new = [item for sha256, item in wanted.items() if sha256 not in kept]
    index = SimpleIndex()
    notify(f"locating {len(new)} wheels on the index")
    files = wheelhouse.locate_wheels(new, index)
    notify(f"reading the METADATA of {len(files)} wheels")
    with ThreadPoolExecutor(wheelhouse.INDEX_THREADS) as pool:
        fetched = dict(zip(files, pool.map(lambda file: _fetch_licence(file, index), files.values()), strict=True))
    named = {s: kept.get(s, fetched.get(s)) for s in wanted if s in kept or s in fetched}
    ordered = sorted(named.items(), key=lambda item: (wanted[item[0]].name, wanted[item[0]].version, item[0]))
    rows = ",\n".join(
        " " + json.dumps(sha256) + ": " + json.dumps({"wheel": wanted[sha256].file, "licence": licence})
        for sha256, licence in ordered
    )
    return sum(map(bool, named.values())), write_atomically(licences_path(root), f"{{\n{rows}\n}}\n")


def _fetch_licence(file: PublishedFile, index: SimpleIndex) -> str | None:
    from knowngood.index.artefact import UnreadableError, find_member, read_text_member
    from knowngood.index.remote_archive import RemoteWheel

    try:
        wheel = RemoteWheel(file, index.session)
        try:
            return parse_licence(read_text_member(wheel, find_member(wheel, ".dist-info/METADATA")))
        finally:
            wheel.close()
    except UnreadableError as error:
        if not error.again:
            return None
        raise MissingError(f"{file.name}: {error}; run it again") from None


def parse_licence(metadata: str) -> str | None:
    """Return the licence that a METADATA file names: its SPDX expression, else its classifiers, else its free text."""
    headers = HeaderParser().parsestr(metadata)
    if expression := headers.get("License-Expression"):
        return str(expression).strip()
    named = [
        value.rpartition(" :: ")[2]
        for value in headers.get_all("Classifier", [])
        if value.startswith("License :: ") and value != "License :: OSI Approved"
    ]
    if named:
        return " / ".join(named)
    text = str(headers.get("License") or "").strip()
    return text if text and len(text) <= _LONGEST_LICENCE_NAME and "\n" not in text and text != "UNKNOWN" else None
