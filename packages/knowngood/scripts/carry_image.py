"""Copy images to a machine without a network that already has most of their files.

    python carry_image.py records RECORDS WHEELS PLACE NAME...   here: what NAME... have there
    python carry_image.py pack OUT RECORDS WHEELS IMAGE...       here: IMAGE as the engine names it
    python3 carry_image.py load IN                               there: into the engine of DOCKER_HOST

Files that the machine has are sent as names, the rest as bytes, and a large file of several layers once. WHEELS is a
folder with unpacked wheels of that machine (`uv pip install --target`, for its Python): a large file that differs
little from one of theirs is sent as a patch of it. RECORDS lists the machine's files: gzip, one line per file with
distribution, path, `sha256=...` and bytes, separated by tabs. `records` writes it from WHEELS for distributions that
the machine is known to have in that release (`nvidia-`: all whose names begin so); PLACE is its site-packages.
Bytecode of the image's virtual environment is not sent: its own Python makes it there, from the modules of the same
layer. Each layer's tar file is rebuilt byte by byte. The engine itself refuses a layer that the image's configuration
does not name, so an image that loads is the image that was packed. `load` needs Python, zstd and tar, and root for the
image's Python.
"""

from __future__ import annotations

import base64
import csv
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
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, cast

SMALL, SHARED, LARGE = 256, 1 << 20, 4 << 20
PLACE = "site-packages/"
ENVIRONMENT = "opt/venv/"
COMPILE = "compile-modules"


def load_records(records: Path) -> tuple[dict[str, str], dict[str, tuple[str, str]]]:
    """Read the files of the other machine: paths by hash, and (path, hash) by path below site-packages."""
    by_hash, by_place = {}, {}
    with gzip.open(records, "rt") as lines:
        for line in lines:
            _, path, digest, size = line.rstrip("\n").split("\t")
            if digest and size and int(size) >= SMALL:
                path = os.path.normpath(path)
                by_hash[digest] = path
                by_place[path.partition(PLACE)[2]] = (path, digest)
    return by_hash, by_place


def write_records(records: str, wheels: str, place: str, *names: str) -> None:
    """Write the files of distributions, by the RECORD of each; `nvidia-` means all whose names begin so."""
    folders = [path for path in sorted(Path(wheels).glob("*.dist-info")) if _is_named(path.stem, names)]
    with gzip.open(records, "wt") as lines:
        for folder in folders:
            with (folder / "RECORD").open(encoding="utf-8", newline="") as file:
                for path, sha256, size in csv.reader(file):
                    if sha256 and not path.startswith((folder.name, "..")):  # what an installer writes is its own
                        lines.write(f"{folder.stem}\t{place}/{path}\t{sha256}\t{size}\n")
    print(len(folders), "distributions")


def _is_named(stem: str, names: Sequence[str]) -> bool:
    name = stem.partition("-")[0].replace("_", "-")
    return any(name.startswith(wanted) if wanted.endswith("-") else name == wanted for wanted in names)


def digest(file: IO[bytes]) -> str:
    """Return the SHA-256 of a file in the form of a RECORD file."""
    raw = hashlib.file_digest(file, "sha256").digest()  # type: ignore[arg-type]
    return "sha256=" + base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


class Packer:
    """Writes everything that is sent to the other machine into one folder."""

    def __init__(self, out: Path, records: Path, wheels: Path) -> None:
        self.out, self.wheels = out, wheels
        self.by_hash, self.by_place = load_records(records)
        out.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(__file__).resolve().parents[3] / "docker/recipe" / COMPILE, out)

    def layer(self, tar: Path, name: str) -> None:
        """Write a layer's recipe, its literal bytes and its patches."""
        recipe: list[list[Any]] = []
        literal = self.out / f"{name}.literal"
        with tar.open("rb") as raw, literal.open("wb") as kept:

            def keep(until: int) -> None:
                count = until - raw.tell()
                if count:
                    shutil.copyfileobj(_Limited(raw, count), kept)
                    recipe.append(["literal", count])

            with tarfile.open(tar) as archive:
                sources = {member.name for member in archive if is_module(member.name)}
                for member in archive:
                    if not member.isreg() or member.size < SMALL:
                        continue
                    if source_of(member.name) in sources:
                        same: list[Any] | None = ["bytecode", member.name, member.size]
                    else:
                        same = self._same(cast("IO[bytes]", archive.extractfile(member)), member)
                    if same:
                        keep(member.offset_data)
                        recipe.append(same)
                        raw.seek(member.offset_data + member.size)
            keep(tar.stat().st_size)
        compress(literal)
        (self.out / f"{name}.json").write_text(json.dumps(recipe))

    def _same(self, file: IO[bytes], member: tarfile.TarInfo) -> list[Any] | None:
        sha256 = digest(file)
        if sha256 in self.by_hash:
            return ["file", self.by_hash[sha256], member.size]
        return self._patch(file, member, sha256) or self._shared(file, member, sha256)

    def _shared(self, file: IO[bytes], member: tarfile.TarInfo, sha256: str) -> list[Any] | None:
        """Keep a large file by itself, since other layers may have it too."""
        if member.size < SHARED:
            return None
        path = self.out / f"{sha256[7:27].replace('-', '_')}.shared"
        if not path.with_name(f"{path.name}.zst").exists():
            file.seek(0)
            with path.open("wb") as kept:
                shutil.copyfileobj(file, kept)
            compress(path)
        return ["shared", f"{path.name}.zst", member.size]

    def _patch(self, file: IO[bytes], member: tarfile.TarInfo, sha256: str) -> list[Any] | None:
        """Keep the difference of a file from one that is there and like it."""
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
        patch = self.out / f"{sha256[7:27].replace('-', '_')}.patch"
        with tempfile.NamedTemporaryFile(dir=self.out) as new:
            file.seek(0)
            shutil.copyfileobj(file, new)
            new.flush()
            options = ["-q", "-f", "-T2", "-8", "--long=30", f"--patch-from={old}"]
            subprocess.run(["zstd", *options, new.name, "-o", patch], check=True)
        return ["patch", patch.name, path, member.size]


