import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import pytest

from knowngood.base import debian_host
from knowngood.core import local_files
from knowngood.core.errors import KnowngoodError, MissingError
from knowngood.engine import daemon, embedded_engine, unpacked_engine


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KNOWNGOOD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_cache_folder_follows_the_environment(monkeypatch):
    monkeypatch.setenv("KNOWNGOOD_CACHE", "/own")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert local_files.cache_folder() == Path("/own")
    monkeypatch.delenv("KNOWNGOOD_CACHE")
    assert local_files.cache_folder() == Path("/xdg/knowngood")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert local_files.cache_folder() == Path.home() / ".cache/knowngood"


def test_the_lock_of_a_folder_leaves_no_file_and_excludes(tmp_path):
    with local_files.lock_folder(tmp_path / "new"):
        code = f"import fcntl,os; fcntl.flock(os.open({str(tmp_path / 'new')!r}, 0), fcntl.LOCK_EX | fcntl.LOCK_NB)"
        other = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)
        assert b"BlockingIOError" in other.stderr
    assert not list((tmp_path / "new").iterdir())


def test_the_socket_is_short_however_long_the_cache_folder(tmp_path):
    at = unpacked_engine.engine_paths(tmp_path / ("x" * 200))
    assert len(str(at.run / "exec/containerd/containerd-debug.sock.ttrpc")) < 108
    assert at.run != unpacked_engine.engine_paths(tmp_path / "other").run


def test_the_configuration_makes_no_network_and_is_private(tmp_path):
    at = unpacked_engine.engine_paths(tmp_path)
    config = embedded_engine.daemon_configuration(at)
    assert config["bridge"] == "none"
    assert not any(config[key] for key in ("iptables", "ip6tables", "ip-masq", "ip-forward", "userland-proxy"))
    assert config["features"] == {"containerd-snapshotter": True}
    assert config["data-root"].startswith(str(tmp_path))
    assert all(config[key].startswith(str(at.run)) for key in ("exec-root", "pidfile"))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ((sys, "platform", "darwin"), "Linux only"),
        ((platform, "machine", lambda: "aarch64"), "this machine is aarch64"),
        ((os, "geteuid", lambda: 1000), "needs root"),
        ((debian_host, "detect_host", lambda: None), "no apt here"),
    ],
)
@pytest.mark.usefixtures("cache")
def test_a_machine_that_cannot_run_it_gets_a_reason_and_a_remedy(monkeypatch, change, told):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(
        debian_host, "detect_host", lambda: debian_host.DebianHost(distribution="debian", codename="bookworm")
    )
    assert embedded_engine.describe_obstacle() is None
    monkeypatch.setattr(*change)
    assert told in embedded_engine.describe_obstacle()
    assert "install Docker Engine" in embedded_engine.describe_obstacle()


def test_removal_without_an_embedded_engine(cache, monkeypatch, tmp_path):
    monkeypatch.setattr(embedded_engine, "SYSTEM_RUN", tmp_path / "run")
    monkeypatch.setattr(embedded_engine, "CGROUPS", tmp_path / "cgroup")
    said = []
    embedded_engine.remove_embedded_engine(said.append)
    assert said == ["there is no embedded engine"]
    assert not cache.exists()


def test_a_program_that_the_packages_lack_is_named(tmp_path):
    with pytest.raises(KnowngoodError, match="have no dockerd"):
        unpacked_engine.find_program("dockerd", tmp_path)


def test_runc_needs_its_libraries_on_the_host(tmp_path):
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/lib/x86_64-linux-gnu").mkdir(parents=True)
    for name in unpacked_engine.PROGRAMS:
        program = tmp_path / "usr/bin" / name
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    unpacked_engine._try_out(tmp_path)
    lacking = "echo error while loading shared libraries: libseccomp.so.2 >&2; exit 127"
    (tmp_path / "usr/bin/runc").write_text(f'#!/bin/sh\n[ "$LD_LIBRARY_PATH" ] || {{ {lacking}; }}\n')
    with pytest.raises(MissingError, match=r"libseccomp\.so\.2; runc needs that library in the system's own folders"):
        unpacked_engine._try_out(tmp_path)


def test_the_users_logins_are_linked_not_copied(tmp_path, monkeypatch):
    (tmp_path / "user").mkdir()
    (tmp_path / "user/config.json").write_text("{}")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "user"))
    at = unpacked_engine.engine_paths(tmp_path / "cache")
    for _ in range(2):
        unpacked_engine.configure_docker_client(at)
    assert (at.docker_config / "config.json").readlink() == tmp_path / "user/config.json"
    assert (at.docker_config / "cli-plugins/docker-buildx").readlink() == at.buildx


def test_stat_of_a_process_whose_name_has_brackets():
    text = "7 (a) b) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4711 2 3"
    assert daemon.parse_process_stat(text) == ("S", 4711)


def test_a_process_differs_from_a_later_one_with_the_same_id():
    child = subprocess.Popen(["sleep", "60"])
    process = daemon.DaemonProcess(pid=child.pid, started=daemon._read_start_time(child.pid))
    assert process.alive()
    assert not daemon.DaemonProcess(pid=child.pid, started=process.started - 1).alive()
    child.kill()
    time.sleep(0.1)
    assert not process.alive()  # a zombie is dead
    child.wait()


@pytest.mark.parametrize("text", ["", "{", '{"pid": 1}', '{"pid": 4194305, "started": 1}', "[]"])
def test_a_broken_or_stale_record_gives_no_process(tmp_path, text):
    (tmp_path / "record").write_text(text)
    assert daemon.load_process(tmp_path / "record") is None
