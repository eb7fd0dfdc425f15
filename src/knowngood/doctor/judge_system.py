"""The system's C and C++ libraries, disk and shared memory. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from knowngood.doctor.library import number
from knowngood.doctor.line import Line, Verdict
from knowngood.doctor.seen import Binary, Folder, Machine, Seen
from knowngood.doctor.unloadable import missing

_GIB = 1 << 30
_LEAST = {"HF_HOME": 10 * _GIB}
_LEAST_ELSE = 1 * _GIB
_SHM = 1 * _GIB
_SHARED = "/dev/shm"  # noqa: S108 - this is about that place


def lines(seen: Seen) -> Iterator[Line]:
    """All of them."""
    yield _newest(seen, "glibc", "GLIBC_", seen.machine.glibc)
    yield _newest(seen, "libstdc++", "GLIBCXX_", seen.machine.glibcxx)
    yield from (_folder(item) for item in seen.machine.folders)
    yield _shm(seen.machine)


def _newest(seen: Seen, what: str, prefix: str, have: str | None) -> Line:
    """The C or C++ library against the binary that demands the newest."""
    name = "glibc" if prefix == "GLIBC_" else "glibcxx"
    demands = [(need, item) for item in seen.binaries if _counts(item) and (need := getattr(item, name))]
    if not demands:
        because = "no binary demands anything of it"
        return Line(id=what, what=what, seen=have or "?", verdict=Verdict.NOT_APPLICABLE, because=because)
    need, binary = max(demands, key=lambda pair: number(pair[0]))
    shown = f"{prefix}{have}" if have else "not found"
    because = f"{binary.path} needs {prefix}{need}, and no other binary more"
    if have is None:
        return Line(id=what, what=what, seen=shown, verdict=Verdict.UNKNOWN, because=because)
    if number(need) <= number(have):
        return Line(id=what, what=what, seen=shown, verdict=Verdict.OK, because=because)
    count = sum(number(text) > number(have) for text, _ in demands)
    flash = what == "glibc" and "flash_attn" in binary.path
    return Line(
        id=what,
        what=what,
        seen=shown,
        verdict=Verdict.BAD,
        because=because + (f"; {count} binaries need more than is here" if count > 1 else ""),
        fix=(
            "a newer base system (or image)",
            f"or a build of {binary.distribution or binary.path} made on this system",
        ),
        incidents=("flash-attn-glibc-2-32",) if flash else ("glibcxx-3-4-29",) if what == "libstdc++" else (),
    )


def _counts(binary: Binary) -> bool:
    """Not one for another system, of which other libraries are missing too."""
    return binary.used or not missing(binary)


def _folder(item: Folder) -> Line:
    what, least = item.what, _LEAST.get(item.variable, _LEAST_ELSE)
    shown = f"{item.path}, {item.free / _GIB:.1f} GiB free" if item.free is not None else item.path
    name = f"folder:{item.variable}"
    elsewhere = (f"{item.variable} to a folder on another disk",)
    if not item.writable:
        because = "this user cannot write there"
        return Line(id=name, what=what, seen=shown, verdict=Verdict.BAD, because=because, fix=elsewhere)
    if not item.executable and item.variable != "HF_HOME":
        because = "it is mounted noexec: what is compiled there cannot be loaded"
        return Line(id=name, what=what, seen=shown, verdict=Verdict.BAD, because=because, fix=elsewhere)
    if item.free is None:
        return Line(
            id=name, what=what, seen=shown, verdict=Verdict.UNKNOWN, because="its disk does not tell what is free"
        )
    if item.free < least:
        verdict = Verdict.BAD if item.free < least / 100 else Verdict.WARN
        because = f"less than {least // _GIB} GiB are free"
        return Line(
            id=name, what=what, seen=shown, verdict=verdict, because=because, fix=("free some space", *elsewhere)
        )
    return Line(id=name, what=what, seen=shown, verdict=Verdict.OK)


def _shm(machine: Machine) -> Line:
    if machine.shm is None:
        because = "data loaders with workers and NCCL share memory there"
        return Line(id="shm", what=_SHARED, seen="none", verdict=Verdict.WARN, because=because)
    shown = f"{machine.shm / _GIB:.1f} GiB" if machine.shm >= _GIB else f"{machine.shm >> 20} MiB"
    if machine.shm >= _SHM:
        return Line(id="shm", what=_SHARED, seen=shown, verdict=Verdict.OK)
    return Line(
        id="shm",
        what=_SHARED,
        seen=shown,
        verdict=Verdict.WARN,
        because="data loaders with workers and NCCL share memory there; too little is a bus error",
        fix=("docker run --ipc=host, or --shm-size=16g",),
    )
