"""What goes wrong in mid-build, on a private engine: it dies, the disk is full. The next run goes on."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import threading
import time
from dataclasses import replace

import pytest

from conftest import ROOT
from knowngood.base import base_image
from knowngood.core import local_files
from knowngood.core.errors import MissingError
from knowngood.engine import container_engine as engines
from knowngood.engine import daemon, embedded_engine, image_store, unpacked_engine
from knowngood.images import build_command, image_build
from knowngood.project.checkout import Project

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(bool(embedded_engine.describe_obstacle()), reason=str(embedded_engine.describe_obstacle())),
]


@pytest.fixture(scope="module")
def base():
    """The build context of the default cell's base, from the cache that the other tests use."""
    here = Project(ROOT)
    return base_image.prepare_base(here, "debian12", locked=True, notify=print)


@pytest.fixture(scope="module")
def private(base, tmp_path_factory):  # noqa: ARG001  # out of the shared cache, before this one hides it
    """An engine with a small disk of its own."""
    cache = tmp_path_factory.mktemp("cache")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1700m", "knowngood-test", cache], check=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KNOWNGOOD_CACHE", str(cache))
        patch.setenv("DOCKER_HOST", f"unix://{cache}/none.sock")
        try:
            yield engines.ensure_engine(notify=print)
        finally:
            embedded_engine.remove_embedded_engine(print)
            subprocess.run(["umount", cache], check=True)


def plan(folder, base, *steps):
    """An image of the base and some steps."""
    context = folder / "context"
    context.mkdir(exist_ok=True)
    (context / "Dockerfile").write_text("\n".join(["FROM base", *(f"RUN {step}" for step in steps)]) + "\n")
    return build_command.BuildPlan(
        tag="knowngood-test:faults",
        dockerfile=context / "Dockerfile",
        context=context,
        contexts={"base": base},
        inputs=f"{folder.name} {steps}",
    )


def layers_plan(folder, base, count, last="true"):
    """Return a plan of many layers, each of which says that it is made, and of a last step on top of them."""
    whole = plan(folder, base)
    stages = [
        f"FROM base AS layer-{i}\nRUN : {folder.name}; sleep 1; echo made layer-{i} | tee /layer-{i}"
        for i in range(count)
    ]
    copies = [f"COPY --link --from=layer-{i} /layer-{i} /" for i in range(count)]
    text = "\n".join([*stages, "FROM base", *copies, f"RUN {last}"]) + "\n"
    whole.dockerfile.write_text(text)
    return replace(whole, inputs=text)


def layers_made(log):
    """Return the layers whose step ran, and those whose step ended, by a log of BuildKit; `CACHED` is neither."""
    text = log.read_text()
    numbers = dict(re.findall(r"^#(\d+) \[(layer-\d+) \d/\d\] RUN", text, re.MULTILINE))
    made = set(re.findall(r"^#\d+ [\d.]+ made (layer-\d+)$", text, re.MULTILINE))
    ended = {numbers[number] for number in re.findall(r"^#(\d+) DONE", text, re.MULTILINE) if number in numbers}
    return made, ended


def test_layers_that_were_finished_before_a_kill_are_not_made_again(private, base, tmp_path):
    log = tmp_path / "log"
    slots = embedded_engine.choose_slot_count()
    whole = layers_plan(tmp_path, base, 3 * slots)
    finished: set[str] = set()

    def kill() -> None:
        deadline = time.monotonic() + 120
        while len(finished) < slots and time.monotonic() < deadline:
            time.sleep(0.05)
            if log.exists():
                finished.update(layers_made(log)[1])
        os.kill(daemon.load_process(unpacked_engine.engine_paths().record).pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(MissingError, match="the engine stopped answering"):
        image_build.build_image(whole, private, log=log, notify=print)
    killer.join()
    assert slots <= len(finished) < 3 * slots
    again = engines.ensure_engine(notify=print)
    assert image_build.build_image(whole, again, log=log, notify=print).built
    made, _ = layers_made(log)
    assert made
    assert not made & finished


def test_a_full_disk_is_said_and_the_next_build_goes_on(private, base, tmp_path):
    log = tmp_path / "log"
    private = engines.ensure_engine(notify=print)
    with pytest.raises(MissingError, match="the disk is full") as caught:
        image_build.build_image(
            layers_plan(tmp_path, base, 2, "dd if=/dev/zero of=/big bs=1M count=4000"), private, log=log, notify=print
        )
    assert len(layers_made(log)[0]) == 2
    assert caught.value.exit_code == 4
    cache = local_files.cache_folder()
    deadline = time.monotonic() + 60
    while shutil.disk_usage(cache).free < 100e6 and time.monotonic() < deadline:
        time.sleep(0.2)  # the engine drops the failed step's files a little later
    assert image_build.build_image(layers_plan(tmp_path, base, 2), private, log=log, notify=print).built
    assert layers_made(log)[0] == set()


def test_a_full_disk_in_a_pull_is_said_and_the_next_one_goes_on(private, base, server, tmp_path):
    private = engines.ensure_engine(notify=print)
    image = image_build.build_image(plan(tmp_path, base, "true"), private, log=tmp_path / "log", notify=print)
    repository = f"{server.address}/faults"
    for words in (["tag", image.tag, f"{repository}:x"], ["push", f"{repository}:x"], ["rmi", f"{repository}:x"]):
        subprocess.run([*private.docker, *words], check=True, env={**os.environ, **private.env})
    for words in (["rmi", image.tag], ["builder", "prune", "--all", "--force"]):
        subprocess.run([*private.docker, *words], check=True, env={**os.environ, **private.env})
    fill = local_files.cache_folder() / "fill"
    with fill.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(fill.parent).free - (20 << 20))
    with pytest.raises(MissingError, match="the disk is full"):
        image_store.pull_image(private, repository, image.digest, None, 1, print)
    fill.unlink()
    assert image_store.pull_image(private, repository, image.digest, None, 1, print) == image.digest


def test_an_engine_that_dies_is_said_and_the_next_build_goes_on(private, base, tmp_path):
    log = tmp_path / "log"
    steps: list[str] = []
    running = threading.Event()

    def say(step: str) -> None:
        steps.append(step)
        if step.startswith("run"):
            running.set()

    def kill() -> None:
        running.wait(120)
        time.sleep(1)
        process = daemon.load_process(unpacked_engine.engine_paths().record)
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(MissingError, match="the engine stopped answering") as caught:
        image_build.build_image(plan(tmp_path, base, "sleep 300"), private, log=log, notify=say)
    killer.join()
    assert caught.value.exit_code == 4
    again = engines.ensure_engine(notify=print)
    assert image_build.build_image(plan(tmp_path, base, "true"), again, log=log, notify=print).built
