"""The bill of materials (SBOM) of a cell as CycloneDX, from its lock and the lock of its base. Pure.

The same locks give the same bytes: there is no time in it, and the serial number is derived from what is listed.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING

from knowngood.lock.debian_lock import DebianPackage, PackagesLock

if TYPE_CHECKING:
    from cyclonedx.model.component import Component
    from cyclonedx.model.license import License

    from knowngood.lock.cell_lock import Distribution
    from knowngood.lock.lock_tree import CellLock

SBOM_FORMAT = "cyclonedx-json"


def render_sbom(locked: CellLock, base: PackagesLock | str, licences: Mapping[str, str]) -> str:
    """Return the SBOM as JSON text.

    `base` is the lock of a bootstrapped base, or the name of an image that is pulled. `licences` is sha256 of a wheel
    -> its licence.
    """
    from cyclonedx.model import Property
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.output.json import JsonV1Dot6

    name = str(locked.cell)
    main = Component(name=f"knowngood {name}", type=ComponentType.CONTAINER, bom_ref=name)
    parts = [_wheel_component(item, licences.get(item.sha256)) for item in locked.distributions]
    parts += (
        [_debian_component(item, base.suite) for item in base.packages]
        if isinstance(base, PackagesLock)
        else [_image_component(base)]
    )
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


def image_purl(image: str) -> str:
    """Return the package URL of an image `HOST/PATH@sha256:...`."""
    from packageurl import PackageURL

    place, _, digest = image.partition("@")
    return PackageURL("oci", None, place.rpartition("/")[2], digest, {"repository_url": place}).to_string()


def _wheel_component(item: Distribution, licence: str | None) -> Component:
    component = _component(item.name, item.version, wheel_purl(item), item.sha256)
    if licence:
        component.licenses.add(_licence(licence))
    return component


def _debian_component(package: DebianPackage, suite: str) -> Component:
    return _component(package.name, package.version, deb_purl(package, suite), package.sha256)


def _image_component(image: str) -> Component:
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
