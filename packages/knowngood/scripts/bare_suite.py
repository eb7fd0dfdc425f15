"""Run the smoke suite without an image, on a machine with GPUs and no network: in bare environments, one per cell.

    python bare_suite.py predict CELL... > PREDICTIONS                                here: what the cells should show
    python3 bare_suite.py run OUT PREDICTIONS SECONDS [quick:]CELL=PYTHONPATH [...]   there
    python bare_suite.py collect FOLDER PREFIX                                        here: put OUT into `evidence/`

Each environment is the machine's Python with a few folders first on its path (another transformers, flash-attn). They
are made where there is an index, with `uv pip install --target` for that Python, and unpacked outside of the checkout,
whose ignored folders a later transfer may remove.

`run` needs the standard library, `packaging`, and `packages/knowngood/src` on PYTHONPATH. A cell that would start after
SECONDS is skipped. `quick:` before a cell runs only the suite's quick part. It writes OUT/<cell>/<time>-<suite>.json.
On a machine with several GPUs, run one process per GPU (CUDA_VISIBLE_DEVICES).

`collect` removes PREFIX (such as `/home/me/knowngood/`), the path of the checkout there, from the tracebacks in the
runs, and changes nothing else.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

from knowngood.core.cell import parse_cell
from knowngood.core.errors import KnowngoodError
from knowngood.evidence import run_evidence

SUITE = Path(__file__).resolve().parents[3] / "smoke_tests/smoke_tests"


def predict(*cells: str) -> None:
    """Print the predictions of `smoke_tests/predictions.yaml` for cells on a GPU, by cell and glob of checks."""
    from knowngood.project import checkout
    from knowngood.smoke.predictions import load_predictions, predictions_for_cell

    known = load_predictions(checkout.find_project().root)
    print(json.dumps({name: predictions_for_cell(known, parse_cell(name), gpu=True) for name in cells}, indent=1))


def run(out: str, predictions: str, seconds: str, *environments: str) -> None:
    """Run the suite in each environment in turn and store the evidence."""
    from knowngood.smoke import suite_command, suite_run

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
            evidence = suite_run.run_in_environment(
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
            path = run_evidence.store_evidence(evidence, Path(out))
            print(f"{name}: {evidence.report['seconds']} s, {evidence.report['verdict']}", path, flush=True)
            for check in evidence.report["checks"]:
                if check["outcome"] == "fail" or check["agreement"] == "disagree":
                    reason = check["reason"] or check["message"] or ""
                    print("   ", check["id"], check["outcome"], check["agreement"], reason[:60], flush=True)


def collect(folder: str, prefix: str) -> None:
    """Copy the runs of another machine into `evidence/`, without its paths."""
    from knowngood.project import checkout

    project = checkout.find_project()
    for path in sorted(Path(folder).glob("*/*.json")):
        loaded = run_evidence.load_evidence(path)
        if isinstance(loaded, str):
            sys.exit(loaded)
        report = json.loads(json.dumps(loaded.report, ensure_ascii=False).replace(prefix, ""))
        target = run_evidence.store_evidence(replace(loaded, report=report), project.evidence)
        print(target.relative_to(project.root))


if __name__ == "__main__":
    {"predict": predict, "run": run, "collect": collect}[sys.argv[1]](*sys.argv[2:])
