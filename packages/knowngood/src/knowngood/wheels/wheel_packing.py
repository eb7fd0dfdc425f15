"""Pack a folder of files into a wheel with the same bytes every time.

Which GPUs run the code in a compiled wheel: read from the bytes of its libraries, without a GPU.

A library of flash-attn has a fatbin for each of its source files. Each of them must have code for the GPU: otherwise
some head dimensions fail when they are first used, and all others work.
"""

from __future__ import annotations

import base64
import hashlib
import mmap
import os
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from knowngood.core import local_files
from knowngood.core.errors import KnowngoodError
from knowngood.core.gpus import code_runs_on_gpu
from knowngood.index import gpu_code
from knowngood.index.gpu_code import GpuCode


@dataclass(frozen=True, kw_only=True)
class LibraryCode:
    """The GPU code of a library in a wheel."""

    file: str
    fatbins: tuple[GpuCode, ...]
    """One for each source file with device code, in most builds."""


def read_folder_code(folder: Path) -> list[LibraryCode]:
    """Return the libraries below a folder that have GPU code, in the order of their paths."""
    libraries = []
    for library in sorted(folder.rglob("*.so*")):
        if not library.stat().st_size:
            continue
        with (
            library.open("rb") as opened,
            mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content,
            memoryview(content) as whole,
        ):
            fatbins = tuple(code for code in gpu_code.iterate_fatbins(whole) if code.sass or code.ptx)
        if fatbins:
            libraries.append(LibraryCode(file=library.relative_to(folder).as_posix(), fatbins=fatbins))
    return libraries


def read_wheel_code(wheel: Path) -> list[LibraryCode]:
    """Return the libraries in a wheel that have GPU code; `KnowngoodError` when it is not a wheel."""
    with local_files.scratch_folder() as scratch:
        try:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(scratch, [name for name in archive.namelist() if ".so" in name])
        except zipfile.BadZipFile as error:
            raise KnowngoodError(f"{wheel.name} is not a wheel: {error}") from None
        return read_folder_code(scratch)


def list_architectures(libraries: Iterable[LibraryCode]) -> list[str]:
    """Return the architectures, as numbers, for which libraries have machine code, in order. Pure."""
    codes = frozenset().union(*(code.sass for library in libraries for code in library.fatbins))
    return gpu_code.sort_architectures(frozenset(code for code in codes if code.isdigit()))


def find_unrunnable_code(libraries: Sequence[LibraryCode], gpu: str) -> list[str]:
    """Return a sentence for each library with a fatbin of which this GPU (`sm_86`) runs nothing. Pure."""
    problems = []
    for library in libraries:
        lacking = [code for code in library.fatbins if not code_runs_on_gpu(gpu, code.sass, code.ptx)]
        if lacking:
            has = ", ".join(dict.fromkeys(gpu_code.describe_gpu_code(code) for code in lacking))
            count = f"{len(lacking)} of its {len(library.fatbins)} fatbins have" if library.fatbins[1:] else "it has"
            problems.append(f"{library.file} has no code that runs on {gpu}: {count} {has}")
    return problems


def require_runnable_code(file: str, libraries: Sequence[LibraryCode], gpu: str) -> None:
    """Raise `KnowngoodError` when a GPU does not run all GPU code of the wheel with this file name."""
    if problems := find_unrunnable_code(libraries, gpu):
        raise KnowngoodError(f"{file} cannot be used on {gpu}: {'; '.join(problems)}; remove it")


_TIME = (1980, 1, 1, 0, 0, 0)
_FILE, _PROGRAM = 0o100644 << 16, 0o100755 << 16


def packed_wheel_name(built: str, local: str, *, plain: bool = False) -> str:
    """Return the name of the wheel `built` (`flash_attn-2.8.3-cp311-...whl`) with a local version. Pure.

    With `plain` the version stays as published, and the build tag states what the wheel is for.
    """
    try:
        parse_wheel_filename(built)
    except InvalidWheelFilename as error:
        raise KnowngoodError(f"the setup made a file that is not a wheel: {error}") from None
    project, version, rest = built.split("-", 2)
    return f"{project}-{version.partition('+')[0]}{'-1' if plain else '+'}{local}-{rest}"


def pack_wheel(folder: Path, built: str, local: str, wheel_folder: Path, *, plain: bool = False) -> Path:
    """Write the wheel whose files are in `folder` to `wheel_folder`, complete or not at all, and return its path.

    Files are sorted, have one time and are not compressed, since the output of deflate depends on the release of zlib.
    """
    wheel = wheel_folder / packed_wheel_name(built, local, plain=plain)
    project, version, _ = wheel.name.split("-", 2)
    infos = [path for path in folder.glob("*.dist-info") if path.is_dir()]
    if len(infos) != 1:
        raise KnowngoodError(f"{built} has {len(infos)} .dist-info folders instead of one")
    info = f"{project}-{version}.dist-info"
    files: dict[str, Path | bytes] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            files[path.relative_to(folder).as_posix().replace(f"{infos[0].name}/", f"{info}/", 1)] = path
    files[f"{info}/METADATA"] = _with_version((infos[0] / "METADATA").read_text(encoding="utf-8"), version).encode()
    record = f"{info}/RECORD"
    files.pop(record, None)
    lines = [_record_line(file, content) for file, content in sorted(files.items())]
    files[record] = "".join([*lines, f"{record},,\n"]).encode()
    wheel_folder.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=wheel_folder, prefix=f".{wheel.name}.")
    try:
        with os.fdopen(descriptor, "wb") as out, zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
            for file, content in sorted(files.items(), key=lambda item: (".dist-info/" in item[0], item[0])):
                member = zipfile.ZipInfo(file, _TIME)
                member.external_attr = _PROGRAM if isinstance(content, Path) and _is_program(content) else _FILE
                archive.writestr(member, _content_bytes(content))
        Path(temporary).chmod(0o644)
        Path(temporary).replace(wheel)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return wheel


def _with_version(metadata: str, version: str) -> str:
    """Return METADATA with another version in its header."""
    head, blank, body = metadata.partition("\n\n")
    lines = [f"Version: {version}" if line.startswith("Version:") else line for line in head.split("\n")]
    return "\n".join(lines) + blank + body


def _record_line(file: str, content: Path | bytes) -> str:
    """Return the line of RECORD for a file."""
    data = _content_bytes(content)
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{file},sha256={digest},{len(data)}\n"


def _content_bytes(content: Path | bytes) -> bytes:
    return content.read_bytes() if isinstance(content, Path) else content


def _is_program(path: Path) -> bool:
    return path.suffix == ".so" or bool(path.stat().st_mode & 0o100)
