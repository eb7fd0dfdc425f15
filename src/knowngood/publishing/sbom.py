"""A cell's bill of materials as CycloneDX, from its lock and its base's lock. Pure: the same locks give the same bytes.

No time and no random number is in it: the serial number is derived from what is listed.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING

from knowngood.system.packages_lock import Package, PackagesLock

if TYPE_CHECKING:
    from cyclonedx.model.component import Component
    from cyclonedx.model.license import License

    from knowngood.locks.lock import Distribution
    from knowngood.locks.tree import CellLock

FORMAT = "cyclonedx-json"


def write(locked: CellLock, base: PackagesLock | str, licences: Mapping[str, str]) -> str:
    """The document's text. `base` is a bootstrapped base's lock, or the name of an image that is pulled.

    `licences` gives what a wheel's metadata says, by the wheel's sha256.
    """
    from cyclonedx.model import Property
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.output.json import JsonV1Dot6

    name = str(locked.cell)
    main = Component(name=f"knowngood {name}", type=ComponentType.CONTAINER, bom_ref=name)
    parts = [_wheel(item, licences.get(item.sha256)) for item in locked.distributions]
    parts += [_deb(item, base.suite) for item in base.packages] if isinstance(base, PackagesLock) else [_image(base)]
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
    """The package URL of a wheel."""
    from packageurl import PackageURL

    return PackageURL("pypi", None, item.name, item.version, {"file_name": item.file}).to_string()


def deb_purl(package: Package, suite: str) -> str:
    """The package URL of a Debian package."""
    from packageurl import PackageURL

    qualifiers = {"arch": package.arch, "distro": suite}
    return PackageURL("deb", "debian", package.name, package.version, qualifiers).to_string()


def image_purl(image: str) -> str:
    """The package URL of an image `HOST/PATH@sha256:...`."""
    from packageurl import PackageURL

    place, _, digest = image.partition("@")
    return PackageURL("oci", None, place.rpartition("/")[2], digest, {"repository_url": place}).to_string()


def _wheel(item: Distribution, licence: str | None) -> Component:
    found = _component(item.name, item.version, wheel_purl(item), item.sha256)
    if licence:
        found.licenses.add(_licence(licence))
    return found


def _deb(package: Package, suite: str) -> Component:
    return _component(package.name, package.version, deb_purl(package, suite), package.sha256)


def _image(image: str) -> Component:
    place, _, digest = image.partition("@")
    return _component(place, digest, image_purl(image), digest.removeprefix("sha256:"))


def _component(name: str, version: str, purl: str, sha256: str) -> Component:
    from cyclonedx.model import HashAlgorithm, HashType
    from cyclonedx.model.component import Component, ComponentType
    from packageurl import PackageURL

    kind = ComponentType.CONTAINER if purl.startswith("pkg:oci/") else ComponentType.LIBRARY
    hashes = [HashType(alg=HashAlgorithm.SHA_256, content=sha256)]
    return Component(
        name=name, version=version, type=kind, bom_ref=purl, purl=PackageURL.from_string(purl), hashes=hashes
    )


def _licence(text: str) -> License:
    from cyclonedx.contrib.license.factories import LicenseFactory

    return LicenseFactory().make_from_string(text)
