from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from knowngood import atomic


def test_it_says_whether_the_content_changed(tmp_path):
    path = tmp_path / "deep" / "file"
    assert atomic.write_text(path, "one\n") is True
    before = path.stat().st_mtime_ns
    assert atomic.write_text(path, "one\n") is False
    assert path.stat().st_mtime_ns == before
    assert atomic.write_text(path, "two\n") is True
    assert path.read_text() == "two\n"


def test_other_line_ends_are_another_content(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"one\r\n")
    assert atomic.write_text(path, "one\n") is True
    assert path.read_bytes() == b"one\n"


def test_a_file_that_is_no_text_is_replaced(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"\xff\xfe")
    assert atomic.write_text(path, "é") is True
    assert path.read_bytes() == "é".encode()


def test_everybody_may_read_what_is_written(tmp_path):
    atomic.write_text(tmp_path / "file", "x")
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("failing", ["fsync", "rename"])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, failing, error):
    path = tmp_path / "file"
    path.write_text("old")

    def fail(*_args):
        raise error

    monkeypatch.setattr(*(("knowngood.atomic.os.fsync", fail) if failing == "fsync" else ("pathlib.Path.rename", fail)))
    with pytest.raises(type(error)):
        atomic.write_text(path, "new")
    assert path.read_text() == "old"
    assert [item.name for item in tmp_path.iterdir()] == ["file"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30, deadline=None)
@given(st.text(st.characters(codec="utf-8")))
def test_the_very_text_comes_back(tmp_path, text):
    atomic.write_text(tmp_path / "file", text)
    assert (tmp_path / "file").read_bytes() == text.encode()


def test_a_killed_writer_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    script = (
        "import os, signal, sys; from pathlib import Path; from knowngood import atomic\n"
        "atomic.os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)\n"
        "atomic.write_text(Path(sys.argv[1]), 'new')\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], check=False, env=os.environ)
    assert done.returncode == -signal.SIGKILL
    assert path.read_text() == "old"
