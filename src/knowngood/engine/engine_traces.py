"""What embedded engines have on this machine outside their home folders, and its removal when an engine has ended.

An engine has a folder below /run, control groups with the name of that folder, and the folders below /run over which
its private ones are mounted. A version of this program before 2026-11-23 had no private folders: what its containers
left in /run/runc and /run/containerd is found by the name of the engine, or because nobody answers there.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from knowngood.engine import daemon
from knowngood.engine.unpacked_engine import EnginePaths

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
