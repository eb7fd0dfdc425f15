"""A place for reproductions: the environment that knowngood runs in, as it is. Nothing is installed.

For what cannot be made anywhere: packages that were compiled by hand, on a machine that sees no registry.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from knowngood import smoke
from knowngood.reproducing.observation import Observation
from knowngood.reproducing.reproduce import CannotTryError, Job, Say
from knowngood.reproducing.run import variables
from knowngood.reproducing.venv import execute

_COUNT = "import json, torch; print(json.dumps(torch.cuda.device_count()))"


class Here:
    """The environment at hand; a side whose pins it does not have is not run."""

    where = "here"

    def node(self) -> Mapping[str, Any]:
        """The fingerprint of this machine."""
        return smoke.fingerprint(platform.node(), {"kernel": platform.release(), "cpus": os.cpu_count()})

    def gpus(self) -> int:
        """Those that this environment's torch sees."""
        return self._gpus

    @functools.cached_property
    def _gpus(self) -> int:
        asked = subprocess.run([sys.executable, "-c", _COUNT], capture_output=True, text=True, check=False)
        return int(json.loads(asked.stdout)) if asked.returncode == 0 else 0

    def observe(self, job: Job, say: Say) -> Observation:
        """The program's run, if everything is here that it asks for."""
        if job.base_without:
            raise CannotTryError(f"it wants a system without {', '.join(job.base_without)}; --in image")
        if lacking := unmet(job.requirements, job.excludes):
            raise CannotTryError(f"this environment is another: {'; '.join(lacking)}")
        say("running the program")
        own = os.environ.get("PYTHONPATH", "")
        places = {folder: "environment" for folder in [*own.split(os.pathsep), sys.prefix, sys.base_prefix] if folder}
        with tempfile.TemporaryDirectory() as name:
            asked = variables(job, name)
            path = os.pathsep.join(filter(None, [asked["PYTHONPATH"], own]))
            environment = {**os.environ, **asked, "PYTHONPATH": path}
            seen = execute(Path(sys.executable), Path(name), job, environment, places)
        # An unpacked release hides the installed one of its name, and is the one that counts.
        unpacked = {asked.name: _pinned(asked) for asked in map(Requirement, job.case.definition.unpacked(job.side))}
        return replace(seen, packages={**seen.packages, **unpacked})


def unmet(requirements: Sequence[str], excludes: Sequence[str]) -> list[str]:
    """What is not here of what is asked for, and what is that must not be, each in a few words."""
    found = [f"{name} is installed" for name in excludes if _version(name) is not None]
    for asked in map(Requirement, requirements):
        version = _version(asked.name)
        if (asked.marker is None or asked.marker.evaluate()) and (
            version is None or not asked.specifier.contains(version, prereleases=True)
        ):
            found.append(f"{asked.name} is {version or 'not installed'}, not {asked.specifier}")
    return found


def _pinned(asked: Requirement) -> str:
    return next(iter(asked.specifier)).version


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
