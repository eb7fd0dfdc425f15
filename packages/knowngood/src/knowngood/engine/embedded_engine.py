"""The embedded engine: a Docker daemon run from unpacked packages, where no engine answers.

Its files are under the cache folder, its sockets under /run; `remove_embedded_engine` removes both. It has no bridge
and no firewall rule: builds and containers use the host's network or none.

A limit on the build steps that the embedded engine runs at once.

BuildKit starts all layers of a cell together, and this BuildKit has no setting for that. A build that is killed in the
middle had then finished almost nothing, because all of its layers were running. With a limit, layers are finished one
after the other, and BuildKit keeps what is finished. The limit is in front of `runc`, which BuildKit starts for each
step: the step waits there for a free slot, as a lock on a file that ends with the step.

What embedded engines have on this machine outside their home folders, and its removal when an engine has ended.

An engine has a folder below /run, control groups with the name of that folder, and the folders below /run over which
its private ones are mounted. A version of this program before 2026-11-23 had no private folders: what its containers
left in /run/runc and /run/containerd is found by the name of the engine, or because nobody answers there.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import platform
import re
import shlex
import shutil
import socket
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from knowngood.base import debian_host
from knowngood.core import local_files
from knowngood.core.errors import KnowngoodError, MissingError
from knowngood.core.notify import Notify
from knowngood.engine import daemon
from knowngood.engine.unpacked_engine import (
    RUNTIME,
    EnginePaths,
    configure_docker_client,
    engine_paths,
    find_program,
    program_environment,
    unpack_engine,
)

MIN_SLOTS = 4
"""Fewer would leave the network idle while wheels are unpacked."""
_POLL_SECONDS = 0.2

# One step at a time looks for a free slot, and the others wait in the queue. Everything but `runc run` passes at once.
_WRAPPER = """\
#!/bin/sh
# Written by knowngood: at most {count} build steps run at once.
for word; do
    case $word in run) break ;; esac
done
if [ "$word" = run ]; then
    mkdir -p {folder}
    exec 8>{folder}/queue
    flock 8
    while :; do
        for slot in {slots}; do
            exec 9>{folder}/$slot
            if flock --nonblock 9; then
                exec 8>&-
                exec {program} "$@"
            fi
        done
        sleep {seconds}
    done
fi
exec {program} "$@"
"""


def choose_slot_count() -> int:
    """Return how many build steps run at once: one for each processor, and at least `MIN_SLOTS`."""
    return max(MIN_SLOTS, os.cpu_count() or 1)


def write_slot_wrapper(program: str, wrapper: Path, folder: Path, *, count: int) -> None:
    """Write a program `wrapper` that runs `program`, `runc run` in at most `count` processes at once.

    The locks of the slots are files in `folder`, which need not exist.
    """
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    text = _WRAPPER.format(
        program=shlex.quote(program),
        folder=shlex.quote(str(folder)),
        slots=" ".join(map(str, range(count))),
        count=count,
        seconds=_POLL_SECONDS,
    )
    wrapper.write_text(text, encoding="ascii")
    wrapper.chmod(0o755)


SYSTEM_RUN = Path("/run")
CGROUPS = Path("/sys/fs/cgroup")
PRIVATE_FOLDERS = ("/run/docker", "/run/containerd", "/run/runc")
"""Folders that the programs use wherever their state is configured to be. Each engine has its own in their place."""
START_GRACE = 600.0
"""Seconds for which a folder without a record of a process counts as that of an engine that starts."""

_NAME = re.compile(r"knowngood-[0-9a-f]{10}")


def missing_private_folders(paths: EnginePaths) -> list[str]:
    """Return those of `PRIVATE_FOLDERS` that only embedded engines use; the last of those engines removes them."""
    others = _borrowed_by_others(paths)
    return [path for path in PRIVATE_FOLDERS if path in others or not Path(path).exists()]


def remove_engine_traces(paths: EnginePaths, *, patience: float) -> None:
    """End the engine's processes within `patience` seconds, and remove everything of it outside its home folder."""
    if process := daemon.load_process(paths.record):
        daemon.stop_daemon(process, patience=patience)
    _remove_cgroups(paths.run.name)
    needed = _borrowed_by_others(paths)
    for path in _read_list(paths.borrowed):
        if path not in needed:
            _remove_empty_folder(Path(path))
    shutil.rmtree(paths.run, ignore_errors=True)


