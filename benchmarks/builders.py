"""Two builders against one: six cells that share layers of the size of torch, built cold, side by side in one run.

    python benchmarks/builders.py [PART ...] [--times N] [--rate BYTES] [--processors N] [--wheels FOLDER] [--json FILE]

The parts:

    cores    both builders are engines on this machine, with all of its cores and as much of the network as there is
    line     the same, but each builder has a line of its own to the index, of --rate bytes a second (20e6): what two
             machines would have, as far as it is the network that a build waits for

The builders are the machines of tests/integration/hosts.py: engines in network namespaces of their own, a real registry
between them. Each run begins with new engines and an empty repository. What BuildKit ran twice is counted in its own
progress. The cells hold real wheels (torch, cuDNN and one of six other NVIDIA wheels), and are not for use. With
`--times` all of it is done so often, one builder and two in turns, and what is said is the median.

With `--processors N` each builder has N of this machine's processors to itself, as on a machine of its own; what is
left of them is for everything else (the registry, the index, the client). "Busy" is then said of the builders' own.

With `--wheels FOLDER` nothing but this machine is needed: the wheels of that folder take the place of those above, the
two largest in common and the next six one a cell. An index on the loopback serves them, and the engines share this
machine's network, so there is no `line`. `scripts/repack.py` makes wheels of what is installed, `--registry` names a
registry's program that is there already.
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

from knowngood import paths  # noqa: E402
from knowngood.locks.lock import Distribution  # noqa: E402
from knowngood.project import Project  # noqa: E402

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
WANTED = 1.6
"""Times faster, where there are cores for it."""
ROOM = 30e9
INDEXES = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL")
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")

Found = dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What every run shares."""

    program: Path
    """The registry's."""
    shared: Sequence[str] = SHARED
    own: Sequence[str] = OWN
    wheels: Sequence[Distribution] = ()
    """In place of those of the default cell's lock."""
    index: str | None = None
    """The address of the index that has them."""
    processors: Sequence[Sequence[int]] = ()
    """Each builder's own; none are given where both have all."""

    def of(self, count: int) -> list[int]:
        """The processors of that many builders; none where they have all."""
        return [number for own in self.processors[:count] for number in own]


