"""Run the model suite for families on a machine with GPUs and no network: in bare environments, one per transformers.

    PYTHONPATH=src python3 scripts/gpu_models.py OUT SECONDS FAMILY[,FAMILY...] RELEASE[=PYTHONPATH] [...]

Each environment is the machine's Python with folders first on its path (another transformers, flash-attn). Runs the
quick part for each family with the first release, then with the next, and compares with the predictions for a GPU of
`rules/model-predictions/`. What would start after SECONDS is left out. Writes the evidence below OUT. On a machine with
several GPUs, run one process per GPU (CUDA_VISIBLE_DEVICES).
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from knowngood.core.errors import KnowngoodError
from knowngood.project import checkout
from knowngood.smoke import certify_run
from knowngood.smoke.model_config import read_model_config
from knowngood.smoke.model_predictions import PREDICTIONS_FOLDER
from knowngood.smoke.suite_command import SuiteOptions


def main(out: str, seconds: str, families: str, *environments: str) -> None:
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
            options = SuiteOptions(quick=True, gpus=True, seconds=590)
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


main(*sys.argv[1:])
