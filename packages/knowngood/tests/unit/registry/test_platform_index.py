from __future__ import annotations

import json

import pytest

from knowngood.core.cell import parse_cell
from knowngood.core.errors import KnowngoodError
from knowngood.core.hosts import HostArchitecture
from knowngood.registry import platform_index
from knowngood.registry.manifests import INDEX_MEDIA_TYPE, MANIFEST_MEDIA_TYPE, Descriptor, RegistryManifest
from samples import FA0, FA4

X86, ARM = HostArchitecture.X86_64, HostArchitecture.AARCH64


def image(text: str) -> RegistryManifest:
    return RegistryManifest(data=json.dumps({"layers": [text]}).encode(), media=MANIFEST_MEDIA_TYPE)


class FakeRegistry:
    repository = "registry.example/team/images"

    def __init__(self, *manifests: RegistryManifest) -> None:
        self.manifests = {item.descriptor.digest: item for item in manifests}

    def manifest(self, reference: str) -> RegistryManifest | None:
        return self.manifests.get(reference)

    def put_manifest(self, manifest: RegistryManifest, reference: str) -> bool:
        self.manifests[reference] = manifest
        return True


def test_twins_are_the_cells_that_differ_in_the_host_alone():
    arm = parse_cell(f"{FA4}-aarch64")
    cells = [parse_cell(FA4), parse_cell(FA0), arm, parse_cell(f"{FA0}-aarch64-xtuner0.1.23")]
    assert platform_index.group_twin_cells(cells) == {parse_cell(FA4): {X86: parse_cell(FA4), ARM: arm}}


def test_an_index_gives_each_host_its_own_image():
    mine, other = image("x86"), image("arm")
    registry = FakeRegistry(mine, other)
    digest = platform_index.push_platform_index(registry, {ARM: other.descriptor.digest, X86: mine.descriptor.digest})
    index = registry.manifests[digest]
    assert index.media == INDEX_MEDIA_TYPE
    assert [item["platform"]["architecture"] for item in index.document["manifests"]] == ["amd64", "arm64"]
    assert platform_index.choose_host_image(registry, index, "name", X86) == mine
    assert platform_index.choose_host_image(registry, index, "name", ARM) == other
    assert platform_index.choose_host_image(registry, mine, "name", ARM) == mine  # a single image is what it is
    again = platform_index.push_platform_index(registry, {X86: mine.descriptor.digest, ARM: other.descriptor.digest})
    assert again == digest


def test_an_index_without_an_image_for_the_host_says_which_it_has():
    mine = image("x86")
    index = platform_index.render_platform_index({X86: mine.descriptor})
    with pytest.raises(KnowngoodError, match=r"^name has images for x86-64, and none for aarch64$"):
        platform_index.choose_host_image(FakeRegistry(mine), index, "name", ARM)
    with pytest.raises(KnowngoodError, match=r"which registry.example/team/images does not have"):
        platform_index.choose_host_image(FakeRegistry(), index, "name", X86)


def entry(digest="1", host=X86, **changes):
    image = Descriptor(media=MANIFEST_MEDIA_TYPE, digest="sha256:" + digest * 64, size=1)
    return image.document() | {"platform": {"architecture": host.debian, "os": "linux"}} | changes


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ([entry("1"), entry("2")], "lists two images for x86-64, sha256:1.* and sha256:2"),
        ([entry(), entry("2", platform={"architecture": "arm", "os": "linux"})], "for which there are no cells"),
        ([entry(platform={"architecture": "amd64", "os": "linux", "variant": "v2"})], "for which there are no cells"),
        ([entry(platform=None)], "lists sha256:1.* for None, for which there are no cells"),
        ([entry(mediaType=INDEX_MEDIA_TYPE)], "as the image for x86-64"),
        ([entry("g")], "is not a sha256 digest"),
        ([entry(size=-1)], "cannot have -1 bytes"),
        ([entry(size="1")], "must be a whole number"),
        ({}, "must be a list or null"),
    ],
)
def test_an_index_of_which_clients_take_different_images_is_refused(entries, reason):
    data = json.dumps({"mediaType": INDEX_MEDIA_TYPE, "manifests": entries}).encode()
    with pytest.raises(KnowngoodError, match=reason):
        platform_index.list_index_images(RegistryManifest(data=data, media=INDEX_MEDIA_TYPE))


def test_no_index_names_an_image_that_is_gone():
    with pytest.raises(KnowngoodError, match=r"lost sha256:.* before an index could name it"):
        platform_index.push_platform_index(FakeRegistry(), {X86: "sha256:" + "1" * 64})
