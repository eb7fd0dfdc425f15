"""Archives that name places outside of the folder into which they are unpacked, by each way that one is unpacked."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from knowngood.base import private_apt
from knowngood.core.errors import KnowngoodError
from knowngood.wheels import wheel_packing
from knowngood.wheels.compile_request import Sdist

EVIL = b"evil"


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tuple[tarfile.TarInfo, io.BytesIO | None]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, 0o644
    if kind == tarfile.REGTYPE:
        info.size = len(EVIL)
    return info, io.BytesIO(EVIL) if kind == tarfile.REGTYPE else None


def list_members(outside: Path) -> dict[str, list[tuple[tarfile.TarInfo, io.BytesIO | None]]]:
    """Return the members of hostile archives: each would write, or read, a file of the folder `outside`."""
    return {
        "a path that climbs out": [member(f"top/../../{outside.name}/evil")],
        "an absolute path": [member(f"{outside}/evil")],
        "through a link to a folder": [member("top/link", tarfile.SYMTYPE, str(outside)), member("top/link/evil")],
        "through a link that climbs": [
            member("top/link", tarfile.SYMTYPE, f"../{outside.name}"),
            member("top/link/evil"),
        ],
        "a link to a file": [member("top/setup.py", tarfile.SYMTYPE, str(outside / "secret"))],
        "a hard link to a file": [member("top/setup.py", tarfile.LNKTYPE, str(outside / "secret"))],
        "a device": [member("top/null", tarfile.CHRTYPE)],
        "a pipe": [member("top/setup.py", tarfile.FIFOTYPE)],
    }


NAMES = sorted(list_members(Path("/x")))


@pytest.fixture
def outside(tmp_path):
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret").write_text("a secret")
    return folder


def assert_nothing_left(outside: Path, into: Path) -> None:
    """Nothing was written outside, and nothing inside leads there or is a device."""
    assert [path.name for path in outside.iterdir()] == ["secret"]
    assert (outside / "secret").stat().st_nlink == 1
    for path in into.rglob("*") if into.exists() else []:
        assert path.resolve().is_relative_to(into.resolve()), path
        assert stat.S_ISREG(path.stat().st_mode) or stat.S_ISDIR(path.stat().st_mode), path


@pytest.mark.parametrize("name", NAMES)
def test_an_sdist_stays_in_its_folder(tmp_path, outside, name):
    path, into = tmp_path / "x-1.0.tar.gz", tmp_path / "into"
    with tarfile.open(path, "w:gz") as archive:
        for info, content in list_members(outside)[name]:
            archive.addfile(info, content)
    sdist = Sdist(package="x", version="1.0", path=path, file=path.name, sha256="0")
    if name == "an absolute path":  # its first part is the top folder, which is left out
        sdist.unpack(into)
    else:
        with pytest.raises(KnowngoodError, match=r"x-1\.0\.tar\.gz is not a readable sdist"):
            sdist.unpack(into)
    assert_nothing_left(outside, into)
    assert sdist.setup() == ""


def test_what_is_no_sdist_is_a_sentence(tmp_path):
    (tmp_path / "x-1.0.tar.gz").write_bytes(b"nothing")
    sdist = Sdist(package="x", version="1.0", path=tmp_path / "x-1.0.tar.gz", file="x-1.0.tar.gz", sha256="0")
    for use in (sdist.setup, lambda: sdist.unpack(tmp_path / "into")):
        with pytest.raises(KnowngoodError, match="is not a readable sdist"):
            use()


def zip_member(name: str, content: bytes, mode: int = stat.S_IFREG | 0o644) -> tuple[zipfile.ZipInfo, bytes]:
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    return info, content


def write_wheel(path: Path, outside: Path) -> None:
    """Write a wheel of which each member would leave the folder."""
    link = stat.S_IFLNK | 0o777
    members = [
        zip_member(f"../{outside.name}/evil.so", EVIL),
        zip_member(f"{outside}/evil.so", EVIL),
        zip_member("link.so", str(outside).encode(), link),
        zip_member("link.so/evil.so", EVIL),
        zip_member("secret.so", f"{outside}/secret".encode(), link),
        zip_member("x-1.0.dist-info/METADATA", b"Metadata-Version: 2.1\nName: x\nVersion: 1.0\n"),
        zip_member("x-1.0.dist-info/WHEEL", b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"),
    ]
    lines = [
        f"{info.filename},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},"
        for info, data in members
    ]
    members.append(zip_member("x-1.0.dist-info/RECORD", "\n".join([*lines, ""]).encode()))
    with zipfile.ZipFile(path, "w") as archive:
        for info, data in members:
            archive.writestr(info, data)


def test_a_wheel_whose_code_is_read_stays_in_its_folder(tmp_path, outside):
    write_wheel(tmp_path / "x-1.0-py3-none-any.whl", outside)
    with contextlib.suppress(KnowngoodError, OSError):
        assert wheel_packing.read_wheel_code(tmp_path / "x-1.0-py3-none-any.whl") == []
    assert_nothing_left(outside, tmp_path / "none")


def test_the_uv_of_the_images_installs_nothing_outside_of_its_target(tmp_path, outside):
    write_wheel(tmp_path / "x-1.0-py3-none-any.whl", outside)
    target = tmp_path / "target"
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or "uv"
    argv = [uv, "pip", "install", "--no-deps", "--offline", "--no-config", "--no-cache", "--target", str(target)]
    subprocess.run(
        [*argv, str(tmp_path / "x-1.0-py3-none-any.whl")],
        check=False,
        capture_output=True,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
    )
    assert_nothing_left(outside, target)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("a device", "a pipe")])
def test_a_debian_package_stays_in_its_folder(tmp_path, outside, name):
    """Its links may lead anywhere, as those of real packages do; nothing is written through them."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for info, data in list_members(outside)[name]:
            archive.addfile(info, data)
    empty = io.BytesIO()
    with tarfile.open(fileobj=empty, mode="w", format=tarfile.GNU_FORMAT) as archive:
        text = b"Package: x\nVersion: 1\nArchitecture: all\nMaintainer: x\nDescription: x\n"
        info = tarfile.TarInfo("./control")
        info.size = len(text)
        archive.addfile(info, io.BytesIO(text))
    parts = {"debian-binary": b"2.0\n", "control.tar": empty.getvalue(), "data.tar": content.getvalue()}
    package = tmp_path / "x.deb"
    with package.open("wb") as out:
        out.write(b"!<arch>\n")
        for part, data in parts.items():
            out.write(f"{part:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n".encode() + data)
            out.write(b"\n" * (len(data) % 2))
    with contextlib.suppress(KnowngoodError):
        private_apt.unpack_deb(package, tmp_path / "into")
    assert [path.name for path in outside.iterdir()] == ["secret"]
