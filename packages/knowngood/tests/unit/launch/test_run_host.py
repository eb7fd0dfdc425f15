"""What a container gets of its machine: no limit is asked for that the engine may not raise."""

from __future__ import annotations

import os
import socket

import pytest

from knowngood.launch import run_host


@pytest.mark.parametrize(
    ("status", "raises"),
    [
        ("CapEff:\t000001ffffffffff\n", True),
        ("CapEff:\t00000000a80425fb\n", False),  # as docker gives it to a container
        ("", True),
        (None, True),
    ],
)
def test_an_engines_capabilities_are_those_of_the_process_behind_its_socket(monkeypatch, tmp_path, status, raises):
    monkeypatch.setattr(run_host, "PROCESSES", tmp_path)
    folder = tmp_path / str(os.getpid())
    folder.mkdir()
    if status is not None:
        (folder / "status").write_text(status)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        server.listen()
        assert run_host._may_raise_limits(f"unix://{tmp_path}/s") is raises


@pytest.mark.parametrize("host", ["unix:///nowhere/docker.sock", "ssh://me@host.example", "tcp://10.0.0.1:2376"])
def test_an_engine_that_cannot_be_seen_counts_as_able(host):
    assert run_host._may_raise_limits(host)
