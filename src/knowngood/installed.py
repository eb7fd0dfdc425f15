"""What is installed where this runs: the distributions of the python in use, its release, the C library. An edge."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from knowngood.errors import MissingError
from knowngood.solving.query import Wanted, pinned

_ASK = """
import json, platform
from importlib import metadata
print(json.dumps([platform.python_version(), {d.metadata["Name"]: d.version for d in metadata.distributions()}]))
"""


def interpreter() -> Path | None:
    """The python of the active environment, when it is another than ours (`VIRTUAL_ENV`, `CONDA_PREFIX`)."""
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        folder = os.environ.get(name)
        if folder:
            python = Path(folder) / "bin" / "python"
            if python.exists() and Path(folder).resolve() != Path(sys.prefix).resolve():
                return python
    return None


def look() -> tuple[str, dict[str, str]]:
    """The python's release, and distribution -> version."""
    python = interpreter()
    if python is None:
        found = {str(item.metadata["Name"]): item.version for item in metadata.distributions()}
        return platform.python_version(), found
    try:
        told = subprocess.run([python, "-c", _ASK], capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError) as error:
        raise MissingError(f"{python} does not tell what is installed: {error}") from None
    version, distributions = json.loads(told.stdout)
    return version, distributions


def wanted(distributions: dict[str, str]) -> list[Wanted]:
    """As packages of a request; what has no version of PEP 440 is passed over."""
    from knowngood.errors import UsageError

    found = []
    for name, version in sorted(distributions.items()):
        public, _, local = version.partition("+")
        try:
            found.append(pinned(name, public, local or None, named=False))
        except UsageError:
            continue
    return found


def libc() -> str | None:
    """The release of glibc, `None` on another C library."""
    name, version = platform.libc_ver()
    return version if name == "glibc" and version else None
