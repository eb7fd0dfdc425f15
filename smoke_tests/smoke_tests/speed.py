"""How long a training step takes and how much memory it holds under a setting: figures, never a pass or a fail.

The tokens of a step are the same at every sequence length, so what grows with the length is attention's share.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
from torch.nn import functional

from smoke_tests import data, model
from smoke_tests.outcomes import is_out_of_memory
from smoke_tests.profiling import synchronize
from smoke_tests.settings import SETTINGS
from smoke_tests.training import backend, device_here

ON_GPU = (model.FOR_SPEED, 8192, (512, 2048, 8192))  # model, tokens a step, sequence lengths
ON_CPU = (model.TINY, 512, (128, 512))
WARM_UP, TIMED = 3, 10


def run(check: dict[str, Any], report: dict[str, Any]) -> None:
    """Measure at each length; a length that does not fit into memory says so in its figure."""
    setting, device = SETTINGS[check["setting"]], device_here()
    shape, tokens, lengths = ON_GPU if device.type == "cuda" else ON_CPU
    figures = report["figures"] = {"tokens_a_step": tokens, "lengths": {}}
    with backend(setting):
        trained = model.build(setting, shape, torch.float32, device).train()
        optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-4)
        for length in lengths:
            try:
                figures["lengths"][str(length)] = _measure(trained, optimizer, tokens // length, length, device)
            except Exception as error:  # noqa: PERF203
                if not is_out_of_memory(error):
                    raise
                figures["lengths"][str(length)] = {"out_of_memory": str(error)[:200]}
                optimizer.zero_grad()
                torch.cuda.empty_cache()


def _measure(
    trained: Any, optimizer: torch.optim.Optimizer, rows: int, length: int, device: torch.device
) -> dict[str, Any]:
    ids = torch.tensor([data.sequence(row, length) for row in range(rows)], device=device)
    taken = []
    for step in range(WARM_UP + TIMED):
        if step == WARM_UP and device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        synchronize(device)
        started = time.perf_counter()
        with torch.autocast(device.type, dtype=torch.bfloat16):
            logits = trained(input_ids=ids, use_cache=False).logits
        loss = functional.cross_entropy(logits[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        synchronize(device)
        taken.append(1000 * (time.perf_counter() - started))
    timed = taken[WARM_UP:]
    return {
        "rows": rows,
        "step_ms": round(statistics.median(timed), 3),
        "step_ms_spread": [round(min(timed), 3), round(max(timed), 3)],
        "peak_bytes": torch.cuda.max_memory_allocated() if device.type == "cuda" else None,
    }
