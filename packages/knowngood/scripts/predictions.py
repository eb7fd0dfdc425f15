"""Print the predictions of `smoke_tests/predictions.yaml` for cells on a GPU, as JSON for `scripts/h200.py`.

python scripts/predictions.py CELL [CELL ...] > predictions.json
"""

from __future__ import annotations

import json
import sys

from knowngood.core.cell import parse_cell
from knowngood.project import checkout
from knowngood.smoke.predictions import load_predictions, predictions_for_cell

known = load_predictions(checkout.find_project().root)
print(json.dumps({name: predictions_for_cell(known, parse_cell(name), gpu=True) for name in sys.argv[1:]}, indent=1))
