"""Builders: their names, what buildx shows of them, and which of them answer."""

from __future__ import annotations

import shlex
import sys

import pytest
from builder_samples import GB, make_builder, option_values
from samples import FA0, FA4

from knowngood.base import base_image
from knowngood.cli import main
from knowngood.core.errors import MissingError, UsageError
from knowngood.executors import builder_discovery, builder_run
from knowngood.executors.builder import parse_builder_names, parse_buildx_inspect

KUBERNETES = """\
Name:          far
Driver:        kubernetes
Last Activity: 2026-11-21 12:00:00 +0000 UTC

Nodes:
Name:                  far0
Endpoint:              kubernetes:///far?deployment=far0
Status:                inactive
Platforms:

Name:                  far1
Endpoint:              kubernetes:///far?deployment=far1
Status:                running
BuildKit version:      v0.15.1
"""
SILENT = """\
Name:          gone
Driver:        remote

Nodes:
Name:     gone0
Endpoint: tcp://192.0.2.9:1234
Status:   inactive
Error:    failed to list workers: connection refused
"""


def test_an_instance_shows_its_driver_and_whether_a_node_runs():
    instance = parse_buildx_inspect(KUBERNETES)
    assert (instance.driver, instance.running) == ("kubernetes", True)
    assert (instance.buildkit, instance.error) == ("0.15.1", "")
    instance = parse_buildx_inspect(SILENT)
    assert (instance.driver, instance.running) == ("remote", False)
    assert instance.error == "failed to list workers: connection refused"
    assert parse_buildx_inspect("").running is False


@pytest.mark.parametrize(
    ("options", "memory", "processors"),
    [
        ('limits.cpu="4" limits.memory="8Gi" namespace="x"', 8 << 30, 4),
        ('limits.cpu="1500m" limits.memory="8G"', 8 * GB, 1),
        ('cpu-quota="200000" memory="8g" cpu-period="100000"', 8 << 30, 2),
        ('image="moby/buildkit" memory-swap="1g"', None, None),
        ("", None, None),
    ],
)
def test_the_limits_of_an_instance_are_read_from_its_driver_options(options, memory, processors):
    text = KUBERNETES.replace(
        "BuildKit version:      v0.15.1", f"Driver Options:        {options}\nBuildKit version:      v0.15.1"
    )
    instance = parse_buildx_inspect(text)
    assert (instance.memory, instance.processors) == (memory, processors)


def test_builder_names_are_unique_and_not_empty():
    assert parse_builder_names("a, b,a,tcp://b:2375") == ("a", "b", "tcp://b:2375")
    with pytest.raises(UsageError, match="between commas"):
        parse_builder_names("a,,b")
    assert make_builder("unix:///run/e.sock").file_name == "unix-run-e.sock"


def test_the_hosts_network_is_used_when_one_builder_has_no_other():
    assert builder_run.choose_network([make_builder("a"), make_builder("b")]) == "default"
    assert builder_run.choose_network([make_builder("a"), make_builder("b", has_bridge=False)]) == "host"


def test_free_memory_is_a_share_of_the_builders_memory_or_unknown():
    assert builder_run.free_resources(make_builder("a", memory=100 * GB)).memory == 90 * GB
    assert builder_run.free_resources(make_builder("a")).memory == builder_run.UNKNOWN_BYTES


DOCKER = """\
words = sys.argv[1:]
if words == ["buildx", "version"]:
    sys.exit(0)
if words[:2] != ["buildx", "inspect"]:
    sys.exit("nothing else was expected: " + " ".join(words))
if words[2] not in ("far", "gone"):
    sys.exit(f'ERROR: no builder "{words[2]}" found')
print(FAR if words[2] == "far" else GONE)
"""


@pytest.fixture
def docker(tmp_path, monkeypatch):
    """A docker command that knows two instances of buildx, of which one runs."""
    program = tmp_path / "bin/docker"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\nimport sys\nFAR = {KUBERNETES!r}\nGONE = {SILENT!r}\n{DOCKER}")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    return program


def test_instances_that_run_are_used_and_the_others_reported(docker):
    builders, left_out = builder_discovery.find_builders(["far", "gone", "nobody"], print)
    (far,) = builders
    assert (far.name, far.driver, far.options) == ("far", "kubernetes", ("--builder", "far"))
    assert builder_discovery.builder_answers(far)
    assert not far.is_engine
    gone, nobody = left_out
    assert gone == (
        "builder gone is left out: it does not answer (failed to list workers: connection refused); "
        "`docker buildx inspect --bootstrap gone` starts it"
    )
    assert nobody == 'builder nobody is left out: no builder "nobody" found'
    docker.write_text("#!/bin/sh\nexit 1\n")
    assert not builder_discovery.builder_answers(far)


@pytest.mark.usefixtures("docker")
def test_without_any_builder_the_error_has_all_reasons(tmp_path):
    nowhere = f"unix://{tmp_path}/nothing.sock"
    with pytest.raises(MissingError, match="no builder is left") as raised:
        builder_discovery.find_builders(["gone", nowhere], print)
    assert f"builder {nowhere} is left out: no engine answers at {nowhere}" in str(raised.value)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--to", "registry.example/builds"], "--to goes with --builder"),
        (["--network", "host"], "--network goes with --builder"),
        (["--builder", "far"], "share layers and images through a registry"),
        (["--builder", "far", "--to", "builds"], "does not begin with a registry"),
        (["--builder", "far,", "--to", "registry.example/builds"], "between commas"),
    ],
)
@pytest.mark.usefixtures("home", "docker")
def test_wrong_options_for_builders_are_usage_errors(words, why, capsys, monkeypatch):
    monkeypatch.delenv("KNOWNGOOD_BUILDS", raising=False)
    assert main.main(["build", *words]) == 2
    assert why in capsys.readouterr().err


@pytest.mark.usefixtures("docker")
def test_the_dry_run_shows_layers_first_and_no_secret(lock_of, capsys, monkeypatch):
    monkeypatch.setenv("UV_INDEX_SOMEWHERE_PASSWORD", "s3cret")
    monkeypatch.setattr(base_image, "expected_base_context", lambda *_: "oci-layout:///b@sha256:" + "b" * 64)
    monkeypatch.setattr(base_image, "read_base_digest", lambda *_: "sha256:" + "b" * 64)
    for identity in (FA4, FA0):
        lock_of(identity)
    words = ["--builder", "far", "--to", "registry.example/builds", "--dry-run"]
    assert main.main(["build", FA4, FA0, *words]) == 0
    output = capsys.readouterr().out
    commands = [shlex.split(line) for line in output.splitlines() if not line.startswith("#")]
    foundation, *_, last = commands
    assert "mode=max" in " ".join(option_values(foundation, "--cache-to"))
    assert option_values(foundation, "--output") == ["type=cacheonly"]
    assert "push-by-digest=true" in option_values(last, "--output")[0]
    assert {command[0] for command in commands} == {foundation[0]}
    assert sum("push=true" in " ".join(command) for command in commands) == 2
    assert "s3cret" not in output
