"""Runs in the image that compiles, with its Python and nothing else: compile /build/src, strip, leave a result.json.

    inside.py [FROM TO]

What is finished stays in /build, so that the next attempt goes on from there. Everything said goes to /build/log.
On a builder of images nobody sees /build: the sources are brought from the folder FROM, what came out is left in the
folder TO, each step is told on stdout, and a compile that failed is no failed build.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import threading
import time
import traceback
import zipfile

BUILD = pathlib.Path("/build")
SOURCE = BUILD / "src"
BEAT = 2.0  # seconds between two notes of how far this attempt is
STEP = re.compile(r"^\s*\[(\d+)/(\d+)\] .*? -c (?:-c )?(\S+)", re.MULTILINE)


def steps(log: str) -> list[str]:
    """The files whose compile has begun, as ninja says it."""
    return [f"[{step[1]}/{step[2]}] {pathlib.Path(step[3]).name}" for step in STEP.finditer(log)]


def objects() -> dict[str, tuple[int, int]]:
    """Every object file with its time and size."""
    found = {}
    for path in sorted(SOURCE.rglob("*.o")):
        stat = path.stat()
        found[str(path.relative_to(SOURCE))] = (stat.st_mtime_ns, stat.st_size)
    return found


def finished() -> dict[str, str]:
    """The objects that ninja has noted as done, with the time they then had; a half-written one is not among them."""
    done = {}
    for log in SOURCE.rglob(".ninja_log"):
        for line in log.read_text(errors="replace").splitlines():
            fields = line.split("\t")
            if len(fields) == 5:
                done[fields[3]] = fields[2]
    return done


def said(*argv: str) -> str:
    """What a program prints."""
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()


def group(*names: str) -> str:
    """What this container's own control group says in the first of these files that there is (version 2, version 1)."""
    for name in names:
        path = pathlib.Path("/sys/fs/cgroup", name)
        if path.exists():
            return path.read_text()
    return ""


def killed_for_memory() -> bool:
    """Whether the kernel ended a process of this container for want of memory."""
    events = group("memory.events", "memory/memory.oom_control")
    return any(line.startswith("oom_kill ") and line.split()[1] != "0" for line in events.splitlines())


def memory_peak() -> int | None:
    """The most bytes that this container has held, its file cache among them."""
    text = group("memory.peak", "memory/memory.max_usage_in_bytes").strip()
    return int(text) if text.isdecimal() else None


def flags() -> dict[str, str]:
    """The compilers' flags, as ninja was given them."""
    found = {}
    for path in SOURCE.rglob("build.ninja"):
        for line in path.read_text(errors="replace").splitlines():
            name, equals, value = line.partition(" = ")
            if equals and name.endswith("cflags"):
                found[name] = value
    return found


def note(path: pathlib.Path, document: object) -> None:
    """Write a file whole or not at all."""
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(document, indent=1) + "\n")
    part.rename(path)


def attempt(number: int, began: float, before: int, stop: threading.Event) -> None:
    """Keep a note of how long this attempt has lasted, and what it found and has: it may be killed at any moment."""
    path = BUILD / f"attempt-{number}.json"
    ended = False
    while not ended:
        ended = stop.wait(BEAT)
        has = len(finished())
        note(path, {"seconds": round(time.monotonic() - began, 1), "objects_found": before, "objects_after": has})


def compile_wheel() -> pathlib.Path | None:
    """The wheel as the package's setup makes it."""
    shutil.rmtree(BUILD / "out", ignore_errors=True)
    argv = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--no-index", "--no-cache-dir"]
    argv += ["--disable-pip-version-check", "--verbose", "--wheel-dir", str(BUILD / "out"), str(SOURCE)]
    code = subprocess.run(argv, check=False, cwd=SOURCE).returncode
    if code:
        return None
    (wheel,) = (BUILD / "out").glob("*.whl")
    return wheel


