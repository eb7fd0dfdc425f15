"""A folder of a wheel's files as a wheel, the same bytes every time."""

from __future__ import annotations

import base64
import hashlib
import os
import tempfile
import zipfile
from pathlib import Path

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from knowngood.errors import KnowngoodError

_TIME = (1980, 1, 1, 0, 0, 0)
_FILE, _PROGRAM = 0o100644 << 16, 0o100755 << 16


def name(built: str, local: str, *, plain: bool = False) -> str:
    """The file name of the wheel `built` (`flash_attn-2.8.3-cp311-...whl`) with a local version. Pure.

    With `plain` the version stays as published, and what the wheel is for stands in the build tag.
    """
    try:
        parse_wheel_filename(built)
    except InvalidWheelFilename as error:
        raise KnowngoodError(f"the setup made a file that is no wheel: {error}") from None
    project, version, rest = built.split("-", 2)
    return f"{project}-{version.partition('+')[0]}{'-1' if plain else '+'}{local}-{rest}"


def pack(folder: Path, built: str, local: str, house: Path, *, plain: bool = False) -> Path:
    """Write the wheel that was unpacked to `folder` into `house`, named by `name`; whole or not at all.

    Files are in order, of one time, and stored: what deflate makes depends on the zlib at hand.
    """
    wheel = house / name(built, local, plain=plain)
    project, version, _ = wheel.name.split("-", 2)
    infos = [path for path in folder.glob("*.dist-info") if path.is_dir()]
    if len(infos) != 1:
        raise KnowngoodError(f"{built} has {len(infos)} .dist-info folders, a wheel has one")
    info = f"{project}-{version}.dist-info"
    files: dict[str, Path | bytes] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            files[path.relative_to(folder).as_posix().replace(f"{infos[0].name}/", f"{info}/", 1)] = path
    files[f"{info}/METADATA"] = _versioned((infos[0] / "METADATA").read_text(encoding="utf-8"), version).encode()
    record = f"{info}/RECORD"
    files.pop(record, None)
    lines = [_line(file, content) for file, content in sorted(files.items())]
    files[record] = "".join([*lines, f"{record},,\n"]).encode()
    house.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=house, prefix=f".{wheel.name}.")
    try:
        with os.fdopen(descriptor, "wb") as out, zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
            for file, content in sorted(files.items(), key=lambda item: (".dist-info/" in item[0], item[0])):
                member = zipfile.ZipInfo(file, _TIME)
                member.external_attr = _PROGRAM if isinstance(content, Path) and _runs(content) else _FILE
                archive.writestr(member, _bytes(content))
        Path(temporary).chmod(0o644)
        Path(temporary).replace(wheel)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return wheel


def _versioned(metadata: str, version: str) -> str:
    """METADATA with another version, in its head and nowhere else."""
    head, blank, body = metadata.partition("\n\n")
    lines = [f"Version: {version}" if line.startswith("Version:") else line for line in head.split("\n")]
    return "\n".join(lines) + blank + body


def _line(file: str, content: Path | bytes) -> str:
    """The line of RECORD for a file."""
    data = _bytes(content)
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{file},sha256={digest},{len(data)}\n"


def _bytes(content: Path | bytes) -> bytes:
    return content.read_bytes() if isinstance(content, Path) else content


def _runs(path: Path) -> bool:
    return path.suffix == ".so" or bool(path.stat().st_mode & 0o100)
