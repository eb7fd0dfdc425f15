"""The files of nvidia-cutlass-dsl's libraries are compared with what each distribution says that it installed."""

import base64
import contextlib
import hashlib
import json
from importlib.metadata import PackageNotFoundError, files


def count_foreign_files(name):
    """How many installed files of a distribution are not the ones that its RECORD has."""
    foreign = 0
    for file in files(name):
        if file.hash:
            digest = hashlib.new(file.hash.mode, file.locate().read_bytes()).digest()
            foreign += base64.urlsafe_b64encode(digest).decode().rstrip("=") != file.hash.value
    return foreign


found = {}
for name in ("nvidia-cutlass-dsl-libs-base", "nvidia-cutlass-dsl-libs-cu12", "nvidia-cutlass-dsl-libs-cu13"):
    with contextlib.suppress(PackageNotFoundError):
        found[name] = count_foreign_files(name)
if any(found.values()):
    raise SystemExit(f"files that another distribution wrote: {found}")
print(json.dumps({"foreign": found}))
