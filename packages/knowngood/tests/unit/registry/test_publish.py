"""Names, logins, bills and statements of what is published; the rest is tried on a real registry."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import hashlib
import http.server
import json
import socket
import threading
import time
from urllib.parse import parse_qs, urlsplit

import pytest

from knowngood.cli import main
from knowngood.core import cell, image_record
from knowngood.core.errors import KnowngoodError, MissingError, UsageError
from knowngood.evidence import run_evidence
from knowngood.evidence.run_evidence import Evidence, RunPlace
from knowngood.images import build_inputs, image_build
from knowngood.lock.debian_lock import DebianPackage, PackagesLock
from knowngood.registry import (
    attachments,
    bill_of_materials,
    image_reference,
    image_release,
    provenance,
    publication_check,
)
from knowngood.registry.attachments import Attachment
from knowngood.registry.image_reference import ImageReference, Repository, immutable_tag
from knowngood.registry.manifests import MANIFEST_MEDIA_TYPE, DamagedContentError, Descriptor, RegistryManifest
from knowngood.registry.registry_client import Registry
from local_server import serving
from samples import FA0, FA2, FA4, ROOT

DIGEST = "sha256:" + "d" * 64
BASE = PackagesLock(
    suite="bookworm",
    epoch=1,
    requested=("python3",),
    tools=(),
    packages=(DebianPackage(name="g++", version="4:12.2.0-3", arch="amd64", sha256="2" * 64),),
    digest="sha256:" + "b" * 64,
)


class TestNames:
    def test_a_reference_is_read_as_written(self):
        for text in ("registry.example/team/cells:default", f"localhost:5000/cells@{DIGEST}", "[::1]:5000/a/b:c"):
            assert str(ImageReference.parse(text)) == text

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("cells:default", "does not begin with a registry"),
            ("registry.example/cells", "has no tag"),
            ("localhost:5000/cells", "has no tag"),
            ("registry.example/Cells:a", "lower case"),
            ("registry.example/cells@sha256:12", "64 hex digits"),
            ("registry.example/cells:a b", "has no tag"),
            ("https://registry.example/cells:a", "does not begin with a registry"),
        ],
    )
    def test_what_is_no_reference_is_refused(self, text, said):
        with pytest.raises(UsageError, match=said):
            ImageReference.parse(text)

    def test_a_tag_in_a_repository_is_explained(self):
        with pytest.raises(UsageError, match="which follow from the cell"):
            Repository.parse("registry.example/cells:default")

    @pytest.mark.parametrize(
        ("host", "here"),
        [
            ("127.0.0.1:5000", True),
            ("localhost", True),
            ("[::1]:1", True),
            ("10.0.0.1", False),
            ("localhost.evil", False),
        ],
    )
    def test_what_is_on_this_machine(self, host, here):
        assert Repository(host=host, path="a").loopback is here

    def test_plain_http_is_for_this_machine_only(self):
        with pytest.raises(UsageError, match=r"http:// is for .*; write registry.example/cells"):
            Repository.parse("http://registry.example/cells")
        assert main.main(["publish", "--verify", "http://registry.example/cells:a"]) == 2
        assert Repository.parse("http://127.0.0.1:5000/a").plain
        assert not Repository.parse("127.0.0.1:5000/a").plain
        assert str(ImageReference.parse("http://127.0.0.1:5000/a:b")) == "127.0.0.1:5000/a:b"

    def test_where_to_must_be_said(self, monkeypatch, capsys):
        monkeypatch.delenv("KNOWNGOOD_REPOSITORY", raising=False)
        assert main.main(["publish"]) == 2
        assert "no repository; name one" in capsys.readouterr().err
        monkeypatch.setenv("KNOWNGOOD_REPOSITORY", "nowhere")
        assert main.main(["publish"]) == 2
        assert "does not begin with a registry" in capsys.readouterr().err

    def test_tags_are_of_the_cell_and_its_lock(self):
        assert immutable_tag(FA2, "a" * 64) == f"{FA2}-{'a' * 12}"
        assert immutable_tag(FA2, "a" * 64, 2) == f"{FA2}-{'a' * 12}-r2"

    def test_long_ids_are_shortened_apart_and_always_alike(self):
        ids = [f"{FA2}-{'x' * 80}{end}" for end in ("1.0", "1.1")]
        tags = [immutable_tag(name, "a" * 64) for name in ids]
        assert [len(tag) for tag in tags] == [image_reference.TAG_LENGTH_LIMIT] * 2
        assert len(set(tags)) == 2
        assert tags == [immutable_tag(name, "a" * 64) for name in ids]
        assert all(tag.startswith(FA2) and tag.endswith("-" + "a" * 12) for tag in tags)
        assert len(immutable_tag(ids[0], "a" * 64, 12)) == image_reference.TAG_LENGTH_LIMIT

    def test_an_id_that_just_fits_is_not_shortened(self):
        fits = "c" * (image_reference.TAG_LENGTH_LIMIT - image_reference.TAG_HASH_DIGITS - 1)
        assert immutable_tag(fits, "a" * 64) == f"{fits}-{'a' * 12}"
        assert not immutable_tag(fits + "c", "a" * 64).startswith(fits)

    @pytest.mark.parametrize("text", ["team/knowngood", "knowngood/cells/a", "library"])
    def test_a_repository_without_a_registry_is_refused(self, text):
        with pytest.raises(UsageError, match="does not begin with a registry"):
            Repository.parse(text)

    def test_every_cell_of_the_matrix_has_a_tag_of_its_own(self):
        names = [path.name for path in (ROOT / "docker/cells").iterdir()]
        assert len({immutable_tag(name, "a" * 64) for name in names}) == len(names)


class TestLogin:
    @pytest.fixture
    def registry(self, monkeypatch, tmp_path):
        """A registry that wants a login of the kind its `wants` says; `seen` are the headers it was sent."""

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_args):
                pass

            def do_GET(self):
                server = self.server
                place = urlsplit(self.path)
                given = self.headers.get("Authorization", "")
                server.seen.append((place.path, given))
                body, status, headers = b"{}", 200, {"Content-Type": MANIFEST_MEDIA_TYPE}
                if place.path == "/token":
                    server.query = parse_qs(place.query)
                    status = 200 if given == server.basic else 401
                    body = json.dumps({"token": "t0k"}).encode()
                elif given != (server.basic if server.wants == "basic" else "Bearer t0k"):
                    status = 401
                    realm = f'realm="http://{server.address}/token",service="here",scope="repository:a:pull,push"'
                    headers["WWW-Authenticate"] = 'Basic realm="x"' if server.wants == "basic" else f"Bearer {realm}"
                self.send_response(status)
                for key, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(key, value)
                self.end_headers()
                self.wfile.write(body)

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.wants, server.seen, server.query = "bearer", [], {}
        server.address = f"127.0.0.1:{server.server_port}"
        secret = base64.b64encode(b"me:pass").decode()
        server.basic = f"Basic {secret}"
        monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
        (tmp_path / "config.json").write_text(json.dumps({"auths": {server.address: {"auth": secret}}}))
        with serving(server):
            yield server

    @pytest.mark.parametrize("kind", ["basic", "bearer"])
    def test_what_docker_login_left_is_used(self, registry, kind):
        registry.wants = kind
        client = Registry(Repository.parse(f"http://{registry.address}/a"))
        assert client.manifest("t") is not None
        assert client.manifest("t") is not None
        asked = [path for path, _ in registry.seen]
        assert asked.count("/v2/a/manifests/t") == 3, "it logged in more than once"
        if kind == "bearer":
            assert registry.query == {"service": ["here"], "scope": ["repository:a:pull,push"]}

    @pytest.mark.parametrize("kind", ["basic", "bearer"])
    def test_without_a_login_it_says_how_to_get_one(self, registry, kind, tmp_path):
        registry.wants = kind
        (tmp_path / "config.json").write_text("{}")
        with pytest.raises(MissingError, match="docker login"):
            Registry(Repository.parse(f"http://{registry.address}/a")).manifest("t")

    def test_a_helper_that_is_not_there_is_a_sentence(self, registry, tmp_path):
        (tmp_path / "config.json").write_text(json.dumps({"credsStore": "nowhere"}))
        with pytest.raises(MissingError, match="credentials"):
            Registry(Repository.parse(f"http://{registry.address}/a")).manifest("t")


class TestRegistry:
    def test_nobody_there_is_a_sentence(self):
        client = Registry(Repository.parse("http://127.0.0.1:9/a"), attempts=2)
        start = time.monotonic()
        with pytest.raises(MissingError, match="run it again"):
            client.digest("t")
        assert time.monotonic() - start < 10

    @pytest.mark.parametrize("data", [b"[]", b"{", b"{}", b'{"config": 1, "layers": []}'])
    def test_what_is_no_manifest_is_a_sentence(self, data):
        with pytest.raises(KnowngoodError):
            RegistryManifest(data=data, media=MANIFEST_MEDIA_TYPE).blobs()

    def test_only_sha256_is_read(self):
        with pytest.raises(KnowngoodError, match="not a sha256 digest"):
            Descriptor.read({"mediaType": "x", "digest": "md5:1", "size": 1})
        assert Descriptor.read({"mediaType": "x", "digest": DIGEST, "size": 1}).digest == DIGEST
        with pytest.raises(KnowngoodError, match="not a sha256 digest"):
            Descriptor.read({"mediaType": "x", "digest": DIGEST + "0", "size": 1})
        assert issubclass(DamagedContentError, KnowngoodError)


class TestDocuments:
    def test_a_bill_is_the_same_every_time_and_lists_everything(self, lock_of):
        locked = lock_of(FA2)
        texts = {
            bill_of_materials.render_sbom(locked, BASE, {locked.distributions[0].sha256: "Apache-2.0"})
            for _ in range(3)
        }
        assert len(texts) == 1
        found = json.loads(texts.pop())
        assert "timestamp" not in found["metadata"]
        parts = {item["name"]: item for item in found["components"]}
        assert parts.keys() == {item.name for item in locked.distributions} | {"g++"}
        assert parts["g++"]["purl"] == "pkg:deb/debian/g%2B%2B@4:12.2.0-3?arch=amd64&distro=bookworm"
        for item in locked.distributions:
            assert parts[item.name]["hashes"] == [{"alg": "SHA-256", "content": item.sha256}]
        licensed = [item["licenses"] for item in parts.values() if "licenses" in item]
        assert licensed == [[{"license": {"id": "Apache-2.0"}}]]

    def test_another_lock_is_another_bill(self, lock_of):
        serial = {
            json.loads(bill_of_materials.render_sbom(lock_of(name), BASE, {}))["serialNumber"]
            for name in (FA0, FA2, FA4)
        }
        assert len(serial) == 3

    def test_the_order_of_the_layers_does_not_change_the_serial_number_of_a_bill(self, lock_of):
        locked = lock_of(FA2)
        reversed_ = dataclasses.replace(locked, layers=locked.layers[::-1])
        serial = {
            json.loads(bill_of_materials.render_sbom(item, BASE, {}))["serialNumber"] for item in (locked, reversed_)
        }
        assert len(serial) == 1

    def test_bill_of_a_committed_cell_needs_nothing_else(self, home, lock_of, capsys):
        lock_of(FA0)
        folder = home.root / "docker/bases/debian12"
        folder.mkdir(parents=True)
        (folder / "packages.lock").write_text(str(BASE))
        assert main.main(["export", FA0, "--format", "cyclonedx"]) == 0
        first = capsys.readouterr().out
        assert main.main(["export", FA0, "--format", "cyclonedx"]) == 0
        assert capsys.readouterr().out == first
        assert json.loads(first)["bomFormat"] == "CycloneDX"
        assert main.main(["export", FA4, "--format", "cyclonedx"]) == 1

    def test_the_statement_is_of_the_image_and_names_every_source(self, lock_of):
        locked = lock_of(FA2)
        found = json.loads(provenance.render_provenance(locked, BASE, BUILT))
        assert found["_type"] == "https://in-toto.io/Statement/v1"
        assert found["subject"] == [{"name": FA2, "digest": {"sha256": "d" * 64}}]
        definition = found["predicate"]["buildDefinition"]
        assert definition["internalParameters"]["uncommitted"] == ["matrix.yaml"]
        digests = [next(iter(item["digest"].values())) for item in definition["resolvedDependencies"]]
        assert digests[:2] == ["c" * 40, "b" * 64]
        assert {item.sha256 for item in locked.distributions} | {"2" * 64} <= set(digests)

    def test_the_statement_names_the_tools_of_the_base(self, lock_of):
        tool = DebianPackage(name="apt", version="2.6", arch="amd64", sha256="3" * 64)
        with_tools = dataclasses.replace(BASE, tools=(tool,))
        found = json.loads(provenance.render_provenance(lock_of(FA2), with_tools, BUILT))
        sources = found["predicate"]["buildDefinition"]["resolvedDependencies"]
        assert {"sha256": "3" * 64} in [item["digest"] for item in sources]

    def test_the_statement_lists_uncommitted_files_only_where_there_are_some(self, lock_of):
        clean = dataclasses.replace(BUILT, source=dataclasses.replace(BUILT.source, uncommitted=()))
        found = json.loads(provenance.render_provenance(lock_of(FA2), BASE, clean))["predicate"]["buildDefinition"]
        assert "uncommitted" not in found["internalParameters"]

    @pytest.mark.parametrize(
        ("metadata", "licence"),
        [
            ("License-Expression: BSD-3-Clause\nLicense: x\n", "BSD-3-Clause"),
            ("Classifier: License :: OSI Approved :: MIT License\nLicense: x\n", "MIT License"),
            ("License: Apache 2\n", "Apache 2"),
            ("License: " + "x" * 200 + "\n", None),
            ("License: UNKNOWN\n", None),
            ("Name: a\n\nLicense: in the description\n", None),
        ],
    )
    def test_licences_as_metadata_names_them(self, metadata, licence):
        assert bill_of_materials.parse_licence(metadata) == licence

    def test_damaged_licences_are_told(self, home):
        bill_of_materials.licences_path(home.root).write_text("[]")
        with pytest.raises(UsageError, match="damaged"):
            bill_of_materials.load_licences(home.root)


BUILT = provenance.BuildFacts(
    digest=DIGEST,
    inputs="e" * 64,
    epoch=1,
    source=provenance.GitSource(commit="c" * 40, repository=None, uncommitted=("matrix.yaml",)),
    versions={"docker": "26"},
    builder="engine",
)
LABELS = {"io.knowngood.lock": "sha256:1"}


def attached(**changes):
    """The documents, as they should be."""
    documents = {
        attachments.SBOM_MEDIA_TYPE: {"metadata": {"properties": [{"name": "knowngood:lock", "value": "sha256:1"}]}},
        attachments.PROVENANCE_MEDIA_TYPE: {"subject": [{"digest": {"sha256": "d" * 64}}]},
        attachments.EVIDENCE_MEDIA_TYPE: {"image": DIGEST, "report": {"verdict": {"ok": True}}},
        attachments.TIER_MEDIA_TYPE: {"image": DIGEST, "tier": "trains-on-cpu"},
    }
    chosen = {**documents, **{getattr(attachments, key): value for key, value in changes.items()}}
    return tuple(
        Attachment(media=media, name="x", data=json.dumps(value).encode()) for media, value in chosen.items() if value
    )


class TestReadback:
    def test_what_fits_together_has_no_problem(self):
        assert publication_check.find_contradictions(DIGEST, LABELS, attached()) == []

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"SBOM_MEDIA_TYPE": None}, "no SBOM is attached"),
            ({"SBOM_MEDIA_TYPE": {"metadata": {}}}, "the SBOM is of lock None"),
            ({"PROVENANCE_MEDIA_TYPE": {"subject": [{"digest": {"sha256": "1"}}]}}, "not of this image"),
            ({"EVIDENCE_MEDIA_TYPE": {"image": "sha256:1"}}, "the evidence is of sha256:1"),
            ({"EVIDENCE_MEDIA_TYPE": {"image": DIGEST, "report": {"verdict": {"ok": False}}}}, "a run that failed"),
            ({"EVIDENCE_MEDIA_TYPE": {"image": DIGEST, "report": {}}}, "the key 'verdict' is missing"),
            ({"SBOM_MEDIA_TYPE": {"metadata": {"properties": ["x"]}}}, "must be an object, not"),
            ({"PROVENANCE_MEDIA_TYPE": {"subject": 1}}, "the attached x is malformed"),
            ({"TIER_MEDIA_TYPE": None}, "no tier is attached"),
            ({"TIER_MEDIA_TYPE": {"image": "sha256:1"}}, "the tier is of sha256:1"),
        ],
    )
    def test_what_does_not_is_said(self, changes, said):
        (problem,) = publication_check.find_contradictions(DIGEST, LABELS, attached(**changes))
        assert said in problem

    def test_a_document_that_is_none_is_a_sentence(self):
        with pytest.raises(KnowngoodError, match="the attached x is malformed"):
            Attachment(media="a", name="x", data=b"{").document()

    def test_the_list_of_referrers_has_the_tag_of_the_specification(self):
        assert attachments.fallback_tag(DIGEST) == "sha256-" + "d" * 64


class TestGate:
    def run(self, home, *, ok=True, where=RunPlace.CONTAINER_CPU, hour=10, image=DIGEST):
        verdict = {"verdict": {"ok": ok, "domain": "", "text": ""}, "suite_hash": "5" * 64, "checks": []}
        when = f"2026-11-21T{hour}:00:00+00:00"
        made = Evidence(cell=FA0, where=where, image=image, when=when, node={}, command=(), report=verdict)
        run_evidence.store_evidence(made, home.evidence)

    def test_only_the_newest_good_run_of_this_image_in_a_container_counts(self, home):
        wanted = cell.parse_cell(FA0)
        with pytest.raises(KnowngoodError, match="no run of it"):
            image_release.read_release_proof(home, wanted, DIGEST)
        self.run(home, where=RunPlace.BARE)
        self.run(home, image="sha256:" + "0" * 64)
        with pytest.raises(KnowngoodError, match="no run of it"):
            image_release.read_release_proof(home, wanted, DIGEST)
        (home.evidence / FA0 / "cut.json").write_text('{"schema"')
        with pytest.raises(KnowngoodError, match=r"left out: .*cut\.json: not readable"):
            image_release.read_release_proof(home, wanted, DIGEST)
        self.run(home, hour=11)
        assert image_release.read_release_proof(home, wanted, DIGEST).newest.when.startswith("2026-11-21T11")
        self.run(home, ok=False, hour=12)
        with pytest.raises(KnowngoodError, match="the newest run"):
            image_release.read_release_proof(home, wanted, DIGEST)
        self.run(home, hour=13)
        assert image_release.read_release_proof(home, wanted, DIGEST).newest.when.startswith("2026-11-21T13")

    def test_is_it_published_already(self, home, lock_of):
        locked = lock_of(FA0)
        standing = {immutable_tag(FA0, locked.digest): DIGEST}
        asked = dataclasses.make_dataclass("Asked", [])()
        asked.digest = standing.get
        assert image_release.published_digests(home, asked, [cell.parse_cell(FA0), cell.parse_cell(FA4)]) == {
            FA0: DIGEST,
            FA4: None,
        }

    def test_the_recorded_digest_is_that_of_the_current_image(self, home, lock_of):
        folder = home.root / "docker/bases/debian12"
        folder.mkdir(parents=True)
        (folder / "packages.lock").write_text(str(BASE))
        locked = lock_of(FA0)

        def recorded(identity=FA0):
            recipe = build_inputs.read_recipe_digest(home)
            return image_release.recorded_digest(home, cell.parse_cell(identity), recipe)

        shape = build_inputs.read_image_shape(home, locked, str(BASE.digest), build_inputs.read_recipe_digest(home))
        blob = image_record.ImageBlob(digest=DIGEST, size=1)
        assert recorded() is None
        image_build.keep_image_record(
            image_record.ImageRecord(cell=FA0, shape=shape, manifest=blob, config=blob, layers=(), tools={})
        )
        assert (recorded(), recorded(FA4)) == (DIGEST, None)
        (home.tree.folder / "recipe" / "normalize").write_text("other")
        assert recorded() is None, "another recipe is another image"
        (home.tree.cell_folder(locked.cell) / "cell.json").write_text("{")
        assert recorded() is None

    def test_the_source_is_the_commit_and_what_differs_from_it(self, home):
        assert image_release.read_git_source(home.root) is None or not home.root.joinpath(".git").exists()
        import subprocess

        git = ["git", "-C", str(home.root), "-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run([*git, "init", "-q"], check=True)
        subprocess.run([*git, "add", "."], check=True)
        subprocess.run([*git, "commit", "-q", "-m", "x", "--no-verify"], check=True)
        clean = image_release.read_git_source(home.root)
        assert clean is not None
        assert clean.uncommitted == ()
        (home.root / "matrix.yaml").write_text("x")
        (home.root / "README.md").write_text("x")
        changed = image_release.read_git_source(home.root)
        assert changed is not None
        assert (changed.commit, changed.uncommitted) == (clean.commit, ("matrix.yaml",))


def test_descriptors_are_of_the_bytes():
    blob = Descriptor.of(b"abc", "x")
    assert (blob.digest, blob.size) == (f"sha256:{hashlib.sha256(b'abc').hexdigest()}", 3)


def test_a_registry_without_tls_is_said_with_its_address():
    """A service that is no TLS server answers in plain words; it was advised to try again."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()

        def answer():
            for _ in range(3):
                with contextlib.suppress(OSError):
                    client, _ = server.accept()
                    client.recv(100)
                    client.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n")
                    client.close()

        threading.Thread(target=answer, daemon=True).start()
        place = f"127.0.0.1:{server.getsockname()[1]}/a"
        with pytest.raises(MissingError, match=r"has no TLS.*one without TLS on this machine is http:"):
            Registry(Repository.parse(place), attempts=1).digest("t")
