"""Two users of one engine, each with jobs of their own: what one finds there of the other stays."""

from __future__ import annotations

import contextlib

import pytest

from knowngood.executors.local_workers import ContainerWorker

KEY = "a" * 24


@pytest.fixture
def client(engine):
    with contextlib.closing(engine.client()) as client:
        yield client


@pytest.fixture
def created(client, scratch, tmp_path):
    """A container that was not started for each of two users, by the folder of the user's jobs."""
    made = {}
    for name in ("own", "other"):
        labels = {"io.knowngood.job": KEY, "io.knowngood.job.folder": str(tmp_path / name)}
        made[tmp_path / name] = client.containers.create(scratch.image, ["none"], labels=labels)
    yield made
    for container in client.containers.list(all=True, filters={"label": f"io.knowngood.job={KEY}"}):
        container.remove(force=True)


def left(client) -> set[str]:
    listed = client.containers.list(all=True, filters={"label": f"io.knowngood.job={KEY}"})
    return {container.labels["io.knowngood.job.folder"] for container in listed}


def test_only_ones_own_containers_are_taken_away(client, created, engine):
    own, other = created
    assert ContainerWorker(engine, own).running_jobs() == {}
    assert left(client) == {str(other)}
    ContainerWorker(engine, own).stop_job(KEY)
    assert left(client) == {str(other)}
    ContainerWorker(engine, other).stop_job(KEY)
    assert left(client) == set()
