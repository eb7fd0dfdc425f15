"""How long a training step of the miniature takes under a setting, on a GPU; never a pass or a fail by its figure."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
from torch.nn import functional

from model_tests import model_refusals
from model_tests.model_check import subject_of
from smoke_tests import data
from smoke_tests.outcomes import NotRun
from smoke_tests.profiling import synchronize
from smoke_tests.settings import SETTINGS
from smoke_tests.training import backend, device_here

ROWS, LENGTH = 4, 4096
WARM_UP, TIMED = 3, 10


def run(check: dict[str, Any], report: dict[str, Any]) -> None:
    """Measure the median time of forward and backward in bf16."""
    device, setting = device_here(), SETTINGS[check["setting"]]
    if device.type != "cuda":
        raise NotRun("time is measured on a GPU only")
    with model_refusals.recognised(), backend(setting):
        model = subject_of(check).build(setting.implementation, torch.float32, device).train()
        tokens = torch.tensor([data.sequence(row, LENGTH) for row in range(ROWS)], device=device)
        taken = [_step(model, tokens, device) for _ in range(WARM_UP + TIMED)][WARM_UP:]
    report["figures"] = {
        "tokens": ROWS * LENGTH,
        "step_ms": round(statistics.median(taken), 3),
        "step_ms_spread": [round(min(taken), 3), round(max(taken), 3)],
    }


def _step(model: Any, tokens: torch.Tensor, device: torch.device) -> float:
    synchronize(device)
    started = time.perf_counter()
    with torch.autocast(device.type, dtype=torch.bfloat16):
        logits = model(input_ids=tokens, use_cache=False).logits
    functional.cross_entropy(logits[:, :-1].float().flatten(0, 1), tokens[:, 1:].flatten()).backward()
    model.zero_grad()
    synchronize(device)
    return 1000 * (time.perf_counter() - started)
