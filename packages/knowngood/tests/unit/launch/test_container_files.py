"""The files for Compose and editors start the container that the docker command starts."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys

import pytest
import yaml

from knowngood.core.cell import parse_cell
from knowngood.launch import container_run
from knowngood.launch.container_files import render_compose_file, render_devcontainer
from knowngood.launch.container_run import PASSED_VARIABLES, ContainerRun, UserIds
from samples import FA4

RUN = ContainerRun(
    image="registry.example/team/knowngood:default",
    program=("python", "train.py"),
    user=UserIds(user=1001, group=1002, name="ann"),
    folder="/home/ann/project",
    shared_memory="11g",
)


def of_option(name):
    """The values that the docker command has for an option."""
    words = container_run.docker_run_arguments(RUN)
    return [value for option, value in itertools.pairwise(words) if option == name]


@pytest.fixture
def compose():
    return yaml.safe_load(render_compose_file(parse_cell(FA4), RUN))


def test_compose_starts_what_docker_run_starts(compose):
    train = compose["services"]["train"]
    assert train["image"] == RUN.image
    assert tuple(train["command"]) == RUN.program
    assert [train["user"]] == of_option("--user")
    assert [train["working_dir"]] == of_option("--workdir")
    assert [train["shm_size"]] == of_option("--shm-size")
    assert [f"{name}={value}" for name, value in train["ulimits"].items()] == of_option("--ulimit")
    names = {name: item["name"] for name, item in compose["volumes"].items()} | {".": RUN.folder}
    mounts = [volume.split(":") for volume in train["volumes"]]
    assert [f"{names[source]}:{target}" for source, target in mounts] == of_option("--volume")
    assert set(train["environment"]) == {*of_option("--env"), *PASSED_VARIABLES}


def test_ports_are_opened_on_the_loopback_only(compose):
    assert all(port.startswith("127.0.0.1:") for port in compose["services"]["train"]["ports"])


def test_the_compose_file_is_one_by_the_specification(tmp_path):
    file = tmp_path / "compose.yaml"
    file.write_text(render_compose_file(parse_cell(FA4), RUN))
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", file]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_an_editor_has_the_same_user_memory_and_volumes():
    document = json.loads(render_devcontainer(parse_cell(FA4), RUN))
    assert [document["containerUser"]] == of_option("--user")
    assert [document["workspaceFolder"]] == of_option("--workdir")
    assert document["runArgs"][:2] == ["--shm-size", "11g"]
    volumes = [dict(part.partition("=")[::2] for part in mount.split(",")) for mount in document["mounts"]]
    assert [f"{item['source']}:{item['target']}" for item in volumes] == of_option("--volume")[1:]
    assert [f"{name}={value}" for name, value in document["containerEnv"].items()] == of_option("--env")
