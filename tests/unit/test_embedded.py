import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import pytest

from knowngood import paths
from knowngood.engines import daemon, embedded, unpacked
from knowngood.errors import KnowngoodError, MissingError
from knowngood.system import debian


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KNOWNGOOD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_cache_folder_follows_the_environment(monkeypatch):
    monkeypatch.setenv("KNOWNGOOD_CACHE", "/own")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert paths.cache_dir() == Path("/own")
    monkeypatch.delenv("KNOWNGOOD_CACHE")
    assert paths.cache_dir() == Path("/xdg/knowngood")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert paths.cache_dir() == Path.home() / ".cache/knowngood"


def test_the_lock_of_a_folder_leaves_no_file_and_excludes(tmp_path):
    with paths.locked(tmp_path / "new"):
        code = f"import fcntl,os; fcntl.flock(os.open({str(tmp_path / 'new')!r}, 0), fcntl.LOCK_EX | fcntl.LOCK_NB)"
        other = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)
        assert b"BlockingIOError" in other.stderr
    assert not list((tmp_path / "new").iterdir())


def test_the_socket_is_short_however_long_the_cache_folder(tmp_path):
    at = unpacked.places(tmp_path / ("x" * 200))
    assert len(str(at.run / "exec/containerd/containerd-debug.sock.ttrpc")) < 108
    assert at.run != unpacked.places(tmp_path / "other").run


def test_the_configuration_makes_no_network_and_is_private(tmp_path):
    at = unpacked.places(tmp_path)
    config = embedded.configuration(at)
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
        ((debian, "this_host", lambda: None), "no apt here"),
    ],
)
@pytest.mark.usefixtures("cache")
def test_a_machine_that_cannot_run_it_is_told_why_and_what_to_do(monkeypatch, change, told):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(debian, "this_host", lambda: debian.Host(distribution="debian", codename="bookworm"))
    assert embedded.unsuitable() is None
    monkeypatch.setattr(*change)
    assert told in embedded.unsuitable()
    assert "install Docker Engine" in embedded.unsuitable()


def test_nothing_there_is_a_status_and_down_is_no_error(cache):
    assert not embedded.status().running
    assert not embedded.status().unpacked
    said = []
    embedded.down(said.append)
    assert said == ["there is no embedded engine"]
    assert not cache.exists()


def test_a_program_that_the_packages_lack_is_named(tmp_path):
    with pytest.raises(KnowngoodError, match="have no dockerd"):
        unpacked.which("dockerd", tmp_path)


def test_a_library_that_only_the_packages_have_is_not_enough_for_what_runs_containers(tmp_path):
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/lib/x86_64-linux-gnu").mkdir(parents=True)
    for name in unpacked.PROGRAMS:
        program = tmp_path / "usr/bin" / name
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    unpacked._try_out(tmp_path)
    lacking = "echo error while loading shared libraries: libseccomp.so.2 >&2; exit 127"
    (tmp_path / "usr/bin/runc").write_text(f'#!/bin/sh\n[ "$LD_LIBRARY_PATH" ] || {{ {lacking}; }}\n')
    with pytest.raises(MissingError, match=r"libseccomp\.so\.2; runc needs that library in the system's own folders"):
        unpacked._try_out(tmp_path)


def test_the_users_logins_are_linked_not_copied(tmp_path, monkeypatch):
    (tmp_path / "user").mkdir()
    (tmp_path / "user/config.json").write_text("{}")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "user"))
    at = unpacked.places(tmp_path / "cache")
    for _ in range(2):
        unpacked.configure_client(at)
    assert (at.docker_config / "config.json").readlink() == tmp_path / "user/config.json"
    assert (at.docker_config / "cli-plugins/docker-buildx").readlink() == at.buildx


def test_stat_of_a_process_whose_name_has_brackets():
    text = "7 (a) b) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4711 2 3"
    assert daemon.parse_stat(text) == ("S", 4711)


def test_a_process_is_told_from_a_later_one_with_its_id():
    child = subprocess.Popen(["sleep", "60"])
    process = daemon.Process(pid=child.pid, started=daemon._started(child.pid))
    assert process.alive()
    assert not daemon.Process(pid=child.pid, started=process.started - 1).alive()
    child.kill()
    time.sleep(0.1)
    assert not process.alive()  # a zombie is dead
    child.wait()


@pytest.mark.parametrize("text", ["", "{", '{"pid": 1}', '{"pid": 4194305, "started": 1}', "[]"])
def test_a_broken_or_stale_record_is_no_process(tmp_path, text):
    (tmp_path / "record").write_text(text)
    assert daemon.load(tmp_path / "record") is None
