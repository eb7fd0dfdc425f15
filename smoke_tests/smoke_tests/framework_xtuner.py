"""XTuner's own path: its SupervisedFinetune replaces the forward of Qwen2's attention, its collate function lays out.

``as-installed`` takes the attention that XTuner itself chooses in this environment. The others ask for
FlashAttention 2, whose classes XTuner dispatches on: ``padded`` is pack_to_max_length=False, ``packed`` True, both
with use_varlen_attn=False; ``packed-varlen`` has both True.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch

from smoke_tests import data, model, reference, stand_in, training
from smoke_tests.frameworks import dotted
from smoke_tests.outcomes import Failed
from smoke_tests.precision import PRECISIONS
from smoke_tests.settings import SETTINGS

STEPS = 5


def run(check: dict[str, Any], report: dict[str, Any]) -> None:
    """Build, dispatch, take a step, compare, take some more."""
    layout, device = check["layout"], training.device_here()
    kernels = device.type == "cuda" and importlib.util.find_spec("flash_attn") is not None
    if layout != "as-installed" and not kernels:
        report["stand_in"] = stand_in.install()
    # XTuner asks for its rank whether or not there are others.
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    from xtuner.model.modules.dispatch import SUPPORT_FLASH2

    # What SupervisedFinetune._prepare_for_flash_attn chooses for a Qwen2 (0.2.0's own fails without a GPU).
    setting = SETTINGS["fa2" if layout != "as-installed" or SUPPORT_FLASH2 else "sdpa"]
    flash = setting.implementation == "flash_attention_2"
    # With FlashAttention 2 XTuner loads the weights themselves in bf16.
    precision = PRECISIONS["bf16-pure" if flash and kernels else "fp32"]
    llm = model.build(setting, model.TINY, getattr(torch, precision.weights), device)
    tuner = _finetune(llm, use_varlen_attn=layout == "packed-varlen").train()
    function = dotted(llm.model.layers[0].self_attn.forward)
    report["resolved"] = {"implementation": str(llm.config._attn_implementation), "function": function}
    if flash and not function.startswith("xtuner."):
        raise Failed(f"dispatch-left-out: XTuner replaced no attention of this transformers; {function} is called")
    batch, rows = _batch(layout, device)
    pure = precision.optimizer == "sgd"
    parameters = dict(llm.named_parameters())
    optimizer = (
        torch.optim.SGD(parameters.values(), lr=0.2) if pure else torch.optim.AdamW(parameters.values(), lr=4e-3)
    )

    def step() -> float:
        optimizer.zero_grad()
        loss = tuner(dict(batch), mode="loss")["loss"]
        loss.backward()
        return loss.item()

    first = step()
    report["errors"] = reference.errors(parameters, rows, model.TINY, first)
    if not training.within(precision, report["errors"]):
        if training.within(precision, reference.errors(parameters, rows, model.TINY, first, seams=False)):
            raise Failed(f"leaks-across-seams: attention does not stop between packed sequences; {report['errors']}")
        raise Failed(f"the first step is not the reference's; {report['errors']}")
    losses = [first]
    for _ in range(STEPS):
        optimizer.step()
        losses.append(step())
    report["losses"] = losses
    training.demand_learning(losses)


def _finetune(llm: Any, *, use_varlen_attn: bool) -> Any:
    """XTuner's SupervisedFinetune of a model that is built already: of its own building the dispatch is left."""
    from xtuner.model import SupervisedFinetune
    from xtuner.model.modules import dispatch_modules

    class Finetune(SupervisedFinetune):
        def build_llm_from_cfg(self, built: Any, use_varlen_attn: bool, _max_position_embeddings: Any) -> Any:
            dispatch_modules(built, use_varlen_attn=use_varlen_attn)
            return built

    return Finetune(llm=llm, use_varlen_attn=use_varlen_attn, use_activation_checkpointing=False)


def _batch(layout: str, device: torch.device) -> tuple[dict[str, Any], list[list[int]]]:
    """What XTuner's collate function makes of the sequences, and the sequences as they are to be attended to."""
    from mmengine import MessageHub
    from xtuner.dataset.collate_fns import default_collate_fn

    rows = data.sequences(data.RAGGED)
    whole = [token for row in rows for token in row]
    samples: list[dict[str, Any]] = [{"input_ids": row, "labels": row} for row in rows]
    varlen = layout == "packed-varlen"
    if layout == "packed":
        samples, rows = [{"input_ids": whole, "labels": whole}], [whole]
    if varlen:
        # The first token of a sequence is no one's to predict.
        labels = [token for row in rows for token in (data.IGNORED, *row[1:])]
        ends = torch.tensor([0, *map(len, rows)]).cumsum(0).tolist()
        positions = [place for row in rows for place in range(len(row))]
        samples = [{"input_ids": whole, "labels": labels, "cumulative_len": ends, "position_ids": positions}]
    made = default_collate_fn(samples, use_varlen_attn=varlen)["data"]
    if varlen:  # as XTuner's VarlenAttnArgsToMessageHubHook does before an iteration
        hub = MessageHub.get_instance("varlen_attn_args")
        hub.update_info("cumulative_len_rank_0", made.pop("cumulative_len")[0].to(device))
        hub.update_info("max_seqlen_rank_0", made.pop("max_seqlen"))
    return {name: value.to(device) for name, value in made.items()}, rows
