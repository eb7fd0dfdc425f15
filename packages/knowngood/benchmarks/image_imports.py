"""How long an image's first import takes: with its bytecode, without any, and with bytecode that Python made itself.

    python benchmarks/image_imports.py [CELL] [--rounds N]

Every start is a new container. The three ways take turns, so that other load on the machine meets all of them.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

from knowngood.engine import container_engine
from knowngood.project import checkout

PROGRAM = "import torch; from transformers import Trainer"
AFTER = "/cache/bytecode"
WAYS = {
    "the image's bytecode": {},
    "no bytecode": {"PYTHONPYCACHEPREFIX": "/proc/none"},
    "Python's own bytecode": {"PYTHONPYCACHEPREFIX": AFTER},
}


def main() -> None:
    """Print the median seconds of each way, and its ratio to Python's own bytecode."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("cell", nargs="?", default="default")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    (cell,) = checkout.find_project().matrix.select_cells([arguments.cell])
    engine = container_engine.ensure_engine(notify=lambda text: print(text, file=sys.stderr))
    with container_engine.docker_client(engine) as client:
        volume = client.volumes.create()
        mounts = {volume.name: {"bind": "/cache", "mode": "rw"}}

        def start(environment: dict[str, str]) -> float:
            begin = time.monotonic()
            client.containers.run(
                f"knowngood:{cell}",
                ["python", "-c", PROGRAM],
                environment=environment,
                volumes=mounts,
                network_mode="none",
                remove=True,
            )
            return time.monotonic() - begin

        try:
            for environment in WAYS.values():  # the page cache, and the bytecode of the third way
                start(environment)
            seconds: dict[str, list[float]] = {name: [] for name in WAYS}
            for _ in range(arguments.rounds):
                for name, environment in WAYS.items():
                    seconds[name].append(start(environment))
        finally:
            volume.remove(force=True)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    for name, median in medians.items():
        print(f"{name:24} {median:6.2f} s  {median / medians[list(WAYS)[-1]]:.2f}")


if __name__ == "__main__":
    main()
