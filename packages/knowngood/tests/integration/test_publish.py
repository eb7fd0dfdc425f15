"""Publishing to a real registry, which is healthy, busy, lying or killed; nothing wrong ever gets a tag."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import time
from dataclasses import replace

import pytest
import registry_server
from publishing import publish

from knowngood.cli import main
from knowngood.core.cell import parse_cell
from knowngood.core.errors import KnowngoodError, MissingError
from knowngood.engine import container_engine as engines
from knowngood.engine import embedded_engine, image_store, unpacked_engine
from knowngood.evidence import run_evidence
from knowngood.evidence.run_evidence import Evidence, RunPlace
from knowngood.images import pipeline
from knowngood.lock import cell_locking, wheelhouse
from knowngood.lock.cell_lock import Distribution, split_into_layers
from knowngood.lock.lock_tree import CellLock
from knowngood.project.checkout import Project
from knowngood.registry import attachments, image_transfer, publication
from knowngood.registry.image_reference import Repository
from knowngood.registry.registry_client import Registry

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(bool(embedded_engine.describe_obstacle()), reason=str(embedded_engine.describe_obstacle())),
]

CELL = "sm90-cu130-torch2.11.0-tf4.56.2-fa0-triton3.6.0-py311"
TAG = CELL + "-"
DOCKERFILE = """\
FROM base
RUN ["python3", "-c", "open('/made', 'w').write('{{ cell }}')"]
LABEL {% for key, value in labels.items() %}{{ key }}="{{ value }}" {% endfor %}
"""


@pytest.fixture(autouse=True)
def _own_notes(tmp_path, monkeypatch):
    """What was read back from these registries is not noted in the cache that the engine is in."""
    monkeypatch.setattr(image_transfer, "cache_folder", lambda: tmp_path / "notes")


@pytest.fixture
def proxy(server):
    proxy = registry_server.Proxy(server)
    yield proxy
    proxy.shutdown()
    proxy.server_close()


@pytest.fixture
def tiny(project, engine, monkeypatch):
    """A project with one cell whose image is small: its base, a file and the labels; and that image, built."""
    matrix = project.root / "matrix.yaml"
    head = matrix.read_text().partition("\ncells:\n")[0]
    matrix.write_text(
        f"{head}\ncells:\n  - {{gpu: sm_90, torch: 2.11.0, transformers: 4.56.2, flash-attn: none, base: debian12}}\n"
        f"aliases: {{default: {CELL}}}\n"
    )
    (project.templates / "Dockerfile.j2").write_text(DOCKERFILE)
    monkeypatch.chdir(project.root)
    here, cell = Project(project.root), parse_cell(CELL)
    wheel = Distribution(
        name="iniconfig", version="2.1.0", file="iniconfig-2.1.0-py3-none-any.whl", sha256="1" * 64, size=1
    )
    locked = CellLock(
        cell=cell,
        base="debian12",
        inputs=cell_locking.lock_inputs_digest(here.matrix.entry(cell), here.matrix),
        layers=split_into_layers([wheel], here.matrix.layers),
    )
    here.tree.save(locked)
    made = make(here, engine)
    yield (here, made), engine
    with contextlib.closing(engine.client()) as client:
        client.images.remove(made.tag, force=True)


def make(here, engine):
    """Build the image of the tiny cell as the project is now."""
    line = pipeline.Pipeline(here, pipeline.PipelineOptions(wheelhouse=wheelhouse.wheelhouse_folder()), engine)
    locked = here.tree.load(parse_cell(CELL))
    return line.image(line.plan(locked, print), print)


def saw(here, image, *, ok, when="2026-11-21T10:00:00+00:00"):
    """A run of the suite on this image, as its file says."""
    run = Evidence(
        cell=CELL,
        where=RunPlace.CONTAINER_CPU,
        image=image.digest,
        when=when,
        node={},
        command=("test",),
        report={"verdict": {"ok": ok, "domain": "none", "text": ""}, "suite_hash": "5" * 64, "checks": []},
    )
    run_evidence.store_evidence(run, here.evidence)


def run(capsys, *words):
    """A command's exit code and document."""
    capsys.readouterr()
    code = main.main([*words, "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.fixture
def second(tmp_path):
    """An empty engine with a data root of its own; the programs of the first one serve it."""
    tools = unpacked_engine.engine_paths().tools
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KNOWNGOOD_CACHE", str(tmp_path / "cache"))
        patch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
        if tools.exists():
            at = unpacked_engine.engine_paths()
            at.home.mkdir(parents=True)
            at.tools.symlink_to(tools)
        found = engines.ensure_engine(notify=print)
    yield found
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KNOWNGOOD_CACHE", str(tmp_path / "cache"))
        embedded_engine.remove_embedded_engine(print)


def test_a_release_is_signed_verified_and_pulled(tiny, proxy, tmp_path, capsys, monkeypatch):
    (here, image), engine = tiny
    saw(here, image, ok=True)
    monkeypatch.setenv("KNOWNGOOD_REPOSITORY", f"http://{proxy.address}/signed")
    name = f"http://{proxy.address}/signed:default"
    code, answer = run(capsys, "publish")
    assert (code, answer["cells"][0]["signed"]) == (0, False), "without a key everything works, unsigned"

    private = tmp_path / "release.key"
    assert run(capsys, "keys", "make", str(private), "--no-passphrase")[0] == 0
    shutil.copy(tmp_path / "release.pub", here.root)
    matrix = here.root / "matrix.yaml"
    head, _, tail = matrix.read_text().partition("\npublish: {")
    matrix.write_text(f"{head}\n{tail.partition(chr(10))[2]}\npublish: {{key: release.pub}}\n")
    monkeypatch.setenv("KNOWNGOOD_SIGNING_KEY", str(private))
    code, answer = run(capsys, "publish", "--verify", name)
    assert (code, "the registry has no signature of it" in answer["problems"][0]) == (1, True)
    assert run(capsys, "pull")[0] == 1
    code, answer = run(capsys, "publish")
    assert (code, "unsigned: seal.json does not cover this run" in answer["cells"][0]["error"]) == (1, True)

    assert run(capsys, "keys", "seal")[0] == 0
    code, answer = run(capsys, "publish")
    assert (code, answer["cells"][0]["signed"]) == (0, True)
    code, answer = run(capsys, "publish", "--verify", name)
    assert (code, answer["problems"], answer["signature"]["key"]) == (0, [], "release.pub")
    signed = {item["type"] for item in answer["attached"] if item["signed"]}
    assert signed == {item["type"] for item in answer["attached"]}, "one of each kind; older ones may be unsigned"
    assert len(signed) == 5
    proxy.requests.clear()
    assert run(capsys, "publish")[0] == 0
    assert not [place for method, place in proxy.requests if method not in ("GET", "HEAD")], "nothing is sent again"

    code, answer = run(capsys, "pull")
    assert (code, answer["images"][0]["status"]) == (0, "unchanged")
    with contextlib.closing(engine.client()) as client:
        client.images.remove(image.tag, force=True)
        direct = f"{proxy.server.address}/signed"  # the engine tries TLS first, which the proxy does not understand
        code, answer = run(capsys, "pull", "--from", f"http://{direct}")
        assert (code, f"not for {direct}" in answer["images"][0]["error"]) == (1, True), "the same bytes, another name"
        assert run(capsys, "publish", "--to", f"http://{direct}")[0] == 0
        code, answer = run(capsys, "pull", "--from", f"http://{direct}")
        assert (code, answer["images"][0]["status"]) == (0, "pulled"), answer
        assert client.images.get(image.tag).id == image.digest
        client.images.remove(f"{direct}@{image.digest}")


def test_published_pulled_into_an_empty_engine_and_run(tiny, proxy, second, capsys):
    (here, image), engine = tiny
    where = ("--to", f"http://{proxy.address}/team/cells")
    registry = Registry(Repository.parse(where[1]))

    code, said = run(capsys, "publish", *where)
    assert (code, registry.digest("default")) == (1, None)
    assert "is not proven" in said["cells"][0]["error"]
    saw(here, image, ok=True)
    saw(here, image, ok=False, when="2026-11-21T11:00:00+00:00")
    code, said = run(capsys, "publish", *where)
    assert code == 1
    assert "failed, although an older one passed" in said["cells"][0]["error"]
    assert not [item for item in proxy.requests if item[0] != "GET"], "an image that is not proven touched the registry"

    saw(here, image, ok=True, when="2026-11-21T12:00:00+00:00")
    code, said = run(capsys, "publish", *where, "--dry-run")
    assert (code, said["cells"][0]["status"]) == (0, "would be published")
    assert not [item for item in proxy.requests if item[0] != "GET"]
    code, said = run(capsys, "publish", *where)
    tag = said["cells"][0]["tag"]
    assert (code, said["cells"][0]["status"], tag[: len(TAG)]) == (0, "published", TAG)
    assert said["aliases"]["default"]["moved"]
    assert registry.digest(tag) == registry.digest("default") == image.digest
    puts = [path for method, path in proxy.requests if method == "PUT" and "/manifests/" in path]
    assert puts[-2:] == [f"/v2/team/cells/manifests/{tag}", "/v2/team/cells/manifests/default"]

    proxy.requests.clear()
    code, said = run(capsys, "publish", *where)
    assert (code, said["cells"][0]["status"]) == (0, "unchanged")
    assert not [item for item in proxy.requests if item[0] != "GET"], "an unchanged publish sent something"
    assert said["cells"][0]["looked_at"]["blobs"] == len([item for item in proxy.requests if "/blobs/" in item[1]]) - 6

    code, said = run(capsys, "publish", "--verify", f"{where[1]}:default")
    assert (code, said["problems"], said["digest"]) == (0, [], image.digest)
    assert sorted(item["type"] for item in said["attached"]) == sorted(
        [
            attachments.SBOM_MEDIA_TYPE,
            attachments.PROVENANCE_MEDIA_TYPE,
            attachments.EVIDENCE_MEDIA_TYPE,
            attachments.TIER_MEDIA_TYPE,
            attachments.SUITE_MEDIA_TYPE,
        ]
    )

    with contextlib.closing(second.client()) as client:
        assert client.images.list() == []
        name = f"{proxy.server.address}/team/cells"
        client.images.pull(name, tag="default")
        assert client.images.get(f"{name}:default").id == image.digest
        answer = client.containers.run(
            f"{name}@{image.digest}",
            ["python3", "-c", "print(open('/made').read())"],
            network_mode="none",
            remove=True,
        )
        assert answer.decode().strip() == CELL

    # The same lock with another Dockerfile is another image: the tag stays, a revision is a tag of its own.
    (here.templates / "Dockerfile.j2").write_text(DOCKERFILE.replace("LABEL", "ENV OTHER=1\nLABEL"))
    again = make(here, engine)
    assert again.digest != image.digest
    saw(here, again, ok=True)
    code, said = run(capsys, "publish", *where)
    assert code == 1
    assert "never overwritten" in said["cells"][0]["error"]
    assert registry.digest(tag) == registry.digest("default") == image.digest
    code, said = run(capsys, "publish", *where, "--revision", "2")
    assert (code, said["cells"][0]["tag"]) == (0, f"{tag}-r2")
    assert registry.digest(f"{tag}-r2") == registry.digest("default") == again.digest


def test_a_damaged_cell_is_repaired_by_the_command(tiny, server, capsys):
    (here, image), _ = tiny
    saw(here, image, ok=True)
    where = ("--to", f"http://{server.address}/team/damaged")
    registry = Registry(Repository.parse(where[1]))
    code, answer = run(capsys, "publish", *where)
    assert (code, answer["cells"][0]["status"]) == (0, "published")
    layer = server.blob_path(registry.manifest(image.digest).blobs()[-1].digest)
    layer.unlink()
    code, answer = run(capsys, "publish", *where, "--dry-run")
    assert (code, answer["cells"][0]["status"], len(answer["cells"][0]["faults"])) == (0, "would be repaired", 1)
    code, answer = run(capsys, "publish", *where)
    assert (code, answer["cells"][0]["status"], layer.exists()) == (0, "repaired", True)

    layer.write_bytes(bytes(layer.stat().st_size))
    code, answer = run(capsys, "publish", *where)
    assert (code, answer["cells"][0]["status"]) == (0, "unchanged")
    assert answer["cells"][0]["looked_at"]["depth"] == "presence and size"
    code, answer = run(capsys, "publish", *where, "--repair")
    assert (code, answer["cells"][0]["status"]) == (1, "failed")
    assert f"{layer.parent.name}/ in the layout of `distribution`" in answer["cells"][0]["error"]
    code, answer = run(capsys, "publish", "--verify", f"{where[1]}:default")
    assert (code, len(answer["problems"])) == (1, 1)
    layer.unlink()
    code, answer = run(capsys, "publish", *where, "--repair")
    assert (code, answer["cells"][0]["status"]) == (0, "repaired")
    code, answer = run(capsys, "publish", "--verify", f"{where[1]}:default")
    assert (code, answer["problems"]) == (0, [])


def times(count, match, act):
    """A rule that does `act` for the first `count` requests that match (method, part of the path)."""
    left = [count]

    def rule(request):
        if left[0] and request.command == match[0] and match[1] in request.path:
            left[0] -= 1
            act(request)
            return True
        return False

    return rule


def large(request):
    """Whether the request carries the large layer."""
    return int(request.headers.get("Content-Length") or 0) > 20_000_000


def reading_back(rule):
    """A rule for requests of whole blobs, not of the last byte that shows their size."""
    return lambda request: not request.headers.get("Range") and rule(request)


FAULTS = {
    "500": [times(2, ("POST", "/blobs/uploads/"), lambda r: r.answer(500))],
    "503 at the end of a blob": [times(1, ("PUT", "/blobs/uploads/"), lambda r: r.answer(503))],
    "429": [times(1, ("PUT", "/manifests/"), lambda r: r.answer(429, {"Retry-After": "2"}))],
    "a truncated blob": [times(1, ("PATCH", "/blobs/uploads/"), lambda r: r.forward(keep=100))],
    "a blob cut off when it is read back": [
        reading_back(times(1, ("GET", "/blobs/sha256"), lambda r: r.forward(lose=50)))
    ],
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_passes_is_tried_again(name, scratch, proxy, engine):
    proxy.rules = FAULTS[name]
    registry = Registry(Repository.parse(f"http://{proxy.address}/tiny/{name.replace(' ', '-')}"))
    start = time.monotonic()
    result = publish(scratch, registry, engine)
    assert result.status is publication.PublishStatus.PUBLISHED
    assert registry.digest(scratch.tag) == scratch.digest
    if name == "429":
        assert time.monotonic() - start >= 2


def test_an_engine_whose_store_cannot_be_read_streams_the_blobs(scratch, proxy, engine, monkeypatch):
    monkeypatch.setattr(image_store, "_find_store", lambda *_: None)
    registry = Registry(Repository.parse(f"http://{proxy.address}/tiny/streamed"))
    assert publish(scratch, registry, engine).pushed > 24_000_000
    assert registry.digest(scratch.tag) == scratch.digest


def test_other_bytes_for_a_digest_are_never_promoted(scratch, proxy, engine):
    registry = Registry(Repository.parse(f"http://{proxy.address}/tiny/lies"))
    config = ["GET", "/blobs/sha256"]
    for spoilt in ("blob", "manifest"):
        part = config if spoilt == "blob" else ["GET", f"/manifests/{scratch.digest}"]
        lies = times(10, part, lambda r: r.forward(change=lambda body: body[:-1] + b"!" if body else body))
        proxy.rules = [reading_back(lambda r, lies=lies: r.command == "GET" and lies(r))]
        with pytest.raises(KnowngoodError, match="serves other bytes"):
            publish(scratch, registry, engine)
        proxy.rules = []
        assert registry.digest(scratch.tag) is None
    assert publish(scratch, registry, engine).pushed == 0, "what had arrived was sent again"
    assert registry.digest(scratch.tag) == scratch.digest


def test_a_registry_killed_in_mid_push(scratch, server, proxy, engine):
    registry = Registry(Repository.parse(f"http://{proxy.address}/tiny/killed"), attempts=2)
    killed = []

    def kill(request):
        if request.command == "PATCH" and large(request):
            killed.append(True)
            request.forward(keep=8_000_000, then=server.kill)
            return True
        return False

    proxy.rules = [kill]
    try:
        with pytest.raises(MissingError, match="run it again"):
            publish(scratch, registry, engine)
        assert killed
    finally:
        proxy.rules = []
        server.start()
    assert registry.digest(scratch.tag) is None
    assert registry.digest(scratch.digest) is None, "a manifest was put before its layers were there"
    result = publish(scratch, registry, engine)
    assert result.status is publication.PublishStatus.PUBLISHED
    assert publish(scratch, registry, engine).status is publication.PublishStatus.UNCHANGED


@pytest.fixture
def small_server(registry_program, tmp_path):
    """A registry on a disk of 16 MB, which the image's large layer does not fit on, and the disk."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "knowngood-test", disk], check=True)
    server = registry_server.Server(registry_program, disk)
    server.start()
    yield server, disk
    server.kill()
    subprocess.run(["umount", "--lazy", disk], check=True)


def test_a_full_registry_is_said_and_with_room_the_same_publish_works(scratch, small_server, engine):
    server, disk = small_server
    registry = Registry(Repository.parse(f"http://{server.address}/tiny/full"), attempts=2)
    with pytest.raises(MissingError, match="the registry's disk is full"):
        publish(scratch, registry, engine)
    assert registry.digest(scratch.tag) is None
    subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
    assert publish(scratch, registry, engine).status is publication.PublishStatus.PUBLISHED


def test_labels_that_differ_are_not_promoted(scratch, proxy, engine):
    registry = Registry(Repository.parse(f"http://{proxy.address}/tiny/labels"))
    with pytest.raises(KnowngoodError, match="its label"):
        publish(replace(scratch, labels={"io.knowngood.cell": "another"}), registry, engine)
    assert registry.digest(scratch.tag) is None
