"""Copy runs of another machine into `evidence/`, without the path of the checkout there.

    python scripts/collect.py FOLDER PREFIX

A traceback in a run's `log_tail` names files by that machine's paths. PREFIX (such as `/home/me/knowngood/`) is removed
from them; nothing else in a file is changed. The script ends with an error at a file that does not load as evidence.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

from knowngood.evidence import run_evidence
from knowngood.project import checkout

folder, prefix = sys.argv[1:]
for path in sorted(Path(folder).glob("*/*.json")):
    loaded = run_evidence.load_evidence(path)
    if isinstance(loaded, str):
        sys.exit(loaded)
    report = json.loads(json.dumps(loaded.report, ensure_ascii=False).replace(prefix, ""))
    target = run_evidence.store_evidence(replace(loaded, report=report), checkout.find_project().evidence)
    print(target.relative_to(checkout.find_project().root))
