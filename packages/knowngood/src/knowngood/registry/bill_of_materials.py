"""The bill of materials (SBOM) of a cell as CycloneDX, from its lock and the lock of its base.

The same locks give the same bytes: there is no time in it, and the serial number is derived from what is listed.

The licences of the locked wheels, read from their METADATA and kept in `docker/licences.json`.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from email.parser import HeaderParser
from typing import TYPE_CHECKING, TypedDict

from knowngood.core.data_files import load_json
from knowngood.core.errors import MissingError
from knowngood.core.local_files import write_atomically
from knowngood.core.notify import Notify
from knowngood.lock.debian_lock import DebianPackage, PackagesLock

if TYPE_CHECKING:
    from pathlib import Path

    from cyclonedx.model.component import Component
    from cyclonedx.model.license import License

    from knowngood.index.artefact import PublishedFile
    from knowngood.index.package_index import SimpleIndex
    from knowngood.lock.cell_lock import Distribution
    from knowngood.lock.lock_tree import CellLock


def render_sbom(locked: CellLock, base: PackagesLock, licences: Mapping[str, str]) -> str:
    """Return the SBOM as JSON text.

    `base` is the lock of its base, `licences` is sha256 of a wheel -> its licence.
    """
    from cyclonedx.model import Property
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.output.json import JsonV1Dot6

    name = str(locked.cell)
    main = Component(name=f"knowngood {name}", type=ComponentType.CONTAINER, bom_ref=name)
    parts = [_wheel_component(item, licences.get(item.sha256)) for item in locked.distributions]
    parts += [_debian_component(item, base.suite) for item in base.packages]
    refs = "\n".join(sorted(str(part.bom_ref.value) for part in parts))
    bom = Bom(components=parts, serial_number=uuid.uuid5(uuid.NAMESPACE_OID, f"{name}\n{refs}"))
    bom.metadata.timestamp = None  # type: ignore[assignment]  # it would be the time of writing
    bom.metadata.component = main
    bom.metadata.properties.update(
        Property(name=f"knowngood:{key}", value=value)
        for key, value in {"cell": name, "lock": f"sha256:{locked.digest}", "base": locked.base}.items()
    )
    bom.register_dependency(main, parts)
    return JsonV1Dot6(bom).output_as_string(indent=1) + "\n"


def wheel_purl(item: Distribution) -> str:
    """Return the package URL of a wheel."""
    from packageurl import PackageURL

    return PackageURL("pypi", None, item.name, item.version, {"file_name": item.file}).to_string()


def deb_purl(package: DebianPackage, suite: str) -> str:
    """Return the package URL of a Debian package."""
    from packageurl import PackageURL

    qualifiers = {"arch": package.arch, "distro": suite}
    return PackageURL("deb", "debian", package.name, package.version, qualifiers).to_string()


def _wheel_component(item: Distribution, licence: str | None) -> Component:
    component = _component(item.name, item.version, wheel_purl(item), item.sha256)
    if licence:
        component.licenses.add(_licence(licence))
    return component


def _debian_component(package: DebianPackage, suite: str) -> Component:
    return _component(package.name, package.version, deb_purl(package, suite), package.sha256)


def _component(name: str, version: str, purl: str, sha256: str) -> Component:
    from cyclonedx.model import HashAlgorithm, HashType
    from cyclonedx.model.component import Component, ComponentType
    from packageurl import PackageURL

    hashes = [HashType(alg=HashAlgorithm.SHA_256, content=sha256)]
    return Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        bom_ref=purl,
        purl=PackageURL.from_string(purl),
        hashes=hashes,
    )


def _licence(text: str) -> License:
    from cyclonedx.contrib.license.factories import LicenseFactory

    return LicenseFactory().make_from_string(text)


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
        remedy = "remove it and run `knowngood lock --licences`"
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
