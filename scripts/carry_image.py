"""Images to a machine that has no network, but most of their files: what it has goes as names, the rest as bytes.

    python scripts/carry_image.py pack OUT RECORDS WHEELS IMAGE...     here: IMAGE as the engine knows it
    python3 scripts/carry_image.py load IN                             there: into the engine of DOCKER_HOST

RECORDS lists what that machine has (gzip; a line each: distribution, path, `sha256=...`, bytes, by tabs). WHEELS is a
folder where wheels of it are unpacked: a large file that differs in little from one goes as a patch of it. A layer is
put together byte by byte from its tar, and the engine itself refuses one that is not what the image's configuration
names; so an image that loads is the one that was packed. The `load` half needs Python and zstd only.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import http.client
import io
import json
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

SMALL, LARGE = 256, 4 << 20
PLACE = "site-packages/"


def has(records: Path) -> tuple[dict[str, str], dict[str, tuple[str, str]]]:
    """What the other machine has: paths by hash, and (path, hash) by place below site-packages."""
    by_hash, by_place = {}, {}
    with gzip.open(records, "rt") as lines:
        for line in lines:
            _, path, digest, size = line.rstrip("\n").split("\t")
            if digest and size and int(size) >= SMALL:
                path = os.path.normpath(path)
                by_hash[digest] = path
                by_place[path.partition(PLACE)[2]] = (path, digest)
    return by_hash, by_place


def digest(file: IO[bytes]) -> str:
    """As a RECORD writes it."""
    found = hashlib.file_digest(file, "sha256").digest()  # type: ignore[arg-type]
    return "sha256=" + base64.urlsafe_b64encode(found).rstrip(b"=").decode()


class Packer:
    """What goes to the other machine, in one folder."""

    def __init__(self, out: Path, records: Path, wheels: Path) -> None:
        self.out, self.wheels = out, wheels
        self.by_hash, self.by_place = has(records)
        out.mkdir(parents=True, exist_ok=True)

    def layer(self, tar: Path, name: str) -> None:
        """A layer's recipe, its literal bytes and its patches."""
        recipe: list[list[Any]] = []
        literal = self.out / f"{name}.literal"
        with tar.open("rb") as raw, literal.open("wb") as kept:

            def keep(until: int) -> None:
                count = until - raw.tell()
                if count:
                    shutil.copyfileobj(_Limited(raw, count), kept)
                    recipe.append(["literal", count])

            with tarfile.open(tar) as archive:
                for member in archive:
                    if not member.isreg() or member.size < SMALL:
                        continue
                    same = self._same(cast("IO[bytes]", archive.extractfile(member)), member)
                    if same:
                        keep(member.offset_data)
                        recipe.append(same)
                        raw.seek(member.offset_data + member.size)
            keep(tar.stat().st_size)
        compress(literal)
        (self.out / f"{name}.json").write_text(json.dumps(recipe))

    def _same(self, file: IO[bytes], member: tarfile.TarInfo) -> list[Any] | None:
        said = digest(file)
        if said in self.by_hash:
            return ["file", self.by_hash[said], member.size]
        place = member.name.partition(PLACE)[2]
        if member.size < LARGE or not place or place not in self.by_place:
            return None
        path, wanted = self.by_place[place]
        old = self.wheels / place
        if not old.exists():
            return None
        with old.open("rb") as same:
            if digest(same) != wanted:
                return None
        patch = self.out / f"{said[7:27].replace('-', '_')}.patch"
        with tempfile.NamedTemporaryFile(dir=self.out) as new:
            file.seek(0)
            shutil.copyfileobj(file, new)
            new.flush()
            options = ["-q", "-f", "-T2", "-8", "--long=30", f"--patch-from={old}"]
            subprocess.run(["zstd", *options, new.name, "-o", patch], check=True)
        return ["patch", patch.name, path, member.size]


class _Limited(io.RawIOBase):
    """The next bytes of a file, and no more."""

    def __init__(self, file: IO[bytes], count: int) -> None:
        self._file, self._left = file, count

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(min(self._left, size if size >= 0 else self._left))
        self._left -= len(data)
        return data


def compress(path: Path) -> None:
    """In its place."""
    subprocess.run(["zstd", "-q", "-f", "-T2", "-13", "--long=27", "--rm", path], check=True)


