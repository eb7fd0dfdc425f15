"""Images that were changed in a real registry, and servers that are no registry; no engine is needed."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading

import publishing
import pytest
import registry_server

from knowngood.cli import main
from knowngood.core.image_record import (
    ImageBlob,
    ImageManifest,
    ImageShape,
    image_record_from_manifest,
    parse_image_record,
)
from knowngood.lock.lock_tree import CellLock
from knowngood.registry import attachments
from knowngood.registry.image_reference import Repository
from knowngood.registry.manifests import MANIFEST_MEDIA_TYPE, RegistryManifest
from knowngood.registry.registry_client import Registry

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def registry(registry_program, tmp_path_factory):
    server = registry_server.Server(registry_program, tmp_path_factory.mktemp("registry"))
    server.start()
    yield Registry(Repository.parse(f"http://{server.address}/team/cells"))
    server.kill()


def push(registry: Registry, locked: CellLock, tag: str, env: list[str]) -> RegistryManifest:
    """Push a small image that claims to be the cell's, with documents that fit it; return its manifest."""
    lock = f"sha256:{locked.digest}"
    labels = {"io.knowngood.cell": str(locked.cell), "io.knowngood.lock": lock}
    layer = registry.put_bytes(bytes(1024), "application/vnd.oci.image.layer.v1.tar")  # an archive without files
    shape = {"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": [layer.digest]}}
    content = json.dumps({**shape, "config": {"Labels": labels, "Env": env}}).encode()
    config = registry.put_bytes(content, "application/vnd.oci.image.config.v1+json")
    document = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_MEDIA_TYPE,
        "config": config.document(),
        "layers": [layer.document()],
    }
    manifest = RegistryManifest(data=json.dumps(document).encode(), media=MANIFEST_MEDIA_TYPE)
    digest = manifest.descriptor.digest
    registry.put_manifest(manifest, digest)
    attachments.attach_documents(registry, manifest.descriptor, publishing.documents(digest, lock))
    registry.put_manifest(manifest, tag)
    return manifest


def record(project, locked: CellLock, manifest: RegistryManifest, shape: ImageShape | None = None) -> None:
    """Write the record of an image as `build --record` does."""
    shape = shape or ImageShape(dockerfile="1", lock=locked.digest, base="2", recipe="3", uv="4", export="5")
    head = manifest.descriptor
    config, *layers = (ImageBlob(digest=blob.digest, size=blob.size) for blob in manifest.blobs())
    image = ImageManifest(manifest=ImageBlob(digest=head.digest, size=head.size), config=config, layers=tuple(layers))
    text = image_record_from_manifest(str(locked.cell), shape, (), image, {}).render()
    assert parse_image_record(text, "image.json").manifest.digest == head.digest
    project.tree.record_path(locked.cell).write_text(text)


def verify(capsys, registry: Registry, tag: str):
    capsys.readouterr()
    code = main.main(["publish", "--verify", f"http://{registry.repository}:{tag}", "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_forged_image_is_not_the_recorded_one(registry, project, monkeypatch, capsys):
    monkeypatch.chdir(project.root)
    alias, name = next(iter(project.matrix.aliases.items()))
    cell = next(cell for cell in project.matrix.cells if str(cell) == name)
    locked = project.tree.load(cell)
    good = push(registry, locked, alias, ["PATH=/bin"])
    project.tree.record_path(cell).unlink(missing_ok=True)
    code, answer = verify(capsys, registry, alias)
    assert (code, answer["problems"], answer["recorded"]) == (0, [], {})
    assert main.main(["publish", "--verify", f"http://{registry.repository}:{alias}"]) == 0
    assert "no record here to compare with" in capsys.readouterr().out

    record(project, locked, good)
    digest = good.descriptor.digest
    code, answer = verify(capsys, registry, alias)
    assert (code, answer["problems"], answer["recorded"]) == (0, [], {name: digest})

    forged = push(registry, locked, alias, ["PATH=/bin", "LD_PRELOAD=/tmp/evil.so"])
    code, answer = verify(capsys, registry, alias)
    (problem,) = answer["problems"]
    assert (code, answer["digest"]) == (1, forged.descriptor.digest)
    assert digest in problem
    assert "the configuration differ" in problem


def test_a_forged_label_does_not_hide_the_cell_of_a_tag(registry, project, monkeypatch, capsys):
    monkeypatch.chdir(project.root)
    alias, name = next(iter(project.matrix.aliases.items()))
    cell = next(cell for cell in project.matrix.cells if str(cell) == name)
    locked = project.tree.load(cell)
    record(project, locked, push(registry, locked, "genuine", []))
    other = next(one for one in project.matrix.cells if one != cell)
    project.tree.record_path(other).unlink(missing_ok=True)
    push(registry, project.tree.load(other), alias, ["LD_PRELOAD=/tmp/evil.so"])
    code, answer = verify(capsys, registry, alias)
    assert (code, len(answer["problems"])) == (1, 2)
    assert f"is labelled as {other}, not as {name}" in answer["problems"][0]
    assert f"the record of {name}" in answer["problems"][1]


@pytest.fixture
def web_server():
    """A server that answers every request with a page, and the status 200."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            page = b"<html>welcome</html>"
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(page)

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *_args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with contextlib.closing(server.socket):
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_web_server_is_no_registry(web_server, capsys):
    assert main.main(["publish", "--verify", f"http://{web_server}/team/cells:a"]) == 4
    assert f"{web_server} is not a registry: it answers HTML" in capsys.readouterr().err
