"""Finds an interpreter of a release on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from knowngood.core.child_processes import end_with_parent
from knowngood.core.errors import MissingError


def find_python(wanted: Sequence[str]) -> Path:
    """Return an interpreter of the first of these releases that this machine has; raises `MissingError`."""
    roots = [Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"]
    roots.append(Path(os.environ.get("UV_PYTHON_INSTALL_DIR", Path.home() / ".local/share/uv/python")))
    for version in wanted:
        if version == ".".join(map(str, sys.version_info[:2])):
            return Path(sys.base_prefix) / "bin" / f"python{version}"
        candidates = [Path(folder) / f"python{version}" for folder in os.get_exec_path()]
        candidates += [path for root in roots for path in sorted(root.glob(f"*/bin/python{version}"))]
        for path in candidates:
            if path.is_file() and _is_python(path, version):
                return path
    raise MissingError(f"this machine has no Python {' or '.join(wanted)}")


def _is_python(path: Path, version: str) -> bool:
    """Run it and compare its release: a version manager's shim may have no interpreter behind its name."""
    program = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run(
        [path, "-c", program], capture_output=True, text=True, check=False, preexec_fn=end_with_parent()
    )
    return done.returncode == 0 and done.stdout.strip() == version
