"""The steps after the first one: AdamW's by its formula, and what the model computes when they were taken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import transformers

from model_tests.reference import compute_reference
from smoke_tests import optimizer_reference as steps
from smoke_tests.outcomes import Failed

if TYPE_CHECKING:
    from model_tests.reference import Reference
    from model_tests.subject import Subject
    from model_tests.trial import Trial

STEPS, WARM_UP = 3, 1
RATE, DECAY = 1e-4, 0.1  # so small that the bounds of the first step hold at the last one
MOST_PARAMETERS = 30_000_000
"""The reference holds weights and moments in fp64; of a larger miniature that is too much beside the other models."""


def train_on(
    trial: Trial, layout: str, subject: Subject, reference: Reference, report: dict[str, Any]
) -> tuple[Reference, float] | None:
    """Take steps from the gradients at hand, each held to the formulas; return the reference at their end, and a loss.

    ``reference`` is that of the first step, whose experts are taken on the way.

    Returns None where a miniature is too large for that. Raises ``Failed`` for a step that is not AdamW's.
    """
    trained = {name: p for name, p in trial.model.named_parameters() if p.grad is not None}
    if sum(parameter.numel() for parameter in trained.values()) > MOST_PARAMETERS:
        report["training"] = {"steps": 0, "because": f"the miniature has more than {MOST_PARAMETERS:,} parameters"}
        return None
    groups = [
        {"params": [p for name, p in trained.items() if steps.is_bias_or_norm(name) == plain], "weight_decay": decay}
        for plain, decay in ((False, DECAY), (True, 0.0))
    ]
    optimizer = torch.optim.AdamW([group for group in groups if group["params"]], lr=RATE)
    scheduler = transformers.get_scheduler("linear", optimizer, WARM_UP, STEPS + 1)
    recipe = steps.Recipe(steps.decay_all_but(RATE, DECAY), steps.linear_schedule(WARM_UP, STEPS + 1))
    expected = steps.OptimizerReference(trained, recipe)
    worst = 0.0
    for number in range(1, STEPS + 1):
        if number > 1:
            trial.step(layout, 0, reference)
        expected.step({name: p.grad for name, p in trained.items()})
        optimizer.step()
        scheduler.step()
        moments = [
            {name: optimizer.state[p][part] for name, p in trained.items()} for part in ("exp_avg", "exp_avg_sq")
        ]
        off = max(expected.distances(trained, *moments), key=lambda distance: distance.over)
        worst = max(worst, off.over)
        if not off.over <= 1.0:
            raise Failed(
                f"silently-wrong: wrong-step: step {number}: the {off.part} of {off.name} is off by {off.error:.1e}"
                f" ({off.allowed:.1e} is allowed)"
            )
    report["training"] = {"steps": STEPS, "worst": worst}
    reached = {name: parameter.detach().cpu() for name, parameter in trial.model.named_parameters()}
    last = compute_reference(subject, layout, 0, torch.float32, reached)
    return last, trial.step(layout, 0, last)
