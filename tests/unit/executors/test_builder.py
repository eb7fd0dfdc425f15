"""Builders: their names, what buildx shows of them, and which of them answer."""

from __future__ import annotations

import json
import re
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
from knowngood.images import task_crew
from knowngood.images.cell_tasks import MachineResources

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


def test_the_memory_of_a_machine_decides_how_much_is_built_at_once():
    def at_once(memory, jobs=None, sharing=1):
        builder = make_builder("a", memory=memory and memory * GB)
        return builder_run.builds_at_once(builder, [builder] * sharing, jobs, prove=True)

    assert at_once(10) == 4, "nine tenths of the memory, two gigabytes each"
    assert at_once(10, sharing=2) == 2
    assert at_once(10, jobs=3) == 3
    assert at_once(10, jobs=64) == 4
    assert at_once(1) == 1
    assert at_once(1000) == builder_run.MOST_TARGETS
    assert at_once(1000, jobs=64) == 64
    assert (at_once(None), at_once(None, jobs=5)) == (1, 5)


@pytest.mark.parametrize(("prove", "count"), [(False, 5), (True, 3)])
def test_the_suite_takes_its_share_of_this_machines_memory(prove, count, monkeypatch):
    free = MachineResources(memory=11 * GB, disk=0)
    monkeypatch.setattr(task_crew, "measure_free_resources", lambda _: free)
    here = make_builder("here", host="unix:///run/e.sock")
    assert builder_run.builds_at_once(here, [here], None, prove=prove) == count


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


def bake_targets(text):
    """The targets of each bake file that the commands of a dry run write."""
    documents = map(json.loads, re.findall(r"<<'END'\n(.*?)\nEND\n", text, re.DOTALL))
    return [list(document["target"].values()) for document in documents]


def test_the_dry_run_shows_the_bakes_layers_first_and_no_secret(lock_of, docker, capsys, monkeypatch):
    monkeypatch.setenv("UV_INDEX_SOMEWHERE_PASSWORD", "s3cret")
    monkeypatch.setattr(base_image, "expected_base_context", lambda *_: "oci-layout:///b@sha256:" + "b" * 64)
    monkeypatch.setattr(base_image, "read_base_digest", lambda *_: "sha256:" + "b" * 64)
    docker.write_text(
        docker.read_text()
        .replace('("far", "gone")', '("far", "gone", "near")')
        .replace('"far" else', '"far" or words[2] == "near" else')
    )
    for identity in (FA4, FA0):
        lock_of(identity)
    words = ["--to", "registry.example/builds", "--dry-run"]
    assert main.main(["build", FA4, FA0, "--builder", "far,near", *words]) == 0
    output = capsys.readouterr().out
    foundation, layers, cells = bake_targets(output)
    assert "mode=max" in foundation[0]["cache-to"][0]
    assert foundation[0]["dockerfile"].startswith("${KNOWNGOOD_TMP}/Dockerfile.layer-venv")
    assert [target["output"] for target in (*foundation, *layers)] == [["type=cacheonly"]] * (1 + len(layers))
    assert [target["network"] for target in cells] == ["default", "default"]
    assert all("push-by-digest=true" in target["output"][0] for target in cells)
    bakes = [shlex.split(line) for line in output.splitlines() if " bake " in line]
    assert bakes == [bakes[0]] * 3
    assert option_values(bakes[0], "--file") == ["$KNOWNGOOD_TMP/bake.json"]
    assert "s3cret" not in output
    assert main.main(["build", FA4, FA0, "--builder", "far", "--network", "host", *words]) == 0
    network, cells = re.findall(r"^cat > (\S+) <<", capsys.readouterr().out, re.MULTILINE)
    assert (network, cells) == ("$KNOWNGOOD_TMP/network.yml", "$KNOWNGOOD_TMP/bake.json"), "one builder needs one bake"
