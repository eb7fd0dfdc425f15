"""Takes runs that came back from another machine into `evidence/`, without the folder that the checkout had there.

    python scripts/collect.py FOLDER PREFIX

A traceback in a run's `log_tail` names files by that machine's paths; PREFIX (such as `/home/me/knowngood/`) is cut off
them. Nothing else of a file is touched; one that does not load as evidence is refused.
"""

from __future__ import annotations

import sys
from pathlib import Path

from knowngood import evidence, project
from knowngood.atomic import write_text

folder, prefix = sys.argv[1:]
for path in sorted(Path(folder).glob("*/*.json")):
    found = evidence.load(path)
    if isinstance(found, str):
        sys.exit(found)
    target = project.find().evidence / found.cell / path.name
    write_text(target, path.read_text(encoding="utf-8").replace(prefix, ""))
    print(target.relative_to(project.find().root))
