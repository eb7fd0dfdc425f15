"""Names that clients resolve in different ways, and servers that take a login or answer without end.

The registry is Debian's, and skopeo, with the policy of docs/signing.md, says what a stranger's client does.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import re
import socket
import ssl
import subprocess
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import registry_server
import skopeo_client
import test_registry_trust
import test_secrets
import test_signatures
from test_signatures import EVIL

from conftest import ROOT, World
from knowngood.base import base_image
from knowngood.cli import main
from knowngood.core.cell import Cell
from knowngood.core.hosts import HostArchitecture
from knowngood.evidence import run_evidence
from knowngood.evidence.run_evidence import Evidence, RunPlace
from knowngood.images import build_inputs, dockerfile
from knowngood.index.server_answers import UnsafeAddressError
from knowngood.project import release_seal, release_signers
from knowngood.registry import attachments, platform_index, signatures, signed_documents
from knowngood.registry.image_reference import Repository, immutable_tag
from knowngood.registry.manifests import (
    CONFIG_MEDIA_TYPE,
    INDEX_MEDIA_TYPE,
    MANIFEST_MEDIA_TYPE,
    RegistryManifest,
)
from knowngood.registry.registry_client import Registry

pytestmark = pytest.mark.integration

X86, ARM = HostArchitecture.X86_64, HostArchitecture.AARCH64


@pytest.fixture
def twins(world, project) -> dict[HostArchitecture, World]:
    """The world of the alias, and that of its cell's twin, neither with a record."""
    cell = world.locked.cell.on_host(ARM)
    project.tree.record_path(cell).unlink(missing_ok=True)
    return {X86: world, ARM: dataclasses.replace(world, locked=project.tree.load(cell))}


def push(world: World, tag: str, env: list[str] | None = None) -> RegistryManifest:
    """Push an image that is signed for its own tag, as every image is, and for no other."""
    return test_signatures.push(world, tag, env or (), signed=True)


def put_index(world: World, entries: list[tuple[Any, RegistryManifest]]) -> str:
    """Put an index with these images under the alias, whatever it lists, and return its digest."""
    manifests = [
        image.descriptor.document() | {"platform": {"architecture": host.debian, "os": "linux"}}
        for host, image in entries
    ]
    document = {"schemaVersion": 2, "mediaType": INDEX_MEDIA_TYPE, "manifests": manifests}
    index = RegistryManifest(data=json.dumps(document).encode(), media=INDEX_MEDIA_TYPE)
    world.registry.put_manifest(index, world.alias)
    return index.descriptor.digest


def verify(capsys, world: World):
    return test_registry_trust.verify(capsys, world.registry, world.alias)


def pull(capsys, world: World, host: HostArchitecture):
    return test_signatures.pull(capsys, f"http://{world.reference}", "--host", host, "--dry-run")


def copies(skopeo, world: World) -> dict[HostArchitecture, int]:
    return {
        host: skopeo_client.copy(skopeo, world.folder, world.reference, host.debian).returncode for host in (X86, ARM)
    }


@pytest.fixture
def genuine(twins, skopeo, capsys):
    """Publish the index of both cells under the alias as `publish` does, and see everybody take it."""
    world = twins[X86]
    skopeo_client.write_policy(world.folder, world.registry.repository.host, world.folder / "release.pub")
    images = {host: push(one, f"own-{host}") for host, one in twins.items()}
    digests = {host: image.descriptor.digest for host, image in images.items()}
    index = platform_index.push_platform_index(world.registry, digests)
    signatures.sign_alias(world.registry, world.alias, index, world.key)
    world.registry.put_manifest(world.registry.manifest(index), world.alias)
    code, answer = verify(capsys, world)
    assert (code, answer["problems"], answer["digest"]) == (0, [], index)
    assert {host: image["digest"] for host, image in answer["images"].items()} == digests
    assert copies(skopeo, world) == {X86: 0, ARM: 0}
    for host in twins:
        code, row = pull(capsys, world, host)
        assert (code, row["digest"]) == (0, digests[host])
    return images


def attack_unsigned_index(twins, genuine):
    put_index(twins[X86], [(X86, genuine[X86])])


def attack_twice(twins, genuine):
    """Docker and skopeo take the first of two images for a host."""
    forged = test_signatures.push(twins[X86], "forged", EVIL)
    put_index(twins[X86], [(X86, forged), (X86, genuine[X86])])


