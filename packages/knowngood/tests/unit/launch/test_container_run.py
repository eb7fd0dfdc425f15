"""The commands of docker, podman and Apptainer for one program."""

from __future__ import annotations

import itertools
import os
import shlex
import subprocess
from dataclasses import replace

import pytest

from knowngood.core.errors import UsageError
from knowngood.launch import container_run
from knowngood.launch.container_run import ContainerRun, FolderMount, GpuAccess, RunNetwork, UserIds

RUN = ContainerRun(
    image="knowngood:x",
    program=("python", "train.py", "--name", "two words"),
    user=UserIds(user=1234, group=100, groups=(7, 8), name="anna"),
    folder="/home/anna/my work",
    variables=("HF_TOKEN",),
    gpus=GpuAccess.RUNTIME,
)


def values_of(argv, option):
    return [value for name, value in itertools.pairwise(argv) if name == option]


def test_docker_gets_ids_folders_limits_and_names_of_variables():
    argv = container_run.docker_run_arguments(RUN)
    assert values_of(argv, "--user") == ["1234:100"]
    assert values_of(argv, "--group-add") == ["7", "8"]
    assert values_of(argv, "--volume") == [
        "/home/anna/my work:/work",
        f"{RUN.cache_volume}:/cache",
        f"{RUN.download_volume}:/var/tmp",
    ]
    assert values_of(argv, "--workdir") == ["/work"]
    assert values_of(argv, "--ulimit") == ["memlock=-1", "stack=67108864"]
    assert values_of(argv, "--env") == ["USER=anna", "HF_HUB_CACHE=/var/tmp/huggingface", "HF_TOKEN"]
    assert values_of(argv, "--gpus") == ["all"]
    assert argv[-5:] == ["knowngood:x", *RUN.program]
    assert values_of(argv, "--pull") == ["never"]
    assert "--tty" not in argv


def test_gpus_come_by_cdi_where_the_engine_has_no_runtime_and_not_at_all_on_a_cpu():
    cdi = container_run.docker_run_arguments(replace(RUN, gpus=GpuAccess.CDI))
    assert values_of(cdi, "--device") == ["nvidia.com/gpu=all"]
    assert "--gpus" not in cdi
    cpu = replace(RUN, gpus=GpuAccess.NONE)
    assert not {"--gpus", "--device"} & set(container_run.docker_run_arguments(cpu))
    assert "--device" not in container_run.podman_run_arguments(cpu)
    assert "--nv" not in container_run.apptainer_command_line(cpu)
    assert "--nv" in container_run.apptainer_command_line(RUN)


def test_an_engine_that_may_not_lift_the_limit_of_locked_memory_is_not_asked_to():
    argv = container_run.docker_run_arguments(replace(RUN, locked_memory=False))
    assert values_of(argv, "--ulimit") == ["stack=67108864"]


def test_shared_memory_has_a_size_or_is_that_of_the_host():
    argv = container_run.docker_run_arguments(replace(RUN, shared_memory="16g"))
    assert values_of(argv, "--shm-size") == ["16g"]
    argv = container_run.docker_run_arguments(replace(RUN, shared_memory="host"))
    assert values_of(argv, "--ipc") == ["host"]
    assert "--shm-size" not in argv


def test_podman_keeps_the_ids_and_takes_the_image_from_where_it_is():
    argv = container_run.podman_run_arguments(RUN)
    assert values_of(argv, "--userns") == ["keep-id"]
    assert "docker-daemon:knowngood:x" in argv
    published = container_run.podman_run_arguments(replace(RUN, reference="registry.example/a@sha256:1"))
    assert "docker://registry.example/a@sha256:1" in published
    assert "--userns" not in container_run.podman_run_arguments(
        replace(RUN, user=UserIds(user=0, group=0, started_by_root=True))
    )


