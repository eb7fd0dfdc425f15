"""``python -m speed_tests.trial POINT``: one point, in a process of its own. The last line is JSON.

``python -m speed_tests.trial parts`` measures the parts of the machine instead.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from typing import Any

import torch

from smoke_tests import outcomes, profiling
from smoke_tests.settings import FLASH, SETTINGS, families_in, kernel_fault
from smoke_tests.training import backend, device_here
from speed_tests import card, loops, shapes
from speed_tests.losses import LossModel
from speed_tests.points import Point, parse_point

WARM_UP, ROUNDS = 3, 5
ROUND_SECONDS = 1.0


def make_batch(point: Point, vocabulary: int, device: torch.device) -> tuple[dict[str, Any], list[int]]:
    """Return what the model is called with, and the lengths of the documents in it.

    ``padded``: each second row is half as long and padded on the right. ``packed``: one row, in which each stretch of
    ``length`` tokens has documents of a half, a quarter and two eighths, marked by position ids that start again and,
    for flash attention, by cumulative lengths.
    """
    ids = torch.randint(1, vocabulary, (point.rows, point.length), generator=torch.Generator().manual_seed(1))
    inputs: dict[str, Any] = {"input_ids": ids, "labels": ids.clone()}
    lengths = [point.length] * point.rows
    if point.layout == "padded":
        lengths = [point.length // (1 + row % 2) for row in range(point.rows)]
        inputs["attention_mask"] = (torch.arange(point.length)[None] < torch.tensor(lengths)[:, None]).long()
        inputs["labels"][inputs["attention_mask"] == 0] = -100
    if point.layout == "packed":
        lengths = [point.length // part for _ in range(point.rows) for part in (2, 4, 8, 8)]
        ids = ids.reshape(1, -1)[:, : sum(lengths)]
        positions = torch.cat([torch.arange(length) for length in lengths])[None]
        inputs = {"input_ids": ids, "labels": ids.clone(), "position_ids": positions}
        inputs["labels"][positions == 0] = -100
        if point.setting in FLASH:
            ends = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
            inputs.update(cu_seq_lens_q=ends, cu_seq_lens_k=ends, max_length_q=max(lengths), max_length_k=max(lengths))
    inputs = {name: value.to(device) if torch.is_tensor(value) else value for name, value in inputs.items()}
    if point.mask == "causal":
        inputs["attention_mask"] = {"full_attention": None}
    return inputs, lengths


def measure_point(point: Point) -> dict[str, Any]:
    """Train and return what was measured; ``faults`` says why it should not be compared, and is empty for most."""
    device, setting = device_here(), SETTINGS[point.setting]
    if device.type == "cuda":
        torch.cuda.init()
    product = card.measure_product(device)
    weights = torch.float32 if point.weights else torch.bfloat16
    with backend(setting):
        model = shapes.build_model(point.shape, setting, weights, device, lora=point.tuned == "lora")
        if point.memory:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            if point.tuned:
                model.enable_input_require_grads()
        batch, lengths = make_batch(point, model.config.vocab_size, device)
        operations = shapes.count_operations(model, lengths)
        if point.loop == "unsloth":
            model = loops.load_with_unsloth(model, point)
        trained = LossModel(model, point.loss, point.compiled)
        run = _Rounds(device)
        loops.train(point, trained, batch, run)
        with profiling.watched(device) as names:
            loops.forward_backward(point, trained, batch)
    fault = kernel_fault(setting, names, on_gpu=device.type == "cuda")
    step = statistics.median(run.steps)
    faults = card.find_faults(run.watched) + ([f"another kernel ran: {fault}"] if fault else [])
    middle = sorted(run.steps)[1:-1]  # one slow round of five leaves the median as it is
    if middle[-1] - middle[0] > 0.05 * step:
        faults.append(f"rounds differ by {(middle[-1] - middle[0]) / step:.0%}")
    if not all(map(math.isfinite, run.losses)):
        faults.append("a loss is not finite")
    tflops = sum(operations.values()) / step / 1e12
    limit = card.find_limit(torch.cuda.get_device_name()) if device.type == "cuda" else None
    return {
        "outcome": outcomes.PASS,
        "tokens_a_second": round(sum(lengths) / step, 1),
        "step_ms": round(1000 * step, 2),
        "round_step_ms": [round(1000 * value, 2) for value in run.steps],
        "first_step_seconds": round(run.first, 2),
        "tflops": round(tflops, 3),
        "share_of_limit": round(tflops / limit, 4) if limit else None,
        "share_of_product": round(tflops / product, 4),
        "product_tflops": product,
        "operations": operations,
        "tokens": sum(lengths),
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "peak_bytes": run.peak,
        "losses": [round(value, 4) for value in run.losses],
        "families": sorted(families_in(names)),
        "card": run.watched,
        "faults": faults,
    }


class _Rounds:
    """Counts steps: the first alone, those of the warm-up, then rounds of some steps each, while the card is watched.

    ``steps`` has the seconds of a step for each round, ``losses`` those of the first and the last step.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._count, self._size, self._mark = device, 0, 0, time.perf_counter()
        self.first, self.peak, self.done = 0.0, None, False
        self.steps: list[float] = []
        self.losses: list[float] = []
        self.watched: dict[str, Any] = {}
        self._watch: Any = None

    def begin(self) -> None:
        """Start the clock of the first step."""
        profiling.synchronize(self._device)
        self._mark = time.perf_counter()

    def end_step(self, loss: torch.Tensor) -> None:
        """Note that a step has been given to the device; sets ``done`` after the last."""
        self._count += 1
        if self._count == 1:
            self.losses.append(loss.item())
            self.first = self._pass()
        elif self._count < WARM_UP:
            self._pass()
        elif self._count == WARM_UP:
            self._size = max(2, math.ceil(ROUND_SECONDS / self._pass()))
            self._watch = card.Watch()
            self._watch.start()
        elif (self._count - WARM_UP) % self._size == 0:
            self.steps.append(self._pass() / self._size)
            self.done = len(self.steps) == ROUNDS
        if self.done:
            self.watched = self._watch.stop()
            self.losses.append(loss.item())
            self.peak = torch.cuda.max_memory_allocated() if self._device.type == "cuda" else None

    def _pass(self) -> float:
        """Return the seconds since the last time, when the device has done all it was given."""
        profiling.synchronize(self._device)
        before, self._mark = self._mark, time.perf_counter()
        return self._mark - before


def main(what: str) -> dict[str, Any]:
    """Return what was measured, or why it was not."""
    try:
        if what != "parts":
            return measure_point(parse_point(what))
        watch = card.Watch()
        watch.start()
        parts = card.measure_parts(device_here())
        watched = watch.stop()
        return {"outcome": outcomes.PASS, **parts, "card": watched, "faults": card.find_faults(watched)}
    except Exception as error:  # noqa: BLE001 - what came of a point is its result
        import traceback

        traceback.print_exc()
        return outcomes.from_exception(error)


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
