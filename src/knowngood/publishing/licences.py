"""What the locked wheels say of their licence, read out of their METADATA and kept in `docker/licences.json`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from email.parser import HeaderParser
from typing import TYPE_CHECKING

from knowngood.atomic import write_text
from knowngood.errors import MissingError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from knowngood.harvest.index import File, SimpleIndex
    from knowngood.locks.lock import Distribution

_LONGEST = 100
"""Characters: whoever has more in that field put the licence's whole text there."""


def path(root: Path) -> Path:
    """The committed file of a project."""
    return root / "docker" / "licences.json"


def load(root: Path) -> Mapping[str, str]:
    """Licence by the wheel's sha256; what is not in it is not known."""
    return {sha256: licence for sha256, licence in _stored(path(root)).items() if licence}


def _stored(file: Path) -> dict[str, str | None]:
    if not file.exists():
        return {}
    try:
        return {str(key): item["licence"] for key, item in json.loads(file.read_text(encoding="utf-8")).items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{file} is damaged ({error!r}); remove it and run `knowngood sbom --refresh-licences`"
        ) from None


def refresh(root: Path, wheels: Iterable[Distribution], say: Callable[[str], None]) -> tuple[int, bool]:
    """Read what is not known yet from the index, drop what no lock has; returns how many are named, and if it changed.

    A wheel that names none is kept as such, and one that is on no index is left out.
    """
    from knowngood.harvest.index import SimpleIndex
    from knowngood.locks import located

    kept = _stored(path(root))
    wanted = {item.sha256: item for item in wheels if item.file.endswith(".whl")}
    new = [item for sha256, item in wanted.items() if sha256 not in kept]
    index = SimpleIndex()
    say(f"asking the index where {len(new)} wheels are")
    files = located.locate(new, index)
    say(f"reading the METADATA of {len(files)} wheels")
    with ThreadPoolExecutor(located.THREADS) as pool:
        found = dict(zip(files, pool.map(lambda file: _read(file, index), files.values()), strict=True))
    named = {sha256: kept.get(sha256, found.get(sha256)) for sha256 in wanted if sha256 in kept or sha256 in found}
    ordered = sorted(named.items(), key=lambda item: (wanted[item[0]].name, wanted[item[0]].version, item[0]))
    rows = ",\n".join(
        " " + json.dumps(sha256) + ": " + json.dumps({"wheel": wanted[sha256].file, "licence": licence})
        for sha256, licence in ordered
    )
    return sum(map(bool, named.values())), write_text(path(root), f"{{\n{rows}\n}}\n")


def _read(file: File, index: SimpleIndex) -> str | None:
    from knowngood.harvest.artefact import one_member, text
    from knowngood.harvest.index import Unreadable
    from knowngood.harvest.ranged import RemoteWheel

    try:
        wheel = RemoteWheel(file, index.session)
        try:
            return parse(text(wheel, one_member(wheel, ".dist-info/METADATA")))
        finally:
            wheel.close()
    except Unreadable as error:
        if not error.again:
            return None
        raise MissingError(f"{file.name}: {error}; run it again") from None


def parse(metadata: str) -> str | None:
    """The licence that a METADATA file names: its SPDX expression, else its classifiers, else its free text."""
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
    return text if text and len(text) <= _LONGEST and "\n" not in text and text != "UNKNOWN" else None
