"""A compiled wheel in a real registry: pushed once, fetched by its hash, refused when its bytes are others."""

from __future__ import annotations

import hashlib
import os

import pytest
import registry_server

from knowngood.lock.cell_lock import Distribution
from knowngood.lock.wheelhouse import WheelPin
from knowngood.registry import wheel_supply
from knowngood.registry.image_reference import Repository
from knowngood.registry.manifests import DamagedContentError
from knowngood.registry.registry_client import Registry

pytestmark = pytest.mark.integration

VERSION = "2.8.3.post2+cu13torch2.11cxx11abitrue.sm90"


@pytest.fixture
def server(registry_program, tmp_path):
    (tmp_path / "registry").mkdir()
    server = registry_server.Server(registry_program, tmp_path / "registry")
    server.start()
    yield server
    server.kill()


@pytest.fixture
def wheel(tmp_path):
    """A wheel of 5 MB in a wheelhouse, as a lock pins it."""
    content = os.urandom(5 << 20)
    file = f"flash_attn-{VERSION}-cp311-cp311-linux_x86_64.whl"
    (tmp_path / "house").mkdir()
    (tmp_path / "house" / file).write_bytes(content)
    sha256 = hashlib.sha256(content).hexdigest()
    return Distribution(name="flash-attn", version=VERSION, file=file, sha256=sha256, size=len(content))


def push(server, wheel, house, **options):
    registry = Registry(Repository.parse(f"http://{server.address}/team/images"))
    options = {"every_byte": False, "dry_run": False} | options
    ((_, status),) = wheel_supply.push_wheels(registry, [wheel], house, **options)
    return str(status)


def test_a_wheel_travels_through_a_registry_and_is_trusted_by_its_hash(server, wheel, tmp_path):
    pin = WheelPin(file=wheel.file, sha256=wheel.sha256)
    place, far, notes = f"oci+http://{server.address}/team/images", tmp_path / "far", []
    assert wheel_supply.fetch_pinned_wheel(pin, [place], far, notes.append) is None
    assert "404" in notes[-1]
    assert push(server, wheel, tmp_path / "house", dry_run=True) == "pushed"
    assert push(server, wheel, tmp_path / "house") == "pushed"
    assert push(server, wheel, tmp_path / "house") == "unchanged"
    fetched = wheel_supply.fetch_pinned_wheel(pin, [place], far, notes.append)
    assert fetched.read_bytes() == (tmp_path / "house" / wheel.file).read_bytes()
    assert notes[-1] == f"{wheel.file} from {place}"


def test_other_bytes_in_the_registry_are_refused_and_sent_again(server, wheel, tmp_path):
    push(server, wheel, tmp_path / "house")
    blob = server.blob_path(f"sha256:{wheel.sha256}")
    content = blob.read_bytes()
    blob.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    pin = WheelPin(file=wheel.file, sha256=wheel.sha256)
    place, far = f"oci+http://{server.address}/team/images", tmp_path / "far"
    with pytest.raises(DamagedContentError, match=f"serves other bytes for the blob sha256:{wheel.sha256}"):
        wheel_supply.fetch_pinned_wheel(pin, [place], far, print)
    assert not list(far.iterdir())
    assert push(server, wheel, tmp_path / "house") == "unchanged", "its size is right"
    blob.unlink()
    assert push(server, wheel, tmp_path / "house") == "pushed"
    assert wheel_supply.fetch_pinned_wheel(pin, [place], far, print).read_bytes() == content


def test_a_registry_that_is_gone_is_a_place_without_the_wheel(server, wheel, tmp_path):
    server.kill()
    notes = []
    pin = WheelPin(file=wheel.file, sha256=wheel.sha256)
    places = [f"oci+http://{server.address}/team/images", str(tmp_path / "house")]
    assert wheel_supply.fetch_pinned_wheel(pin, places, tmp_path / "far", notes.append)
    assert "the request failed after 2 attempts" in notes[0]
    wheel_supply.fetch_pinned_wheel(pin, ["oci+http://registry.example/images"], tmp_path / "far", notes.append)
    assert "http:// is for a registry on this machine" in notes[-1]
