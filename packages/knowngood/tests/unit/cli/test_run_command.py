"""`knowngood run`: its words, what it prints, its exit codes, and how it becomes the program."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from types import SimpleNamespace

import pytest

from knowngood.cli import main
from knowngood.engine import container_engine, probe_gpus
from knowngood.engine.container_engine import Engine
from knowngood.engine.probe_gpus import GpuState, NvidiaState
from knowngood.launch import (
    added_packages,
    container_run,
    derived_image,
    image_access,
    run_guard,
    run_host,
)
from knowngood.launch.added_packages import AddedPackage
from knowngood.launch.container_run import GpuAccess
from knowngood.launch.image_access import RunnableImage

ENGINE = Engine(
    host="unix:///run/x.sock",
    docker=("/usr/bin/docker", "--host", "unix:///run/x.sock"),
    env={"DOCKER_CONFIG": "/x"},
    version="28",
    buildkit="0.20",
    containerd_store=True,
    embedded=False,
    network="default",
)


class StartError(BaseException):
    """Raised in place of becoming another program."""


@pytest.fixture
def starts(monkeypatch, tmp_path):
    """A machine without a GPU, an engine with every image; gives the program's words and environment."""
    # A program that would begin here has these by default; the next test's closed pipe would kill this process.
    handlers = {number: signal.getsignal(number) for number in (signal.SIGPIPE, signal.SIGXFSZ)}
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    monkeypatch.setattr(probe_gpus, "read_nvidia_state", lambda: NvidiaState(problem="no library"))
    monkeypatch.setattr(container_engine, "find_running_engine", lambda **_: ENGINE)
    image = RunnableImage(name="knowngood:x", digest="sha256:1", origin="in the engine")
    monkeypatch.setattr(image_access, "find_recorded_image", lambda *_: image)
    calls = []

    def become(path, argv, environ):
        calls.append((path, argv, environ))
        raise StartError

    monkeypatch.setattr("os.execvpe", become)
    networks = SimpleNamespace(networks=lambda **_: [{"Name": "bridge"}], images=lambda **_: [])
    client = SimpleNamespace(containers=SimpleNamespace(list=lambda **_: []), api=networks)
    monkeypatch.setattr(container_engine, "docker_client", lambda _: contextlib.nullcontext(client))
    monkeypatch.setattr(run_guard, "start_watcher", lambda remove, _: calls.append(remove))
    yield calls
    for number, handler in handlers.items():
        signal.signal(number, handler)


def start(*words):
    with pytest.raises(StartError):
        main.main(["run", *words])


def test_it_becomes_docker_with_the_program(starts, capsys):
    start("--gpu", "H100", "--", "python", "train.py", "--json", "--gpu", "9" * 200, "--")
    assert signal.getsignal(signal.SIGPIPE) is signal.SIG_DFL
    [remove, (path, argv, environ)] = starts
    assert remove[:-1] == [*ENGINE.docker, "rm", "--force", "--volumes"]
    assert argv[argv.index("--name") + 1] == remove[-1]
    assert f" {os.getpid()} " in argv[argv.index("--name") - 1]
    assert path == "/usr/bin/docker"
    assert argv[:4] == [*ENGINE.docker, "run"]
    assert argv[-7] == "knowngood:x"
    assert argv[-6:] == ["python", "train.py", "--json", "--gpu", "9" * 200, "--"]
    assert environ["DOCKER_CONFIG"] == "/x"
    out, err = capsys.readouterr()
    assert out == ""
    assert "no GPU here (no library): the program runs on the CPU" in err


def test_what_fails_before_the_program_is_125(starts, capsys):
    for words, message in (
        (["run"], "name the program after --"),
        (["run", "default", "python", "x.py"], "write -- before the program: knowngood run ... -- python x.py"),
        (["run", "nonsense", "--", "python"], "'nonsense' selects no cell"),
        (["run", "--gpu", "Banana", "--", "python"], "there is no GPU 'Banana'"),
        (["run", "--env", "NOT_SET_HERE", "--", "python"], "--env NOT_SET_HERE"),
        (["run", "--json", "--", "python"], "--json is only for --print"),
    ):
        assert main.main(words) == 125
        assert message in capsys.readouterr().err
    assert starts == []


def test_a_defect_before_the_program_is_125_too(starts, monkeypatch, capsys):
    def fail():
        raise ZeroDivisionError

    monkeypatch.setattr(probe_gpus, "read_nvidia_state", fail)
    assert main.main(["run", "--", "python"]) == 125
    assert "ZeroDivisionError" in capsys.readouterr().err
    assert starts == []


