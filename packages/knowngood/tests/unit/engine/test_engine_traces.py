from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path

import pytest

from knowngood.cli import main
from knowngood.core.errors import KnowngoodError
from knowngood.engine import daemon, embedded_engine
from knowngood.engine.unpacked_engine import EnginePaths

DEAD, ALIVE, NEW = "knowngood-00000000dd", "knowngood-00000000aa", "knowngood-00000000ee"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine whose /run and cgroups are folders of the test."""
    run, groups = tmp_path / "run", tmp_path / "cgroup"
    run.mkdir()
    groups.mkdir()
    monkeypatch.setattr(embedded_engine, "SYSTEM_RUN", run)
    monkeypatch.setattr(embedded_engine, "CGROUPS", groups)
    return tmp_path


def add_engine(machine: Path, name: str, pid: int | None) -> EnginePaths:
    """Make the folder of an engine; its process is `pid`, with the right start time if it runs."""
    paths = EnginePaths(home=machine, run=machine / "run" / name)
    paths.run.mkdir()
    if pid is not None:
        started = daemon._read_start_time(pid) or 1
        paths.record.write_text(json.dumps({"pid": pid, "started": started}))
    return paths


def add_container_state(machine: Path, name: str, owner: str) -> Path:
    folder = machine / "run/runc" / name
    folder.mkdir(parents=True)
    groups = {"": f"/sys/fs/cgroup/unified/{owner}/buildkit/{name}", "cpu": f"/sys/fs/cgroup/cpu/{owner}/{name}"}
    (folder / "state.json").write_text(json.dumps({"cgroup_paths": groups}))
    return folder


def test_what_killed_engines_left_is_removed_and_what_others_have_is_not(machine):
    borrowed = machine / "run/docker"
    borrowed.mkdir()
    dead = add_engine(machine, DEAD, 4194305)
    dead.borrowed.write_text(json.dumps([str(borrowed)]))
    alive, new = add_engine(machine, ALIVE, os.getpid()), add_engine(machine, NEW, None)
    left = add_container_state(machine, "a", DEAD)
    kept = [add_container_state(machine, "b", ALIVE), add_container_state(machine, "c", "system.slice")]
    for name in (DEAD, ALIVE):
        (machine / "cgroup/memory" / name / "buildkit").mkdir(parents=True)
    gone = embedded_engine.remove_crash_traces()
    group = machine / "cgroup/memory" / DEAD
    assert gone == [str(dead.run), str(left)]  # its cgroups are among its traces
    assert not any(path.exists() for path in (dead.run, left, group, borrowed))
    assert all(path.exists() for path in (alive.run, new.run, *kept, machine / "cgroup/memory" / ALIVE / "buildkit"))
    assert embedded_engine.remove_crash_traces() == []


def test_the_folders_themselves_go_with_the_last_thing_in_them_when_no_engine_runs(machine):
    add_container_state(machine, "a", DEAD)
    embedded_engine.remove_crash_traces()
    assert not (machine / "run/runc").exists()
    assert (machine / "run").exists()


def test_a_folder_over_which_a_running_engine_has_its_own_stays(machine):
    add_engine(machine, ALIVE, os.getpid())
    add_container_state(machine, "a", DEAD)
    embedded_engine.remove_crash_traces()
    assert list((machine / "run/runc").iterdir()) == []


def test_a_folder_without_a_process_is_that_of_an_engine_that_starts_but_not_forever(machine):
    run = add_engine(machine, NEW, None).run
    assert embedded_engine.remove_crash_traces() == []
    os.utime(run, (1, 1))
    assert embedded_engine.remove_crash_traces() == [str(run)]


def test_an_engine_of_another_container_is_known_by_its_socket(machine, monkeypatch):
    paths = add_engine(machine, DEAD, 4194305)
    monkeypatch.chdir(paths.run)  # the path of a socket has at most 108 characters
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("docker.sock")
        server.listen()
        monkeypatch.setattr(embedded_engine, "_is_dead_socket", lambda _: False)
        assert embedded_engine.remove_crash_traces() == []


def test_only_sockets_at_which_nobody_listens_are_removed(machine, monkeypatch):
    folder = machine / "run/containerd/s"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    with socket.socket(socket.AF_UNIX) as dead, socket.socket(socket.AF_UNIX) as alive:
        dead.bind("dead")
        alive.bind("alive")
        alive.listen()
        dead.close()
        assert embedded_engine._is_dead_socket(Path("dead"))
        assert not embedded_engine._is_dead_socket(Path("alive"))
    (folder / "dead").unlink()
    Path("file").write_text("")
    assert not embedded_engine._is_dead_socket(Path("file"))


@pytest.mark.parametrize(
    ("state", "owner"),
    [
        ('{"cgroup_paths": {"": "/sys/fs/cgroup/knowngood-0123456789/buildkit/x"}}', "knowngood-0123456789"),
        ('{"cgroup_paths": {"": "/sys/fs/cgroup/system.slice/knowngood-0123456789.scope"}}', None),
        ('{"cgroup_paths": []}', None),
        ("[]", None),
        ("{", None),
    ],
)
def test_the_owner_of_a_container(state, owner):
    assert embedded_engine.name_state_owner(state) == owner


TABLE = """Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0001 01 756846 /run/knowngood-29cc5cf9f6/docker.sock
0000000000000000: 00000003 00000000 00000000 0001 03 756847 /run/knowngood-29cc5cf9f6/docker.sock
0000000000000000: 00000003 00000000 00000000 0001 03 756848 /run/knowngood-29cc5cf9f6/docker.sock
0000000000000000: 00000003 00000000 00000000 0001 03 756849 /run/knowngood-29cc5cf9f6/exec/containerd/containerd.sock
0000000000000000: 00000003 00000000 00000000 0001 03 756850 /run/knowngood-41bc0acabc/docker.sock
0000000000000000: 00000003 00000000 00000000 0001 03 756851
"""


def test_connections_are_counted_and_the_listener_is_none():
    assert embedded_engine.count_connected_clients(TABLE, "/run/knowngood-29cc5cf9f6/docker.sock") == 2
    assert embedded_engine.count_connected_clients(TABLE, "/run/other.sock") == 0


def test_an_engine_in_use_is_not_stopped_unless_forced(machine, monkeypatch, capsys):
    monkeypatch.setenv("KNOWNGOOD_CACHE", str(machine / "cache"))
    run = embedded_engine.engine_paths().run
    group = machine / "cgroup/memory" / run.name / "buildkit/step"
    group.mkdir(parents=True)
    (group / "cgroup.procs").write_text("4711\n")
    with pytest.raises(
        KnowngoodError, match=r"in use \(1 container or build step\): wait .* `knowngood engine down --fo"
    ):
        embedded_engine.check_engine_idle()
    assert main.main(["engine", "down"]) == 1
    (group / "cgroup.procs").write_text("")
    embedded_engine.check_engine_idle()
    (group / "cgroup.procs").write_text("4711\n")
    assert main.main(["engine", "down", "--force"]) == 0
    assert "in use" in capsys.readouterr().err
    assert main.main(["engine", "up", "--force"]) == 2


def test_a_daemon_gets_empty_folders_of_its_own(tmp_path):
    if os.geteuid() or subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode:
        pytest.skip("mounting needs root")
    private, seen = tmp_path / "private", tmp_path / "seen"
    private.mkdir()
    (private / "of-the-host").write_text("")
    script = f"ls -A {private} > {seen}; touch {private}/mine"
    env_program = Path("/usr/bin/env")
    process = daemon.start_daemon(
        ["sh", "-c", script],
        init=env_program,
        env=dict(os.environ),
        log=tmp_path / "log",
        record=tmp_path / "record",
        private=[str(private)],
    )
    assert process.wait(10)
    assert seen.read_text() == "", (tmp_path / "log").read_text()
    assert [path.name for path in private.iterdir()] == ["of-the-host"]