def is_module(name: str) -> bool:
    """Say whether a layer's file is a module of the virtual environment."""
    return name.startswith(ENVIRONMENT) and name.endswith(".py")


def source_of(name: str) -> str:
    """Return the module whose bytecode a layer's file is; empty when it is none of the virtual environment."""
    folder, _, file = name.rpartition("/__pycache__/")
    return f"{folder}/{file.partition('.')[0]}.py" if folder.startswith(ENVIRONMENT) and file.endswith(".pyc") else ""


class _Limited(io.RawIOBase):
    """Reads at most `count` bytes from the current position of a file."""

    def __init__(self, file: IO[bytes], count: int) -> None:
        self._file, self._left = file, count

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(min(self._left, size if size >= 0 else self._left))
        self._left -= len(data)
        return data


def compress(path: Path) -> None:
    """Replace a file by its zstd-compressed form, with `.zst` added to the name."""
    subprocess.run(["zstd", "-q", "-f", "-T2", "-9", "--long=27", "--rm", path], check=True)


def pack(out: str, records: str, wheels: str, *images: str) -> None:
    """Write everything that `load` needs."""
    from knowngood.engine import container_engine, image_store

    packer = Packer(Path(out), Path(records), Path(wheels))
    here = container_engine.ensure_engine(notify=print)
    packed = []
    for image in images:
        with container_engine.docker_client(here) as client:
            reference = str(client.images.get(image).id)
        manifest = json.loads(image_store.read_manifest_bytes(here, image, reference))
        wanted = [manifest["config"]["digest"], *(layer["digest"] for layer in manifest["layers"])]
        with tempfile.TemporaryDirectory(dir=out) as scratch:
            config = packer.out / f"{wanted[0][7:]}.config"
            shutil.copy(image_store.find_blob_file(here, image, wanted[0], Path(scratch)), config)
            names = [diff[7:] for diff in json.loads(config.read_bytes())["rootfs"]["diff_ids"]]
            for layer, name in zip(wanted[1:], names, strict=True):
                if not (packer.out / f"{name}.json").exists():
                    tar, blob = (
                        Path(scratch) / "layer.tar",
                        image_store.find_blob_file(here, image, layer, Path(scratch)),
                    )
                    subprocess.run(["zstd", "-q", "-d", "-f", blob, "-o", tar], check=True)
                    packer.layer(tar, name)
        packed.append({"image": image, "config": wanted[0][7:], "layers": names})
        print(image, reference, flush=True)
    (packer.out / "images.json").write_text(json.dumps(packed))


def read_recipe(folder: Path, name: str) -> list[list[Any]]:
    """Return how a layer's tar file is put together; the last item of each step is its number of bytes."""
    return cast("list[list[Any]]", json.loads((folder / f"{name}.json").read_text()))


def rebuilt(folder: Path, name: str) -> Iterator[bytes]:
    """Yield a layer's tar file in blocks, with zeros where bytecode goes."""
    opened = subprocess.Popen(
        ["zstd", "-q", "-d", "-c", "--long=30", folder / f"{name}.literal.zst"], stdout=subprocess.PIPE
    )
    for kind, *rest in read_recipe(folder, name):
        if kind == "literal":
            yield from blocks(cast("IO[bytes]", opened.stdout), rest[0])
        elif kind == "bytecode":
            yield bytes(rest[1])
        elif kind == "file":
            with Path(rest[0]).open("rb") as file:
                yield from blocks(file, rest[1])
        else:
            origin = [f"--patch-from={rest[1]}"] if kind == "patch" else []
            argv = ["zstd", "-q", "-d", "-c", "--long=30", *origin, folder / rest[0]]
            with subprocess.Popen(argv, stdout=subprocess.PIPE) as whole:
                yield from blocks(cast("IO[bytes]", whole.stdout), rest[-1])
    opened.wait()


