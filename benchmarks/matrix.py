"""What the matrix costs: a second cell, storage, a cold build, a run with nothing to do; beside a floor or a rival.

    python benchmarks/matrix.py [PART ...] [--json FILE]

The parts, in this order, all measured in one run on one engine (default: all of them):

    second     a cell that differs from the default one in transformers only, its other layers cached, against the same
               cell by the plain Dockerfile that a user would write: one `pip install`
    storage    what the wheels of all layers of the matrix come to, against each distinct wheel once
    cold       the default cell without any cache, against `uv pip install` of the same lock into an empty folder and
               one compression of that by the same compressor, the engine's, as a single layer; beside it zstd of the
               same level by libzstd on all processors
    unchanged  `knowngood build --all` when everything is built

The work is done in a copy of the project, so that an edit meanwhile changes nothing; what it builds is removed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from knowngood import units
from knowngood.building import build, pipeline, survey
from knowngood.cell import Cell
from knowngood.engines import embedded, engine, imagestore, sdk
from knowngood.locks import locking, resolve, wheelhouse
from knowngood.locks.tree import CellLock
from knowngood.project import Project, cxx11abi

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("docker", "facts", "rules", "smoke_tests", "templates")
LIMITS = {
    "second cell, bytes added": ("at most", 60e6),
    "second cell, seconds": ("at most", 15),
    "plain Dockerfile / second cell, seconds": ("at least", 10),
    "plain Dockerfile / second cell, bytes": ("at least", 40),
    "bytes of all layers / of distinct wheels": ("at most", 1.05),
    "cold build / floor, seconds": ("at most", 1.5),
    "cold build, blobs that differ from the cached one's": ("at most", 0),
    "unchanged run, seconds": ("at most", 10),
}
PLAIN = """\
FROM base
RUN --mount=type=bind,from=tools,target=/tools --mount=type=secret,id=env --mount=type=secret,id=ca \\
    if [ -e /run/secrets/env ]; then . /run/secrets/env; fi; \\
    if [ -e /run/secrets/ca ]; then export SSL_CERT_FILE=/run/secrets/ca PIP_CERT=/run/secrets/ca; fi; \\
    /tools/uv venv --quiet --no-config --seed --python /usr/bin/python3 /opt/venv && \\
    /opt/venv/bin/pip install --quiet --no-cache-dir ${UV_DEFAULT_INDEX:+--index-url "$UV_DEFAULT_INDEX"} @REQUIREMENTS@
"""

PHASE = re.compile(r"^#\d+ (exporting layers|unpacking)\b.* ([\d.]+)s done$", re.MULTILINE)
"""BuildKit's own times, in its plain output."""

Found = dict[str, float]


def say(text: str) -> None:
    """What goes on, on stderr."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


class Bench:
    """A copy of the project, the default cell built in it, and the engine."""

    def __init__(self, root: Path) -> None:
        for part in PARTS:
            shutil.copytree(ROOT / part, root / part, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        shutil.copy(ROOT / "matrix.yaml", root)
        self.root = root
        real = Project(root)
        self.default = real.matrix.entries[real.matrix.aliases["default"]].cell
        self.whole = real
        releases = [item for item in self._releases() if item != self.default.transformers]
        self.second = replace(self.default, transformers=releases[-1])
        self.project = self._with(self.default, self.second)
        self.engine = engine.ensure(say=say)
        options = pipeline.Options(wheelhouse=wheelhouse.folder(), prove=False)
        self.line = pipeline.Pipeline(self.project, options, self.engine)
        self.removed: list[str] = []

    def _releases(self) -> list[str]:
        """The transformers releases up to the default cell's."""
        from packaging.version import Version

        from knowngood import facts

        known = [text for text in facts.load("transformers") if not Version(text).is_prerelease]
        return sorted((text for text in known if Version(text) < Version(self.default.transformers)), key=Version)

    def _with(self, *cells: Cell) -> Project:
        """The project with these cells and no others."""
        matrix = self.root / "matrix.yaml"
        head = matrix.read_text().partition("\ncells:\n")[0]
        base = self.whole.matrix.entry(self.default).base
        items = "".join(
            f"  - {{gpu: {cell.gpu}, torch: {cell.torch}, transformers: {cell.transformers}, "
            f"flash-attn: {'none' if cell.flash_attn == '0' else cell.flash_attn}, base: {base}}}\n"
            for cell in cells
        )
        matrix.write_text(f"{head}\ncells:\n{items}")
        return Project(self.root)

    def lock(self, cell: Cell) -> CellLock:
        """The lock of one of the two cells."""
        matrix = self.project.matrix
        return locking.lock_cell(
            matrix.entry(cell),
            matrix,
            self.project.tree,
            house=wheelhouse.folder(),
            cxx11abi=cxx11abi,
            upgrade=False,
            locked_only=False,
            say=say,
        ).lock

    def plan(self, cell: Cell, name: str, *, cached: bool = True) -> build.Plan:
        """How the cell is built, under a name of its own."""
        self.removed.append(f"knowngood-benchmark:{name}")
        return replace(self.line.plan(self.lock(cell), say), tag=self.removed[-1], cached=cached)

    def build(self, plan: build.Plan) -> tuple[float, dict[str, int]]:
        """Seconds until the image is in the engine, and its layers' bytes by digest."""
        with build.host_secrets() as secrets:
            start = time.monotonic()
            image = build.build(replace(plan, secrets=secrets), self.engine, log=self.root / "log", say=say)
            seconds = time.monotonic() - start
        manifest = imagestore.manifest(self.engine, image.tag, image.digest)
        return seconds, {blob.digest: blob.size for blob in (*manifest.layers, manifest.config)}

    def phases(self) -> tuple[float, float]:
        """Seconds in which the last build compressed its layers, and in which the engine unpacked them."""
        found = dict(PHASE.findall((self.root / "log").read_text()))
        return float(found["exporting layers"]), float(found["unpacking"])

    def clean(self) -> None:
        """Take the images out of the engine."""
        with sdk.client(self.engine) as client:
            for tag in self.removed:
                with contextlib.suppress(Exception):
                    client.images.remove(tag, force=True)