def test_print_has_the_usual_exit_codes_and_runs_nothing(starts, capsys):
    assert main.main(["run", "--print", "--gpu", "Banana", "--", "python"]) == 2
    assert main.main(["run", "--print", "--gpu", "H100", "--", "python", "train.py"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[1].startswith("knowngood build sm90-")
    assert out[2::2] == ["# docker", "# podman", "# apptainer"]
    assert all(line.endswith("python train.py") for line in out[3::2])
    assert main.main(["run", "--print", "default", "--", "python"]) == 0
    out, err = capsys.readouterr()
    assert "--gpus" not in out
    assert "the program runs on the CPU" in err
    assert starts == []


def test_print_json_names_variables_and_not_their_values(starts, capsys, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "geheim")
    assert main.main(["run", "--print", "--json", "--gpu", "H100", "--", "python"]) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert document["variables"] == ["WANDB_API_KEY"]
    assert document["gpus"] == "runtime"
    assert "--gpus all" in document["commands"]["docker"]
    assert "no GPU here: the commands are for a machine with H100" in err
    assert set(document["commands"]) == {"docker", "podman", "apptainer"}
    assert "geheim" not in out + err
    assert starts == []


@pytest.mark.whole
def test_the_doctors_lines_about_the_card_come_first(starts, capsys, monkeypatch):
    gpu = GpuState(index=0, name="NVIDIA H100", sm="sm_90", memory=80 << 30, used=0, ecc_errors=3)
    nvidia = NvidiaState(driver="580.95.05", gpus=(gpu,), loaded=True)
    monkeypatch.setattr(probe_gpus, "read_nvidia_state", lambda: nvidia)
    monkeypatch.setattr(run_host, "_choose_gpu_access", lambda *_: GpuAccess.CDI)
    start("--", "python")
    err = capsys.readouterr().err
    assert "bad  GPU 0  NVIDIA H100" in err
    assert "3 uncorrected memory errors" in err
    assert "NVIDIA driver  580.95.05" in err
    assert "nvidia.com/gpu=all" in starts[1][1]


@pytest.mark.parametrize("folder", ["/"])
def test_the_root_folder_is_not_mounted(starts, monkeypatch, capsys, folder):
    monkeypatch.chdir(folder)
    assert main.main(["run", "--", "python"]) == 125
    assert "the working folder is /" in capsys.readouterr().err
    assert starts == []


def test_added_packages_give_the_program_a_derived_image(starts, monkeypatch, tmp_path, capsys):
    trl = AddedPackage(name="trl", version="1.15.0", sha256="a" * 64)
    wanted = []

    def resolve(_matrix, _lock, words):
        wanted.append(words)
        return (trl,)

    monkeypatch.setattr(added_packages, "resolve_added_packages", resolve)
    monkeypatch.setattr(container_engine, "ensure_engine", lambda **_: ENGINE)
    monkeypatch.setattr(
        derived_image,
        "make_derived_image",
        lambda _project, derived, *_: RunnableImage(name=derived.name, digest="sha256:2", origin="built here"),
    )
    (tmp_path / "requirements.txt").write_text("datasets\n")
    (tmp_path / "train.py").touch()
    start("--with", "trl==1.15", "--", "python", "train.py")
    start("--with", "trl==1.15", "--no-requirements", "--", "python", "train.py")
    assert wanted == [("trl==1.15", "datasets"), ("trl==1.15",)]
    assert starts[1][1][-3].startswith("knowngood-with:")
    assert "added for requirements.txt: trl 1.15.0" in capsys.readouterr().err
    assert main.main(["run", "--print", "--with", "trl==1.15", "--", "python"]) == 0
    out, err = capsys.readouterr()
    assert "docker-daemon:knowngood-with:" in out
    assert "is made when the program is run without --print" in err


def test_the_dev_variant_adds_build_tools_that_the_cell_lacks(starts, monkeypatch, capsys):
    wanted = []
    monkeypatch.setattr(
        added_packages, "resolve_added_packages", lambda _matrix, _lock, words: wanted.append(words) or ()
    )
    monkeypatch.setattr(container_engine, "ensure_engine", lambda **_: ENGINE)
    monkeypatch.setattr(
        derived_image,
        "make_derived_image",
        lambda _project, derived, *_: RunnableImage(name=derived.name, digest="sha256:2", origin="built here"),
    )
    start("--dev", "default", "--", "nvcc", "--version")
    assert starts[1][1][-3].startswith("knowngood-with:")
    assert "ninja" in wanted[0]
    assert not any(word.startswith("setuptools") for word in wanted[0])  # the cell has one, by its lock
    assert main.main(["run", "--print", "--json", "--dev", "default", "--", "nvcc"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["image"].startswith("knowngood-with:")
    assert "added for --dev: nothing, the cell has it all" in err


def test_a_trainer_that_a_stack_has_gives_the_program_the_image_of_the_stack(starts, monkeypatch, capsys):
    monkeypatch.setattr(
        "knowngood.lock.resolver.resolve_distributions", lambda *_: pytest.fail("nothing is to resolve")
    )
    assert main.main(["run", "--print", "--json", "--with", "trl>=1.16", "--with", "datasets", "--", "python"]) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert document["cell"] == "sm90-cu130-torch2.11.0-tf5.17.0-fa4.0.0b33-triton3.6.0-py311-trl1.16.0"
    assert document["image"] == f"knowngood:{document['cell']}"
    assert document["because"].endswith(", with trl 1.16.0")
    assert "added for --with: nothing, the cell has it all" in err
    assert starts == []


def test_the_network_of_the_machine_is_given_by_wish(starts, capsys):
    start("--gpu", "H100", "--network", "host", "--", "true")
    start("--gpu", "H100", "--", "true")
    assert [
        calls[1][calls[1].index("--network") + 1] if "--network" in calls[1] else None for calls in starts[1::2]
    ] == [
        "host",
        None,
    ]
    assert "has no bridge" not in capsys.readouterr().err
    assert main.main(["run", "--network", "mine", "--", "true"]) == 125


def test_what_cannot_be_is_said_before_an_engine_is_fetched(starts, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(container_engine, "find_running_engine", lambda **_: None)
    monkeypatch.setattr(container_engine, "ensure_engine", lambda **_: pytest.fail("an engine was fetched"))
    monkeypatch.setenv("KNOWNGOOD_WHEELHOUSE", str(tmp_path))
    for words, message in (
        (["--", "python", "missing.py"], "there is no .*/missing.py"),
        (["--", "torchrun", "--nproc-per-node", "2", "missing.py", "train.py"], "there is no .*/missing.py"),
        (["--", "python", f"{container_run.WORK_FOLDER}/missing.py"], "there is no .*/missing.py"),
        (["--", "./missing.py"], "there is no .*/missing.py"),
        (
            ["--gpu", "RTX 4090", "--attn", "fa2", "--", "python"],
            r"must be compiled \(about \d+ minutes on \d+ cores\)",
        ),
    ):
        assert main.main(["run", *words]) == 125
        assert re.search(message, capsys.readouterr().err)
    assert starts == []


@pytest.mark.parametrize(
    "program",
    [["python", "-m", "pkg", "new.py"], ["touch", "new.py"], ["python", "-c", "x", "new.py"], ["python", "/opt/x.py"]],
)
def test_a_file_that_is_no_script_of_this_machine_is_not_looked_for(starts, program):
    start("--", *program)
    assert starts


@pytest.mark.usefixtures("starts")
def test_print_says_what_gets_an_image_whose_wheel_is_nowhere(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("KNOWNGOOD_WHEELHOUSE", str(tmp_path))
    assert main.main(["run", "--print", "--json", "--gpu", "RTX 4090", "--attn", "fa2", "--", "python"]) == 0
    document = json.loads(capsys.readouterr().out)
    cell = document["cell"]
    assert document["first"] == [f"knowngood compile {cell}", f"knowngood build {cell}"]
    assert document["cost"]["compile"][0]["package"] == "flash-attn"


@pytest.mark.usefixtures("starts")
def test_a_cell_that_what_is_wanted_does_not_go_with_gives_way_to_the_next(monkeypatch, capsys):
    old = "sm70-cu128-torch2.10.0-tf4.57.6-fa0-triton3.6.0-py311"

    def resolve(_matrix, lock, _words):
        if str(lock.cell) == old:
            raise added_packages.UnfitCellError("the newest trl that goes with it is 0.11.4")
        return (AddedPackage(name="trl", version="1.16.0", sha256="a" * 64),)

    monkeypatch.setattr(added_packages, "resolve_added_packages", resolve)
    assert main.main(["run", "--print", "--json", "--gpu", "V100", "--with", "trl", "--", "python"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["cell"] == f"{old}-deepspeed0.19.8"
    assert "passed over: the newest trl that goes with it is 0.11.4" in err
    monkeypatch.setattr(
        added_packages, "resolve_added_packages", lambda *_: resolve(None, SimpleNamespace(cell=old), None)
    )
    assert main.main(["run", "--print", "--gpu", "V100", "--with", "trl", "--", "python"]) == 1
    assert "no cell of matrix.yaml can be had for this:\nthe newest trl" in capsys.readouterr().err


@pytest.mark.whole
@pytest.mark.usefixtures("starts")
def test_packages_that_nothing_is_known_of_take_one_line(monkeypatch, capsys):
    names = ["jupyterlab", *(f"part{number}" for number in range(40))]
    added = tuple(AddedPackage(name=name, version="1.0", sha256="0" * 64) for name in names)
    monkeypatch.setattr(added_packages, "resolve_added_packages", lambda *_: added[::-1])
    assert main.main(["run", "--print", "--json", "--with", "JupyterLab", "default", "--", "jupyter", "lab"]) == 0
    out, err = capsys.readouterr()
    assert (
        "added for --with: jupyterlab 1.0, part39 1.0, part38 1.0, part37 1.0, part36 1.0, part35 1.0 and 35 more"
        in err
    )
    assert len(json.loads(out)["added"]) == 41
    (line,) = [line for line in err.splitlines() if "nothing is known of these releases" in line]
    assert line.endswith("more")
    assert "[unknown:" not in err