def remove_crash_traces() -> list[str]:
    """Remove what embedded engines that were killed have left, of all cache folders; return the paths that are gone.

    What an engine that runs, or starts, has is left alone, and so is everything of engines that are not embedded.
    """
    running = set(_running_engines())
    gone: list[Path] = []
    for run in sorted(SYSTEM_RUN.glob("knowngood-*")):
        if _NAME.fullmatch(run.name) and run.name not in running:
            remove_engine_traces(EnginePaths(home=run, run=run), patience=0)
            gone.append(run)
    for name in sorted({path.name for path in _engine_cgroups()} - running):
        gone += _remove_cgroups(name)
    states = [path for path in sorted(SYSTEM_RUN.glob("runc/*")) if _is_abandoned_state(path, running)]
    for path in states:
        shutil.rmtree(path, ignore_errors=True)
    sockets = [path for path in sorted(SYSTEM_RUN.glob("containerd/s/*")) if _is_dead_socket(path)]
    for path in sockets:
        path.unlink(missing_ok=True)
    gone += [*states, *sockets]
    if not running:  # their private folders are mounted over these
        _remove_empty_folders(path.parent for path in [*states, *sockets])
    return [str(path) for path in gone]


def describe_engine_use(paths: EnginePaths) -> str:
    """Return who uses the engine now, as a text for people; empty if nobody does."""
    connected = count_connected_clients(_read_text(Path("/proc/net/unix")), str(paths.socket))
    running = len({folder.name for folder in _cgroup_folders(paths.run.name) if _read_text(folder / "cgroup.procs")})
    uses = [(connected, "connection", "connections"), (running, "container or build step", "containers or build steps")]
    return " and ".join(f"{count} {one if count == 1 else many}" for count, one, many in uses if count)


def count_connected_clients(table: str, address: str) -> int:
    """Return how many connections to the socket at `address` are open, from the text of /proc/net/unix."""
    rows = [line.split(maxsplit=7) for line in table.splitlines()]
    return sum(len(row) == 8 and row[5] == "03" and row[7] == address for row in rows)


def name_state_owner(state: str) -> str | None:
    """Return the name of the embedded engine whose container has this text as its state.json, `None` if none has."""
    try:
        groups = json.loads(state)["cgroup_paths"].values()
        parts = [part for group in groups for part in Path(group).parts]
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return next((part for part in parts if _NAME.fullmatch(part)), None)


def _running_engines() -> Iterator[str]:
    """Yield the names of the engines that run, or that are being started."""
    for run in SYSTEM_RUN.glob("knowngood-*"):
        paths = EnginePaths(home=run, run=run)
        with contextlib.suppress(FileNotFoundError):  # it ends now
            new = not paths.record.exists() and time.time() - run.stat().st_mtime < START_GRACE
            # The socket answers for an engine whose processes cannot be seen from here: that of another container.
            answers = paths.socket.exists() and not _is_dead_socket(paths.socket)
            if new or answers or daemon.load_process(paths.record):
                yield run.name


def _is_abandoned_state(folder: Path, running: set[str]) -> bool:
    owner = name_state_owner(_read_text(folder / "state.json"))
    return owner is not None and owner not in running


