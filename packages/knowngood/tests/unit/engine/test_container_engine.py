import json
import os
import shlex
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from knowngood.core.errors import MissingError
from knowngood.engine import container_engine, embedded_engine
from knowngood.engine import container_engine as engineinfo
from knowngood.engine.container_engine import Engine, EngineInfo, UnsuitableEngine

GOOD = EngineInfo(version="28.2.2", os="linux", arch="x86_64", containerd_store=True)
UNSUITABLE = UnsuitableEngine(reason="no engine answers at unix:///x", answers=False)


def make(**changes) -> Engine:
    values = {
        "host": "unix:///run/x y/docker.sock",
        "docker": ("/tools/bin/docker", "--host", "unix:///run/x y/docker.sock"),
        "env": {"DOCKER_CONFIG": "/tools/it's"},
        "version": "26.1.5",
        "buildkit": "0.13",
        "containerd_store": True,
        "embedded": True,
        "network": "host",
    }
    return Engine(**(values | changes))


@pytest.mark.parametrize(
    ("inspected", "version", "expected"),
    [
        ("Name: default\nBuildKit version: v0.13.2\n", "26.1.0", "0.13.2"),
        ("BuildKit: v0.11.6+616c3f613b54", "24.0.7", "0.11.6+616c3f613b54"),
        ("BuildKit version: v0.0.0+unknown\n", "26.1.5+dfsg1", "0.13"),
        ("", "20.10.24+dfsg1", "0"),
        ("", "31.0.0", "0.25"),
    ],
)
def test_buildkit_version(inspected, version, expected):
    assert engineinfo.buildkit_version(inspected, version) == expected


@pytest.mark.parametrize(
    ("version", "expected"), [("0.13.1", (0, 13)), ("v26", (26, 0)), ("", (0, 0)), ("0.20-rc1", (0, 20))]
)
def test_release(version, expected):
    assert engineinfo.parse_release(version) == expected


def test_an_engine_that_can_build_has_no_objection():
    assert engineinfo.describe_objection("unix:///x", GOOD, "0.13.0") is None


def test_an_engine_that_only_runs_images_may_be_old_and_needs_no_docker_command(monkeypatch):
    monkeypatch.setattr(
        container_engine,
        "_read_engine_info",
        lambda _: EngineInfo(version="20.10", os="linux", arch="x86_64", containerd_store=False),
    )
    no_command = container_engine.DockerCommand(argv=(), env={})
    monkeypatch.setattr(container_engine, "_find_docker_command", lambda *_, **__: no_command)
    assert container_engine.examine_engine("unix:///x").lacks_client
    found = container_engine.examine_engine("unix:///x", builds=False)
    assert (found.host, found.docker, found.containerd_store) == ("unix:///x", (), False)
    monkeypatch.setattr(
        container_engine,
        "_read_engine_info",
        lambda _: EngineInfo(version="28", os="linux", arch="riscv64", containerd_store=True),
    )
    assert "on riscv64" in container_engine.examine_engine("unix:///x", builds=False).reason


@pytest.mark.parametrize(
    ("info", "buildkit", "told"),
    [
        (GOOD, "0.12.5", "BuildKit 0.12.5, older than 0.13"),
        (EngineInfo(version="28", os="windows", arch="x86_64", containerd_store=True), "0.20", "for windows"),
        (EngineInfo(version="28", os="linux", arch="riscv64", containerd_store=True), "0.20", "on riscv64"),
    ],
)
def test_an_objection_names_the_engine(info, buildkit, told):
    sentence = engineinfo.describe_objection("unix:///x", info, buildkit)
    assert told in sentence
    assert "unix:///x" in sentence


def test_the_containerd_store_is_recognized():
    answer = {
        "ServerVersion": "26.1.5",
        "OSType": "linux",
        "Architecture": "x86_64",
        "DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]],
    }
    assert engineinfo.parse_engine_info(json.dumps(answer)).containerd_store
    answer["DriverStatus"] = [["Backing Filesystem", "extfs"]]
    assert not engineinfo.parse_engine_info(json.dumps(answer)).containerd_store


@pytest.mark.parametrize("text", ["", "{}", "null", '{"ServerErrors": ["x"]}'])
def test_an_engine_that_does_not_answer_has_no_info(text):
    assert engineinfo.parse_engine_info(text) is None


def test_the_shell_lines_work_in_a_shell():
    script = (
        container_engine.render_shell_environment(make())
        + '\nprintf "%s\\n" "$DOCKER_HOST" "$DOCKER_CONFIG" "${PATH%%:*}"'
    )
    told = subprocess.run(["sh", "-c", script], check=True, capture_output=True, text=True).stdout
    assert told.splitlines() == ["unix:///run/x y/docker.sock", "/tools/it's", "/tools/bin"]
    assert all(
        shlex.split(line)[0] == "export" for line in container_engine.render_shell_environment(make()).splitlines()
    )


def test_a_suitable_system_engine_is_used(monkeypatch):
    system = make(embedded=False)
    monkeypatch.setattr(container_engine, "find_system_engine", lambda **_: system)
    monkeypatch.setattr(embedded_engine, "start_embedded_engine", pytest.fail)
    assert container_engine.ensure_engine(notify=pytest.fail) is system


