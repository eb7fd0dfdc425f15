"""The embedded engine for real: brought up from nothing, killed, taken down. Root, apt and a mirror are needed."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from knowngood.core.errors import KnowngoodError
from knowngood.engine import container_engine, daemon, embedded_engine, unpacked_engine

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(bool(embedded_engine.describe_obstacle()), reason=str(embedded_engine.describe_obstacle())),
]

TAG = "knowngood-test:engine"


def traces(at: unpacked_engine.EnginePaths) -> set[str]:
    """What this engine might leave on a machine, where others may be running."""
    cgroups = Path("/sys/fs/cgroup")
    shared = set(embedded_engine.PRIVATE_FOLDERS) - embedded_engine._borrowed_by_others(at)
    return {
        *(line for line in Path("/proc/mounts").read_text().splitlines() if str(at.home.parent) in line),
        *(path.name for path in Path("/sys/class/net").iterdir()),
        *(f"forwarding {text}" for text in Path("/proc/sys/net/ipv4/ip_forward").read_text().split()),
        *(f"table {text}" for text in _read("/proc/net/ip_tables_names").split()),
        *map(str, [*cgroups.glob(at.run.name), *cgroups.glob(f"*/{at.run.name}")]),
        *(path for path in (str(at.run), *shared) if Path(path).exists()),
        *(
            str(path)
            for path in Path("/run/runc").glob("*/state.json")
            if embedded_engine.name_state_owner(_read(str(path))) == at.run.name
        ),
    }


def _read(path: str) -> str:
    with contextlib.suppress(OSError):
        return Path(path).read_text()
    return ""


def processes(*names: str) -> list[str]:
    """The command lines that have one of the names in them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            found += [line] if any(name in line for name in names) else []
    return found


def left(at: unpacked_engine.EnginePaths) -> list[str]:
    """The processes of the engine and of its containers."""
    return processes(str(at.home), str(at.run), "sleep 4711")


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """A private engine, brought up by two processes at once over a half-finished unpack; afterwards no trace."""
    cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KNOWNGOOD_CACHE", str(cache))
        patch.setenv("DOCKER_HOST", f"unix://{cache}/none.sock")
        at = unpacked_engine.engine_paths()
        before = traces(at)
        (at.home / "tools.part/tools/usr/bin").mkdir(parents=True)
        (at.home / "tools.part/tools/usr/bin/docker").write_text("half of it")
        code = "from knowngood.engine import embedded_engine; embedded_engine.start_embedded_engine(print)"
        both = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
        said = "".join(process.communicate(timeout=120)[0] for process in both)
        assert [process.returncode for process in both] == [0, 0]
        assert said.count("is running after") == 1
        yield at
        embedded_engine.remove_embedded_engine(print)
    assert traces(at) <= before
    assert left(at) == []
    assert not cache.exists()


