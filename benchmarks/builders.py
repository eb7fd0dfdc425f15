"""Compare two builders with one: six cells that share layers as large as torch, built without any cache.

    python benchmarks/builders.py [PART ...] [--times N] [--rate BYTES] [--processors N] [--wheels FOLDER] [--json FILE]

The parts:

    cores    both builders are engines on this machine, with all of its processors and its full network speed
    line     the same, but each builder has its own connection to the index, limited to --rate bytes per second (20e6),
             as two machines would have; it shows how far a build waits for the network

The builders are the machines of tests/integration/hosts.py: engines in network namespaces of their own, with a real
registry between them. Each run starts with new engines and an empty repository. BuildKit's own progress output shows
which layers were built twice. The cells contain real wheels (torch, cuDNN and one of six other NVIDIA wheels), and are
not for use. With `--times`, everything is repeated, one builder and two builders in turns, and the result is the
median.

With `--processors N`, each builder has N of this machine's processors to itself, as on a machine of its own. The
processors that are left are for everything else (the registry, the index, the client). "Busy" then counts only the
processors of the builders.

With `--wheels FOLDER`, nothing but this machine is needed. The wheels of that folder replace those above: all cells
have the two largest, and each cell has one of the next six. An index on the loopback serves them, and the engines share
this machine's network, so there is no part `line`. `scripts/repack.py` makes wheels from installed packages. If a
registry's program is on the machine already, `--registry` names it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/integration"))

import hosts  # noqa: E402
import pytest  # noqa: E402
import registry_server  # noqa: E402
import small  # noqa: E402
import wheel_index  # noqa: E402

from knowngood.core import local_files  # noqa: E402
from knowngood.lock.cell_lock import Distribution  # noqa: E402
from knowngood.project.checkout import Project  # noqa: E402

PARTS = ("docker", "facts", "rules", "smoke_tests", "templates")
RELEASES = ("4.55.0", "4.55.1", "4.55.2", "4.55.3", "4.56.0", "4.56.2")
SHARED = ("torch", "nvidia-cudnn-cu13")
OWN = (
    "nvidia-cusparse",
    "nvidia-cuda-nvrtc",
    "nvidia-cutlass-dsl-libs-cu13",
    "nvidia-nvshmem-cu13",
    "nvidia-curand",
    "nvidia-nvjitlink",
)
WANTED = 1.0
"""The least speed-up of two builders: they should not be slower than one (docs/decisions/0803-builders.md)."""
ROOM = 30e9
INDEXES = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL")
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")

Measurements = dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The settings that all runs share."""

    program: Path
    """The program of the registry."""
    shared: Sequence[str] = SHARED
    own: Sequence[str] = OWN
    wheels: Sequence[Distribution] = ()
    """They replace those of the default cell's lock."""
    index: str | None = None
    """The address of the index that serves them."""
    processors: Sequence[Sequence[int]] = ()
    """The processors of each builder; empty when both builders use all."""

    def processors_of(self, count: int) -> list[int]:
        """Return the processors of so many builders; none when they use all."""
        return [number for own in self.processors[:count] for number in own]


def notify(text: str) -> None:
    """Print a line of progress on stderr."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def copy_project(root: Path, setup: Setup) -> Project:
    """Make a copy of this project with the six cells."""
    for part in PARTS:
        shutil.copytree(ROOT / part, root / part, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    shutil.copy(ROOT / "matrix.yaml", root)
    shared = {name: [name] for name in setup.shared}
    return small.project(root, *RELEASES, own=setup.own, shared=shared, wheels=setup.wheels)


def busy_seconds(processors: Collection[int]) -> tuple[float, float]:
    """Return the busy and the total seconds of these processors (all if none are named) since the machine booted."""
    names = {f"cpu{number}" for number in processors} or {"cpu"}
    lines = map(str.split, Path("/proc/stat").read_text(encoding="ascii").splitlines())
    values = [sum(column) for column in zip(*(map(int, line[1:9]) for line in lines if line[0] in names), strict=True)]
    tick = os.sysconf("SC_CLK_TCK")
    return (sum(values) - values[3] - values[4]) / tick, sum(values) / tick


@contextlib.contextmanager
def settings(proxy: hosts.Proxy, server: hosts.Server, index: str | None) -> Iterator[None]:
    """Set the environment variables that a user of these machines would have."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("http_proxy", "https_proxy", "no_proxy", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE"):
            patch.delenv(name, raising=False)
        if index:
            for name in (*INDEXES, *PROXIES, *map(str.upper, PROXIES)):
                patch.delenv(name, raising=False)
            patch.setenv("PIP_CONFIG_FILE", os.devnull)
            patch.setenv("UV_DEFAULT_INDEX", index)
            patch.setenv("NO_PROXY", hosts.LOOPBACK)
        else:
            patch.setenv("HTTPS_PROXY", proxy.url)
            patch.setenv("NO_PROXY", hosts.ADDRESS)
        patch.setenv("SSL_CERT_FILE", str(server.bundle))
        yield


