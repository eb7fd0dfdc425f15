"""OpenRLHF's own path: its Actor's log probabilities of a batch, padded on a side or packed, and their gradient."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from typing import Any

import torch

from smoke_tests import data, layouts, model, reference, training
from smoke_tests.frameworks import dotted
from smoke_tests.outcomes import Failed
from smoke_tests.precision import PRECISIONS
from smoke_tests.settings import SETTINGS

PRECISION = PRECISIONS["bf16-pure"]  # an Actor holds its weights in bf16
TRITON = "flash_attn.ops.triton.cross_entropy"


def run(check: dict[str, Any], report: dict[str, Any]) -> None:
    """Save the tiny model, load it as an Actor, compare, take some steps."""
    device = training.device_here()
    flash = device.type == "cuda" and importlib.util.find_spec("flash_attn_2_cuda") is not None
    setting = SETTINGS["fa2" if flash else "sdpa"]
    if device.type != "cuda":
        sys.modules[TRITON] = None  # type: ignore[assignment]
        report["stand_in"] = f"{TRITON}, a Triton kernel: OpenRLHF's own way without it, since there is no GPU"
    from openrlhf.models import Actor

    with tempfile.TemporaryDirectory() as folder:
        model.build(SETTINGS["eager"], model.TINY, torch.bfloat16, torch.device("cpu")).save_pretrained(folder)
        actor = Actor(folder, attn_implementation=setting.implementation, packing_samples=check["layout"] == "packed")
    actor = actor.to(device).train()
    report["resolved"] = {
        "implementation": str(actor.model.config._attn_implementation),
        "function": dotted(type(actor).forward),
    }
    side = "right-padded" if check["layout"] == "packed" else check["layout"]
    inputs = layouts.batch(side, device, torch.bfloat16).inputs
    mask = inputs["attention_mask"]
    # log_probs[i] is of token i + 1: it counts where that token and the one before it are no padding.
    counted = (mask[:, 1:] * mask[:, :-1]).float()
    optimizer = torch.optim.SGD(actor.parameters(), lr=0.2)

    def step() -> float:
        optimizer.zero_grad()
        found = actor(inputs["input_ids"], attention_mask=mask, return_logprobs=True)
        loss = -(found * counted).sum() / counted.sum()
        loss.backward()
        return loss.item()

    first = step()
    rows = data.sequences(data.RAGGED)
    report["errors"] = reference.errors(dict(actor.model.named_parameters()), rows, model.TINY, first)
    if not training.within(PRECISION, report["errors"]):
        raise Failed(f"the log probabilities are not the reference's: {report['errors']}")
    losses = [first]
    for _ in range(5):
        optimizer.step()
        losses.append(step())
    report["losses"] = losses
    training.demand_learning(losses)
