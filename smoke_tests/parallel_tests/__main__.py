"""``python -m parallel_tests --processes 2 --backend gloo --out report.json``: run the checks, write the report."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from parallel_tests import catalogue, whole_run


def main() -> int:
    """Parse the arguments and run; 0 if nothing is wrong, 1 if something is, 2 for arguments that make no sense."""
    parser = argparse.ArgumentParser(prog="python -m parallel_tests", description="Training over several processes.")
    parser.add_argument("--processes", type=int, metavar="N", help="how many (default: one for each GPU, else 2)")
    parser.add_argument("--backend", choices=("auto", "gloo", "nccl"), default="auto", help="nccl where there are GPUs")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the report (JSON) here")
    parser.add_argument("--only", action="append", default=[], metavar="GLOB", help="checks whose id matches")
    parser.add_argument("--quick", action="store_true", help="only the checks that say most")
    parser.add_argument("--predictions", type=Path, help="compare outcomes with this JSON of predicted ones")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="begin no way of training after this time")
    parser.add_argument("--list", action="store_true", help="print the ids of the checks and run nothing")
    arguments = parser.parse_args()
    checks = catalogue.select(arguments.only, quick=arguments.quick)
    if not checks:
        parser.error(f"no check's id matches {', '.join(arguments.only)}; --list prints them")
    if arguments.list:
        print("\n".join(check.id for check in checks))
        return 0
    if arguments.processes is not None and arguments.processes < 2:
        parser.error("--processes must be 2 or more: one process is what `pytest smoke_tests` runs")
    if arguments.processes is not None and arguments.processes % 2:
        parser.error("--processes must be even: attention heads and sequences are divided among them")
    document = whole_run.run_all(
        checks,
        arguments.processes,
        arguments.backend,
        predictions=arguments.predictions,
        file=arguments.out,
        quick=arguments.quick,
        budget=arguments.budget,
    )
    return 0 if document["verdict"]["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
