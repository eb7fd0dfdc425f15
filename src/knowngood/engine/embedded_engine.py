"""The embedded engine: a Docker daemon run from unpacked packages, where no engine answers.

Its files are under the cache folder, its sockets under /run; `remove_embedded_engine` removes both. It has no bridge
and no firewall rule: builds and containers use the host's network or none.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import platform
import shutil
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from knowngood.base import debian_host
from knowngood.core import local_files
from knowngood.core.errors import KnowngoodError, MissingError
from knowngood.core.notify import Notify
from knowngood.engine import build_slots, daemon, engine_traces
from knowngood.engine.unpacked_engine import (
    RUNTIME,
    EnginePaths,
    configure_docker_client,
    engine_paths,
    find_program,
    program_environment,
    unpack_engine,
)

PASSED_ON = ("http_proxy", "https_proxy", "no_proxy", "ssl_cert_file", "ssl_cert_dir")
START_SECONDS = 60.0
STOP_SECONDS = 20.0
ANSWER_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class EmbeddedStatus:
    """Whether the embedded engine is unpacked and runs, and where it is."""

    unpacked: bool
    running: bool
    version: str | None
    host: str
    data: Path
    log: Path


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


def read_embedded_status() -> EmbeddedStatus:
    """Return the state of the embedded engine now."""
    paths = engine_paths()
    answer = read_engine_version(paths)
    return EmbeddedStatus(
        unpacked=paths.tools.exists(),
        running=answer is not None,
        version=answer,
        host=f"unix://{paths.socket}",
        data=paths.data,
        log=paths.log,
    )


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
        engine_traces.remove_engine_traces(paths, patience=STOP_SECONDS)
        _remove_crash_traces(notify)
        borrowed = engine_traces.missing_private_folders(paths)
        unpack_engine(paths, notify)
        _start_daemon(paths, borrowed, notify)


def check_engine_idle() -> None:
    """Raise `KnowngoodError` if a build or a container uses the embedded engine now."""
    if use := engine_traces.describe_engine_use(engine_paths()):
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
        engine_traces.remove_engine_traces(paths, patience=STOP_SECONDS)
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
    for folder in engine_traces.PRIVATE_FOLDERS:
        Path(folder).mkdir(exist_ok=True)
    config = paths.home / "daemon.json"
    config.write_text(json.dumps(daemon_configuration(paths), indent=2))
    paths.log.unlink(missing_ok=True)
    wrapper = paths.home / "bin" / RUNTIME
    build_slots.write_slot_wrapper(
        find_program(RUNTIME, paths.tools), wrapper, paths.run / "slots", count=build_slots.choose_slot_count()
    )
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
        private=engine_traces.PRIVATE_FOLDERS,
    )
    while not (version := read_engine_version(paths)):
        if not process.alive() or time.monotonic() - start > START_SECONDS:
            tail = "\n".join(paths.log.read_text(errors="replace").splitlines()[-15:])
            engine_traces.remove_engine_traces(paths, patience=STOP_SECONDS)
            raise KnowngoodError(f"the embedded engine did not start; the end of its log:\n{tail}")
        time.sleep(0.05)
    notify(f"embedded engine {version} is running after {time.monotonic() - start:.1f} s")


def _remove_crash_traces(notify: Notify) -> None:
    if gone := engine_traces.remove_crash_traces():
        notify(f"removed what engines that were killed had left: {len(gone)} files and folders, such as {gone[0]}")