def attack_unknown_platform(twins, genuine):
    """A client on such a host would take what nobody judges."""
    forged = test_signatures.push(twins[X86], "forged", EVIL)
    other = SimpleNamespace(debian="riscv64")
    put_index(twins[X86], [(X86, genuine[X86]), (ARM, genuine[ARM]), (other, forged)])


def attack_beside(twins, genuine):
    forged = test_signatures.push(twins[ARM], "forged", EVIL)
    put_index(twins[X86], [(X86, genuine[X86]), (ARM, forged)])


def attack_other_cell(twins, genuine):
    put_index(twins[X86], [(X86, genuine[ARM]), (ARM, genuine[X86])])


def attack_older(twins, genuine):
    """An image of an older lock, signed for its own tag, and even for the alias, as it once was."""
    older = older_image(twins[X86])
    put_index(twins[X86], [(X86, older), (ARM, genuine[ARM])])


def attack_older_signed_index(twins, genuine):
    older = older_image(twins[X86])
    index = put_index(twins[X86], [(X86, older), (ARM, genuine[ARM])])
    signatures.sign_alias(twins[X86].registry, twins[X86].alias, index, twins[X86].key)


def older_image(world: World) -> RegistryManifest:
    class OlderLock:
        cell, digest = world.locked.cell, "0" * 64

    return push(dataclasses.replace(world, locked=OlderLock()), "older")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answers:
    """What is said to an attack."""

    problem: str
    x86: int
    arm: int
    """Exit codes of skopeo for each host. It judges the image that it takes, and not the index that lists it."""


ATTACKS: dict[Callable[..., None], Answers] = {
    attack_unsigned_index: Answers(problem="the registry has no signature of it", x86=0, arm=1),
    attack_twice: Answers(problem="lists two images for x86-64", x86=1, arm=1),
    attack_unknown_platform: Answers(problem="for which there are no cells", x86=0, arm=0),
    attack_beside: Answers(problem="the registry has no signature of it", x86=0, arm=1),
    attack_other_cell: Answers(problem="is labelled as sm90-", x86=0, arm=0),
    attack_older: Answers(problem="is of the lock sha256:000000", x86=1, arm=0),
    attack_older_signed_index: Answers(problem="is of the lock sha256:000000", x86=0, arm=0),
}


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_verify_judges_what_a_client_resolves(twins, genuine, skopeo, capsys, attack):
    world = twins[X86]
    attack(twins, genuine)
    code, answer = verify(capsys, world)
    answers = ATTACKS[attack]
    assert code == 1
    assert any(answers.problem in problem for problem in answer["problems"]), answer["problems"]
    assert pull(capsys, world, X86)[0] == 1
    assert copies(skopeo, world) == {X86: answers.x86, ARM: answers.arm}


def test_nobody_takes_a_signed_image_in_another_repository(world, skopeo, capsys):
    production, source = (
        world.registry,
        Registry(
            Repository(
                host=world.registry.repository.host, path=f"staging/{world.registry.repository.path}", plain=True
            )
        ),
    )
    image = push(dataclasses.replace(world, registry=source), world.alias)
    listed = [item["digest"] for item in attachments.list_referrers(source, image.descriptor.digest)[0]]
    signed = [image.descriptor.digest, *listed]
    tags = [
        tag(digest) for digest in signed for tag in (signed_documents.signature_tag, signed_documents.attestation_tag)
    ]
    for name in [*signed, *tags, attachments.fallback_tag(image.descriptor.digest), world.alias]:
        manifest = source.manifest(name)
        if manifest and not manifest.is_index:
            for blob in manifest.blobs():
                production.put_bytes(source.read(blob), blob.media)
        if manifest:
            production.put_manifest(manifest, name)
    code, answer = verify(capsys, world)
    reason = f"the signature is for {source.repository}, not for {production.repository}"
    assert (code, answer["signature"]["signed"]) == (1, False)
    assert reason in answer["problems"][0]
    assert not [item for item in answer["attached"] if item["signed"]]
    code, row = test_signatures.pull(capsys, f"http://{world.reference}", "--dry-run")
    assert (code, reason in row["error"]) == (1, True)
    skopeo_client.write_policy(world.folder, production.repository.host, world.folder / "release.pub")
    assert skopeo_client.copy(skopeo, world.folder, f"{source.repository}:{world.alias}").returncode == 0
    assert skopeo_client.copy(skopeo, world.folder, world.reference).returncode == 1


