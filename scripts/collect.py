"""Takes runs that came back from another machine into `evidence/`, without the folder that the checkout had there.

    python scripts/collect.py FOLDER PREFIX

A traceback in a run's `log_tail` names files by that machine's paths; PREFIX (such as `/home/me/knowngood/`) is cut off
them. Nothing else of a file is touched; one that does not load as evidence is refused.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

from knowngood import evidence, project

folder, prefix = sys.argv[1:]
for path in sorted(Path(folder).glob("*/*.json")):
    found = evidence.load(path)
    if isinstance(found, str):
        sys.exit(found)
    report = json.loads(json.dumps(found.report, ensure_ascii=False).replace(prefix, ""))
    target = evidence.store(replace(found, report=report), project.find().evidence)
    print(target.relative_to(project.find().root))