def second(bench: Bench) -> Found:
    """One more cell, and its rival."""
    room(15)
    say(f"the default cell, so that its layers are cached: {bench.default}")
    _, first = bench.build(bench.plan(bench.default, "default"))
    say(f"the second cell: {bench.second}")
    plan = bench.plan(bench.second, "second")
    seconds, layers = bench.build(plan)
    added = sum(size for digest, size in layers.items() if digest not in first)
    cell = bench.second
    requirements = [f"torch=={cell.torch}", f"transformers=={cell.transformers}"]
    requirements += [f"{cell.flash_attn_package}=={cell.flash_attn}"] if cell.flash_attn_package else []
    requirements += bench.project.matrix.entry(cell).extras
    context = bench.root / "plain"
    context.mkdir()
    (context / "Dockerfile").write_text(PLAIN.replace("@REQUIREMENTS@", " ".join(requirements)))
    say(f"the plain Dockerfile: pip install {' '.join(requirements)}")
    contexts = {name: plan.contexts[name] for name in ("base", "tools")}
    tag = "knowngood-benchmark:plain"
    bench.removed.append(tag)
    rival = build.Plan(
        tag=tag, dockerfile=context / "Dockerfile", context=context, contexts=contexts, inputs="0" * 64, cached=False
    )
    plain_seconds, plain = bench.build(rival)
    bench.clean()
    plain_added = sum(size for digest, size in plain.items() if digest not in first)
    return {
        "second cell, bytes added": added,
        "second cell, seconds": seconds,
        "plain Dockerfile, bytes added": plain_added,
        "plain Dockerfile, seconds": plain_seconds,
        "plain Dockerfile / second cell, seconds": plain_seconds / seconds,
        "plain Dockerfile / second cell, bytes": plain_added / added,
    }


def storage(_: Bench) -> Found:
    """All layers of the matrix as it is committed."""
    here = Project(ROOT)
    locks = [locked for cell in here.matrix.cells if (locked := here.tree.load(cell))]
    layers = {layer.name: layer for locked in locks for layer in locked.layers}
    wheels = {item.sha256: item.size for layer in layers.values() for item in layer.distributions}
    held, once = sum(layer.size for layer in layers.values()), sum(wheels.values())
    return {
        "cells": len(locks),
        "bytes of wheels in all layers": held,
        "bytes of distinct wheels": once,
        "bytes of all layers / of distinct wheels": held / once,
    }