def pack(out: str, records: str, wheels: str, *images: str) -> None:
    """Everything that `load` needs."""
    from knowngood.engines import engine, imagestore, sdk

    packer, here, found = Packer(Path(out), Path(records), Path(wheels)), engine.ensure(say=print), []
    for image in images:
        with sdk.client(here) as client:
            reference = str(client.images.get(image).id)
        manifest = json.loads(imagestore.manifest_bytes(here, image, reference))
        wanted = [manifest["config"]["digest"], *(layer["digest"] for layer in manifest["layers"])]
        with tempfile.TemporaryDirectory(dir=out) as scratch:
            config = packer.out / f"{wanted[0][7:]}.config"
            shutil.copy(imagestore.blob(here, image, wanted[0], Path(scratch)), config)
            names = [diff[7:] for diff in json.loads(config.read_bytes())["rootfs"]["diff_ids"]]
            for layer, name in zip(wanted[1:], names, strict=True):
                if not (packer.out / f"{name}.json").exists():
                    tar, blob = Path(scratch) / "layer.tar", imagestore.blob(here, image, layer, Path(scratch))
                    subprocess.run(["zstd", "-q", "-d", "-f", blob, "-o", tar], check=True)
                    packer.layer(tar, name)
        found.append({"image": image, "config": wanted[0][7:], "layers": names})
        print(image, reference, flush=True)
    (packer.out / "images.json").write_text(json.dumps(found))


def rebuilt(folder: Path, name: str) -> Iterator[bytes]:
    """A layer's tar, in blocks."""
    opened = subprocess.Popen(
        ["zstd", "-q", "-d", "-c", "--long=30", folder / f"{name}.literal.zst"], stdout=subprocess.PIPE
    )
    for kind, *rest in json.loads((folder / f"{name}.json").read_text()):
        if kind == "literal":
            yield from blocks(cast("IO[bytes]", opened.stdout), rest[0])
        elif kind == "file":
            with Path(rest[0]).open("rb") as file:
                yield from blocks(file, rest[1])
        else:
            argv = ["zstd", "-q", "-d", "-c", "--long=30", f"--patch-from={rest[1]}", folder / rest[0]]
            with subprocess.Popen(argv, stdout=subprocess.PIPE) as patched:
                yield from blocks(cast("IO[bytes]", patched.stdout), rest[2])
    opened.wait()


def blocks(file: IO[bytes], count: int) -> Iterator[bytes]:
    """The next `count` bytes."""
    while count:
        data = file.read(min(count, 1 << 20))
        if not data:
            raise SystemExit(f"{count} bytes are missing")
        count -= len(data)
        yield data


def load(source: str) -> None:
    """All images into the engine."""
    folder = Path(source)
    images = json.loads((folder / "images.json").read_text())
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for name in sorted({name for item in images for name in item["layers"]}):
                recipe = json.loads((folder / f"{name}.json").read_text())
                member = tarfile.TarInfo(f"{name}.tar")
                member.size = sum(step[-1] for step in recipe)
                archive.addfile(member)
                found = hashlib.sha256()
                for block in rebuilt(folder, name):
                    found.update(block)
                    archive.fileobj.write(block)  # type: ignore[union-attr]
                padding = -member.size % tarfile.BLOCKSIZE
                archive.fileobj.write(b"\0" * padding)  # type: ignore[union-attr]
                archive.offset += member.size + padding
                if found.hexdigest() != name:
                    raise SystemExit(f"layer {name} came out as {found.hexdigest()}")
            manifest = [
                {
                    "Config": f"{item['config']}.json",
                    "RepoTags": [item["image"]],
                    "Layers": [f"{name}.tar" for name in item["layers"]],
                }
                for item in images
            ]
            for item in images:
                add(archive, f"{item['config']}.json", (folder / f"{item['config']}.config").read_bytes())
            add(archive, "manifest.json", json.dumps(manifest).encode())
        file.flush()
        print(f"{file.tell()} bytes to load", flush=True)
        file.seek(0)
        post(file)


def add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    """A small file."""
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def post(file: IO[bytes]) -> None:
    """`docker load`, without the docker command."""
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.sock.connect(os.environ["DOCKER_HOST"].removeprefix("unix://"))
    connection.request("POST", "/images/load?quiet=1", body=file, headers={"Content-Type": "application/x-tar"})
    answer = connection.getresponse()
    said = answer.read().decode()
    print(answer.status, said)
    if answer.status != http.HTTPStatus.OK or '"error' in said:
        raise SystemExit(1)


if __name__ == "__main__":
    {"pack": pack, "load": load}[sys.argv[1]](*sys.argv[2:])
