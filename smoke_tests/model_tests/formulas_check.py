"""The check of eager attention itself: in the reference's run, every layer against the formulas."""

from __future__ import annotations

from typing import Any

from model_tests import attention_formulas as formulas
from model_tests import model_refusals
from model_tests.model_check import reference_of, subject_of
from smoke_tests.outcomes import Failed, NotRun


def run(check: dict[str, Any], report: dict[str, Any]) -> None:
    """Pass if eager attention is what the configuration says, in every layer with attention."""
    with model_refusals.recognised():
        subject, reference = subject_of(check), reference_of(check, 0)
    text = subject.config.get_text_config()
    report["miniature"] = subject.made.config
    report["changes"] = subject.made.changes
    report["formulas"] = {str(layer): error for layer, error in reference.formulas.items()}
    report["widths"] = {str(layer): list(widths) for layer, widths in reference.widths.items()}
    if not reference.formulas:
        raise NotRun("this model computes attention inside its own modules, where the formulas cannot look")
    for layer, (query, key, _) in reference.widths.items():
        if subject.widths and not {query, key} <= subject.widths:
            stated = " or ".join(map(str, sorted(subject.widths)))
            raise Failed(f"layer {layer}: heads are {query} and {key} wide, the configuration says {stated}")
    if reference.fits_formulas:
        return
    worst = max(reference.formulas.values())
    if text.model_type not in formulas.KNOWN_TYPES:
        raise NotRun(f"no formula is known for model_type {text.model_type!r}; the plain one differs by {worst:.1e}")
    raise Failed(f"silently-wrong: eager attention differs from the formulas by {worst:.1e}")
