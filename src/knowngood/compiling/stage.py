"""The stages in which a builder of images compiles a wheel. Pure.

They stand after those of the cell's Dockerfile. The build folder is a cache mount, named by what shapes objects: what
is compiled stays there when the step is killed. The result is files, and no image.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from knowngood.builders.command import RUN

HOST = "assembled"
"""The stage that has everything installed: what is compiled in."""
COMPILE, WHEEL = "knowngood-compile", "knowngood-wheel"
ORDER, TOOLKIT, TOOLS = "compile-order", "compile-toolkit", "compile-tools"
"""Build contexts: sources and script, nvcc, what builds a wheel."""


def text(name: str, env: Mapping[str, str]) -> str:
    """Compile under this name of the cache, in this environment."""
    variables = " \\\n    ".join(f"{key}={json.dumps(value)}" for key, value in sorted(env.items()))
    mounts = [f"--mount=type=cache,id={name},target=/build,sharing=locked"]
    mounts += [f"--mount=type=bind,from={context},target={place}" for context, place in _PLACES.items()]
    command = ["nice", "-n", "19", "python", "/order/inside.py", "/order/src", "/result"]
    return (
        f"FROM {HOST} AS {COMPILE}\nUSER 0:0\nENV {variables}\nWORKDIR /result\nARG {RUN}\n"
        f"RUN --network=none {' '.join(mounts)} \\\n    {json.dumps(command)}\n"
        f"\nFROM scratch AS {WHEEL}\nCOPY --from={COMPILE} /result/ /\n"
    )


_PLACES = {ORDER: "/order", TOOLKIT: "/toolkit", TOOLS: "/tools"}
