"""The predictions of `rules/smoke.yaml` for cells on a GPU, as `scripts/h200.py` reads them.

python scripts/predictions.py CELL [CELL ...] > predictions.json
"""

from __future__ import annotations

import json
import sys

from knowngood import project
from knowngood.cell import parse
from knowngood.predictions import predict

print(json.dumps({name: predict(project.find().predictions, parse(name), gpu=True) for name in sys.argv[1:]}, indent=1))