def test_nobody_takes_a_signed_document_for_an_image(world, skopeo, capsys):
    image = push(world, "own")
    for item in attachments.list_referrers(world.registry, image.descriptor.digest)[0]:
        world.registry.put_manifest(world.registry.manifest(item["digest"]), world.alias)
        assert main.main(["publish", "--verify", f"http://{world.reference}"]) == 1
        assert f"is no image of a cell, but {item['artifactType']}" in capsys.readouterr().err
        code, row = test_signatures.pull(capsys, f"http://{world.reference}", "--dry-run")
        assert (code, "is no image of a cell" in row["error"]) == (1, True)
    skopeo_client.write_policy(world.folder, world.registry.repository.host, world.folder / "release.pub")
    assert skopeo_client.copy(skopeo, world.folder, world.reference).returncode == 1


def release(world: World, project, cell: Cell) -> None:
    """Make a small image of a cell with all that `publish` asks for: labels, a record, and a good run."""
    locked = project.tree.load(cell)
    base = base_image.read_base_digest(project, locked.base)
    shape = build_inputs.read_image_shape(project, locked, base, build_inputs.read_recipe_digest(project))
    labels = {**dockerfile.image_labels(locked), f"{dockerfile.LABEL_PREFIX}inputs": f"sha256:{shape.inputs}"}
    document = {"architecture": cell.host.debian, "os": "linux", "config": {"Labels": labels}}
    config = world.registry.put_bytes(json.dumps(document).encode(), CONFIG_MEDIA_TYPE)
    layer = world.registry.put_bytes(str(cell).encode(), "application/vnd.oci.image.layer.v1.tar")
    content = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_MEDIA_TYPE,
        "config": config.document(),
        "layers": [layer.document()],
    }
    manifest = RegistryManifest(data=json.dumps(content).encode(), media=MANIFEST_MEDIA_TYPE)
    digest = manifest.descriptor.digest
    world.registry.put_manifest(manifest, digest)
    test_registry_trust.record(project, locked, manifest, shape)
    report = {"verdict": {"ok": True, "domain": "none", "text": ""}, "suite_hash": "5" * 64, "checks": []}
    run = Evidence(
        cell=str(cell),
        where=RunPlace.CONTAINER_CPU,
        image=digest,
        when="2026-11-21T10:00:00+00:00",
        node={},
        command=("test",),
        report=report,
    )
    run_evidence.store_evidence(run, project.evidence)


def test_skopeo_takes_every_alias_with_the_policy_of_the_docs(world, project, skopeo, capsys, monkeypatch):
    """`publish` itself, for each alias that the matrix has and for each host; no engine is needed for what is there."""
    matrix = project.root / "matrix.yaml"
    matrix.write_text(matrix.read_text().replace("tier: trains-on-cpu", "tier: built"))
    cells = {str(cell): cell for cell in project.matrix.maintained_cells}
    named = {cells[name] for name in project.matrix.aliases.values()}
    wanted = named | {twin for cell in named for host in (X86, ARM) if str(twin := cell.on_host(host)) in cells}
    for cell in wanted:
        release(world, project, cell)
    release_seal.write_release_seal(project.root, world.key)
    monkeypatch.setenv(release_signers.SIGNING_KEY_VARIABLE, str(world.folder / "release.key"))
    where = ["--to", f"http://{world.registry.repository}"]
    assert main.main(["publish", *map(str, wanted), *where, "--json"]) == 0
    aliases = json.loads(capsys.readouterr().out)["aliases"]
    indexes = {alias for alias, row in aliases.items() if row["index"]}
    assert {"default", "hopper", "b200"} <= indexes
    assert set(project.matrix.aliases) <= set(aliases)

    write_documented_policy(world)
    for alias, row in aliases.items():
        hosts = [X86, ARM] if alias in indexes else [cells[row["cell"]].host]
        for host in hosts:
            result = skopeo_client.copy(skopeo, world.folder, f"{world.registry.repository}:{alias}", host.debian)
            assert result.returncode == 0, f"{alias} for {host}: {result.stderr}"
    for alias in ("default", "gh200", "v100"):
        code, answer = test_registry_trust.verify(capsys, world.registry, alias)
        assert (code, answer["problems"]) == (0, []), alias