def say(text: str) -> None:
    """What goes on, on stderr."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def project(root: Path, setup: Setup) -> Project:
    """A copy of this project with the six cells."""
    for part in PARTS:
        shutil.copytree(ROOT / part, root / part, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    shutil.copy(ROOT / "matrix.yaml", root)
    shared = {name: [name] for name in setup.shared}
    return small.project(root, *RELEASES, own=setup.own, shared=shared, wheels=setup.wheels)


def busy(processors: Collection[int]) -> tuple[float, float]:
    """Seconds that these processors worked since the machine began (all, if none are named), and those they could."""
    names = {f"cpu{number}" for number in processors} or {"cpu"}
    lines = map(str.split, Path("/proc/stat").read_text(encoding="ascii").splitlines())
    values = [sum(column) for column in zip(*(map(int, line[1:9]) for line in lines if line[0] in names), strict=True)]
    tick = os.sysconf("SC_CLK_TCK")
    return (sum(values) - values[3] - values[4]) / tick, sum(values) / tick


@contextlib.contextmanager
def settings(proxy: hosts.Proxy, server: hosts.Server, index: str | None) -> Iterator[None]:
    """What a user of these machines would have set."""
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


def measure(setup: Setup, count: int, rate: float | None) -> Found:
    """Build the six cells on that many new builders."""
    mine = setup.of(count)
    with tempfile.TemporaryDirectory(prefix="knowngood-benchmark-") as folder:
        work = Path(folder)
        here = project(work / "project", setup)
        fleet = hosts.fleet(
            setup.program, work, count, rate=rate, apart=setup.index is None, processors=setup.processors
        )
        with fleet as (machines, server, proxy):
            names = ",".join(host.address for host in machines)
            words = ("--all", "--builder", names, "--to", f"{server.address}/team/builds", "--jobs", "1", "--json")
            began, start, before = time.time(), time.monotonic(), busy(mine)
            with settings(proxy, server, setup.index), small.command(here, "build", *words) as process:
                for line in process.stderr:
                    if re.search(r"goes to|built|stopped|waits|leaves|processors$", line):
                        say(line.rstrip())
                out = process.stdout.read()
            seconds, after = time.monotonic() - start, busy(mine)
            say(f"{seconds:.1f} s")
            if process.returncode:
                raise SystemExit(out)
            cells = json.loads(out)["cells"]
            steps: Counter[str] = Counter()
            for path in (paths.cache_dir() / "logs").glob("*/build-*.log"):
                if path.stat().st_mtime >= began:
                    steps.update(hosts.ran(path.read_text()))
        shared = [name for name in steps if name in ("venv", "suite") or name in map("layer-{}".format, setup.shared)]
        return {
            "seconds": seconds,
            "processors busy": (after[0] - before[0]) / (after[1] - before[1]),
            "layers built twice": sum(steps[name] - 1 for name in shared) + steps["layer-own"] - len(setup.own),
            "digests": hash(tuple(sorted((cell["id"], cell["image"]["digest"]) for cell in cells))),
        }


def part(setup: Setup, name: str, rate: float | None, times: int) -> Found:
    """One builder, then two, so often."""
    runs: dict[str, list[Found]] = {"one builder": [], "two builders": []}
    for _ in range(times):
        for count, (words, runs_so_far) in enumerate(runs.items(), start=1):
            say(f"{name}: {words}")
            runs_so_far.append(measure(setup, count, rate))
    if len({run.pop("digests") for some in runs.values() for run in some}) > 1:
        raise SystemExit("two builders gave other bytes than one")
    found: Found = {}
    for words, some in runs.items():
        if times > 1:
            each = enumerate((run["seconds"] for run in some), start=1)
            found |= {f"{name}, {words}, seconds of run {number}": seconds for number, seconds in each}
        for key in some[0]:
            middle = max if key.endswith("twice") else statistics.median
            found[f"{name}, {words}, {key}"] = middle([run[key] for run in some])
    one, two = (found[f"{name}, {words}, seconds"] for words in runs)
    return found | {f"{name}, one / two, seconds": one / two}


def table(found: Found) -> str:
    """What was measured, as a table for the record."""
    rows = ["| what | measured | limit | |", "| --- | --- | --- | --- |"]
    for name, value in found.items():
        limit, met = "", ""
        if name.endswith("one / two, seconds"):
            limit, met = f"at least {WANTED}", "yes" if value >= WANTED else "NO"
        elif name.endswith("twice"):
            limit, met = "0", "yes" if value == 0 else "NO"
        rows.append(f"| {name} | {value:.0%}" if name.endswith("busy") else f"| {name} | {value:g}")
        rows[-1] = re.sub(r"(\.\d\d)\d+$", r"\1", rows[-1]) + f" | {limit} | {met} |"
    return "\n".join(rows)


def pinned(count: int) -> list[list[int]]:
    """That many processors for each of two builders; this program, and what it starts, keeps to the others."""
    there = sorted(os.sched_getaffinity(0))
    if others := there[2 * count :]:
        os.sched_setaffinity(0, others)
    return [there[:count], there[count : 2 * count]]


def arguments() -> argparse.Namespace:
    """What is asked for, and can be done here."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="*", metavar="PART", help="cores, line (default: both; with --wheels, cores)")
    parser.add_argument("--times", type=int, default=1, metavar="N", help="how often each is measured (1)")
    parser.add_argument("--rate", type=float, default=20e6, metavar="BYTES", help="of each line, a second (20e6)")
    parser.add_argument("--processors", type=int, metavar="N", help="of each builder, its own (all, shared by both)")
    parser.add_argument("--wheels", type=Path, metavar="FOLDER", help="at least eight wheels to build the cells of")
    parser.add_argument("--registry", type=Path, metavar="PROGRAM", help="the registry's (unpacked from a package)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    found = parser.parse_args()
    there, asked = len(os.sched_getaffinity(0)), found.processors
    if unknown := set(found.part) - {"cores", "line"}:
        parser.error(f"no part is called {', '.join(unknown)}")
    if found.times < 1:
        parser.error(f"--times {found.times}: at least once")
    if found.wheels and "line" in found.part:
        parser.error("with --wheels there is no line to an index to measure")
    if asked is not None and not 1 <= asked <= there // 2:
        parser.error(f"{asked} processors for each of two builders: this machine has {there}")
    return found


def known(folder: Path | None) -> tuple[Distribution, ...]:
    """The wheels to build of, none where those of the lock are; ends the program where they or the disk do not do."""
    count = len(SHARED) + len(OWN)
    wheels = wheel_index.read(folder)[:count] if folder else ()
    if folder and len(wheels) < count:
        raise SystemExit(f"{folder} has {len(wheels)} wheels, {count} are needed")
    room = min(ROOM, 16 * sum(item.size for item in wheels)) if wheels else ROOM
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if free < room:
        raise SystemExit(f"{room / 1e9:.0f} GB of free disk are needed, {free / 1e9:.0f} GB are there")
    for item in wheels:
        say(f"{item.name} {item.version}, {item.size / 1e6:.1f} MB")
    return wheels


def main() -> None:
    """Measure the parts asked for."""
    told = arguments()
    wheels, asked = known(told.wheels), told.processors
    found: Found = {"processors": os.cpu_count() or 1, "load before": os.getloadavg()[0]}
    found |= {"processors of each builder": asked} if asked else {}
    with tempfile.TemporaryDirectory(prefix="knowngood-registry-") as folder, contextlib.ExitStack() as stack:
        setup = Setup(
            program=told.registry or registry_server.unpack(Path(folder)),
            processors=pinned(asked) if asked else (),
        )
        if wheels:
            names = [item.name for item in wheels]
            shared, own = names[: len(SHARED)], names[len(SHARED) :]
            index = stack.enter_context(wheel_index.served(told.wheels, wheels))
            setup = replace(setup, shared=shared, own=own, wheels=wheels, index=index)
        for name in told.part or (("cores",) if wheels else ("cores", "line")):
            found |= part(setup, name, told.rate if name == "line" else None, told.times)
    print(table(found))
    if told.json:
        told.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
