"""Add the runs whose file names do not end in their digest to `evidence/SHA256SUMS`, with their present digests.

    python scripts/seal.py

It was run once, for runs that were committed before file names had digests. It never changes a line of the list: when
a listed file has another digest than its line, the script prints its name and exits with 1. `sha256sum -c SHA256SUMS`
in that folder checks the same.
"""

from __future__ import annotations

import hashlib
import sys

from knowngood.core.local_files import write_atomically
from knowngood.evidence import sealed_files
from knowngood.project import checkout

root = checkout.find_project().evidence
known = sealed_files.read_ledger(root)
changed = []
for path in sorted([*root.glob("*/*.json"), *root.glob("incidents/*/*.json")]):
    name = path.relative_to(root).as_posix()
    data = path.read_bytes()
    if sealed_files.find_defect(path, data) is None:
        continue
    if name in known:
        changed.append(name)
    else:
        known[name] = hashlib.sha256(data).hexdigest()
        print(f"listed {name}")
write_atomically(root / sealed_files.LEDGER, "".join(f"{digest}  {name}\n" for name, digest in sorted(known.items())))
print("\n".join(f"CHANGED since it was listed: {name}" for name in changed), end="\n" if changed else "")
sys.exit(bool(changed))
