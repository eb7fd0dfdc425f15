"""No container outlives the docker command that `run` becomes, also when that command is killed with SIGKILL. An edge.

A watcher, which is a sleeping shell, removes the container as soon as the command has ended. Where the watcher is
killed too, as at the end of a cluster's job, the next `run` or `engine prune` of this user removes the container: its
label names the process that started it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from knowngood.launch.container_run import CLIENT_LABEL, CONTAINER_LABEL

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from docker import DockerClient

_WATCH = 'read -r _; exec "$@" >/dev/null 2>&1'
"""Waits for the end of its standard input, and then becomes the command that it was given."""


def describe_client(pid: int | None = None) -> str:
    """Return what names a process (this one by default) until this machine is started again; empty without such.

    These are the boot, the namespace of process numbers, the number, and the time of the start.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        space = str(Path("/proc/self/ns/pid").readlink())
        stat = Path(f"/proc/{pid or os.getpid()}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    state, *fields = stat.rpartition(")")[2].split()
    return "" if state in "ZX" else f"{boot} {space} {pid or os.getpid()} {fields[18]}"


def is_client_gone(label: str) -> bool:
    """Return whether the process that a label names has ended; `False` for one of another machine or namespace."""
    own, parts = describe_client().split(), label.split()
    if len(parts) != len(own) or not own or parts[:2] != own[:2] or not parts[2].isdecimal():
        return False
    return describe_client(int(parts[2])) != label


def start_watcher(remove: Sequence[str], environment: Mapping[str, str]) -> None:
    """Start a watcher that runs the command `remove` when this process has ended, whatever program it is by then.

    The watcher waits for the end of a pipe that only this process holds open.
    """
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    argv = ["/bin/sh", "-c", _WATCH, "sh", *remove]
    # It is meant to outlive this process, and has nothing of its terminal.
    subprocess.Popen(
        argv,
        stdin=reader,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=dict(environment),
        start_new_session=True,
    )
    os.close(reader)


def remove_abandoned_containers(client: DockerClient, user: int) -> list[str]:
    """Remove the containers of a user's runs whose docker command has ended, and return their names."""
    from docker.errors import APIError

    names = []
    for container in client.containers.list(all=True, filters={"label": f"{CONTAINER_LABEL}={user}"}):
        if is_client_gone(container.labels.get(CLIENT_LABEL, "")):
            with contextlib.suppress(APIError):  # another process removes it
                container.remove(force=True, v=True)
                names.append(str(container.name))
    return names
