"""Small real libraries for tests: compiled on this machine if it has gcc, otherwise the stored ones in `elf/`.

`python tests/unit/elf_samples.py` compiles the stored ones again.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from harvest_registry import fatbin

KEPT = Path(__file__).with_name("elf")
CXX11 = "NSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
OLD = "Ss"
ERROR = "_ZN3c105ErrorC2ENS_14SourceLocationE"
"""c10::Error::Error(c10::SourceLocation, ...), the first symbol that a build for the other ABI lacks."""

_FLAGS = ["-shared", "-nostdlib", "-fPIC", "-O1", "-s", "-Wl,-z,noseparate-code", "-Wl,--build-id=none"]
_LESS = ["-fno-asynchronous-unwind-tables", "-Wl,--disable-new-dtags", "-Wa,--noexecstack"]


def exported(*symbols: str) -> str:
    """Return C source that defines these symbols."""
    return "".join(f'void f{n}(void) __asm__("{symbol}"); void f{n}(void) {{}}\n' for n, symbol in enumerate(symbols))


def module(name: str, *undefined: str, code: bytes = b"", text: str = "") -> str:
    """Return C source of an extension module that needs these symbols and has GPU code."""
    lines = [f'void u{n}(void) __asm__("{symbol}");' for n, symbol in enumerate(undefined)]
    calls = "".join(f"u{n}();" for n in range(len(undefined)))
    lines.append(f"void *PyInit_{name}(void) {{ {calls} return 0; }}")
    if code:
        listed = ",".join(map(str, code))
        lines.append(f'__attribute__((section(".nv_fatbin"), used)) static const unsigned char code[] = {{{listed}}};')
    if text:
        lines.append(f'__attribute__((used)) static const char text[] = "{text}";')
    return "\n".join(lines) + "\n"


SM_90 = fatbin((2, 90, 0x11)) + fatbin((2, 90, 0x11), (1, 90, 0x11))
NAMES = (
    "libc10-new.so",
    "libc10-old.so",
    "libtorch_python.so",
    "flash.so",
    "flash-old.so",
    "numpy1.so",
    "libkg-1.so",
    "libkg-2.so",
    "versioned.so",
    "rpath.so",
    "runpath.so",
    "glibc.so",
)


def compiled(folder: Path) -> None:
    """Compile all samples into a folder."""

    def make(name: str, source: str, *options: str, soname: str = "", script: str = "") -> None:
        (folder / "x.c").write_text(source)
        if script:
            (folder / "x.map").write_text(script)
            options = (*options, f"-Wl,--version-script={folder}/x.map")
        named = [f"-Wl,-soname,{soname}"] if soname else []
        subprocess.run(["gcc", *_FLAGS, *_LESS, "-o", folder / name, folder / "x.c", *named, *options], check=True)

    make("libc10-new.so", exported("_ZN3c105ErrorC1E" + CXX11, ERROR + CXX11), soname="libc10.so")
    make("libc10-old.so", exported("_ZN3c105ErrorC1E" + OLD, ERROR + OLD), soname="libc10.so")
    c10 = str(folder / "libc10-new.so")
    make(
        "libtorch_python.so",
        exported("THPVariable"),
        "-Wl,--no-as-needed",
        c10,
        "-Wl,-rpath,$ORIGIN",
        soname="libtorch_python.so",
    )
    flash = "flash_attn_2_cuda"
    make("flash.so", module(flash, ERROR + CXX11, code=SM_90), c10)
    make("flash-old.so", module(flash, ERROR + OLD, code=SM_90), str(folder / "libc10-old.so"))
    make("numpy1.so", module("numpy1", text="numpy.core._multiarray_umath"))
    one, two = "KG_1 { global: one; local: *; };", "KG_2 { global: two; } KG_1;"
    both = "void one(void) {} void two(void) {}"
    make("libkg-1.so", both, soname="libkg.so.1", script=one)
    make("libkg-2.so", both, soname="libkg.so.1", script=one + two)
    make("versioned.so", module("versioned", "two"), str(folder / "libkg-2.so"))
    make("rpath.so", module("rpath", "one"), str(folder / "libkg-2.so"), "-Wl,-rpath,$ORIGIN/../lib")
    make(
        "runpath.so",
        module("runpath", "one"),
        str(folder / "libkg-2.so"),
        "-Wl,-rpath,$ORIGIN/../lib",
        "-Wl,--enable-new-dtags",
    )
    make("stub.so", "void later(void) {}", soname="libc.so.6", script="GLIBC_2.99 { global: later; local: *; };")
    make("glibc.so", module("glibc", "later"), str(folder / "stub.so"))
    for name in ("x.c", "x.map", "stub.so"):
        (folder / name).unlink()


def put(folder: Path) -> None:
    """Write all samples into an empty folder: compiled, or copied from the stored ones."""
    if shutil.which("gcc"):
        compiled(folder)
        return
    for name in NAMES:
        shutil.copy(KEPT / name, folder)


if __name__ == "__main__":
    KEPT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        compiled(Path(scratch))
        for sample in NAMES:
            shutil.copyfile(Path(scratch) / sample, KEPT / sample)
    sys.exit(0)