def test_publish_signs_no_twin_that_it_only_finds_in_the_registry(twins, project, capsys, monkeypatch):
    world, arm = twins[X86], twins[ARM].locked
    matrix = project.root / "matrix.yaml"
    matrix.write_text(matrix.read_text().replace("tier: trains-on-cpu", "tier: built"))
    release(world, project, world.locked.cell)
    release_seal.write_release_seal(project.root, world.key)
    monkeypatch.setenv(release_signers.SIGNING_KEY_VARIABLE, str(world.folder / "release.key"))
    forged = test_signatures.push(twins[ARM], immutable_tag(str(arm.cell), arm.digest), EVIL)
    where = ["--to", f"http://{world.registry.repository}", "--json"]
    assert main.main(["publish", str(world.locked.cell), *where]) == 0
    out, err = capsys.readouterr()
    assert not json.loads(out)["aliases"][world.alias]["index"]
    assert f"not in its index: {forged.descriptor.digest} is not signed with keys/release.pub" in err
    assert not signatures.is_image_signed(world.registry, forged.descriptor.digest, [world.key.verification_key])


def write_documented_policy(world: World) -> None:
    """Write the two files of docs/signing.md, with this registry and this key in place of those in the text."""
    text = (ROOT / "docs/signing.md").read_text()
    section = text[text.index("## Verify with skopeo and podman") :]
    blocks = re.findall(r"```(?:json|yaml)\n(.*?)```", section, re.DOTALL)[:2]
    places = {
        "registry.example/team/knowngood": str(world.registry.repository),
        "/etc/containers/knowngood.pub": str(world.folder / "release.pub"),
    }
    for old, new in places.items():
        blocks = [block.replace(old, new) for block in blocks]
    (world.folder / "registries.d").mkdir()
    (world.folder / "policy.json").write_text(blocks[0])
    (world.folder / "registries.d/knowngood.yaml").write_text(blocks[1])


class EncryptedProxy(registry_server.Proxy):
    """A proxy with TLS that does not tell the registry so; what it is sent in clear is kept in `plain`."""

    def __init__(self, server: registry_server.Server, context: ssl.SSLContext) -> None:
        self.plain: list[bytes] = []
        self.context = context
        super().__init__(server)

    def get_request(self):
        connection, address = self.socket.accept()
        if connection.recv(1, socket.MSG_PEEK) != b"\x16":  # the first byte of TLS
            self.plain.append(connection.recv(1 << 16))
            connection.close()
            raise OSError("a request in clear")
        return self.context.wrap_socket(connection, server_side=True), address


def test_no_login_is_sent_in_clear(registry_program, tmp_path, monkeypatch):
    """Behind such a proxy, Debian's registry itself names `http://` and its own host as the place of an upload."""
    server = test_secrets.PrivateRegistry(registry_program, tmp_path)
    server.start()
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    make += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", tmp_path / "key.pem", "-out", tmp_path / "cert.pem"]
    subprocess.run(make, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    proxy = EncryptedProxy(server, context)
    for name in ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.setenv(name, str(tmp_path / "cert.pem"))
    login = base64.b64encode(f"alice:{test_secrets.REGISTRY_PASSWORD}".encode()).decode()
    (tmp_path / "config.json").write_text(json.dumps({"auths": {proxy.address: {"auth": login}}}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    registry = Registry(Repository.parse(f"{proxy.address}/team/cells"), attempts=1)
    assert registry.manifest("none") is None, "the login is accepted"
    with pytest.raises(UnsafeAddressError, match=r"over https and leads to http://127.0.0.1, without encryption"):
        registry.put_bytes(b"a blob", "x")
    assert proxy.plain == []
    assert ("POST", "/v2/team/cells/blobs/uploads/") in proxy.requests
    server.kill()


def endless(request) -> bool:
    """Answer with the right head and bytes without end."""
    request.send_response(200)
    request.send_header("Content-Type", MANIFEST_MEDIA_TYPE)
    request.end_headers()
    try:
        while True:
            request.wfile.write(b" " * (1 << 16))
    except OSError:
        request.close_connection = True
    return True


def deep(request) -> bool:
    request.forward(change=lambda _: b'{"a":' * 200_000)
    return True


@pytest.mark.parametrize("place", ["manifests", "blobs"])
@pytest.mark.parametrize("rule", [endless, deep], ids=lambda rule: rule.__name__)
def test_a_registry_that_answers_without_end_is_refused(world, server, capsys, place, rule):
    push(world, "own")
    proxy = registry_server.Proxy(server)
    proxy.rules.append(lambda request: f"/{place}/" in request.path and rule(request))
    reference = f"http://{proxy.address}/{world.registry.repository.path}:own"
    code = main.main(["publish", "--verify", reference])
    answer = "".join(capsys.readouterr())
    assert code == 1
    assert "Traceback" not in answer
    assert re.search("longer than|malformed|serves more than|serves other bytes|is damaged", answer), answer