def measure_run(setup: Setup, count: int, rate: float | None) -> Measurements:
    """Build the six cells on so many new builders, and return the measurements."""
    mine = setup.processors_of(count)
    with tempfile.TemporaryDirectory(prefix="knowngood-benchmark-") as folder:
        work = Path(folder)
        here = copy_project(work / "project", setup)
        fleet = hosts.fleet(
            setup.program, work, count, rate=rate, apart=setup.index is None, processors=setup.processors
        )
        with fleet as (machines, server, proxy):
            names = ",".join(host.address for host in machines)
            words = ("--all", "--builder", names, "--to", f"{server.address}/team/builds", "--json")
            began, start, before = time.time(), time.monotonic(), busy_seconds(mine)
            with settings(proxy, server, setup.index), small.command(here, "build", *words) as process:
                for line in process.stderr:
                    if re.search(r"builds|built|stopped|waits|processors$", line):
                        notify(line.rstrip())
                out = process.stdout.read()
            seconds, after = time.monotonic() - start, busy_seconds(mine)
            notify(f"{seconds:.1f} s")
            if process.returncode:
                raise SystemExit(out)
            cells = json.loads(out)["cells"]
            steps: Counter[str] = Counter()
            for path in (local_files.cache_folder() / "logs").glob("*/build-*.log"):
                if path.stat().st_mtime >= began:
                    steps.update(hosts.ran(path.read_text()))
        shared = [name for name in steps if name == "venv" or name in map("layer-{}".format, setup.shared)]
        return {
            "seconds": seconds,
            "processors busy": (after[0] - before[0]) / (after[1] - before[1]),
            "layers built twice": sum(steps[name] - 1 for name in shared) + steps["layer-own"] - len(setup.own),
            "digests": hash(tuple(sorted((cell["id"], cell["image"]["digest"]) for cell in cells))),
        }


def measure_part(setup: Setup, name: str, rate: float | None, times: int) -> Measurements:
    """Measure one builder and two builders in turns, `times` times."""
    runs: dict[str, list[Measurements]] = {"one builder": [], "two builders": []}
    for _ in range(times):
        for count, (words, runs_so_far) in enumerate(runs.items(), start=1):
            notify(f"{name}: {words}")
            runs_so_far.append(measure_run(setup, count, rate))
    if len({run.pop("digests") for some in runs.values() for run in some}) > 1:
        raise SystemExit("two builders gave other digests than one builder")
    measurements: Measurements = {}
    for words, some in runs.items():
        if times > 1:
            each = enumerate((run["seconds"] for run in some), start=1)
            measurements |= {f"{name}, {words}, seconds of run {number}": seconds for number, seconds in each}
        for key in some[0]:
            middle = max if key.endswith("twice") else statistics.median
            measurements[f"{name}, {words}, {key}"] = middle([run[key] for run in some])
    one, two = (measurements[f"{name}, {words}, seconds"] for words in runs)
    return measurements | {f"{name}, one / two, seconds": one / two}


