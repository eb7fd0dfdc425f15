"""Cut what a machine without a network needs into parts that fit one transfer each.

    python lease_parts.py tools OUT                        Docker's programs, zstd, and what knowngood imports
    python lease_parts.py images OUT PACKED GROUP=WORD,...   images that `carry_image.py pack PACKED` wrote

A group of images is loaded there by itself while the one before runs: it has the files that no group before it has, and
its own `images-GROUP.json`. WORD is any part of an image's name. OUT gets the folders `part-NN`, each at most 52 MiB;
a longer file is cut into `FILE.split00` and so on, which `lease_driver.sh` joins. A list of parts is printed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

LIMIT = 52 << 20
PROGRAMS = ("bin/containerd", "bin/containerd-shim-runc-v2", "bin/docker", "sbin/dockerd", "sbin/runc")
PLATFORM = ("--python-version", "3.12", "--python-platform", "x86_64-manylinux_2_28")


def write_tools(out: Path) -> None:
    """Write `tools.tar.gz` with the folders `bin` and `packages`, cut into parts."""
    from knowngood.engine import unpacked_engine

    usr = unpacked_engine.engine_paths().tools / "usr"
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "bin").mkdir()
        for program in PROGRAMS:
            shutil.copy(usr / program, folder / "bin")
        shutil.copy(usr / "bin/tini-static", folder / "bin/docker-init")
        shutil.copy(str(shutil.which("zstd")), folder / "bin")
        parts = sorted(Path(__file__).resolve().parents[2].glob("knowngood*"))
        subprocess.run(["uv", "pip", "install", "-q", *PLATFORM, "--target", folder / "packages", *parts], check=True)
        for path in [folder / "packages/bin", *(folder / "packages").glob("knowngood*")]:
            shutil.rmtree(path)
        archive = folder / "tools.tar.gz"
        subprocess.run(["tar", "-C", folder, "-czf", archive, "bin", "packages"], check=True)
        write_parts(out, "tools", [archive])


def write_images(out: Path, packed: Path, groups: Iterable[str]) -> None:
    """Write the parts of each group, and its list of images."""
    known = json.loads((packed / "images.json").read_text())
    sent: set[str] = set()
    for group in groups:
        name, _, words = group.partition("=")
        images = [next(item for item in known if word in item["image"]) for word in words.split(",")]
        listed = packed / f"images-{name}.json"
        listed.write_text(json.dumps(images))
        files = [file for file in dict.fromkeys(needed_files(packed, images)) if file not in sent]
        sent.update(files)
        write_parts(out, name, [listed, *(packed / file for file in files)])


def needed_files(packed: Path, images: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Yield the names of the packed files from which these images are rebuilt."""
    yield "compile-modules"
    for image in images:
        yield f"{image['config']}.config"
        for layer in image["layers"]:
            yield from (f"{layer}.json", f"{layer}.literal.zst")
            recipe = json.loads((packed / f"{layer}.json").read_text())
            yield from (name for kind, name, *_ in recipe if kind in {"shared", "patch"})


def write_parts(out: Path, name: str, files: Iterable[Path]) -> None:
    """Write files into as few folders as the first that has room gives, the largest first."""
    pieces = [
        (min(LIMIT, size - start), path, start)
        for path in files
        for size in [path.stat().st_size]
        for start in range(0, max(size, 1), LIMIT)
    ]
    rooms: list[list[Any]] = []
    for size, path, start in sorted(pieces, key=lambda piece: piece[0], reverse=True):
        room = next((room for room in rooms if room[0] + size <= LIMIT), None)
        if room is None:
            folder = out / f"part-{sum(1 for _ in out.glob('part-*')):02}"
            folder.mkdir(parents=True)
            rooms.append(room := [0, folder])
        room[0] += size
        whole = path.stat().st_size <= LIMIT
        with path.open("rb") as source:
            source.seek(start)
            target = room[1] / (path.name if whole else f"{path.name}.split{start // LIMIT:02}")
            target.write_bytes(source.read(size))
    print(name, *(folder.name for _, folder in rooms), f"{sum(size for size, _ in rooms) >> 20} MiB")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["tools", out]:
            write_tools(Path(out))
        case ["images", out, packed, *groups] if groups:
            write_images(Path(out), Path(packed), groups)
        case _:
            sys.exit(__doc__)