def _is_dead_socket(path: Path) -> bool:
    """Whether no process listens at a socket any more: nobody can ever use it again."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(1)
        try:
            client.connect(str(path))
        except ConnectionRefusedError:
            return path.is_socket()
        except OSError:
            return False
    return False


def _borrowed_by_others(paths: EnginePaths) -> set[str]:
    records = set(SYSTEM_RUN.glob(f"knowngood-*/{paths.borrowed.name}")) - {paths.borrowed}
    return {path for record in records for path in _read_list(record)}


def _read_list(record: Path) -> list[str]:
    with contextlib.suppress(OSError, ValueError):
        return [str(path) for path in json.loads(record.read_text())]
    return []


def _read_text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(errors="replace")
    return ""


def _engine_cgroups() -> Iterator[Path]:
    """Yield the top cgroups of embedded engines: in one tree for each controller (v1), or in one tree (v2)."""
    for path in [*CGROUPS.glob("knowngood-*"), *CGROUPS.glob("*/knowngood-*")]:
        if _NAME.fullmatch(path.name):
            yield path


def _cgroup_folders(name: str) -> Iterator[Path]:
    """Yield the cgroups of an engine, inner ones first."""
    for top in _engine_cgroups():
        if top.name == name:
            for folder, _, _ in os.walk(top, topdown=False):
                yield Path(folder)


def _remove_cgroups(name: str) -> list[Path]:
    """Remove the cgroups of an engine that have no process; return those that are gone."""
    return [folder for folder in _cgroup_folders(name) if _remove_empty_folder(folder)]


def _remove_empty_folders(folders: Iterable[Path]) -> None:
    """Remove the folders, and each folder above one that is empty then, up to /run."""
    tree = {path for folder in folders for path in [folder, *folder.parents] if SYSTEM_RUN in path.parents}
    for folder in sorted(tree, reverse=True):
        _remove_empty_folder(folder)


def _remove_empty_folder(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        folder.rmdir()  # fails if it is not empty
        return True
    return False


PASSED_ON = ("http_proxy", "https_proxy", "no_proxy", "ssl_cert_file", "ssl_cert_dir")
START_SECONDS = 60.0
STOP_SECONDS = 20.0
ANSWER_SECONDS = 10.0


def daemon_configuration(paths: EnginePaths) -> dict[str, object]:
    """Return the daemon's configuration: private folders, no network of its own, one cgroup."""
    return {
        "features": {"containerd-snapshotter": True},
        "hosts": [f"unix://{paths.socket}"],
        "data-root": str(paths.data),
        "exec-root": str(paths.run / "exec"),
        "pidfile": str(paths.run / "dockerd.pid"),
        "exec-opts": ["native.cgroupdriver=cgroupfs"],
        "cgroup-parent": f"/{paths.run.name}",
        "bridge": "none",
        "iptables": False,
        "ip6tables": False,
        "ip-masq": False,
        "ip-forward": False,
        "userland-proxy": False,
        "shutdown-timeout": 5,
        "builder": {"gc": {"enabled": True, "defaultKeepStorage": "20GB"}},
    }


def describe_obstacle() -> str | None:
    """Return why this machine cannot run the embedded engine, as the end of a sentence; None if it can."""
    install = "install Docker Engine 26 or newer with buildx and start it"
    if sys.platform != "linux":
        return f"the embedded engine runs on Linux only: {install}"
    if platform.machine() != "x86_64":
        return f"the embedded engine is for x86_64, this machine is {platform.machine()}: {install}"
    if os.geteuid() != 0:
        return f"the embedded engine needs root: run knowngood as root, or {install}"
    if not engine_paths().tools.exists() and debian_host.detect_host() is None:
        return f"the embedded engine is made of Debian or Ubuntu packages, and there is no apt here: {install}"
    return None


def read_engine_version(paths: EnginePaths) -> str | None:
    """Return the version of the embedded engine that answers; None if none does."""
    connection = http.client.HTTPConnection("localhost", timeout=ANSWER_SECONDS)
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.sock.settimeout(ANSWER_SECONDS)
        connection.sock.connect(str(paths.socket))
        connection.request("GET", "/version")
        return str(json.loads(connection.getresponse().read())["Version"])
    except (OSError, http.client.HTTPException, ValueError, KeyError):
        return None
    finally:
        connection.close()