def strip(wheel: pathlib.Path) -> tuple[int, int]:
    """Unpack the wheel and take the symbols out of its libraries that only a debugger reads.

    Among them is the name of nvcc's temporary file with a process number, all that differs between two builds.
    """
    unpacked = BUILD / "unpacked"
    shutil.rmtree(unpacked, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(unpacked)
    before = after = 0
    for library in sorted(unpacked.rglob("*.so*")):
        before += library.stat().st_size
        subprocess.run(["strip", "--strip-unneeded", str(library)], check=True)
        after += library.stat().st_size
    return before, after


def versions() -> dict[str, str | bool]:
    """The compilers and the torch that shaped the objects."""
    release = re.search(r"release ([\d.]+), V([\d.]+)", said("nvcc", "--version"))
    found: dict[str, str | bool] = {
        "nvcc": release[2] if release else "unknown",
        "gcc": said("gcc", "-dumpfullversion"),
        "ld": said("ld", "--version").splitlines()[0],
        "python": platform.python_version(),
    }
    if importlib.util.find_spec("torch"):
        import torch  # type: ignore[import-not-found,unused-ignore]

        abi = bool(torch.compiled_with_cxx11_abi())
        found |= {"torch": torch.__version__, "torch_cuda": torch.version.cuda, "cxx11abi": abi}
    return found


def tell(out: int, stop: threading.Event) -> None:
    """Say on `out` what begins, until the end: BuildKit cuts off the output of a step that says a lot."""
    with (BUILD / "log").open(errors="replace") as log:
        rest, ended = "", False
        while not ended:
            ended = stop.wait(1)
            text = rest + log.read()
            whole = text.rfind("\n") + 1
            rest = text[whole:]
            for step in steps(text[:whole]):
                os.write(out, f"{step}\n".encode())


def on_builder(source: pathlib.Path, out: pathlib.Path) -> int:
    """Compile what is in `source`, and leave in `out` all that came of it."""
    shutil.copytree(source, SOURCE, dirs_exist_ok=True)  # with its times, so that what is compiled stays newer
    (BUILD / "result.json").unlink(missing_ok=True)
    (BUILD / "log").write_bytes(b"")
    stop = threading.Event()
    teller = threading.Thread(target=tell, args=(os.dup(1), stop), daemon=True)
    teller.start()
    try:
        main()
    except Exception:  # noqa: BLE001  # it is told in the log, which comes back
        traceback.print_exc()
    stop.set()
    teller.join()
    for path in [BUILD / "log", *BUILD.glob("result.json"), *BUILD.glob("attempt-*.json")]:
        shutil.copyfile(path, out / path.name)
    if (BUILD / "unpacked").exists():
        shutil.move(BUILD / "unpacked", out / "unpacked")
    shutil.rmtree(BUILD / "out", ignore_errors=True)
    return 0


def main() -> int:
    """Compile, strip, and note how it went."""
    began = time.monotonic()
    number = len(list(BUILD.glob("attempt-*.json"))) + 1
    with (BUILD / "log").open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    # CUDA's own libraries bring their headers along, each wheel in a folder of its own or all in one.
    headers = sorted(pathlib.Path("/opt/venv").glob("lib/python3.*/site-packages/nvidia/*/include"))
    os.environ["CPATH"] = os.pathsep.join(map(str, headers))
    found, done = objects(), finished()
    before = len(done)
    stop = threading.Event()
    keeper = threading.Thread(target=attempt, args=(number, began, before, stop), daemon=True)
    keeper.start()
    wheel = compile_wheel()
    stop.set()
    keeper.join()
    outcome = {"killed_for_memory": killed_for_memory(), "memory_peak": memory_peak()}
    if wheel is None:
        note(BUILD / "result.json", {"ok": False, **outcome})
        return 1
    unstripped, stripped = strip(wheel)
    now = objects()
    result = {
        "ok": True,
        "wheel": wheel.name,
        "objects": len(now),
        "objects_reused": sum(now.get(name) == facts for name, facts in found.items()),
        "libraries_bytes": {"linked": unstripped, "stripped": stripped},
        "versions": versions(),
        "flags": flags(),
        **outcome,
    }
    note(BUILD / "result.json", result)
    return 0


if __name__ == "__main__":
    sys.exit(on_builder(*map(pathlib.Path, sys.argv[1:])) if sys.argv[1:] else main())
