"""What a container gets of the machine that it runs on: the user, the working folder, limits, GPUs. An edge."""

from __future__ import annotations

import itertools
import os
import pwd
import re
import socket
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from knowngood.core.errors import UsageError
from knowngood.launch.container_run import WORK_FOLDER, ContainerRun, FolderMount, GpuAccess, RunNetwork, UserIds

if TYPE_CHECKING:
    from knowngood.engine.container_engine import Engine
    from knowngood.engine.probe_gpus import NvidiaState

PROCESSES = Path("/proc")
"""Where the kernel shows the processes of this machine."""
_CAP_SYS_RESOURCE = 24
"""The number of the capability in the kernel's masks."""


def find_working_folder() -> str:
    """Return the working folder, to be mounted; `UsageError` for one that cannot be."""
    folder = Path.cwd()
    if folder == Path("/"):
        raise UsageError("the working folder is /, which would be mounted whole; change to the folder of your program")
    if ":" in str(folder):
        raise UsageError(f"the working folder {folder} has a colon in its name, which no container tool can mount")
    return str(folder)


_LAUNCHERS = re.compile(r"(python[\d.]*|torchrun|accelerate|deepspeed)")


def check_program_file(program: Sequence[str], folder: str, mounts: Sequence[FolderMount]) -> None:
    """Check that the script is there which a program's words name, before anything is fetched for it.

    A script of the image itself, or one that a module of `python -m` takes, is not looked for.

    Raises:
        UsageError: the container will not have it.
    """
    launched = _LAUNCHERS.fullmatch(Path(program[0]).name)
    words = itertools.takewhile(lambda word: word not in ("-m", "-c"), program[1:] if launched else program[:1])
    script = next((word for word in words if word.endswith(".py") and len(word.split()) == 1), None)
    if script is None:
        return
    inside = Path(os.path.normpath(Path(WORK_FOLDER, script)))
    places = [*mounts, FolderMount(source=folder, target=WORK_FOLDER)]
    place = next((item for item in places if inside.is_relative_to(item.target)), None)
    if place is None:
        if Path(script).is_file():
            raise UsageError(
                f"{script} is on this machine only, and {folder} is {WORK_FOLDER} in the container: run it from its "
                "folder, or mount that with --volume and name its path there"
            )
        return
    outside = Path(place.source, inside.relative_to(place.target))
    if not os.path.lexists(outside):
        raise UsageError(
            f"there is no {outside}, which the program is to run; {folder} is {WORK_FOLDER} in the container, and "
            "--volume mounts other folders"
        )


def read_user_ids(folder: str) -> UserIds:
    """Return the ids and the name of the user who runs this; for root, those of the owner of the working folder.

    So a program that root starts in the folder of another user leaves no files there that its owner cannot remove.
    """
    user, group = os.getuid(), os.getgid()
    if user == 0:
        owner = Path(folder).stat()
        user, group = owner.st_uid, owner.st_gid
    try:
        name = pwd.getpwuid(user).pw_name
    except KeyError:
        name = str(user)
    is_root = os.getuid() == 0
    groups = () if is_root else tuple(sorted(set(os.getgroups()) - {group}))
    return UserIds(user=user, group=group, groups=groups, name=name, started_by_root=is_root)


def half_of_memory() -> str:
    """Return half of this machine's memory as a size; memory is taken only as it is used."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return f"{max(total >> 31, 1)}g"


def _may_raise_limits(host: str) -> bool:
    """Return whether the engine at an address may raise limits (CAP_SYS_RESOURCE), which one in a container may not.

    The process that listens at a local socket says it; an engine elsewhere, or one that cannot be seen, counts as able.
    """
    if not host.startswith("unix://"):
        return True
    credentials = struct.Struct("3i")
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(host.removeprefix("unix://"))
            process, _, _ = credentials.unpack(
                client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, credentials.size)
            )
        status = (PROCESSES / str(process) / "status").read_text(encoding="utf-8")
    except OSError:
        return True
    effective = re.search(r"^CapEff:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return effective is None or bool(int(effective[1], 16) >> _CAP_SYS_RESOURCE & 1)


def _choose_gpu_access(engine: Engine | None, nvidia: NvidiaState) -> GpuAccess:
    """Return how the engine gives a container the GPUs: not at all where this machine has none."""
    if not nvidia.gpus:
        return GpuAccess.NONE
    if engine is None:
        return GpuAccess.RUNTIME
    from knowngood.engine import container_engine
    from knowngood.smoke import suite_command

    with container_engine.docker_client(engine) as client:
        request = suite_command.gpu_request(client.info())
    return GpuAccess.CDI if request.get("driver") == "cdi" else GpuAccess.RUNTIME


def fit_to_machine(
    container: ContainerRun, engine: Engine | None, nvidia: NvidiaState, network: str | None = None
) -> ContainerRun:
    """Return the container with the GPUs of this machine, and with no limit that its engine may not raise.

    Without a `network` that was wished for, it gets one of its own where the engine has a bridge, else the machine's.
    """
    may_raise = engine is None or _may_raise_limits(engine.host)
    chosen = RunNetwork(network) if network else _choose_network(engine)
    return replace(container, gpus=_choose_gpu_access(engine, nvidia), locked_memory=may_raise, network=chosen)


def _choose_network(engine: Engine | None) -> RunNetwork:
    if engine is None:
        return RunNetwork.BRIDGE
    from knowngood.engine import container_engine

    with container_engine.docker_client(engine) as client:
        networks = client.api.networks(names=["bridge"])
    return RunNetwork.BRIDGE if any(item["Name"] == "bridge" for item in networks) else RunNetwork.HOST