def render_table(measurements: Measurements) -> str:
    """Return the measurements as a Markdown table."""
    rows = ["| what | measured | limit | |", "| --- | --- | --- | --- |"]
    for name, value in measurements.items():
        limit, met = "", ""
        if name.endswith("one / two, seconds"):
            limit, met = f"at least {WANTED}", "yes" if value >= WANTED else "NO"
        elif name.endswith("twice"):
            limit, met = "0", "yes" if value == 0 else "NO"
        rows.append(f"| {name} | {value:.0%}" if name.endswith("busy") else f"| {name} | {value:g}")
        rows[-1] = re.sub(r"(\.\d\d)\d+$", r"\1", rows[-1]) + f" | {limit} | {met} |"
    return "\n".join(rows)


def reserve_processors(count: int) -> list[list[int]]:
    """Return so many processors for each of two builders; this program and its children use the others."""
    available = sorted(os.sched_getaffinity(0))
    if others := available[2 * count :]:
        os.sched_setaffinity(0, others)
    return [available[:count], available[count : 2 * count]]


def parse_arguments() -> argparse.Namespace:
    """Parse the arguments, and check that this machine can do what they demand."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="*", metavar="PART", help="cores, line (default: both; with --wheels, cores)")
    parser.add_argument("--times", type=int, default=1, metavar="N", help="how often each part is measured (1)")
    parser.add_argument(
        "--rate", type=float, default=20e6, metavar="BYTES", help="bytes per second of each connection (20e6)"
    )
    parser.add_argument(
        "--processors", type=int, metavar="N", help="processors for each builder alone (default: both share all)"
    )
    parser.add_argument(
        "--wheels", type=Path, metavar="FOLDER", help="a folder with at least eight wheels for the cells"
    )
    parser.add_argument(
        "--registry",
        type=Path,
        metavar="PROGRAM",
        help="the program of the registry (default: unpacked from a package)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers to this file too")
    parsed = parser.parse_args()
    available, requested = len(os.sched_getaffinity(0)), parsed.processors
    if unknown := set(parsed.part) - {"cores", "line"}:
        parser.error(f"no part is called {', '.join(unknown)}")
    if parsed.times < 1:
        parser.error(f"--times {parsed.times}: at least once")
    if parsed.wheels and "line" in parsed.part:
        parser.error("with --wheels there is no line to an index to measure")
    if requested is not None and not 1 <= requested <= available // 2:
        parser.error(f"{requested} processors for each of two builders: this machine has {available}")
    return parsed


def load_wheels(folder: Path | None) -> tuple[Distribution, ...]:
    """Return the wheels of the folder; none without a folder, because the lock names them then.

    Ends the program when there are too few wheels or too little disk.
    """
    count = len(SHARED) + len(OWN)
    wheels = wheel_index.read(folder)[:count] if folder else ()
    if folder and len(wheels) < count:
        raise SystemExit(f"{folder} has {len(wheels)} wheels, {count} are needed")
    room = min(ROOM, 16 * sum(item.size for item in wheels)) if wheels else ROOM
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if free < room:
        raise SystemExit(f"{room / 1e9:.0f} GB of free disk are needed, {free / 1e9:.0f} GB are there")
    for item in wheels:
        notify(f"{item.name} {item.version}, {item.size / 1e6:.1f} MB")
    return wheels


def main() -> None:
    """Measure the selected parts."""
    options = parse_arguments()
    wheels = load_wheels(options.wheels)
    per_builder = options.processors
    measurements: Measurements = {"processors": os.cpu_count() or 1, "load before": os.getloadavg()[0]}
    measurements |= {"processors of each builder": per_builder} if per_builder else {}
    with tempfile.TemporaryDirectory(prefix="knowngood-registry-") as folder, contextlib.ExitStack() as stack:
        setup = Setup(
            program=options.registry or registry_server.unpack(Path(folder)),
            processors=reserve_processors(per_builder) if per_builder else (),
        )
        if wheels:
            names = [item.name for item in wheels]
            shared, own = names[: len(SHARED)], names[len(SHARED) :]
            index = stack.enter_context(wheel_index.served(options.wheels, wheels))
            setup = replace(setup, shared=shared, own=own, wheels=wheels, index=index)
        for name in options.part or (("cores",) if wheels else ("cores", "line")):
            measurements |= measure_part(setup, name, options.rate if name == "line" else None, options.times)
    print(render_table(measurements))
    if options.json:
        options.json.write_text(json.dumps(measurements, indent=1) + "\n")


if __name__ == "__main__":
    main()