def test_a_running_embedded_engine_is_used_without_a_message(monkeypatch):
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    own = make()
    monkeypatch.setattr(container_engine, "find_system_engine", lambda **_: UNSUITABLE)
    monkeypatch.setattr(container_engine, "find_embedded_engine", lambda: own)
    monkeypatch.setattr(embedded_engine, "start_embedded_engine", pytest.fail)
    assert container_engine.ensure_engine(notify=pytest.fail) is own


def test_an_embedded_engine_in_the_place_of_the_one_that_was_named_is_said(monkeypatch):
    own, notes = make(), []
    monkeypatch.setenv("DOCKER_HOST", "unix:///x")
    monkeypatch.setattr(container_engine, "find_system_engine", lambda **_: UNSUITABLE)
    monkeypatch.setattr(container_engine, "find_embedded_engine", lambda: own)
    assert container_engine.ensure_engine(notify=notes.append) is own
    assert notes == ["no engine answers at unix:///x, which DOCKER_HOST names: using the embedded engine"]


def test_the_error_without_any_engine_has_both_reasons(monkeypatch):
    monkeypatch.setattr(container_engine, "find_system_engine", lambda **_: UNSUITABLE)
    monkeypatch.setattr(container_engine, "find_embedded_engine", lambda: None)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(MissingError) as caught:
        container_engine.ensure_engine(notify=pytest.fail)
    assert caught.value.exit_code == 4
    assert str(caught.value) == (
        "no engine answers at unix:///x, and the embedded engine needs root: run knowngood as root, "
        "or install Docker Engine 26 or newer with buildx and start it"
    )


def test_a_missing_engine_is_reported(monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    found = container_engine.find_system_engine()
    assert found == UnsuitableEngine(reason=f"no engine answers at unix://{tmp_path}/none.sock", answers=False)


def test_an_engine_that_this_user_may_not_use_is_reported():
    """As for who is not in the group of Docker's socket; for root the process becomes another user."""
    code = (
        "import os, docker, docker.errors; from knowngood.engine import container_engine as engines\n"
        "os.getuid() or os.setuid(65534); print(engines.find_system_engine().reason)"
    )
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as engine:
        path = Path(folder, "docker.sock")
        engine.bind(str(path))
        path.chmod(0)
        Path(folder).chmod(0o755)
        environ = {**os.environ, "DOCKER_HOST": f"unix://{path}", "HOME": folder}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environ, cwd="/", capture_output=True, text=True, check=True
        )
    assert done.stdout == f"this user may not use the engine at unix://{path}; join the group that owns its socket\n"


def test_importing_the_engine_does_not_import_the_sdk():
    code = "import sys, knowngood.engine.container_engine; sys.exit('docker' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


REMOTE = "Name:   far\nDriver: remote\n\nNodes:\nName: far0\nStatus: running\nBuildKit version: v0.15.2\n"


@pytest.fixture
def inspected(monkeypatch):
    """Lets `docker buildx inspect` print this text; the commands and their environments are in the list."""

    def answer(text):
        calls = []
        monkeypatch.setattr(
            container_engine, "_read_output", lambda argv, env: calls.append((list(argv), dict(env))) or text
        )
        return calls

    return answer


def test_the_engine_s_own_builder_changes_nothing(inspected):
    calls = inspected("")
    assert container_engine.use_builder(make(), "default") == make()
    context = make(env={"BUILDX_BUILDER": "far"})
    assert container_engine.use_builder(context, "far") == context
    assert calls == []


def test_a_builder_is_looked_up_in_the_user_s_settings(monkeypatch, inspected, tmp_path):
    calls = inspected(REMOTE)
    monkeypatch.delenv("BUILDX_CONFIG", raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    chosen = container_engine.use_builder(make(), "far")
    assert (chosen.builder, chosen.network, chosen.buildkit) == ("far", "host", "0.15.2")
    assert chosen.env == {**make().env, "BUILDX_CONFIG": str(tmp_path / "buildx")}
    assert calls == [([*make().docker, "buildx", "inspect", "far"], chosen.env)]
    monkeypatch.setenv("BUILDX_CONFIG", "/own")
    assert container_engine.use_builder(make(), "far").env["BUILDX_CONFIG"] == "/own"


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("", "docker buildx create --name far --driver"),
        ("Name: far\nDriver: docker\n\nNodes:\nStatus: running\n", "DOCKER_CONTEXT=far"),
        ("Name: far\nDriver: \nError: Cannot connect to the Docker daemon\n", "DOCKER_CONTEXT=far"),
        ("Driver: docker-container\nStatus: inactive\n", r"\(inactive\).*docker buildx inspect --bootstrap far"),
        ("Driver: remote\nError: connection refused\n", r"\(connection refused\)"),
    ],
)
def test_a_builder_that_cannot_be_used_is_explained(inspected, text, advice):
    inspected(text)
    with pytest.raises(MissingError, match=advice) as caught:
        container_engine.use_builder(make(), "far")
    assert caught.value.exit_code == 4


def test_a_dry_run_without_a_running_engine_asks_no_builder(inspected):
    calls = inspected("")
    assert container_engine.use_builder(make(version=""), "far").builder == "far"
    assert calls == []
