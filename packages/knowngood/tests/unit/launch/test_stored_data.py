"""What can be pruned, what it takes, and what stays."""

from __future__ import annotations

import contextlib
import json
import os
from types import SimpleNamespace

import pytest
from docker.errors import APIError

from knowngood.cli import main
from knowngood.core.errors import UsageError
from knowngood.core.local_files import cache_folder
from knowngood.engine import container_engine
from knowngood.launch import run_guard, stored_data
from knowngood.launch.stored_data import StoredKind

CELL = "sm90-x"
CACHE = f"knowngood-cache-{os.getuid()}-0123456789abcdef"
DOWNLOADS = f"knowngood-downloads-{os.getuid()}-0123456789abcdef"
USAGE = {
    "Images": [
        {"RepoTags": [f"knowngood:{CELL}"], "Size": 8_000, "SharedSize": 8_000, "Labels": {}, "Containers": 0},
        {
            "RepoTags": ["knowngood-with:one"],
            "Size": 8_300,
            "SharedSize": 5_000,
            "Labels": {"io.knowngood.with": CELL},
            "Containers": 0,
        },
        {
            "RepoTags": ["knowngood-with:two"],
            "Size": 8_400,
            "SharedSize": 8_100,
            "Labels": {"io.knowngood.with": "sm80-gone"},
            "Containers": 1,
        },
        {"RepoTags": ["debian:12"], "Size": 99, "Labels": None},
        {"RepoTags": ["knowngood-with:foreign"], "Size": 99, "Labels": {}},
    ],
    "Volumes": [
        {"Name": CACHE, "UsageData": {"RefCount": 0, "Size": 30}},
        {"Name": DOWNLOADS, "UsageData": {"RefCount": 0, "Size": 40}},
        {"Name": "knowngood-cache-4711-0123456789abcdef", "UsageData": {"RefCount": 0, "Size": 70}},
        {"Name": "postgres", "UsageData": {"RefCount": 0, "Size": 70}},
    ],
    "BuildCache": [{"Size": 10, "InUse": False}, {"Size": 7, "InUse": True}],
}


class FakeClient:
    """An engine's client that notes what is removed."""

    def __init__(self) -> None:
        self.removed = []
        self.volumes = SimpleNamespace(get=lambda name: SimpleNamespace(remove=lambda: self.removed.append(name)))
        self.images = SimpleNamespace(remove=self.removed.append)
        self.api = SimpleNamespace(prune_builds=lambda **_: {"SpaceReclaimed": 9})

    def df(self):
        return USAGE


@pytest.fixture
def client(monkeypatch):
    fake = FakeClient()
    monkeypatch.setattr(container_engine, "docker_client", lambda _: contextlib.nullcontext(fake))
    return fake


@pytest.fixture
def engine(client, monkeypatch):  # noqa: ARG001 - its client is that one
    engine = SimpleNamespace(embedded=True)
    monkeypatch.setattr(container_engine, "find_running_engine", lambda **_: engine)
    return engine


def listed(engine):
    return {item.name: item for item in stored_data.list_stored_items(engine, os.getuid())}


def test_only_what_is_ours_and_can_be_made_again_is_listed(engine):
    (cache_folder() / "logs").mkdir(parents=True)
    (cache_folder() / "logs" / "log").write_text("12345")
    (cache_folder() / "wheelhouse").mkdir()
    (cache_folder() / "wheelhouse" / "x.whl").write_text("ninety minutes")
    items = listed(engine)
    sizes = {name: item.size for name, item in items.items()}
    assert sizes == {
        "knowngood-with:one": 300,
        "knowngood-with:two": 300,
        CACHE: 30,
        DOWNLOADS: 40,
        "of the embedded engine": 10,
        "logs": 5,
    }
    assert items["knowngood-with:two"].in_use


def test_the_build_cache_of_an_engine_that_others_use_is_not_touched(engine):
    engine.embedded = False
    assert StoredKind.BUILD_CACHE not in {item.kind for item in listed(engine).values()}


