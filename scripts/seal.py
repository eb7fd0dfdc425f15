"""Lists runs whose names do not end in their digest in `evidence/SHA256SUMS`, with the digests that they have now.

    python scripts/seal.py

Run once, for what was committed before names had digests. It never changes a line: a listed file that has another
digest than its line says is told, and the exit code is 1. `sha256sum -c SHA256SUMS` in that folder checks the same.
"""

from __future__ import annotations

import hashlib
import sys

from knowngood import project, sealed
from knowngood.atomic import write_text

root = project.find().evidence
known = sealed.ledger(root)
changed = []
for path in sorted([*root.glob("*/*.json"), *root.glob("incidents/*/*.json")]):
    name = path.relative_to(root).as_posix()
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if sealed.is_sealed(path) or known.get(name) == digest:
        continue
    if name in known:
        changed.append(name)
    else:
        known[name] = digest
        print(f"listed {name}")
write_text(root / sealed.LEDGER, "".join(f"{digest}  {name}\n" for name, digest in sorted(known.items())))
print("\n".join(f"NOT as listed: {name}" for name in changed), end="\n" if changed else "")
sys.exit(bool(changed))
