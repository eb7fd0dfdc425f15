from __future__ import annotations

import dataclasses
import io
import json
import tarfile
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import zstandard

from knowngood.base import base_image
from knowngood.cli import main
from knowngood.core.cell import parse_cell
from knowngood.core.errors import KnowngoodError
from knowngood.engine import container_engine, image_store
from knowngood.engine.container_engine import Engine
from knowngood.images import build_command, image_build, verification
from knowngood.images.pipeline import Pipeline, PipelineOptions
from knowngood.images.verification import VerificationOutcome
from plan_samples import A, built
from samples import FA4

BASE = "sha256:" + "b" * 64


def tar(*members: tuple[str, bytes | None, dict[str, object]]) -> bytes:
    """A tar file: name, content (`None` for a folder), and what is special of each."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content, special in members:
            member = tarfile.TarInfo(name)
            member.size = len(content or b"")
            member.type = tarfile.DIRTYPE if content is None else tarfile.REGTYPE
            for key, value in special.items():
                setattr(member, key, value)
            archive.addfile(member, io.BytesIO(content or b""))
    return out.getvalue()


def layer(path, data: bytes):
    path.write_bytes(zstandard.compress(data))
    return path


OLD = tar(("opt", None, {}), ("opt/a", b"a", {"mtime": 5}), ("opt/b", b"b", {}), ("opt/c", b"", {"mode": 0o755}))


@pytest.mark.parametrize(
    ("new", "said"),
    [
        (
            tar(("opt", None, {}), ("opt/b", b"b", {}), ("opt/a", b"a", {"mtime": 5}), ("opt/c", b"", {"mode": 0o755})),
            None,
        ),
        (
            tar(("opt", None, {}), ("opt/a", b"x", {"mtime": 5}), ("opt/b", b"b", {}), ("opt/c", b"", {"mode": 0o755})),
            ["/opt/a: content"],
        ),
        (
            tar(
                ("opt", None, {"uid": 7}),
                ("opt/a", b"a", {"mtime": 6}),
                ("opt/d", b"b", {}),
                ("opt/c", b"", {"mode": 0o4755}),
            ),
            [
                "/opt: owner 0:0 -> 7:0",
                "/opt/a: time 5 -> 6",
                "/opt/b: gone",
                "/opt/c: mode 0755 -> 4755",
                "/opt/d: new",
            ],
        ),
        (
            tar(
                ("opt", None, {}),
                ("opt/a", b"a", {"mtime": 5}),
                ("opt/b", b"", {"type": tarfile.SYMTYPE, "linkname": "a"}),
                ("opt/c", b"", {"mode": 0o755}),
            ),
            ["/opt/b: kind file -> symbolic link, link  -> a, content"],
        ),
    ],
)
def test_layers_are_compared_member_by_member(tmp_path, new, said):
    before, after = (
        verification.read_layer_members(layer(tmp_path / "a", OLD)),
        verification.read_layer_members(layer(tmp_path / "b", new)),
    )
    assert verification.compare_members(before, after) == (
        said or ["the same files, but in another order or compressed in another way"]
    )


def test_an_uncompressed_layer_is_read(tmp_path):
    path = tmp_path / "plain"
    path.write_bytes(OLD)
    assert verification.read_layer_members(path) == verification.read_layer_members(layer(tmp_path / "z", OLD))


def test_configurations_are_compared_key_by_key():
    old = {"config": {"Env": ["A=1", "B=2"], "Labels": {"x": "1"}}, "created": "1980"}
    new = {"config": {"Env": ["A=1", "B=3"], "Labels": {}}, "created": "1980", "os": "linux"}
    assert verification.compare_configs(json.dumps(old).encode(), json.dumps(new).encode()) == [
        'config.Env[1]: "B=2" -> "B=3"',
        'config.Labels.x: "1" -> null',
        'os: null -> "linux"',
    ]


def saved(blobs: dict[str, bytes]) -> bytes:
    """What `docker save` streams."""
    return tar(*((f"blobs/sha256/{digest}", data, {}) for digest, data in blobs.items()), ("index.json", b"{}", {}))


REMOTE = Engine(
    host="tcp://elsewhere:2375",
    docker=("docker",),
    version="27",
    buildkit="0.15",
    containerd_store=True,
    embedded=False,
    network="default",
)


@pytest.fixture
def remote(monkeypatch):
    """An engine on another machine, with one image of these blobs."""
    manifest = {"config": {"digest": "sha256:c", "size": 3}, "layers": [{"digest": "sha256:l", "size": 5}]}
    blobs = {"l": b"layer" * 1000, "m": json.dumps(manifest).encode(), "c": b"{}"}

    @contextmanager
    def client(_engine):
        data = saved(blobs)
        blocks = (data[start : start + 700] for start in range(0, len(data), 700))
        yield SimpleNamespace(images=SimpleNamespace(get=lambda _tag: SimpleNamespace(save=lambda: blocks)))

    monkeypatch.setattr(container_engine, "docker_client", client)
    return blobs


def test_blobs_of_a_remote_engine_are_streamed(remote, tmp_path):
    found = image_store.read_manifest(REMOTE, "knowngood:x", "sha256:m")
    assert (found.manifest.size, found.config.digest, found.layers[0].size) == (len(remote["m"]), "sha256:c", 5)
    assert image_store.find_blob_file(REMOTE, "knowngood:x", "sha256:l", tmp_path).read_bytes() == remote["l"]
    with pytest.raises(KnowngoodError, match="no blob sha256:0"):
        image_store.find_blob_file(REMOTE, "knowngood:x", "sha256:0", tmp_path)


def test_an_engine_without_manifests_is_refused():
    with pytest.raises(KnowngoodError, match="keeps no manifests"):
        image_store.read_manifest(dataclasses.replace(REMOTE, containerd_store=False), "knowngood:x", "sha256:m")


@pytest.fixture
def world(home, lock_of, monkeypatch, tmp_path):
    """A project with a locked cell; what is built is what `world.layers` says, from files named by their digest."""
    locked = lock_of(FA4)
    world = SimpleNamespace(plans=[], removed=[], made=None, blobs={})

    def make(plan, _engine, **_):
        world.plans.append(plan)
        return build_command.Image(tag=plan.tag, digest=world.made.manifest.digest, size=1, built=True)

    def blob(_engine, _tag, digest, _scratch):
        if digest not in world.blobs:
            raise KnowngoodError("no such image")
        return layer(tmp_path / digest.removeprefix("sha256:"), world.blobs[digest])

    monkeypatch.setattr(base_image, "prepare_base", lambda *_, **__: "oci-layout:///b@" + BASE)
    monkeypatch.setattr(image_build, "build_image", make)
    monkeypatch.setattr(image_build, "take_image_record", lambda *_: world.made)
    monkeypatch.setattr(image_store, "find_blob_file", blob)
    monkeypatch.setattr(verification, "_remove_image", lambda _engine, tag: world.removed.append(tag))
    monkeypatch.setattr(container_engine, "ensure_engine", lambda **_: REMOTE)
    line = Pipeline(home, PipelineOptions(wheelhouse=home.root), REMOTE)
    shape = line.plan(locked, print).shape
    world.made = built(dataclasses.replace(A, cell=FA4, layers=locked.layers, shape=shape))
    world.record = home.tree.record_path(parse_cell(FA4))
    return world


def run(capsys):
    code = main.main(["verify", FA4, "--json"])
    (found,) = json.loads(capsys.readouterr().out)["cells"]
    return code, found


def test_the_same_bytes_verify(world, capsys):
    world.record.write_text(world.made.render())
    code, found = run(capsys)
    assert (code, found["outcome"], found["differences"]) == (0, str(VerificationOutcome.SAME), [])
    assert world.removed == [f"knowngood-verify:{FA4}"]
    assert not world.plans[0].cached
    assert "--no-cache" in build_command.buildx_command(world.plans[0], REMOTE, world.record)
    assert "--no-cache" not in build_command.buildx_command(
        dataclasses.replace(world.plans[0], cached=True), REMOTE, world.record
    )


def test_without_a_record_nothing_is_built(world, capsys):
    code, found = run(capsys)
    assert (code, found["outcome"], world.plans) == (3, str(VerificationOutcome.UNRECORDED), [])


def test_a_record_of_another_shape_is_stale(world, capsys):
    shape = dataclasses.replace(world.made.shape, uv="0", lock="1" * 64)
    world.record.write_text(dataclasses.replace(world.made, shape=shape).render())
    code, found = run(capsys)
    assert (code, found["outcome"], world.plans) == (1, str(VerificationOutcome.STALE), [])
    assert found["note"] == "changed since it was recorded: the lock, the release of uv"


@pytest.mark.parametrize("known", [True, False])
def test_differing_files_are_named(world, capsys, known):
    first, *rest = world.made.layers
    recorded = dataclasses.replace(
        world.made,
        layers=(dataclasses.replace(first, digest="sha256:old"), *rest),
        manifest=dataclasses.replace(world.made.manifest, digest="sha256:other"),
    )
    world.record.write_text(recorded.render())
    world.blobs = {first.digest: tar(("a", b"1", {}))} | ({"sha256:old": tar(("a", b"2", {}))} if known else {})
    code, found = run(capsys)
    assert (code, found["outcome"]) == (1, str(VerificationOutcome.DIFFERENT))
    (difference,) = found["differences"]
    assert difference["name"] == first.name
    if known:
        assert difference["files"] == ["/a: content"]
    else:
        assert "the recorded bytes are not in the engine" in difference["files"][0]
    assert main.main(["verify", FA4]) == 1
    assert first.name in capsys.readouterr().out
