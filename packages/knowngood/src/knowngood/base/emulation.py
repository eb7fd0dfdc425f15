"""Runs programs of aarch64 on a host of x86-64: QEMU, registered with the kernel while it is needed.

The kernel starts an interpreter for programs that it cannot run itself (binfmt_misc). Where one for aarch64 is there
already, it is used and nothing changes. Otherwise QEMU's static build is fetched from the distribution's packages,
unpacked into the cache and registered. The last process that needs it removes the entry again, and unmounts
binfmt_misc where it was mounted for this; after a crash, the next process that needs it does.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from knowngood.base import debian_host, private_apt
from knowngood.core.errors import KnowngoodError, MissingError
from knowngood.core.hosts import HostArchitecture, detect_host_architecture
from knowngood.core.local_files import cache_folder, lock_folder
from knowngood.core.notify import Notify

REGISTRY = Path("/proc/sys/fs/binfmt_misc")
STATE = Path("/run/knowngood-binfmt")
"""Locked while the entry is made or removed; `users` in it by every process that needs the entry, and a file `mounted`
says that binfmt_misc was mounted for them."""
ENTRY = "knowngood-aarch64"
QEMU_SUITE = {"bullseye": "trixie", "bookworm": "trixie"}
"""The suite of QEMU where it is not the host's: torch crashes at random under the QEMU 7.2 of Debian 12."""
QEMU_PACKAGE = {"debian": "qemu-user", "ubuntu": "qemu-user-static"}
"""The package with programs that are linked statically; Debian's `qemu-user` has them since Debian 13."""
# The head of a program for little-endian 64-bit aarch64 (ELF machine 183), as in QEMU's own files for binfmt.d.
_MAGIC = r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
_MASK = r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
_ADVICE = "build it on a host of aarch64, or have an administrator install qemu-user-static and binfmt-support here"


def needs_emulation(host: HostArchitecture) -> bool:
    """Return whether this machine cannot run programs for `host` itself."""
    return detect_host_architecture() is not host


@contextlib.contextmanager
def emulate_host(host: HostArchitecture, notify: Notify) -> Iterator[None]:
    """Make programs for `host` run on this machine until the block ends; nothing happens where they do anyway.

    Raises:
        MissingError: this machine cannot; the sentence says what to do.
    """
    if not needs_emulation(host) or find_emulator_entry(REGISTRY):
        yield
        return
    if host is not HostArchitecture.AARCH64:
        raise MissingError(f"programs for {host} do not run on this machine: use a host of {host}")
    if os.geteuid():
        raise MissingError(f"running programs for {host} here needs root, to register QEMU with the kernel: {_ADVICE}")
    qemu = unpack_qemu(notify)
    users = STATE / "users"
    with lock_folder(STATE):
        users.mkdir(exist_ok=True)
        handle = os.open(users, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(handle, fcntl.LOCK_SH)
        try:
            _register(qemu, notify)
        except BaseException:
            _leave(handle)
            raise
    try:
        yield
    finally:
        with lock_folder(STATE):
            _leave(handle)


def _leave(handle: int) -> None:
    """Give up the lock of the processes that need the entry, and remove the entry when this was the last of them."""
    try:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _unregister()
    finally:
        os.close(handle)


def find_emulator_entry(registry: Path) -> str | None:
    """Return the name of an entry that others registered for aarch64 and that works in containers too, or `None`.

    Such an entry is enabled, and the kernel holds its interpreter open (flag `F`).
    """
    for path in sorted(registry.glob("*")) if registry.is_dir() else ():
        if path.name in ("register", "status", ENTRY):
            continue
        with contextlib.suppress(OSError):
            if is_emulator_entry(path.read_text()):
                return path.name
    return None


def is_emulator_entry(text: str) -> bool:
    """Return whether the text of an entry is an enabled interpreter of aarch64 that the kernel holds open. Pure."""
    fields = dict(line.partition(" ")[::2] for line in text.splitlines())
    magic = "7f454c460201010000000000000000000200b700"
    return "enabled" in fields and fields.get("magic") == magic and "F" in fields.get("flags:", "")


def registration_line(qemu: Path) -> str:
    """Return what registers the interpreter: held open (`F`), and told the program's own first argument (`P`). Pure."""
    return f":{ENTRY}:M::{_MAGIC}:{_MASK}:{qemu}:PF"


def unpack_qemu(notify: Notify) -> Path:
    """Return QEMU's static program for aarch64 in the cache, where it is unpacked from the host's package archive."""
    folder = cache_folder() / "emulator"
    with lock_folder(folder):
        done = folder / "tools"
        if not done.exists():
            host = debian_host.detect_host()
            if host is None:
                raise MissingError(f"there is no apt here to fetch QEMU with: {_ADVICE}")
            name = QEMU_PACKAGE[host.distribution]
            suite = QEMU_SUITE.get(host.codename, host.codename)
            notify(f"fetching {name} from {host.distribution.title()} {suite}")
            work = folder / "part"
            shutil.rmtree(work, ignore_errors=True)
            apt = private_apt.PrivateApt(work / "apt", debian_host.find_host_archives(suite))
            apt.refresh()
            for package in apt.download([name], work / "debs"):
                private_apt.unpack_deb(package, work / "unpacked")
            candidates = sorted((work / "unpacked/usr/bin").glob("qemu-aarch64*"), key=lambda path: len(path.name))
            programs = [path for path in candidates if path.name in ("qemu-aarch64", "qemu-aarch64-static")]
            if not programs:
                raise KnowngoodError(f"the package {name} has no qemu-aarch64")
            (work / "tools").mkdir()
            programs[-1].rename(work / "tools/qemu-aarch64")
            (work / "tools").rename(done)
            shutil.rmtree(work)
        return done / "qemu-aarch64"


def _register(qemu: Path, notify: Notify) -> None:
    if not (REGISTRY / "register").exists():
        try:
            private_apt.run_command(["mount", "-t", "binfmt_misc", "binfmt_misc", str(REGISTRY)])
        except KnowngoodError as error:
            raise MissingError(f"no binfmt_misc can be mounted here ({error}): {_ADVICE}") from None
        (STATE / "mounted").touch()
    if not (REGISTRY / ENTRY).exists():
        notify("registering QEMU for aarch64 with the kernel until this ends")
        try:
            (REGISTRY / "register").write_text(registration_line(qemu))
        except OSError as error:
            raise MissingError(f"the kernel takes no interpreter for aarch64 ({error}): {_ADVICE}") from None


def _unregister() -> None:
    """Remove the entry, and unmount what was mounted for it."""
    with contextlib.suppress(OSError):
        (REGISTRY / ENTRY).write_text("-1")
    if (STATE / "mounted").exists():
        with contextlib.suppress(KnowngoodError):  # somebody looks at it; the next to end tries again
            private_apt.run_command(["umount", str(REGISTRY)])
            (STATE / "mounted").unlink(missing_ok=True)
    if not (STATE / "mounted").exists():
        for folder in (STATE / "users", STATE):
            with contextlib.suppress(OSError):
                folder.rmdir()