def write_layer(folder: Path, name: str, tar: Path, root: Path) -> None:
    """Write a layer's tar file; `root` has the files of the image's base, whose Python makes the bytecode."""
    with tar.open("wb") as file:
        for block in rebuilt(folder, name):
            file.write(block)
    offset, missing = 0, {}
    for kind, *rest in read_recipe(folder, name):
        if kind == "bytecode":
            missing[rest[0]] = (offset, rest[1])
        offset += rest[-1]
    if missing:
        with tempfile.TemporaryDirectory(dir=root) as work:
            extract_modules(tar, Path(work))
            shutil.copy(folder / COMPILE, work)
            compile_modules(root, Path(work))
            with tar.open("r+b") as file:
                for path, (place, size) in missing.items():
                    code = (Path(work) / path).read_bytes()
                    if len(code) != size:
                        raise SystemExit(f"the bytecode /{path} has {len(code)} bytes here and {size} in the image")
                    file.seek(place)
                    file.write(code)


def extract_modules(tar: Path, work: Path) -> None:
    """Write a layer's modules below `work`, with their times."""
    with tarfile.open(tar) as archive:
        for member in archive:
            if is_module(member.name) and (source := archive.extractfile(member)):
                path = work / member.name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(source.read())
                os.utime(path, (member.mtime, member.mtime))


def compile_modules(root: Path, work: Path) -> None:
    """Make bytecode beside the modules below `work`, a folder in `root`, as the image's recipe does."""
    place = f"/{work.relative_to(root)}"
    python = ["chroot", root, "/usr/bin/env", "-i", "PYTHONHASHSEED=0", "/usr/bin/python3", "-s", "-S"]
    subprocess.run([*python, f"{place}/{COMPILE}", place], check=True, stderr=subprocess.DEVNULL)


def blocks(file: IO[bytes], count: int) -> Iterator[bytes]:
    """Yield the next `count` bytes of a file in blocks."""
    while count:
        data = file.read(min(count, 1 << 20))
        if not data:
            raise SystemExit(f"the file ends {count} bytes too early: it is not the file that was packed")
        count -= len(data)
        yield data


def load(source: str) -> None:
    """Rebuild all images of the folder `source` and load them into the engine."""
    folder = Path(source)
    images = json.loads((folder / "images.json").read_text())
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        tars = write_layers(folder, images, Path(scratch))
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            write_archive(file, folder, images, tars)
            file.flush()
            print(f"{file.tell()} bytes to load", flush=True)
            file.seek(0)
            post(file)


def write_layers(folder: Path, images: Sequence[dict[str, Any]], scratch: Path) -> dict[str, Path]:
    """Write the tar files of all layers, several at once, and return them by name."""
    bases = {name: item["layers"][0] for item in images for name in item["layers"]}
    tars = {name: scratch / f"{name}.tar" for name in sorted(bases)}
    for base in set(bases.values()):
        (scratch / base).mkdir()
        write_layer(folder, base, tars[base], scratch / base)
        # A base by itself has no virtual environment, and no other layer that needs its Python.
        if any(name != base and found == base for name, found in bases.items()):
            subprocess.run(["tar", "-xf", tars[base], "-C", scratch / base], check=True)
    with ThreadPoolExecutor() as pool:
        jobs = [
            pool.submit(write_layer, folder, name, tar, scratch / bases[name])
            for name, tar in tars.items()
            if name != bases[name]
        ]
        for job in jobs:
            job.result()
    return tars


def write_archive(file: IO[bytes], folder: Path, images: Sequence[dict[str, Any]], tars: Mapping[str, Path]) -> None:
    """Write the archive that an engine loads; a layer whose bytes are not those of its name ends the program."""
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, tar in tars.items():
            with tar.open("rb") as layer:
                if (sha256 := hashlib.file_digest(layer, "sha256").hexdigest()) != name:
                    raise SystemExit(f"layer {name} was rebuilt with another digest: {sha256}")
            archive.add(tar, f"{name}.tar")
            tar.unlink()
        for item in images:
            add(archive, f"{item['config']}.json", (folder / f"{item['config']}.config").read_bytes())
        manifest = [
            {
                "Config": f"{item['config']}.json",
                "RepoTags": [item["image"]],
                "Layers": [f"{name}.tar" for name in item["layers"]],
            }
            for item in images
        ]
        add(archive, "manifest.json", json.dumps(manifest).encode())


def add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    """Add a small file to the archive."""
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def post(file: IO[bytes]) -> None:
    """Send the archive to the engine, as `docker load` does; exit with 1 when the engine reports an error."""
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.sock.connect(os.environ["DOCKER_HOST"].removeprefix("unix://"))
    connection.request("POST", "/images/load?quiet=1", body=file, headers={"Content-Type": "application/x-tar"})
    answer = connection.getresponse()
    text = answer.read().decode()
    print(answer.status, text)
    if answer.status != http.HTTPStatus.OK or '"error' in text:
        raise SystemExit(1)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["records", records, wheels, place, *names] if names:
            write_records(records, wheels, place, *names)
        case ["pack", out, records, wheels, *images] if images:
            pack(out, records, wheels, *images)
        case ["load", source]:
            load(source)
        case _:
            sys.exit(__doc__)