def test_apptainers_line_is_one_for_a_shell_and_takes_secrets_by_name(tmp_path):
    """The line is run, with a program called apptainer that prints what it gets."""
    program = tmp_path / "apptainer"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@" "token=$APPTAINERENV_HF_TOKEN"\n')
    program.chmod(0o755)
    run = replace(RUN, mounts=(FolderMount(source="/data", target="/data", read_only=True),))
    line = container_run.apptainer_command_line(run)
    assert "secret" not in line
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": str(tmp_path), "HF_TOKEN": "a secret"}
    result = subprocess.run(["sh", "-c", line], env=environment, capture_output=True, text=True, check=True)
    words = result.stdout.splitlines()
    assert words[-1] == "token=a secret"
    assert words[-6:-1] == ["docker-daemon:knowngood:x", *RUN.program]
    assert values_of(words, "--bind") == [
        "/home/anna/my work:/work",
        "/data:/data:ro",
        f"{tmp_path}/{RUN.cache_volume}:/cache",
    ]
    cache = tmp_path / RUN.cache_volume
    assert cache.stat().st_mode & 0o777 == 0o700
    os.chown(cache, 1, 1)  # as if another user had made it first, to have its content executed
    result = subprocess.run(["sh", "-c", line], env=environment, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (1, "")


def test_caches_are_of_this_user_folder_and_image_alone_and_downloads_of_user_and_folder():
    image = replace(RUN, image="knowngood:y")
    others = (
        replace(RUN, folder="/home/anna/other"),
        replace(RUN, user=replace(RUN.user, user=1235)),
    )
    assert len({run.cache_volume for run in (RUN, image, *others)}) == 4
    assert len({run.download_volume for run in (RUN, *others)}) == 3
    assert image.download_volume == RUN.download_volume
    own = replace(RUN, variables=("HF_HUB_CACHE",))
    assert values_of(container_run.docker_run_arguments(own), "--env") == ["USER=anna", "HF_HUB_CACHE"]


def test_the_network_is_the_engines_own_unless_another_is_wished_for():
    for arguments in (container_run.docker_run_arguments, container_run.podman_run_arguments):
        assert "--network" not in arguments(RUN)
        assert values_of(arguments(replace(RUN, network=RunNetwork.HOST)), "--network") == ["host"]
        assert values_of(arguments(replace(RUN, network=RunNetwork.NONE)), "--network") == ["none"]


def test_a_proxy_on_the_loopback_is_out_of_reach_of_a_network_of_its_own():
    run = replace(RUN, variables=("HTTPS_PROXY", "http_proxy", "NO_PROXY"))
    environ = {
        "HTTPS_PROXY": "http://me:x@127.0.0.1:3128",
        "http_proxy": "http://proxy.example:80",
        "NO_PROXY": "localhost",
    }
    assert container_run.find_loopback_proxies(run, environ) == ["HTTPS_PROXY"]
    assert container_run.find_loopback_proxies(replace(run, network=RunNetwork.HOST), environ) == []


def test_no_command_has_the_value_of_a_variable(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    for text in (
        shlex.join(container_run.docker_run_arguments(RUN)),
        shlex.join(container_run.podman_run_arguments(RUN)),
        container_run.apptainer_command_line(RUN),
    ):
        assert "HF_TOKEN" in text
        assert "hf_secret" not in text


@pytest.mark.parametrize(
    ("text", "mount"),
    [
        ("/data", FolderMount(source="/data", target="/data")),
        ("/data:ro", FolderMount(source="/data", target="/data", read_only=True)),
        ("/data:/mnt:ro", FolderMount(source="/data", target="/mnt", read_only=True)),
    ],
)
def test_a_mount(text, mount):
    assert container_run.parse_folder_mount(text) == mount


@pytest.mark.parametrize("text", ["data", "/data:mnt", "/a:/b:/c", ""])
def test_a_mount_needs_absolute_paths(text):
    with pytest.raises(UsageError, match="--volume"):
        container_run.parse_folder_mount(text)


def test_variables_are_passed_by_name_when_they_are_set():
    environ = {"HF_TOKEN": "x", "MY_OWN": "y", "HOME": "/root"}
    assert container_run.choose_variables(["MY_OWN"], environ) == ("HF_TOKEN", "MY_OWN")
    with pytest.raises(UsageError, match="no such variable"):
        container_run.choose_variables(["MISSING"], environ)
    with pytest.raises(UsageError, match="name the variable only") as error:
        container_run.choose_variables(["TOKEN=geheim"], environ)
    assert "geheim" not in str(error.value)


def test_a_written_command_runs_as_its_reader_with_the_cache_of_run(tmp_path):
    """The line of the pages is that of `run`, in which the shell puts ids, folder and the name of the volume."""
    line = container_run.written_command("docker", "knowngood:x", is_published=False)
    fake = tmp_path / "docker"
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    fake.chmod(0o755)
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "USER": "anna"}
    ended = subprocess.run(["sh", "-c", line], cwd=tmp_path, env=environ, capture_output=True, text=True, check=True)
    argv = ended.stdout.splitlines()
    ids = f"{os.getuid()}:{os.getgid()}"
    run = replace(
        RUN,
        program=("python", "train.py"),
        user=UserIds(user=os.getuid(), group=os.getgid(), name="anna"),
        folder=str(tmp_path),
        variables=(),
        is_checked=False,
    )
    assert argv == container_run.docker_run_arguments(run)
    assert values_of(argv, "--user") == [ids]
    assert len(set(run.volumes)) == 2
    podman = container_run.written_command("podman", "registry.example/x:1", is_published=True)
    assert podman.endswith("docker://registry.example/x:1 python train.py")
