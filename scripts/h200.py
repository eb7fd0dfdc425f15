"""Evidence from a machine with a GPU and no network: the smoke suite in bare environments, one a cell.

    PYTHONPATH=src python3 scripts/h200.py OUT PREDICTIONS SECONDS [quick:]CELL=PYTHONPATH [...]

Each environment is the machine's Python with a few folders before it (another transformers, flash-attn). PREDICTIONS
is a file of `{cell: {check glob: {"outcome": ..., "because": ...}}}`, as `scripts/predictions.py` writes it where
knowngood is installed; this script needs the standard library and `packaging`. A cell that would begin after SECONDS
is left out; `quick:` before a cell runs the suite's quick part only. Writes OUT/<cell>/<time>-<suite>.json. On a
machine of several GPUs run one a GPU (CUDA_VISIBLE_DEVICES).
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from knowngood import evidence, smoke
from knowngood.cell import parse
from knowngood.errors import KnowngoodError

SUITE = Path(__file__).resolve().parents[1] / "smoke_tests"


def main(out: str, predictions: str, seconds: str, *environments: str) -> None:
    """Run them in turn."""
    start = time.monotonic()
    predicted = json.loads(Path(predictions).read_text())
    for item in environments:
        name, _, folders = item.removeprefix("quick:").partition("=")
        if time.monotonic() - start > float(seconds):
            print(f"{name}: left out, the time is used up", flush=True)
            continue
        os.environ["PYTHONPATH"] = folders
        log = Path("/tmp") / f"{name}.log"  # noqa: S108
        try:
            options = smoke.Options(gpus=True, quick=item.startswith("quick:"), seconds=560)
            run = smoke.here(
                parse(name),
                SUITE,
                options,
                predictions=predicted[name],
                log=log,
                say=lambda text: print(text, flush=True),
            )
        except KnowngoodError as error:
            print(f"{name}: {error}", flush=True)
        else:
            path = evidence.store(run, Path(out))
            print(f"{name}: {run.report['seconds']} s, {run.report['verdict']}", path, flush=True)
            for check in run.report["checks"]:
                if check["outcome"] == "fail" or check["agreement"] == "disagree":
                    said = check["reason"] or check["message"] or ""
                    print("   ", check["id"], check["outcome"], check["agreement"], said[:60], flush=True)


main(*sys.argv[1:])