@pytest.mark.usefixtures("engine")
def test_nothing_is_removed_without_yes(client, capsys):
    assert main.main(["engine", "prune"]) == 0
    assert "--yes frees at most 380 B" in capsys.readouterr().out
    assert client.removed == []


@pytest.mark.usefixtures("engine")
def test_yes_removes_all_but_what_is_in_use(client, capsys):
    (cache_folder() / "added").mkdir(parents=True)
    (cache_folder() / "added" / "x.json").write_text("[]")
    assert main.main(["engine", "prune", "--yes", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert client.removed == ["knowngood-with:one", CACHE, DOWNLOADS]
    assert not (cache_folder() / "added").exists()
    assert document["bytes"] == 300 + 70 + 9 + 2
    assert [item["name"] for item in document["items"] if item["problem"] == "in use"] == ["knowngood-with:two"]


@pytest.mark.usefixtures("engine")
def test_a_kind_can_be_named(client):
    assert main.main(["engine", "prune", "volumes", "--yes"]) == 0
    assert client.removed == [CACHE, DOWNLOADS]
    with pytest.raises(UsageError, match="there is no 'wheels' to prune; there are images, volumes"):
        stored_data.parse_stored_kinds(["wheels"])


@pytest.mark.usefixtures("engine")
def test_a_refusal_of_the_engine_is_told_and_the_rest_goes_on(client, capsys):
    def refuse(_):
        raise APIError("conflict", explanation="a container uses it")

    client.images.remove = refuse
    assert main.main(["engine", "prune", "--yes", "--json"]) == 1
    items = {item["name"]: item for item in json.loads(capsys.readouterr().out)["items"]}
    assert items["knowngood-with:one"]["problem"] == "a container uses it"
    assert items[CACHE]["removed"]


def test_without_an_engine_only_files_are_listed(monkeypatch, capsys):
    monkeypatch.setattr(container_engine, "find_running_engine", lambda **_: None)
    assert main.main(["engine", "prune"]) == 0
    assert "no engine runs" in capsys.readouterr().out


def test_containers_of_killed_runs_can_be_removed(client, engine, monkeypatch):
    boot, space, _, start = run_guard.describe_client().split()
    labels = {"io.knowngood.run": str(os.getuid()), "io.knowngood.run.client": f"{boot} {space} 999999999 {start}"}
    alive = {**labels, "io.knowngood.run.client": run_guard.describe_client()}
    containers = [
        {"Names": ["/left"], "SizeRw": 12, "Labels": labels},
        {"Names": ["/alive"], "Labels": alive},
        {"Names": ["/foreign"], "Labels": {**labels, "io.knowngood.run": "4711"}},
        {"Names": ["/other"], "Labels": None},
    ]
    monkeypatch.setitem(USAGE, "Containers", containers)
    monkeypatch.setattr(
        client,
        "containers",
        SimpleNamespace(get=lambda name: SimpleNamespace(remove=lambda **_: client.removed.append(name))),
        raising=False,
    )
    items = [item for item in stored_data.list_stored_items(engine, os.getuid()) if item.name == "left"]
    assert [(item.kind, item.size) for item in items] == [(StoredKind.CONTAINERS, 12)]
    assert not {"alive", "foreign", "other"} & listed(engine).keys()
    assert all(stored_data.remove_stored_item(engine, item).removed for item in items)
    assert client.removed == ["left"]


def test_toolkits_are_a_kind_of_their_own():
    (cache_folder() / "toolkits").mkdir(parents=True)
    (cache_folder() / "toolkits" / "nvcc").write_text("12345")
    [item] = [item for item in stored_data.list_stored_items(None, os.getuid()) if item.kind is StoredKind.TOOLKITS]
    assert (item.name, item.size) == ("toolkits", 5)
    assert stored_data.remove_stored_item(None, item).removed
    assert not (cache_folder() / "toolkits").exists()
