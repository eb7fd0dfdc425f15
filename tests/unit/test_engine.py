import json
import os
import shlex
import subprocess
import sys

import pytest

from knowngood.engines import embedded, engine
from knowngood.engines import info as engineinfo
from knowngood.engines.engine import Engine, Unsuitable
from knowngood.engines.info import Info
from knowngood.errors import MissingError

GOOD = Info(version="28.2.2", os="linux", arch="x86_64", containerd_store=True)
UNSUITABLE = Unsuitable(reason="no engine answers at unix:///x", answers=False)


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
    assert engineinfo.release(version) == expected


def test_an_engine_that_can_build_has_no_objection():
    assert engineinfo.objection("unix:///x", GOOD, "0.13.0") is None


def test_an_engine_that_only_runs_images_may_be_old_and_needs_no_docker_command(monkeypatch):
    monkeypatch.setattr(
        engine, "_info", lambda _: Info(version="20.10", os="linux", arch="x86_64", containerd_store=False)
    )
    monkeypatch.setattr(engine, "_client", lambda *_: None)
    assert engine.at("unix:///x").lacks_client
    found = engine.at("unix:///x", builds=False)
    assert (found.host, found.docker, found.containerd_store) == ("unix:///x", (), False)
    monkeypatch.setattr(
        engine, "_info", lambda _: Info(version="28", os="linux", arch="aarch64", containerd_store=True)
    )
    assert "on aarch64" in engine.at("unix:///x", builds=False).reason


@pytest.mark.parametrize(
    ("info", "buildkit", "told"),
    [
        (GOOD, "0.12.5", "BuildKit 0.12.5, older than 0.13"),
        (Info(version="28", os="windows", arch="x86_64", containerd_store=True), "0.20", "for windows"),
        (Info(version="28", os="linux", arch="aarch64", containerd_store=True), "0.20", "on aarch64"),
    ],
)
def test_objection_is_a_sentence_with_the_engines_name(info, buildkit, told):
    sentence = engineinfo.objection("unix:///x", info, buildkit)
    assert told in sentence
    assert "unix:///x" in sentence


def test_info_tells_the_containerd_store():
    answer = {
        "ServerVersion": "26.1.5",
        "OSType": "linux",
        "Architecture": "x86_64",
        "DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]],
    }
    assert engineinfo.parse_info(json.dumps(answer)).containerd_store
    answer["DriverStatus"] = [["Backing Filesystem", "extfs"]]
    assert not engineinfo.parse_info(json.dumps(answer)).containerd_store


@pytest.mark.parametrize("text", ["", "{}", "null", '{"ServerErrors": ["x"]}'])
def test_no_answer_is_no_info(text):
    assert engineinfo.parse_info(text) is None


def test_shell_lines_survive_a_shell():
    script = engine.shell(make()) + '\nprintf "%s\\n" "$DOCKER_HOST" "$DOCKER_CONFIG" "${PATH%%:*}"'
    told = subprocess.run(["sh", "-c", script], check=True, capture_output=True, text=True).stdout
    assert told.splitlines() == ["unix:///run/x y/docker.sock", "/tools/it's", "/tools/bin"]
    assert all(shlex.split(line)[0] == "export" for line in engine.shell(make()).splitlines())


def test_a_suitable_system_engine_is_taken(monkeypatch):
    system = make(embedded=False)
    monkeypatch.setattr(engine, "find_system", lambda **_: system)
    monkeypatch.setattr(embedded, "up", pytest.fail)
    assert engine.ensure(say=pytest.fail) is system


def test_a_running_embedded_engine_is_taken_silently(monkeypatch):
    own = make()
    monkeypatch.setattr(engine, "find_system", lambda **_: UNSUITABLE)
    monkeypatch.setattr(engine, "find_embedded", lambda: own)
    monkeypatch.setattr(embedded, "up", pytest.fail)
    assert engine.ensure(say=pytest.fail) is own


def test_no_engine_possible_is_one_sentence_with_both_reasons(monkeypatch):
    monkeypatch.setattr(engine, "find_system", lambda **_: UNSUITABLE)
    monkeypatch.setattr(engine, "find_embedded", lambda: None)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(MissingError) as caught:
        engine.ensure(say=pytest.fail)
    assert caught.value.exit_code == 4
    assert str(caught.value) == (
        "no engine answers at unix:///x, and the embedded engine needs root: run knowngood as root, "
        "or install Docker Engine 26 or newer with buildx and start it"
    )


def test_an_engine_that_is_not_there_is_said_so(monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    found = engine.find_system()
    assert found == Unsuitable(reason=f"no engine answers at unix://{tmp_path}/none.sock", answers=False)


def test_importing_the_engine_does_not_import_the_sdk():
    code = "import sys, knowngood.engines.engine; sys.exit('docker' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
