"""The first question about a configuration: does this transformers know the model, and does its miniature build?"""

from __future__ import annotations

from typing import Any

from model_tests.model_check import subject_of
from model_tests.subject import ModelProblem


def run(check: dict[str, Any], report: dict[str, Any]) -> None:
    """Build the miniature; ``problem`` in the report says why there is none."""
    try:
        subject = subject_of(check)
    except ModelProblem as error:
        report["problem"] = {"kind": error.kind, "text": str(error)}
        return
    report["miniature"] = subject.made.config
    report["changes"] = subject.made.changes
    report["notes"] = subject.notes
