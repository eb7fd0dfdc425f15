"""What a container gets of its machine: no limit is asked for that the engine may not raise."""

from __future__ import annotations

import contextlib
import os
import socket
from types import SimpleNamespace

import pytest

from knowngood.engine import container_engine
from knowngood.engine.container_engine import Engine
from knowngood.launch import run_host
from knowngood.launch.container_run import RunNetwork


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


@pytest.mark.skipif(os.getuid() != 0, reason="only root starts programs as others")
def test_what_root_starts_in_the_folder_of_another_user_runs_as_its_owner(tmp_path):
    assert run_host.read_user_ids(str(tmp_path)).user == 0
    os.chown(tmp_path, 4711, 4712)
    user = run_host.read_user_ids(str(tmp_path))
    assert (user.user, user.group, user.groups, user.name, user.started_by_root) == (4711, 4712, (), "4711", True)


@pytest.mark.parametrize(
    ("networks", "network"),
    [
        (["bridge", "host", "none"], RunNetwork.BRIDGE),
        (["bridge-of-mine", "host", "none"], RunNetwork.HOST),
        (["host", "none"], RunNetwork.HOST),  # as the embedded engine has them
    ],
)
def test_a_network_of_its_own_is_given_where_the_engine_has_a_bridge(monkeypatch, networks, network):
    client = SimpleNamespace(api=SimpleNamespace(networks=lambda **_: [{"Name": name} for name in networks]))
    monkeypatch.setattr(container_engine, "docker_client", lambda _: contextlib.nullcontext(client))
    engine = Engine(
        host="unix:///nowhere/x.sock", docker=(), env={}, version="28", buildkit="", containerd_store=True,
        embedded=False, network="default",
    )  # fmt: skip
    assert run_host._choose_network(engine) is network
    assert run_host._choose_network(None) is RunNetwork.BRIDGE
