"""Which side of a pair is too old or too new, whose method an error is of, and what a process still has in memory."""

from __future__ import annotations

import json

import pytest

PACKAGES = "/opt/env/lib/python3.10/site-packages"


def frame(path: str, line: int, function: str, code: str) -> str:
    """One frame of a traceback."""
    return f'  File "{path}", line {line}, in {function}\n    {code}\n'


BEGIN = "Traceback (most recent call last):\n"
CASES = {
    "files of two releases": (
        "peft==0.15.0\n"
        + frame(f"{PACKAGES}/peft/auto.py", 31, "<module>", "from .mapping import MODEL_TYPE_TO_PEFT_MODEL_MAPPING")
        + "ImportError: cannot import name 'MODEL_TYPE_TO_PEFT_MODEL_MAPPING' from 'peft.mapping' "
        f"({PACKAGES}/peft/mapping.py)\n",
        ("peft", "sure", "two releases", "Reinstall"),
    ),
    "a log that ends at the line that raises": (
        frame(f"{PACKAGES}/torch/amp/grad_scaler.py", 212, "_unscale_grads_", "x = 1").replace("    x = 1\n", "")
        + '    raise ValueError("Attempting to unscale FP16 gradients.")\n',
        ("torch", "likely", "fp16", "fp32"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_cause_is_read_from_the_line_and_the_releases(name, first_match):
    log, (component, certainty, title, remedy) = CASES[name]
    match = first_match(BEGIN + log)
    assert (match["component"], match["certainty"]) == (component, certainty)
    assert title in match["title"]
    assert remedy in json.dumps(match["fix"])
