"""Two builders against one: six cells that share layers of the size of torch, built cold, side by side in one run.

    python benchmarks/builders.py [PART ...] [--rate BYTES] [--json FILE]

The parts:

    cores    both builders are engines on this machine, with all of its cores and as much of the network as there is
    line     the same, but each builder has a line of its own to the index, of --rate bytes a second (20e6): what two
             machines would have, as far as it is the network that a build waits for

The builders are the machines of tests/integration/hosts.py: engines in network namespaces of their own, a real registry
between them. Each run begins with new engines and an empty repository. What BuildKit ran twice is counted in its own
progress. The cells hold real wheels (torch, cuDNN and one of six other NVIDIA wheels), and are not for use.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/integration"))

import hosts  # noqa: E402
import pytest  # noqa: E402
import registry_server  # noqa: E402
import small  # noqa: E402

from knowngood import paths  # noqa: E402
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

Found = dict[str, float]


def say(text: str) -> None:
    """What goes on, on stderr."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def project(root: Path) -> Project:
    """A copy of this project with the six cells."""
    for part in PARTS:
        shutil.copytree(ROOT / part, root / part, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    shutil.copy(ROOT / "matrix.yaml", root)
    return small.project(root, *RELEASES, own=OWN, shared={name: [name] for name in SHARED})


def busy() -> tuple[float, float]:
    """Seconds that this machine's processors worked since it began, and those they could have."""
    values = list(map(int, Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:9]))
    tick = os.sysconf("SC_CLK_TCK")
    return (sum(values) - values[3] - values[4]) / tick, sum(values) / tick


@contextlib.contextmanager
def settings(proxy: hosts.Proxy, server: hosts.Server) -> Iterator[None]:
    """What a user of these machines would have set."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("http_proxy", "https_proxy", "no_proxy", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE"):
            patch.delenv(name, raising=False)
        patch.setenv("HTTPS_PROXY", proxy.url)
        patch.setenv("NO_PROXY", hosts.ADDRESS)
        patch.setenv("SSL_CERT_FILE", str(server.bundle))
        yield


def measure(program: Path, count: int, rate: float | None) -> Found:
    """Build the six cells on that many new builders."""
    with tempfile.TemporaryDirectory(prefix="knowngood-benchmark-") as folder:
        work = Path(folder)
        here = project(work / "project")
        with hosts.fleet(program, work, count, rate=rate) as (machines, server, proxy):
            names = ",".join(host.address for host in machines)
            words = ("--all", "--builder", names, "--to", f"{server.address}/team/builds", "--jobs", "1", "--json")
            began, start, before = time.time(), time.monotonic(), busy()
            with settings(proxy, server), small.command(here, "build", *words) as process:
                for line in process.stderr:
                    if re.search(r"goes to|built|stopped|waits", line):
                        say(line.rstrip())
                out = process.stdout.read()
            seconds, after = time.monotonic() - start, busy()
            if process.returncode:
                raise SystemExit(out)
            cells = json.loads(out)["cells"]
            steps: Counter[str] = Counter()
            for path in (paths.cache_dir() / "logs").glob("*/build-*.log"):
                if path.stat().st_mtime >= began:
                    steps.update(hosts.ran(path.read_text()))
        shared = [name for name in steps if name in ("venv", "suite") or name in map("layer-{}".format, SHARED)]
        return {
            "seconds": seconds,
            "processors busy": (after[0] - before[0]) / (after[1] - before[1]),
            "layers built twice": sum(steps[name] - 1 for name in shared) + steps["layer-own"] - len(OWN),
            "digests": hash(tuple(sorted((cell["id"], cell["image"]["digest"]) for cell in cells))),
        }


def part(program: Path, name: str, rate: float | None) -> Found:
    """One builder, then two."""
    found: Found = {}
    runs = {}
    for count, words in ((1, "one builder"), (2, "two builders")):
        say(f"{name}: {words}")
        runs[count] = measure(program, count, rate)
        found |= {f"{name}, {words}, {key}": value for key, value in runs[count].items() if key != "digests"}
    if runs[1]["digests"] != runs[2]["digests"]:
        raise SystemExit("two builders gave other bytes than one")
    return found | {f"{name}, one / two, seconds": runs[1]["seconds"] / runs[2]["seconds"]}


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


def main() -> None:
    """Measure the parts asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="*", metavar="PART", help="cores, line (default: both)")
    parser.add_argument("--rate", type=float, default=20e6, metavar="BYTES", help="of each line, a second (20e6)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    arguments = parser.parse_args()
    if unknown := set(arguments.part) - {"cores", "line"}:
        parser.error(f"no part is called {', '.join(unknown)}")
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if free < ROOM:
        parser.error(f"{ROOM / 1e9:.0f} GB of free disk are needed, {free / 1e9:.0f} GB are there")
    found: Found = {"processors": os.cpu_count() or 1, "load before": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory(prefix="knowngood-registry-") as folder:
        program = registry_server.unpack(Path(folder))
        for name in arguments.part or ("cores", "line"):
            found |= part(program, name, arguments.rate if name == "line" else None)
    print(table(found))
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
