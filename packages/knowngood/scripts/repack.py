"""Make wheels from installed packages, for measurements on a machine that has packages and no index.

    python3 scripts/repack.py SITE OUT NAME [NAME ...] [--python cp311] [--level 1]

SITE is an environment's site-packages. Each NAME becomes a wheel in OUT, with the files that its RECORD names.
`--python` gives a wheel that was compiled for one Python the tag of another: it can then be installed there, but not
imported. Needs only the standard library.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import re
import shutil
import sys
import zipfile
from base64 import urlsafe_b64encode
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path, PurePosixPath

OF_INSTALLER = ("INSTALLER", "RECORD", "REQUESTED", "direct_url.json", "uv_cache.json", "uv_build.json")
"""Files that an installer adds to a distribution's metadata."""
OLDEST = (1980, 1, 1, 0, 0, 0)


def metadata(site: Path, name: str) -> Path:
    """Return the distribution's `.dist-info` folder."""
    wanted = re.sub(r"[-_.]+", "-", name).lower()
    for folder in site.glob("*.dist-info"):
        if re.sub(r"[-_.]+", "-", folder.name.partition("-")[0]).lower() == wanted:
            return folder
    raise SystemExit(f"{name} is not installed in {site}")


def tagged(text: str, python: str | None) -> str:
    """Return the text of WHEEL, with the tag of another Python if one is given."""
    if python is None:
        return text
    return re.sub(r"^Tag: cp\d+-(cp\d+|abi3)-", f"Tag: {python}-{python}-", text, flags=re.MULTILINE)


def tags(wheel: str) -> str:
    """Return the tags at the end of the wheel's file name, from those that WHEEL lists."""
    parts = zip(*(tag.split("-") for tag in re.findall(r"^Tag: (\S+)", wheel, re.MULTILINE)), strict=True)
    return "-".join(".".join(dict.fromkeys(part)) for part in parts)


def files(site: Path, info: Path) -> dict[str, Path]:
    """Return the files that RECORD names and a wheel contains: no scripts, no bytecode, no files of the installer."""
    members = {}
    for row in csv.reader((info / "RECORD").read_text(encoding="utf-8").splitlines()):
        place = PurePosixPath(row[0])
        by_installer = place.parts[0] == info.name and place.name in OF_INSTALLER
        if place.is_absolute() or ".." in place.parts or "__pycache__" in place.parts or by_installer:
            continue
        if (path := site / place).is_file():
            members[str(place)] = path
    return members


def repack(name: str, site: Path, out: Path, python: str | None, level: int) -> str:
    """Make the wheel unless it exists; return a line with its size and name."""
    info = metadata(site, name)
    wheel = tagged((info / "WHEEL").read_text(encoding="utf-8"), python)
    target = out / f"{info.name.removesuffix('.dist-info')}-{tags(wheel)}.whl"
    if not target.exists():
        part, record = target.with_suffix(".part"), io.StringIO()
        rows = csv.writer(record, lineterminator="\n")
        with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED, compresslevel=level) as archive:
            for place, path in sorted(files(site, info).items(), key=lambda item: _last(item[0], info.name)):
                if place == f"{info.name}/WHEEL":
                    digest, size = _add(archive, place, io.BytesIO(wheel.encode()), len(wheel.encode()), 0o644)
                else:
                    stat = path.stat()
                    with path.open("rb") as handle:
                        digest, size = _add(archive, place, handle, stat.st_size, stat.st_mode & 0o755)
                rows.writerow([place, digest, size])
            rows.writerow([f"{info.name}/RECORD", "", ""])
            text = record.getvalue().encode()
            _add(archive, f"{info.name}/RECORD", io.BytesIO(text), len(text), 0o644)
        part.rename(target)
    return f"{target.stat().st_size:>13,} {target.name}"


def _last(place: str, info: str) -> tuple[bool, str]:
    """Return a sort key that puts the metadata at the end of the wheel."""
    return place.startswith(info), place


def _add(archive: zipfile.ZipFile, place: str, data: io.BufferedIOBase, size: int, mode: int) -> tuple[str, int]:
    """Add a file to the archive; return its digest and size in the form of a RECORD file."""
    entry = zipfile.ZipInfo(place, OLDEST)
    entry.compress_type, entry.file_size, entry.external_attr = zipfile.ZIP_DEFLATED, size, (0o100000 | mode) << 16
    with archive.open(entry, "w") as written:
        shutil.copyfileobj(data, written, 1 << 20)
    data.seek(0)
    digest = hashlib.file_digest(data, "sha256").digest()
    return "sha256=" + urlsafe_b64encode(digest).rstrip(b"=").decode(), size


def main(words: Iterable[str] | None = None) -> None:
    """Make the wheels that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("site", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("name", nargs="+")
    parser.add_argument("--python", metavar="TAG", help="give compiled wheels the tag of this Python, such as cp311")
    parser.add_argument(
        "--level", type=int, default=1, choices=range(10), help="level of the compression (default: 1, the fastest)"
    )
    arguments = parser.parse_args(None if words is None else list(words))
    arguments.out.mkdir(parents=True, exist_ok=True)
    work = partial(repack, site=arguments.site, out=arguments.out, python=arguments.python, level=arguments.level)
    with ThreadPoolExecutor() as pool:
        for line in pool.map(work, arguments.name):
            print(line, file=sys.stderr)


if __name__ == "__main__":
    main()