@pytest.fixture(scope="module")
def own(places, tmp_path_factory):
    """The engine, with a small image in it: `tini`, and the host's `sleep` with what it is linked against."""
    sentences: list[str] = []
    found = container_engine.ensure_engine(notify=sentences.append)
    assert sentences == [
        f"no engine answers at {os.environ['DOCKER_HOST']}, which DOCKER_HOST names: using the embedded engine"
    ]
    context = tmp_path_factory.mktemp("context")
    needed = subprocess.run(["ldd", "/bin/sleep"], check=True, capture_output=True, text=True).stdout
    for path in ["/bin/sleep", *re.findall(r"(/\S+) \(", needed)]:
        (context / "root" / path[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, context / "root" / path[1:])
    shutil.copy(places.tools / "usr/bin/tini-static", context / "root/tini")
    (context / "Dockerfile").write_text('FROM scratch\nCOPY --link root /\nENTRYPOINT ["/tini", "--"]\n')
    argv = [*found.docker, "buildx", "build", "--network", found.network, "--tag", TAG, str(context)]
    subprocess.run(argv, check=True, env=found.environment(), capture_output=True)
    return found


def eventually(holds: Callable[[], object], seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.05)
    return bool(holds())


def kill(process: daemon.DaemonProcess) -> None:
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait(10)


def test_it_is_the_embedded_one_and_says_what_it_can(own):
    assert own.embedded
    assert own.containerd_store
    assert own.network == "host"
    assert tuple(map(int, own.buildkit.split(".")[:2])) >= (0, 13)
    told = subprocess.run(
        [
            "sh",
            "-c",
            container_engine.render_shell_environment(own)
            + "\ndocker version --format '{{.Server.Version}}' && docker buildx version",
        ],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert told.startswith(own.version)


def test_a_container_runs_without_network_within_limits(own):
    client = own.client()
    container = client.containers.run(
        TAG, ["/tini", "--version"], network_mode="none", mem_limit="64m", pids_limit=32, user="1000:1000", detach=True
    )
    try:
        assert container.wait(timeout=30)["StatusCode"] == 0
        assert b"tini version" in container.logs()
    finally:
        container.remove(force=True)


@pytest.mark.parametrize("depth", [0, 1, 2], ids=["namespace", "init", "dockerd"])
def test_a_killed_engine_leaves_no_process_and_comes_up_again_with_its_images(own, places, depth):
    container = own.client().containers.run(TAG, ["/bin/sleep", "4711"], network_mode="none", detach=True)
    assert eventually(lambda: processes("sleep 4711"))
    with pytest.raises(KnowngoodError, match=r"in use .* container"):
        embedded_engine.check_engine_idle()
    victim = daemon.load_process(places.record)
    for _ in range(depth):
        victim = victim.children()[0]
    kill(victim)
    assert eventually(lambda: not left(places)), left(places)
    # A process that ends loses its name first and its sockets last: until then the engine counts as running. The tests
    # that run beside this one may find the traces too, so who removes them does not matter.
    assert eventually(lambda: embedded_engine.remove_crash_traces() is not None and not places.run.exists())
    assert not any(places.run.name in trace for trace in traces(places))
    again = container_engine.ensure_engine(notify=print)
    assert again.client().images.get(TAG)
    again.client().containers.get(container.id).remove(force=True)


def test_an_engine_that_hangs_is_replaced(own, places, monkeypatch):
    monkeypatch.setattr(embedded_engine, "ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(embedded_engine, "STOP_SECONDS", 1.0)
    (init,) = daemon.load_process(places.record).children()
    (dockerd, *_) = init.children()
    os.kill(dockerd.pid, signal.SIGSTOP)
    assert container_engine.find_embedded_engine() is None
    assert container_engine.ensure_engine(notify=print).version == own.version
    assert not dockerd.alive()


def test_an_engine_that_answers_is_used_and_left_alone(own, places, tmp_path, monkeypatch):
    """To another cache folder this engine is the system's; the host's docker command may lack buildx."""
    monkeypatch.setenv("KNOWNGOOD_CACHE", str(tmp_path / "other"))
    monkeypatch.setenv("DOCKER_HOST", own.host)
    running = daemon.load_process(places.record)
    found = container_engine.ensure_engine(notify=print)
    assert (found.host, found.embedded, found.version) == (own.host, False, own.version)
    told = subprocess.run([*found.docker, "buildx", "ls"], check=True, capture_output=True, env=found.environment())
    assert b"default" in told.stdout
    assert found.client().ping()
    embedded_engine.remove_embedded_engine(print)
    assert running.alive()


def test_a_daemon_that_cannot_start_shows_the_end_of_its_log_and_leaves_nothing(places, tmp_path, monkeypatch):
    monkeypatch.setenv("KNOWNGOOD_CACHE", str(tmp_path))
    broken = unpacked_engine.engine_paths()
    broken.home.mkdir()
    broken.tools.symlink_to(places.tools)
    broken.data.write_text("not a folder")
    with pytest.raises(KnowngoodError, match=r"did not start; the end of its log:\n(.*\n)*.*points to a file"):
        embedded_engine.start_embedded_engine(print)
    assert not broken.run.exists()
    assert daemon.load_process(places.record)
