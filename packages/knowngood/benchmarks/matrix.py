"""Measure the costs of the matrix: a second cell, storage, a cold build, and a run with nothing to do.

    python matrix.py [PART ...] [--json FILE]

The parts, in this order, are all measured in one run on one engine (default: all of them):

    second     a cell that differs from the default one only in transformers, with its other layers cached, compared
               with the same cell by the plain Dockerfile that a user would write: one `pip install`
    storage    the bytes of the wheels of all layers of the matrix, compared with each distinct wheel once
    cold       the default cell without any cache, compared with a floor: `uv pip install` of the same lock into an
               empty folder, and one compression of that as a single layer by the engine's compressor; also libzstd
               with the same level on all processors
    unchanged  `knowngood build` when everything is built

It works in a copy of the project, so that edits in the meantime have no effect, and removes the images that it builds.
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

from knowngood.core import formatting
from knowngood.core.cell import Cell
from knowngood.engine import container_engine, image_store, unpacked_engine
from knowngood.images import build_command, build_inputs, build_survey, image_build, pipeline
from knowngood.lock import cell_locking, resolver, wheelhouse
from knowngood.lock.lock_tree import CellLock
from knowngood.project.checkout import Project, load_torch_cxx11abi

ROOT = Path(__file__).resolve().parents[3]
PARTS = ("docker", "packages/knowngood-facts/facts", "packages/knowngood-facts/rules", "smoke_tests", "templates")
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
"""The times that BuildKit prints in its plain output."""

Measurements = dict[str, float]


def notify(text: str) -> None:
    """Print progress on stderr."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


class Bench:
    """A copy of the project, the pipeline that builds two cells of it, and the engine."""

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
        self.engine = container_engine.ensure_engine(notify=notify)
        options = pipeline.PipelineOptions(wheelhouse=wheelhouse.wheelhouse_folder(), prove=False)
        self.line = pipeline.Pipeline(self.project, options, self.engine)
        self.removed: list[str] = []

    def _releases(self) -> list[str]:
        """Return the transformers releases before the default cell's, oldest first."""
        from packaging.version import Version

        from knowngood_facts.facts import fact_store

        known = [text for text in fact_store.list_versions("transformers") if not Version(text).is_prerelease]
        return sorted((text for text in known if Version(text) < Version(self.default.transformers)), key=Version)

    def _with(self, *cells: Cell) -> Project:
        """Write the matrix with only these cells; return the project."""
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
        """Return the lock of one of the two cells."""
        matrix = self.project.matrix
        return cell_locking.lock_cell(
            matrix.entry(cell),
            matrix,
            self.project.tree,
            wheel_folder=wheelhouse.wheelhouse_folder(),
            cxx11abi=load_torch_cxx11abi,
            upgrade=False,
            locked_only=False,
            notify=notify,
        ).lock

    def plan(self, cell: Cell, name: str, *, cached: bool = True) -> build_command.BuildPlan:
        """Return the build plan of the cell with a tag of this benchmark."""
        self.removed.append(f"knowngood-benchmark:{name}")
        return replace(self.line.plan(self.lock(cell), notify), tag=self.removed[-1], cached=cached)

    def build(self, plan: build_command.BuildPlan) -> tuple[float, dict[str, int]]:
        """Build; return the seconds until the image is in the engine, and its layers' bytes by digest."""
        with build_inputs.host_secrets() as secrets:
            start = time.monotonic()
            log = self.root / "log"
            image = image_build.build_image(replace(plan, secrets=secrets), self.engine, log=log, notify=notify)
            seconds = time.monotonic() - start
        manifest = image_store.read_manifest(self.engine, image.tag, image.digest)
        return seconds, {blob.digest: blob.size for blob in (*manifest.layers, manifest.config)}

    def phases(self) -> tuple[float, float]:
        """Return the seconds in which the last build compressed its layers, and in which the engine unpacked them."""
        phases = dict(PHASE.findall((self.root / "log").read_text()))
        return float(phases["exporting layers"]), float(phases["unpacking"])

    def clean(self) -> None:
        """Remove the images from the engine."""
        with container_engine.docker_client(self.engine) as client:
            for tag in self.removed:
                with contextlib.suppress(Exception):
                    client.images.remove(tag, force=True)


