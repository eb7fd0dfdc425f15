"""A wheel that somebody has published already: on the registry, or in a list of addresses that pin its content.

Such a list has one address a line, as pip takes them: `https://.../flash_attn-2.8.3+cu12torch2.6cxx11abiTRUE-cp311-...whl#sha256=...`.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import re
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from packaging.utils import parse_wheel_filename

from knowngood.cell import Cell
from knowngood.compiling import pack, record
from knowngood.compiling.record import Record
from knowngood.errors import InputError, KnowngoodError, MissingError, Problem, UsageError
from knowngood.locks import wheelhouse

_PIECE = 1 << 20
_TIMEOUT = (20, 120)


@dataclass(frozen=True, kw_only=True)
class Published:
    """A wheel at an address, with the hash of what must come from it."""

    url: str
    sha256: str

    @property
    def file(self) -> str:
        """Its file name."""
        return unquote(urlsplit(self.url).path).rpartition("/")[2]


def listed(path: Path) -> list[Published]:
    """The wheels of a list; `InputError` with every line that is none."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    found, problems = [], []
    for number, line in enumerate(lines, 1):
        text = line.partition(" #")[0].strip()
        if not text or text.startswith("#"):
            continue
        match = re.fullmatch(r"((?:https?|file)://\S+\.whl)#sha256=([0-9a-f]{64})", text)
        if match:
            found.append(Published(url=match[1], sha256=match[2]))
        else:
            said = "not an address of a wheel with its hash; write https://.../NAME.whl#sha256=<64 hex digits>"
            problems.append(Problem(file=str(path), line=number, column=1, text=said))
    if problems:
        raise InputError(problems)
    return found


def find(cell: Cell, package: str, version: str, known: Sequence[Published], *, cxx11abi: bool) -> Published | None:
    """The first of the listed ones that was built for the cell, else the registry's; `None` where there is none."""
    for item in known:
        if not _wrong(item.file, cell, package, version, cxx11abi=cxx11abi):
            return item
    return next(
        (
            item
            for item in _registry(package, version)
            if not _wrong(item.file, cell, package, version, cxx11abi=cxx11abi)
        ),
        None,
    )


def _wrong(file: str, cell: Cell, package: str, version: str, *, cxx11abi: bool) -> list[str]:
    """Why a file is not for the cell, by its name; which architectures it has is seen when it is here."""
    return wheelhouse.mismatches(file, cell, cxx11abi=cxx11abi, package=package, version=version, any_gpu=True)


def _registry(package: str, version: str) -> list[Published]:
    """The wheels of a release; none where the registry does not answer, since the sdist says so anyway."""
    from packaging.version import Version

    from knowngood.harvest.index import SimpleIndex, Unreadable

    try:
        files = SimpleIndex().files(package)
    except Unreadable:
        return []
    return [
        Published(url=file.url, sha256=file.sha256)
        for file in files
        if file.is_wheel and file.sha256 and file.version.public == Version(version).public
    ]


def fetch(item: Published, cell: Cell, house: Path) -> tuple[Path, Record]:
    """The wheel in the wheelhouse, its name saying which architectures its libraries have.

    Raises `KnowngoodError` when other bytes come than were pinned, or none of its code runs on the cell's GPU.
    """
    with tempfile.TemporaryDirectory(prefix="knowngood-") as name:
        path = Path(name) / item.file
        found = _download(item.url, path)
        if found != item.sha256:
            raise KnowngoodError(f"{item.file}: what came has the sha256 {found}, pinned is {item.sha256}")
        folder = Path(name) / "unpacked"
        try:
            with zipfile.ZipFile(path) as archive:
                archive.extractall(folder)
        except zipfile.BadZipFile as error:
            raise KnowngoodError(f"{item.file} is not a wheel: {error}") from None
        codes = architectures(folder)
        number = cell.gpu.removeprefix("sm_")
        if not any(code[:-1] == number[:-1] and int(code) <= int(number) for code in codes):
            has = ", ".join(f"sm_{code}" for code in codes) or "none"
            raise KnowngoodError(f"{item.file} has no code for {cell.gpu} (it has {has}); take it off the list")
        local = str(parse_wheel_filename(item.file)[1].local) + "".join(f".sm{code}" for code in codes)
        wheel = pack.pack(folder, item.file, local, house)
    inputs = {"published": item.file, "sha256": item.sha256, "architectures": codes}
    made = Record(
        wheel=wheel.name,
        sha256=record.sha256(wheel),
        size=wheel.stat().st_size,
        key=record.key(inputs),
        inputs=inputs,
        made={"fetched": True},
    )
    record.write(made, wheel)
    return wheel, made


def architectures(folder: Path) -> list[str]:
    """For which architectures the libraries below a folder carry machine code that any GPU of theirs runs."""
    from knowngood import fatbin

    codes: set[str] = set()
    for library in sorted(folder.rglob("*.so*")):
        with (
            library.open("rb") as opened,
            mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content,
            memoryview(content) as whole,
        ):
            for code in fatbin.in_section(whole):
                codes |= {number for number in code.sass if number.isdigit()}
    return sorted(codes, key=int)


def _download(url: str, path: Path) -> str:
    """Write what is at the address, and return its SHA-256."""
    import requests

    from knowngood.harvest.index import http_session, retried

    if url.startswith("file://"):
        path.write_bytes(Path(unquote(urlsplit(url).path)).read_bytes())
        return record.sha256(path)

    def get() -> str:
        digest = hashlib.sha256()
        with http_session().get(url, stream=True, timeout=_TIMEOUT) as answer, path.open("wb") as out:
            answer.raise_for_status()
            for piece in answer.iter_content(_PIECE):
                digest.update(piece)
                out.write(piece)
            os.fsync(out.fileno())
        return digest.hexdigest()

    try:
        return retried(get)
    except requests.RequestException as error:
        raise MissingError(f"{path.name} cannot be fetched: {type(error).__name__}; check network and list") from None
