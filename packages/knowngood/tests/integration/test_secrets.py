"""Tokens in every variable and file that is read: after real builds and a real publish none of them is anywhere."""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import http.server
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import index_server
import planted_secrets
import pytest
import registry_server
import small

from conftest import ROOT
from knowngood.base import base_image, private_apt
from knowngood.core import local_files
from knowngood.engine import embedded_engine, unpacked_engine
from knowngood.evidence import run_evidence
from knowngood.evidence.run_evidence import Evidence, RunPlace
from knowngood.project.checkout import Project

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(bool(embedded_engine.describe_obstacle()), reason=str(embedded_engine.describe_obstacle())),
]

REGISTRY_PASSWORD = "kgtokenregistry0123456789abcdef"
HTPASSWD = "alice:$2b$04$jf3PG/W7e44ZGqbItQ6iheujSm9H9WEZsXJKcgPYOJP.w/jV9nbNG\n"


class PrivateRegistry(registry_server.Server):
    """A registry that wants the login of alice."""

    def __init__(self, program: Path, folder: Path) -> None:
        super().__init__(program, folder)
        (folder / "htpasswd").write_text(HTPASSWD)
        login = f"auth: {{htpasswd: {{realm: test, path: {folder}/htpasswd}}}}\n"
        self._config.write_text(self._config.read_text() + login)

    def start(self) -> None:
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen([self._program, "serve", self._config], stderr=quiet, stdout=quiet)
        host, _, port = self.address.rpartition(":")
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
                return
            time.sleep(0.05)
        raise AssertionError("the registry did not answer within 20 s")