def second(bench: Bench) -> Measurements:
    """Measure one more cell, and the same cell by a plain Dockerfile."""
    room(15)
    notify(f"the default cell, so that its layers are cached: {bench.default}")
    _, first = bench.build(bench.plan(bench.default, "default"))
    notify(f"the second cell: {bench.second}")
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
    notify(f"the plain Dockerfile: pip install {' '.join(requirements)}")
    contexts = {name: plan.contexts[name] for name in ("base", "tools")}
    tag = "knowngood-benchmark:plain"
    bench.removed.append(tag)
    rival = build_command.BuildPlan(
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


def storage(_: Bench) -> Measurements:
    """Measure all layers of the committed matrix."""
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


def cold(bench: Bench) -> Measurements:
    """Measure a build without any cache, and its floor."""
    room(30)
    _, before = bench.build(bench.plan(bench.default, "default"))
    notify("the default cell without any cache")
    seconds, after = bench.build(bench.plan(bench.default, "cold", cached=False))
    differing = len(set(after) ^ set(before))
    packing, unpacking = bench.phases()
    bench.clean()
    locked = bench.lock(bench.default)
    with tempfile.TemporaryDirectory(dir=bench.root) as folder:
        requirements = Path(folder) / "requirements.txt"
        requirements.write_text("".join(layer.requirements() for layer in locked.layers))
        notify("the floor: uv pip install into an empty folder")
        start = time.monotonic()
        target = ["--target", f"{folder}/out", "--python-version", bench.default.python]
        target += ["--python-platform", resolver.uv_platform("2.36"), "--requirements", str(requirements)]
        pinned = ["--no-deps", "--require-hashes", "--only-binary", ":all:", "--no-compile-bytecode"]
        cache = ["--cache-dir", f"{folder}/cache", "--link-mode", "hardlink"]
        subprocess.run(
            [
                str(build_inputs.stage_tools() / "uv"),
                "pip",
                "install",
                "--quiet",
                *resolver.uv_config_options(),
                *pinned,
                *cache,
                *target,
            ],
            check=True,
            env=resolver.uv_environment(),
        )
        installed = time.monotonic() - start
        notify("the floor: one compression, by libzstd")
        start = time.monotonic()
        size = compress(Path(folder) / "out", Path(folder) / "layer")
        by_libzstd = time.monotonic() - start
        (Path(folder) / "layer").unlink()
        notify("the floor: one compression, by the engine")
        context = Path(folder) / "one"
        context.mkdir()
        (context / "Dockerfile").write_text("FROM scratch\nCOPY --from=files / /\n")
        tag = "knowngood-benchmark:floor"
        bench.removed.append(tag)
        bench.build(
            build_command.BuildPlan(
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
    """Compress a folder as one layer; return its bytes."""
    from zstandard import ZstdCompressor

    with (
        out.open("wb") as raw,
        ZstdCompressor(level=3, threads=-1).stream_writer(raw) as packed,
        tarfile.open(fileobj=packed, mode="w|", bufsize=1 << 20) as archive,
    ):
        archive.add(folder, ".")
    return out.stat().st_size


def unchanged(bench: Bench) -> Measurements:
    """Measure the whole command when every cell is built."""
    for cell in (bench.default, bench.second):
        bench.build(replace(bench.plan(cell, "again"), tag=f"knowngood:{cell}"))
    bench.removed.append(f"knowngood:{bench.second}")
    argv = [sys.executable, "-m", "knowngood", "build", "*", "--json"]
    start = time.monotonic()
    done = subprocess.run(argv, check=True, cwd=bench.root, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    seconds = time.monotonic() - start
    cells = json.loads(done.stdout)["cells"]
    if any(cell["image"]["built"] for cell in cells):
        raise AssertionError(cells)
    start = time.monotonic()
    build_survey.survey_plan(bench.whole, bench.whole.matrix.cells, wheelhouse.wheelhouse_folder(), bench.engine)
    return {
        "unchanged cells": len(cells),
        "unchanged run, seconds": seconds,
        "planned cells": len(bench.whole.matrix.cells),
        "plan of the whole matrix, seconds": time.monotonic() - start,
    }


BENCHMARKS: dict[str, Callable[[Bench], Measurements]] = {
    "second": second,
    "storage": storage,
    "cold": cold,
    "unchanged": unchanged,
}


def lines(measurements: Measurements) -> Iterator[str]:
    """Yield the rows of the table: each measurement, with its limit if it has one."""
    yield "| what | measured | limit | |"
    yield "| --- | --- | --- | --- |"
    for name, value in measurements.items():
        bytes_ = "bytes" in name and "/" not in name
        shown = formatting.format_bytes(round(value)) if bytes_ else f"{value:.2f}".rstrip("0").rstrip(".")
        kind, limit = LIMITS.get(name, ("", 0))
        wanted = f"{kind} {formatting.format_bytes(round(limit)) if bytes_ else f'{limit:g}'}" if kind else ""
        good = value <= limit if kind == "at most" else value >= limit
        yield f"| {name} | {shown} | {wanted} | {('yes' if good else 'NO') if kind else ''} |"


def room(gigabytes: int) -> None:
    """Exit when the disk does not have so many gigabytes free."""
    free = shutil.disk_usage(unpacked_engine.engine_paths().home.parent).free
    if free < gigabytes * 10**9:
        sys.exit(f"this part needs {gigabytes} GB of free disk, but only {formatting.format_bytes(free)} are free")


def main() -> None:
    """Measure the parts that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="*", help=", ".join(BENCHMARKS))
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers to this file")
    arguments = parser.parse_args()
    measurements: Measurements = {"processors": os.cpu_count() or 1, "load before": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory(prefix="knowngood-benchmark-") as folder:
        bench = Bench(Path(folder))
        try:
            for name in arguments.part or BENCHMARKS:
                measurements |= BENCHMARKS[name](bench)
        finally:
            bench.clean()
    print("\n".join(lines(measurements)))
    if arguments.json:
        arguments.json.write_text(json.dumps(measurements, indent=1) + "\n")


if __name__ == "__main__":
    main()
