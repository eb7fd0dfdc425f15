from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from knowngood.cli import main
from knowngood.core import local_files
from samples import ROOT


def test_an_atomic_write_returns_whether_the_content_changed(tmp_path):
    path = tmp_path / "deep" / "file"
    assert local_files.write_atomically(path, "one\n") is True
    before = path.stat().st_mtime_ns
    assert local_files.write_atomically(path, "one\n") is False
    assert path.stat().st_mtime_ns == before
    assert local_files.write_atomically(path, "two\n") is True
    assert path.read_text() == "two\n"


def test_other_line_ends_are_other_content(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"one\r\n")
    assert local_files.write_atomically(path, "one\n") is True
    assert path.read_bytes() == b"one\n"


def test_a_binary_file_is_replaced(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"\xff\xfe")
    assert local_files.write_atomically(path, "é") is True
    assert path.read_bytes() == "é".encode()


def test_everybody_may_read_a_written_file(tmp_path):
    local_files.write_atomically(tmp_path / "file", "x")
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("failing", ["fsync", "rename"])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, failing, error):
    path = tmp_path / "file"
    path.write_text("old")

    def fail(*_args):
        raise error

    monkeypatch.setattr(
        *(("knowngood.core.local_files.os.fsync", fail) if failing == "fsync" else ("pathlib.Path.rename", fail))
    )
    with pytest.raises(type(error)):
        local_files.write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [item.name for item in tmp_path.iterdir()] == ["file"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30, deadline=None)
@given(st.text(st.characters(codec="utf-8")))
def test_the_same_text_is_read_back(tmp_path, text):
    local_files.write_atomically(tmp_path / "file", text)
    assert (tmp_path / "file").read_bytes() == text.encode()


def test_a_killed_writer_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    script = (
        "import os, signal, sys; from pathlib import Path; from knowngood.core import local_files\n"
        "local_files.os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)\n"
        "local_files.write_atomically(Path(sys.argv[1]), 'new')\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], check=False, env=os.environ)
    assert done.returncode == -signal.SIGKILL
    assert path.read_text() == "old"


@pytest.fixture
def _fresh_data_folder():
    local_files.data_folder.cache_clear()
    yield
    local_files.data_folder.cache_clear()


@pytest.mark.usefixtures("_fresh_data_folder")
def test_in_a_checkout_the_data_folder_is_the_checkout():
    assert (local_files.data_folder() / "packages/knowngood-facts/facts" / "torch.json").exists()
    assert local_files.data_folder() == ROOT


@pytest.mark.usefixtures("_fresh_data_folder")
def test_an_installed_package_has_its_data_inside(monkeypatch, tmp_path):
    package = tmp_path / "site-packages" / "knowngood"
    package.mkdir(parents=True)
    monkeypatch.setattr(local_files, "_PACKAGE", package)
    monkeypatch.chdir(tmp_path)
    assert local_files.data_folder() == package / "_data"


@pytest.mark.usefixtures("_fresh_data_folder")
def test_a_folder_named_src_alone_is_not_a_checkout(monkeypatch, tmp_path):
    monkeypatch.setattr(local_files, "_PACKAGE", tmp_path / "src" / "knowngood")
    monkeypatch.chdir(tmp_path)
    assert local_files.data_folder() == tmp_path / "src" / "knowngood" / "_data"


SECRET_HOLDER = """
from knowngood.cli import main
from knowngood.core import local_files
with local_files.private_file("env", "export TOKEN=s3cret\\n") as path, local_files.scratch_folder() as folder:
    (folder / "big").write_text("x")
    print(path, flush=True)
    input()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the file is in a scratch folder")
def test_a_secret_is_read_by_other_processes_is_on_no_disk_and_ends_with_a_killed_process(tmp_path, monkeypatch):
    monkeypatch.setenv("KNOWNGOOD_CACHE", str(tmp_path))
    with subprocess.Popen(
        [sys.executable, "-c", SECRET_HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        path = holder.stdout.readline().strip()
        for _ in range(2):  # every reader starts at the beginning
            assert subprocess.check_output(["cat", path], text=True) == "export TOKEN=s3cret\n"
        local_files.remove_stale_scratch()
        (in_use,) = (tmp_path / "scratch").iterdir()
        assert not any(b"s3cret" in file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
        holder.kill()
    assert not os.path.lexists(path)
    assert in_use.exists()
    local_files.remove_stale_scratch()
    assert not in_use.exists()


def test_elsewhere_a_secret_is_a_file_that_only_the_user_can_read(tmp_path, monkeypatch):
    monkeypatch.setenv("KNOWNGOOD_CACHE", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "darwin")
    with local_files.private_file("env", "x") as path:
        assert path.read_text() == "x"
        assert path.stat().st_mode & 0o777 == 0o600
    assert not path.exists()


def test_every_command_removes_the_scratch_of_killed_processes(tmp_path, monkeypatch):
    monkeypatch.setenv("KNOWNGOOD_CACHE", str(tmp_path))
    (tmp_path / "scratch/left").mkdir(parents=True)
    assert main.main(["engine", "up", "--force"]) == 2
    assert not (tmp_path / "scratch/left").exists()


def test_without_a_cache_nothing_is_made(tmp_path, monkeypatch):
    monkeypatch.setenv("KNOWNGOOD_CACHE", str(tmp_path / "none"))
    local_files.remove_stale_scratch()
    assert not (tmp_path / "none").exists()