class Planted:
    """A user whose every setting has a token in it, with a project, a cache, an engine and a home of their own."""

    def __init__(self, folder: Path, project: Project, index: index_server.Index, registry: PrivateRegistry) -> None:
        self.folder, self.project, self.index, self.registry = folder, project, index, registry
        self.tokens = planted_secrets.Tokens()
        self.tokens.by_place["docker's config.json"] = REGISTRY_PASSWORD
        self.outputs: dict[str, bytes] = {}
        self.cell = str(project.matrix.cells[0])
        self.home, self.cache, self.temporary = (folder / name for name in ("home", "cache", "tmp"))
        self.temporary.mkdir()
        self.env = {name: os.environ[name] for name in ("PATH", "PIP_CERT", "SSL_CERT_FILE") if name in os.environ}
        self.env |= {"HOME": str(self.home), "KNOWNGOOD_CACHE": str(self.cache), "TMPDIR": str(self.temporary)}
        self.env |= {"DOCKER_HOST": f"unix://{folder}/none.sock", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
        self.env |= self.plant_variables()
        self.plant_files()

    def address(self, place: str, host: str | None = None) -> str:
        """Return an address with a token as its password; by default that of a place where nothing answers."""
        return f"http://bob:{self.tokens.plant(place)}@{host or '127.0.0.1:9'}/simple"

    def plant_variables(self) -> dict[str, str]:
        """Return the environment: a token in each variable that the source names, and in those found by a pattern."""
        names = planted_secrets.find_variables(ROOT / "packages")
        assert {"UV_DEFAULT_INDEX", "HTTPS_PROXY", "KNOWNGOOD_REPOSITORY"} <= names
        names |= {"PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_PROXY", "https_proxy", "http_proxy", "all_proxy"}
        planted = {name: self.address(name) for name in sorted(names)}
        # No server of the test refuses these: they would end every build.
        planted |= {name: self.address(name, EMPTY.host) for name in ("UV_INDEX", "UV_EXTRA_INDEX_URL")}
        planted["UV_DEFAULT_INDEX"] = f"http://bob:{self.index.login[1]}@{self.index.host}/simple"
        self.tokens.by_place["UV_DEFAULT_INDEX"] = self.index.login[1]
        planted |= {
            name: self.tokens.plant(name) for name in ("HF_TOKEN", "UV_INDEX_INNER_PASSWORD", "UV_PUBLISH_TOKEN")
        }
        return planted

    def plant_files(self) -> None:
        """Write pip's, uv's, netrc's, git's and docker's files with a token in each."""
        files = {
            ".netrc": f"machine files.example login bob password {self.tokens.plant('netrc')}\n",
            ".config/uv/uv.toml": f'[[index]]\nurl = "{self.address("uv.toml", EMPTY.host)}"\n',
            ".config/pip/pip.conf": f"[global]\nindex-url = {self.address('pip.conf')}\nproxy = {self.address('p')}\n",
            ".docker/config.json": planted_secrets.docker_config(
                {self.registry.address: ("alice", REGISTRY_PASSWORD)}, self.address("docker's proxy")
            ),
            ".gitconfig": f'[url "{self.address("gitconfig")}"]\n\tinsteadOf = test:\n',
        }
        for name, text in files.items():
            path = self.home / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        run = ["git", "-C", str(self.project.root)]
        subprocess.run([*run, "init", "--quiet"], check=True)
        subprocess.run([*run, "remote", "add", "origin", self.address("git's remote")], check=True)

    def run(self, *words: str, **changes: str) -> subprocess.CompletedProcess[bytes]:
        """Run a command of the program, and keep its output for the search."""
        argv, start = [sys.executable, "-m", "knowngood", *words], time.monotonic()
        done = subprocess.run(
            argv, cwd=self.project.root, env={**self.env, **changes}, capture_output=True, check=False, timeout=600
        )
        shown = [word for word in words if not self.tokens.search(word.encode())]
        self.outputs[f"{len(self.outputs)}: {' '.join(shown)} {sorted(changes)}"] = done.stdout + b"\n" + done.stderr
        print(f"{time.monotonic() - start:6.1f} s, exit {done.returncode}: {' '.join(shown)}")
        return done

    def leaks(self) -> list[str]:
        """Return every token that is in an output, the project, the cache, the temporary folder or the registry."""
        found = [
            f"{place} in the output of {name}" for name, data in self.outputs.items() for place in self.search(data)
        ]
        settings = self.project.root / ".git/config"  # git's own file, in which the token was planted
        for folder in (self.project.root, self.cache, self.temporary, self.registry_folder):
            found += planted_secrets.search_folder(self.tokens, folder, (settings,))
        return found

    def search(self, data: bytes) -> set[str]:
        return self.tokens.search(data)

    @property
    def registry_folder(self) -> Path:
        return self.folder / "registry"


EMPTY = index_server.Index()
"""An index without a file, which takes every login."""


@pytest.fixture
def planted(project, registry_program, tmp_path, monkeypatch):
    paths = unpacked_engine.engine_paths()
    unpacked_engine.unpack_engine(paths, print)  # with the settings of this machine: those of the test lead nowhere
    bases = local_files.cache_folder() / "bases"
    base_image.prepare_base(Project(ROOT), "debian12", locked=True, notify=print)
    index = index_server.Index(login=("bob", planted_secrets.Tokens().plant("index")))
    index.start()
    EMPTY.start()
    (tmp_path / "registry").mkdir()
    registry = PrivateRegistry(registry_program, tmp_path / "registry")
    registry.start()
    wheels = [index.publish(name) for name in ("kgsecretone", "kgsecrettwo")]
    layers = {"tools": [wheels[0].name], "python": [wheels[1].name]}
    here = small.project(project.root, small.TRANSFORMERS[0], shared=layers, wheels=wheels)
    user = Planted(tmp_path, here, index, registry)
    monkeypatch.setenv("KNOWNGOOD_CACHE", str(user.cache))
    own = unpacked_engine.engine_paths()
    own.home.mkdir(parents=True)
    own.tools.symlink_to(paths.tools)
    (user.cache / "bases").symlink_to(bases)
    yield user
    embedded_engine.remove_embedded_engine(print)
    registry.kill()
    index.stop()
    EMPTY.stop()


def prove(user: Planted, digest: str) -> None:
    """Store a run of the suite on the image, as a build with its suite does."""
    run = Evidence(
        cell=user.cell,
        where=RunPlace.CONTAINER_CPU,
        image=digest,
        when="2026-11-21T10:00:00+00:00",
        node={},
        command=("test",),
        report={"verdict": {"ok": True, "domain": "none", "text": ""}, "suite_hash": "5" * 64, "checks": []},
    )
    run_evidence.store_evidence(run, user.project.evidence)


def test_no_token_is_printed_written_built_or_published(planted):
    user, cell = planted, planted.cell
    where = ("--to", f"http://{user.registry.address}/team/cells")
    with planted_secrets.CommandLines(user.tokens) as lines:
        assert user.run("engine", "up").returncode == 0
        make_signing_key(user)
        failed_builds(user)
        user.index.logins.clear()
        built = user.run("build", cell, "--json", "--record")
        assert built.returncode == 0, user.outputs
        image = json.loads(built.stdout)["cells"][0]["image"]
        login = base64.b64encode(":".join(user.index.login).encode()).decode()
        assert user.index.logins == {f"Basic {login}"}, "the index did not see the login, so this test shows nothing"
        prove(user, image["digest"])
        published = user.run("publish", cell, *where, "--json")
        assert published.returncode == 0, user.outputs
        tag = json.loads(published.stdout)["cells"][0]["tag"]
        assert user.run("publish", "--verify", f"{where[1]}:{tag}").returncode == 0, user.outputs
        user.run("pull", f"{where[1]}:{tag}")
        everyday(user)
        failures(user, where)
    assert lines.samples > 50
    # `docker save` gives the image, its layers, its history and its configuration as one file.
    saved = user.folder / "tmp" / "image.tar"
    docker = [str(unpacked_engine.engine_paths().docker), "--host", f"unix://{unpacked_engine.engine_paths().socket}"]
    subprocess.run([*docker, "save", "--output", str(saved), f"knowngood:{cell}"], check=True)
    shutil.unpack_archive(saved, user.folder / "tmp" / "image", "tar")
    # buildx hands the proxy of docker's configuration to BuildKit, which keeps it in its own data: docs/faults.md.
    known = f"docker's proxy in {user.cache}/engine/data/"
    assert not [leak for leak in user.leaks() if not leak.startswith(known)]
    typed = "publish --to in "  # the one token that a person wrote into a command line
    assert not [leak for leak in lines.leaks if not leak.startswith(typed)]
    assert not list((user.cache / "scratch").iterdir())


def make_signing_key(user: Planted) -> None:
    """Make the key with which `publish` signs; its passphrase is in a variable, and a line of it is a token too."""
    path = user.home / "keys" / "release.key"
    user.env["KNOWNGOOD_SIGNING_KEY"] = str(path)
    assert user.run("keys", "make", str(path)).returncode == 0, user.outputs
    user.tokens.by_place["the private key"] = path.read_text().splitlines()[2]


def failed_builds(user: Planted) -> None:
    """Run builds that fail: the index refuses the login, and it serves a damaged wheel."""
    refused = user.address("UV_DEFAULT_INDEX of a build with a wrong password", user.index.host)
    assert b"the index refuses this host" in user.run("build", user.cell, UV_DEFAULT_INDEX=refused).stdout
    wheel = next(iter(user.index.wheels))
    user.index.damage[wheel] = index_server.flip
    assert b"is a corrupt archive" in user.run("build", user.cell, "--json").stdout
    user.index.damage.clear()


def everyday(user: Planted) -> None:
    """Run the commands that read settings, and succeed or not."""
    cell, out = user.cell, str(user.folder / "tmp")
    for kind in ("requirements", "pylock", "apptainer", "devcontainer"):
        user.run("export", cell, "--format", kind, "-o", f"{out}/export-{kind}")
    for words in (
        ("build", "--plan", "*"),
        ("build", cell, "--dry-run"),
        ("build", cell),
        ("export", cell, "--format", "cyclonedx"),
        ("engine", "status", "--json"),
        ("engine", "env"),
        ("smoke", cell, "--dry-run"),
        ("nightly", "--only", "files", "--json"),
        ("nightly", "--dry-run"),
        ("audit", cell, "--json"),
    ):
        user.run(*words)


def failures(user: Planted, where: tuple[str, ...]) -> None:
    """Run commands that fail: nothing answers, a login is refused, or it stands where none belongs."""
    cell, place = user.cell, user.address("UV_DEFAULT_INDEX without an answer")
    refused = user.address("UV_DEFAULT_INDEX with a wrong password", user.index.host)
    user.run("export", cell, "--format", "pylock", UV_DEFAULT_INDEX=place)
    user.run("export", cell, "--format", "pylock", UV_DEFAULT_INDEX=f"inner={refused}")
    user.run("lock", cell, "--upgrade", UV_DEFAULT_INDEX=refused)
    user.run("harvest", "triton", UV_DEFAULT_INDEX=refused)
    for variable in ("PIP_INDEX_URL", "UV_INDEX_URL"):
        alone = dict.fromkeys(("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL"), "")
        assert user.run("export", cell, "--format", "pylock", **alone | {variable: user.env["UV_DEFAULT_INDEX"]})
    password = user.tokens.plant("publish --to")
    user.run("publish", cell, "--to", f"alice:{password}@{user.registry.address}/team/cells")
    user.run("publish", "--verify", f"alice:{password}@{user.registry.address}/team/cells:x")
    user.run("publish", cell)  # KNOWNGOOD_REPOSITORY has a login in it
    user.run("cells", "--size", cell)
    user.run("publish", cell, *where, DOCKER_CONFIG=str(user.folder / "nowhere"))


class Mirror(http.server.SimpleHTTPRequestHandler):
    """A package mirror of one folder that wants the login of bob."""

    login = ""

    def log_message(self, *_args) -> None:
        pass

    def do_GET(self) -> None:
        if self.headers.get("Authorization") == self.login:
            super().do_GET()
        else:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="mirror"')
            self.end_headers()


@pytest.fixture
def mirror(tmp_path):
    """A served folder with one package, and the tokens: the password of bob."""
    tokens = planted_secrets.Tokens()
    folder = tmp_path / "mirror"
    (folder / "tree/DEBIAN").mkdir(parents=True)
    control = "Package: kgtiny\nVersion: 1.0\nArchitecture: all\nMaintainer: t <t@t.test>\nDescription: a test\n"
    (folder / "tree/DEBIAN/control").write_text(control)
    package = folder / "kgtiny_1.0_all.deb"
    subprocess.run(["dpkg-deb", "--build", str(folder / "tree"), str(package)], check=True, capture_output=True)
    data = package.read_bytes()
    (folder / "Packages").write_text(
        f"{control}Filename: ./{package.name}\nSize: {len(data)}\nSHA256: {hashlib.sha256(data).hexdigest()}\n"
    )
    login = base64.b64encode(f"bob:{tokens.plant('the mirror')}".encode()).decode()
    handler = functools.partial(type("OneMirror", (Mirror,), {"login": f"Basic {login}"}), directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_address[1]}", tokens
    server.shutdown()
    server.server_close()


def test_the_passwords_of_a_mirror_and_of_its_proxy_stay_in_no_file_and_no_command(mirror, tmp_path, monkeypatch):
    host, tokens = mirror
    settings = tmp_path / "apt.conf"
    settings.write_text(
        f'Acquire::http::Proxy::other.example "http://bob:{tokens.plant("the proxy")}@proxy.example";\n'
    )
    monkeypatch.setenv("APT_CONFIG", str(settings))
    monkeypatch.setenv("KNOWNGOOD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    password = tokens.by_place["the mirror"]
    with planted_secrets.CommandLines(tokens) as lines:
        apt = private_apt.PrivateApt(tmp_path / "cache/apt", [f"deb [trusted=yes] http://bob:{password}@{host}/ ./"])
        apt.refresh()
        assert [remote.name for remote in apt.locate(["kgtiny"])] == ["kgtiny"]
        assert [path.name for path in apt.download(["kgtiny"], tmp_path / "cache/debs")] == ["kgtiny_1.0_all.deb"]
        apt.fetch([(f"http://{host}/kgtiny_1.0_all.deb", tmp_path / "cache/fetched.deb")])
    assert (tmp_path / "cache/fetched.deb").exists()
    assert planted_secrets.search_folder(tokens, tmp_path / "cache") == []
    assert not lines.leaks