def start_embedded_engine(notify: Notify) -> None:
    """Start the embedded engine unless it answers already.

    Raises:
        MissingError: this machine cannot run it.
        KnowngoodError: it does not start; the message has the end of its log.
    """
    if obstacle := describe_obstacle():
        raise MissingError(obstacle)
    paths = engine_paths()
    with local_files.lock_folder(local_files.cache_folder()):
        if daemon.load_process(paths.record) and read_engine_version(paths):
            return
        remove_engine_traces(paths, patience=STOP_SECONDS)
        _remove_crash_traces(notify)
        borrowed = missing_private_folders(paths)
        unpack_engine(paths, notify)
        _start_daemon(paths, borrowed, notify)


def check_engine_idle() -> None:
    """Raise `KnowngoodError` if a build or a container uses the embedded engine now."""
    if use := describe_engine_use(engine_paths()):
        raise KnowngoodError(
            f"the embedded engine is in use ({use}): wait until that has ended, or stop it with "
            "`knowngood engine down --force`"
        )


def remove_embedded_engine(notify: Notify) -> None:
    """Stop the embedded engine and remove everything that it made, images and build caches included.

    What other embedded engines have left that were killed is removed too.
    """
    paths = engine_paths()
    if os.geteuid() == 0:
        _remove_crash_traces(notify)
    if not paths.home.exists() and not paths.run.exists():
        notify("there is no embedded engine")
        return
    if os.geteuid() != 0:
        raise MissingError("stopping the embedded engine needs root")
    with local_files.lock_folder(local_files.cache_folder()):
        remove_engine_traces(paths, patience=STOP_SECONDS)
        if paths.home.exists():
            shutil.rmtree(paths.home)
    for folder in (local_files.cache_folder() / "scratch", local_files.cache_folder()):
        with contextlib.suppress(OSError):
            folder.rmdir()  # only if it is empty
    notify("the embedded engine is stopped and removed")


def _start_daemon(paths: EnginePaths, borrowed: list[str], notify: Notify) -> None:
    start = time.monotonic()
    configure_docker_client(paths)
    paths.run.mkdir(mode=0o711)
    paths.borrowed.write_text(json.dumps(borrowed))
    for folder in PRIVATE_FOLDERS:
        Path(folder).mkdir(exist_ok=True)
    config = paths.home / "daemon.json"
    config.write_text(json.dumps(daemon_configuration(paths), indent=2))
    paths.log.unlink(missing_ok=True)
    wrapper = paths.home / "bin" / RUNTIME
    write_slot_wrapper(find_program(RUNTIME, paths.tools), wrapper, paths.run / "slots", count=choose_slot_count())
    programs = program_environment(paths.tools)
    process = daemon.start_daemon(
        [find_program("dockerd", paths.tools), "--config-file", str(config)],
        init=Path(find_program("tini-static", paths.tools)),
        env={
            **{name: value for name, value in os.environ.items() if name.lower() in PASSED_ON},
            **programs,
            "PATH": f"{wrapper.parent}:{programs['PATH']}",
            "HOME": str(Path.home()),
        },
        log=paths.log,
        record=paths.record,
        private=PRIVATE_FOLDERS,
    )
    while not (version := read_engine_version(paths)):
        if not process.alive() or time.monotonic() - start > START_SECONDS:
            tail = "\n".join(paths.log.read_text(errors="replace").splitlines()[-15:])
            remove_engine_traces(paths, patience=STOP_SECONDS)
            raise KnowngoodError(f"the embedded engine did not start; the end of its log:\n{tail}")
        time.sleep(0.05)
    notify(f"embedded engine {version} is running after {time.monotonic() - start:.1f} s")


def _remove_crash_traces(notify: Notify) -> None:
    if gone := remove_crash_traces():
        notify(f"removed what engines that were killed had left: {len(gone)} files and folders, such as {gone[0]}")
