"""How the program of a reproduction runs, wherever that is, and what is kept of what it did. Pure."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any

from packaging.utils import canonicalize_name

from knowngood.reproducing.observation import Observation
from knowngood.reproducing.reproduce import Job

SECONDS = 600
"""A program's time."""


def variables(job: Job, folder: str) -> dict[str, str]:
    """The environment variables that a job's program runs under, in a folder with its files."""
    return {
        "HOME": folder,
        "TMPDIR": f"{folder}/tmp",  # noqa: S108  # below a folder of ours
        "LC_ALL": "C.UTF-8",
        "PYTHONPATH": f"{folder}:{folder}/sources",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HF_HUB_OFFLINE": "1",
        **job.environment,
    }


def mode(content: bytes) -> int:
    """The permissions of a file beside the program: a binary may be one that is run."""
    return 0o755 if content.startswith(b"\x7fELF") else 0o644


def observed(
    code: int,
    output: str,
    report: Mapping[str, Any],
    *,
    places: Mapping[str, str],
    image: str | None = None,
) -> Observation:
    """What was seen, with the folders of this machine (`places`) written as what they are. Pure."""

    def plainly(text: str) -> str:
        for place, name in sorted(places.items(), key=lambda item: -len(item[0])):
            text = text.replace(place, name)
        return text

    exception = report.get("exception")
    return Observation(
        exit=code,
        seconds=report.get("seconds", 0.0),
        python=report.get("python", ""),
        packages={canonicalize_name(name): version for name, version in report.get("packages", {}).items()},
        exception=exception and {**exception, "text": plainly(exception["text"])},
        output=plainly(output),
        said=_last_object(output),
        image=image,
    )


def _last_object(output: str) -> dict[str, Any]:
    """The JSON object in the last line that is one."""
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            with contextlib.suppress(ValueError):
                found = json.loads(line)
                if isinstance(found, dict):
                    return found
    return {}
