"""Run the smoke suite on a machine with a GPU and no network: in bare environments, one per cell.

    PYTHONPATH=src python3 scripts/h200.py OUT PREDICTIONS SECONDS [quick:]CELL=PYTHONPATH [...]

Each environment is the machine's Python with a few folders first on its path (another transformers, flash-attn).
PREDICTIONS is a file of `{cell: {check glob: {"outcome": ..., "because": ...}}}`, as `scripts/predictions.py` writes it
on a machine where knowngood is installed; this script needs the standard library and `packaging`. A cell that would
start after SECONDS is skipped. `quick:` before a cell runs only the suite's quick part. Writes
OUT/<cell>/<time>-<suite>.json. On a machine with several GPUs, run one process per GPU (CUDA_VISIBLE_DEVICES).
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from knowngood.core.cell import parse_cell
from knowngood.core.errors import KnowngoodError
from knowngood.evidence import run_evidence
from knowngood.smoke import suite_command, suite_run

SUITE = Path(__file__).resolve().parents[3] / "smoke_tests"


def main(out: str, predictions: str, seconds: str, *environments: str) -> None:
    """Run the suite in each environment in turn and store the evidence."""
    start = time.monotonic()
    predicted = json.loads(Path(predictions).read_text())
    for item in environments:
        name, _, folders = item.removeprefix("quick:").partition("=")
        if time.monotonic() - start > float(seconds):
            print(f"{name}: skipped, because the time limit has passed", flush=True)
            continue
        os.environ |= {"PYTHONPATH": folders, "USE_FLAX": "0"}  # the machine's JAX belongs to none of the environments
        log = Path("/tmp") / f"{name}.log"  # noqa: S108
        try:
            options = suite_command.SuiteOptions(gpus=True, quick=item.startswith("quick:"), seconds=560)
            run = suite_run.run_in_environment(
                parse_cell(name),
                SUITE,
                options,
                predictions=predicted[name],
                log=log,
                notify=lambda text: print(text, flush=True),
            )
        except KnowngoodError as error:
            print(f"{name}: {error}", flush=True)
        else:
            path = run_evidence.store_evidence(run, Path(out))
            print(f"{name}: {run.report['seconds']} s, {run.report['verdict']}", path, flush=True)
            for check in run.report["checks"]:
                if check["outcome"] == "fail" or check["agreement"] == "disagree":
                    reason = check["reason"] or check["message"] or ""
                    print("   ", check["id"], check["outcome"], check["agreement"], reason[:60], flush=True)


main(*sys.argv[1:])