def cold(bench: Bench) -> Found:
    """Without any cache, and the floor."""
    room(30)
    _, before = bench.build(bench.plan(bench.default, "default"))
    say("the default cell without any cache")
    seconds, after = bench.build(bench.plan(bench.default, "cold", cached=False))
    differing = len(set(after) ^ set(before))
    packing, unpacking = bench.phases()
    bench.clean()
    locked = bench.lock(bench.default)
    with tempfile.TemporaryDirectory(dir=bench.root) as folder:
        requirements = Path(folder) / "requirements.txt"
        requirements.write_text("".join(layer.requirements() for layer in locked.layers))
        say("the floor: uv pip install into an empty folder")
        start = time.monotonic()
        target = ["--target", f"{folder}/out", "--python-version", bench.default.python]
        target += ["--python-platform", resolve.platform("2.36"), "--requirements", str(requirements)]
        pinned = ["--no-deps", "--require-hashes", "--only-binary", ":all:", "--no-compile-bytecode"]
        cache = ["--cache-dir", f"{folder}/cache", "--link-mode", "hardlink"]
        subprocess.run(
            [str(build.tools() / "uv"), "pip", "install", "--quiet", *resolve.config(), *pinned, *cache, *target],
            check=True,
            env=resolve.environment(),
        )
        installed = time.monotonic() - start
        say("the floor: one compression, by libzstd")
        start = time.monotonic()
        size = compress(Path(folder) / "out", Path(folder) / "layer")
        by_libzstd = time.monotonic() - start
        (Path(folder) / "layer").unlink()
        say("the floor: one compression, by the engine")
        context = Path(folder) / "one"
        context.mkdir()
        (context / "Dockerfile").write_text("FROM scratch\nCOPY --from=files / /\n")
        tag = "knowngood-benchmark:floor"
        bench.removed.append(tag)
        bench.build(
            build.Plan(
                tag=tag,
                dockerfile=context / "Dockerfile",
                context=context,
                contexts={"files": f"{folder}/out"},
                inputs="1" * 64,
                cached=False,
            )
        )
        by_engine, _ = bench.phases()
    bench.clean()
    return {
        "cold build, seconds": seconds,
        "cold build: layers made, seconds": seconds - packing - unpacking,
        "cold build: compression, seconds": packing,
        "cold build: unpacked by the engine, seconds": unpacking,
        "floor: uv pip install, seconds": installed,
        "floor: compression by the engine, seconds": by_engine,
        "floor: compression by libzstd, seconds": by_libzstd,
        "floor: bytes by libzstd": size,
        "cold build / floor, seconds": seconds / (installed + by_engine),
        "cold build / floor with libzstd, seconds": seconds / (installed + by_libzstd),
        "cold build, blobs that differ from the cached one's": differing,
    }


def compress(folder: Path, out: Path) -> int:
    """One layer of a folder; its bytes."""
    from zstandard import ZstdCompressor

    with (
        out.open("wb") as raw,
        ZstdCompressor(level=3, threads=-1).stream_writer(raw) as packed,
        tarfile.open(fileobj=packed, mode="w|", bufsize=1 << 20) as archive,
    ):
        archive.add(folder, ".")
    return out.stat().st_size


def unchanged(bench: Bench) -> Found:
    """The whole command, with every cell built."""
    for cell in (bench.default, bench.second):
        bench.build(replace(bench.plan(cell, "again"), tag=f"knowngood:{cell}"))
    bench.removed.append(f"knowngood:{bench.second}")
    argv = [sys.executable, "-m", "knowngood", "build", "--all", "--json"]
    start = time.monotonic()
    done = subprocess.run(argv, check=True, cwd=bench.root, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    seconds = time.monotonic() - start
    cells = json.loads(done.stdout)["cells"]
    if any(cell["image"]["built"] for cell in cells):
        raise AssertionError(cells)
    start = time.monotonic()
    survey.plan(bench.whole, bench.whole.matrix.cells, wheelhouse.folder(), bench.engine)
    return {
        "unchanged cells": len(cells),
        "unchanged run, seconds": seconds,
        "planned cells": len(bench.whole.matrix.cells),
        "plan of the whole matrix, seconds": time.monotonic() - start,
    }


BENCHMARKS: dict[str, Callable[[Bench], Found]] = {
    "second": second,
    "storage": storage,
    "cold": cold,
    "unchanged": unchanged,
}


def lines(found: Found) -> Iterator[str]:
    """What was measured, with the limit where there is one."""
    yield "| what | measured | limit | |"
    yield "| --- | --- | --- | --- |"
    for name, value in found.items():
        bytes_ = "bytes" in name and "/" not in name
        shown = units.text(round(value)) if bytes_ else f"{value:.2f}".rstrip("0").rstrip(".")
        kind, limit = LIMITS.get(name, ("", 0))
        wanted = f"{kind} {units.text(round(limit)) if bytes_ else f'{limit:g}'}" if kind else ""
        good = value <= limit if kind == "at most" else value >= limit
        yield f"| {name} | {shown} | {wanted} | {('yes' if good else 'NO') if kind else ''} |"


def room(gigabytes: int) -> None:
    """End here when the disk is too full for what comes: others may need it too."""
    free = shutil.disk_usage(embedded.places().home.parent).free
    if free < gigabytes * 10**9:
        sys.exit(f"{gigabytes} GB of disk are needed, {units.text(free)} are free")


def main() -> None:
    """Measure the parts that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="*", help=", ".join(BENCHMARKS))
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the numbers as well")
    arguments = parser.parse_args()
    found: Found = {"processors": os.cpu_count() or 1, "load before": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory(prefix="knowngood-benchmark-") as folder:
        bench = Bench(Path(folder))
        try:
            for name in arguments.part or BENCHMARKS:
                found |= BENCHMARKS[name](bench)
        finally:
            bench.clean()
    print("\n".join(lines(found)))
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
