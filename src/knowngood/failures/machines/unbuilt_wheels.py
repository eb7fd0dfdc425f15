"""Which package was compiled because it has no wheel, and for which Python, by the lines of pip and uv. Pure."""

from __future__ import annotations

import re
from dataclasses import replace

from packaging.utils import canonicalize_name

from knowngood.compat.incident import Incident
from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.failures.logs.last_errors import LastError
from knowngood.failures.names.name_situation import advise

_BUILT = lazy_pattern(
    r"(?:Failed building wheel for|Failed to (?:download and )?build|Building wheel for|build wheels? for) "
    r"[`'\"]?(?P<name>[A-Za-z][\w.-]*\w)(?:==(?P<version>\d[\w.+]*\w))?"
)
_SOURCE = lazy_pattern(r"(?:^|[\s/])(?P<name>[A-Za-z][\w.-]*?)-(?P<version>\d[\w.]*?)\.(?:tar\.gz|zip)\b", re.MULTILINE)
_PYTHON = lazy_pattern(
    r"(?:cpython-|[-_]cp|lib/python|Python|python)(?P<major>3)\.?(?P<minor>\d{1,2})\b(?=[-/\\.\s_]|$)"
)
_WINDOWS = lazy_pattern(r"win_amd64|win-amd64|\[WinError|[A-Z]:\\|Visual C\+\+")
_MAC = lazy_pattern(r"macosx|/Users/|/private/var/")
_NOT_ONE = frozenset(("installable", "wheels", "some", "one", "more", "editable", "the"))
_WITH_KERNELS = frozenset(
    (
        "flash-attn",
        "xformers",
        "apex",
        "mamba-ssm",
        "causal-conv1d",
        "deepspeed",
        "transformer-engine",
        "auto-gptq",
        "vllm",
    )
)
"""Packages whose builds ask for nvcc and torch: a Python with a wheel is not their remedy."""


def describe_unbuilt(incident: Incident, error: LastError) -> Incident | None:
    """Name the package that did not build, with the Python and the system that have no wheel of it."""
    text = error.log_end.decode("utf-8", "replace")
    names = [match for match in _BUILT.finditer(text) if match["name"].lower() not in _NOT_ONE]
    if not names:
        return None
    name = canonicalize_name(names[-1]["name"])
    if name in _WITH_KERNELS:
        return None
    version = next((match["version"] for match in reversed(names) if match["version"]), "")
    for match in _SOURCE.finditer(text):
        if canonicalize_name(match["name"]) == name:
            version = match["version"]
    pythons = [f"3.{match['minor']}" for match in _PYTHON.finditer(text)]
    python = max(set(pythons), key=pythons.count) if pythons else ""
    system = "Windows" if _WINDOWS.search(text) else "macOS" if _MAC.search(text) else ""
    where = " and ".join(part for part in (f"Python {python}" if python else "", system) if part)
    where = where or "this Python and system"
    named = f"{name} {version}".strip()
    return replace(
        incident,
        title=f"{named} has no wheel for {where}, and did not build",
        component=name,
        because=(
            f"pip took the sources of {name}, because this release of it has no ready wheel for {where}. "
            "An older release that another package pins mostly has none for a newer Python. Compiling it "
            "then failed, for want of a "
            "compiler, cmake or a library, or because its sources are older than this Python."
        ),
        fix=(
            advise(
                f"A Python for which {named} has a wheel, mostly one or two older than the newest "
                "(conda create python=3.11, uv venv --python 3.11)"
            ),
            advise(f"A newer {name}, which has a wheel for this Python; and a newer release of what pins the old one"),
            *incident.fix[:1],
        ),
    )
