"""Run the model suite for families on a machine with GPUs and no network: in bare environments, one per transformers.

    PYTHONPATH=src python3 scripts/gpu_models.py quick|whole OUT SECONDS FAMILY[,FAMILY...] RELEASE[=PYTHONPATH] [...]

Each environment is the machine's Python with folders first on its path (another transformers, flash-attn). Runs the
suite's quick part, or all of it, for each family with the first release, then with the next, and compares with the
predictions for a GPU of `smoke_tests/model-predictions/`. What would start after SECONDS is left out. Writes the
evidence below OUT. Families are shared out among the GPUs of the machine, or those that CUDA_VISIBLE_DEVICES names.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from knowngood.core.errors import KnowngoodError
from knowngood.project import checkout
from knowngood.smoke import certify_run
from knowngood.smoke.model_config import read_model_config
from knowngood.smoke.model_predictions import PREDICTIONS_FOLDER
from knowngood.smoke.suite_command import SuiteOptions


def main(part: str, out: str, seconds: str, families: str, *environments: str) -> None:
    """Share the families out among the GPUs."""
    gpus = find_gpus()
    if len(gpus) == 1:
        run_families(part == "quick", out, seconds, families, *environments)
        return
    running = []
    for index, gpu in enumerate(gpus):
        own = ",".join(families.split(",")[index :: len(gpus)])
        argv = [sys.executable, __file__, part, out, seconds, own, *environments]
        running.append(subprocess.Popen(argv, env=os.environ | {"CUDA_VISIBLE_DEVICES": gpu}))
    sys.exit(max(process.wait() for process in running))


def find_gpus() -> list[str]:
    """Return the numbers of the GPUs that may be used."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named:
        return named.split(",")
    return sorted(path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*"))


def run_families(quick: bool, out: str, seconds: str, families: str, *environments: str) -> None:
    """Run every family in each environment in turn, as long as there is time."""
    begun = time.monotonic()
    project = checkout.find_project()
    for item in environments:
        release, _, folders = item.partition("=")
        os.environ["PYTHONPATH"] = folders
        path = project.root / PREDICTIONS_FOLDER / f"transformers-{release}-gpu.json"
        predictions = json.loads(path.read_text(encoding="utf-8"))
        for family in families.split(","):
            name = f"{family} with transformers {release}"
            if time.monotonic() - begun > float(seconds):
                print(f"{name}: left out, because the time limit has passed", flush=True)
                continue
            request = certify_run.ModelRequest(
                config=read_model_config(Path(family), project.model_suite), predictions=predictions
            )
            options = SuiteOptions(quick=quick, gpus=True, seconds=590)
            log = Path(out) / "logs" / f"{family}-{release}.log"
            try:
                evidence = certify_run.certify_in_environment(project, request, options, log=log, notify=print)
            except KnowngoodError as error:
                print(f"{name}: {error}", flush=True)
                continue
            certify_run.store_model_evidence(evidence, Path(out))
            print(f"{name}: {evidence.report['seconds']} s, {evidence.report['verdict']['text']}", flush=True)
            for check in evidence.report["checks"]:
                if check["outcome"] == "fail" or check["agreement"] == "disagree":
                    reason = check["reason"] or check["message"] or ""
                    print("   ", check["id"], check["outcome"], check["agreement"], reason[:90], flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
