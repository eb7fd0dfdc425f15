"""Write what the model suite should observe with the transformers of an environment, before it runs there.

python model_predictions.py SITE_PACKAGES [cpu|gpu]

Of all families of the suite, and of every other model that has a run in `evidence/models`.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import distributions
from pathlib import Path

from knowngood.core.local_files import write_atomically
from knowngood.evidence.model_runs import MODEL_RUNS_FOLDER
from knowngood.project import checkout
from knowngood.smoke.model_config import read_families
from knowngood.smoke.model_predictions import PREDICTIONS_FOLDER, predict_model_checks, read_family_sources

root, device = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "cpu"
release = next(item.version for item in distributions(path=[str(root)]) if item.name == "transformers")
project = checkout.find_project()
sdpa = (root / "transformers/integrations/sdpa_attention.py").read_text(encoding="utf-8")
flash = (root / "transformers/modeling_flash_attention_utils.py").read_text(encoding="utf-8")
predictions = {}
families = {str(fields["model_type"]) for fields in read_families(project.model_suite).values()}
families |= {path.name for path in (project.evidence / MODEL_RUNS_FOLDER).iterdir()}
for model_type in sorted(families):
    folder = root / "transformers/models" / model_type.removesuffix("_text")
    if folder.is_dir():
        texts = (
            (folder / f"{kind}_{folder.name}.py").read_text(encoding="utf-8") for kind in ("modeling", "configuration")
        )
        predictions |= predict_model_checks(
            model_type, read_family_sources(*texts, sdpa, flash), "gpu" if device == "gpu" else "cpu"
        )
path = project.root / PREDICTIONS_FOLDER / f"transformers-{release}-{device}.json"
write_atomically(path, json.dumps(predictions, indent=1) + "\n")
print(f"{len(predictions)} predictions: {path}")
