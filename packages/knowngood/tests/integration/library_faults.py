"""Faults put into torch, transformers, accelerate, peft and safetensors as they are imported, below a trainer's checks.

    PYTHON library_faults.py SUITE TRAINER REPORT [DTYPE [PATTERN]]

``SUITE`` is the folder that has `smoke_tests/` with `trainers/` in it, ``TRAINER`` the first part of a check's detail
(``trl-sft``), or ``parallel`` for two processes, where ``SUITE`` has `parallel_tests/` beside `smoke_tests/`. Import
hooks wrap the libraries' own functions; no line of the suite knows of them. A fault is on for one check, and must be
noticed by the demand that it names: whatever else is said of it is an accident. The report has a row for each, and one
for each mode without a fault.
"""

from __future__ import annotations

import fnmatch
import functools
import importlib
import importlib.abc
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TARGETS: dict[str, dict[str, list[Fault]]] = {}
"""The functions that are wrapped, by their module and their dotted name in it, with the faults in them."""
ACTIVE: dict[str, Any] = {"fault": None, "state": {}}
FAULTS: list[Fault] = []


@dataclass(frozen=True)
class Fault:
    """A change of one library function, the mode that must notice it, and what must be said of it."""

    name: str
    target: str  # module:function, or module:Class.method
    mode: str
    reason: str
    change: Callable[..., Any] = field(repr=False)


def fault(target: str, reason: str, mode: str = "full") -> Callable[[Any], Any]:
    """Register a function as a fault: it is given its state, the plain function, and what that one is called with."""

    def register(change: Any) -> Any:
        made = Fault(change.__name__.strip("_").replace("_", "-"), target, mode, reason, change)
        module, _, path = target.partition(":")
        TARGETS.setdefault(module, {}).setdefault(path, []).append(made)
        FAULTS.append(made)
        return change

    return register


class Hook(importlib.abc.MetaPathFinder):
    """Wraps the functions of a module right after it is executed, before another one imports their names."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """The module's own spec, with a loader that wraps."""
        if name not in TARGETS:
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        spec = next((spec for finder in others if (spec := finder.find_spec(name, path, target)) is not None), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                for dotted, faults in TARGETS[name].items():
                    wrap(module, dotted, faults)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def wrap(module: Any, dotted: str, faults: list[Fault]) -> None:
    """Let a function of a module ask which fault is on before it does what it does."""
    *owners, name = dotted.split(".")
    owner = functools.reduce(getattr, owners, module)
    held = vars(owner)[name]
    plain = held.__func__ if isinstance(held, classmethod) else held

    @functools.wraps(plain)
    def wrapped(*words: Any, **known: Any) -> Any:
        active = ACTIVE["fault"]
        if active not in faults:
            return plain(*words, **known)
        return active.change(ACTIVE["state"], plain, *words, **known)

    setattr(owner, name, classmethod(wrapped) if isinstance(held, classmethod) else wrapped)


def calls(state: dict[str, Any]) -> int:
    """How often the fault's function was called before."""
    state["calls"] = state.get("calls", -1) + 1
    return int(state["calls"])


ADAM = "torch.optim.adam:adam"
TRAINING_STEP = "transformers.trainer:Trainer.training_step"
PREPARE = "transformers.trainer:Trainer._prepare_inputs"
SAVE_FILE = "safetensors.torch:save_file"
GET_LR = "torch.optim.lr_scheduler:LambdaLR.get_lr"
BATCHES = 2  # that a step has


@fault(ADAM, "update-off")
def rate_doubled(_state: Any, plain: Any, *words: Any, **known: Any) -> Any:
    return plain(*words, **{**known, "lr": 2 * known["lr"]})


@fault(ADAM, "update-off")
def decay_unasked(_state: Any, plain: Any, *words: Any, **known: Any) -> Any:
    return plain(*words, **{**known, "weight_decay": 0.01})


@fault(ADAM, "update-off")
def second_moment_decays_as_first(_state: Any, plain: Any, *words: Any, **known: Any) -> Any:
    return plain(*words, **{**known, "beta2": known["beta1"]})


@fault(ADAM, "update-off")
def first_moment_slower(_state: Any, plain: Any, *words: Any, **known: Any) -> Any:
    return plain(*words, **{**known, "beta1": 0.95})


@fault(ADAM, "update-off")
def epsilon_large(_state: Any, plain: Any, *words: Any, **known: Any) -> Any:
    return plain(*words, **{**known, "eps": 1e-6})


@fault(ADAM, "update-off", "scheduled")
def decay_coupled(_state: Any, plain: Any, *words: Any, **known: Any) -> Any:
    return plain(*words, **{**known, "decoupled_weight_decay": False})


@fault(ADAM, "update-off")
def steps_counted_twice(_state: Any, plain: Any, *words: Any, **known: Any) -> Any:
    for number in words[5]:
        number.add_(1)
    return plain(*words, **known)


@fault(ADAM, "update-off")
def one_moves_a_hundredth_further(_state: Any, plain: Any, *words: Any, **known: Any) -> Any:
    before = words[0][0].detach().clone()
    plain(*words, **known)
    words[0][0].data.add_(words[0][0].data - before, alpha=0.01)


@fault(ADAM, "update-off", "lora")
def adapter_moves_a_hundredth_less(_state: Any, plain: Any, *words: Any, **known: Any) -> Any:
    before = [parameter.detach().clone() for parameter in words[0][-1:]]  # a group of biases is empty
    plain(*words, **known)
    for parameter, value in zip(words[0][-1:], before, strict=True):
        parameter.data.sub_(parameter.data - value, alpha=0.01)


@fault(ADAM, "update-off")
def gradients_halved_in_third_step(state: Any, plain: Any, *words: Any, **known: Any) -> Any:
    if calls(state) // 2 == 2:  # two groups of weights
        for gradient in words[1]:
            gradient.mul_(0.5)
    return plain(*words, **known)


@fault(ADAM, "update-off", "lora")
def first_moments_forgotten(_state: Any, plain: Any, *words: Any, **known: Any) -> Any:
    for moment in words[2]:
        moment.zero_()
    return plain(*words, **known)


@fault(GET_LR, "update-off")
def schedule_drops_to_a_tenth(_state: Any, plain: Any, scheduler: Any) -> Any:
    return [rate * (0.1 if scheduler.last_epoch >= 1 else 1.0) for rate in plain(scheduler)]


@fault(GET_LR, "update-off", "scheduled")
def schedule_one_step_late(_state: Any, plain: Any, scheduler: Any) -> Any:
    scheduler.last_epoch -= scheduler.last_epoch > 0
    rates = plain(scheduler)
    scheduler.last_epoch += scheduler.last_epoch > 0
    return rates


@fault(GET_LR, "update-off", "scheduled")
def decay_of_the_rate_lost(_state: Any, plain: Any, scheduler: Any) -> Any:
    return scheduler.base_lrs if scheduler.last_epoch > 2 else plain(scheduler)


@fault("torch.nn.utils.clip_grad:clip_grad_norm_", "update-off", "scheduled")
def clipping_lost(_state: Any, plain: Any, parameters: Any, largest: float, *words: Any, **known: Any) -> Any:
    return plain(parameters, 1e6 * largest, *words, **known)


@fault("torch.nn.utils.clip_grad:clip_grad_norm_", "update-off", "scheduled")
def clipped_one_by_one(_state: Any, plain: Any, parameters: Any, *words: Any, **known: Any) -> Any:
    return max(plain([parameter], *words, **known) for parameter in parameters)


@fault("torch.nn.utils.clip_grad:clip_grad_norm_", "update-off", "scheduled")
def clipped_to_a_little_more(
    _state: Any, plain: Any, parameters: Any, largest: float, *words: Any, **known: Any
) -> Any:
    return plain(parameters, 1.01 * largest, *words, **known)


@fault("transformers.trainer:Trainer.get_decay_parameter_names", "update-off", "scheduled")
def biases_decay_too(_state: Any, plain: Any, trainer: Any, built: Any) -> Any:
    return [*plain(trainer, built), *(name for name, _ in built.named_parameters() if name.endswith("bias"))]


@fault("transformers.trainer:Trainer.get_decay_parameter_names", "update-off", "scheduled")
def norms_decay_too(_state: Any, plain: Any, trainer: Any, built: Any) -> Any:
    return [*plain(trainer, built), *(name for name, _ in built.named_parameters() if "norm" in name)]


@fault("transformers.trainer:Trainer.get_decay_parameter_names", "update-off", "scheduled")
def embedding_does_not_decay(_state: Any, plain: Any, trainer: Any, built: Any) -> Any:
    return [name for name in plain(trainer, built) if "embed" not in name]


@fault(TRAINING_STEP, "later-step-off")
def gradients_of_a_layer_zeroed_later(
    state: Any, plain: Any, trainer: Any, built: Any, *words: Any, **known: Any
) -> Any:
    loss = plain(trainer, built, *words, **known)
    if calls(state) >= BATCHES:
        for name, parameter in built.named_parameters():
            if "layers.1.mlp" in name and parameter.grad is not None:
                parameter.grad.zero_()
    return loss


@fault(TRAINING_STEP, "first-step-off")
def gradients_rounded(_state: Any, plain: Any, trainer: Any, built: Any, *words: Any, **known: Any) -> Any:
    import torch

    loss = plain(trainer, built, *words, **known)
    for parameter in built.parameters():
        if parameter.grad is not None:
            parameter.grad.copy_(parameter.grad.to(torch.bfloat16))
    return loss


@fault(TRAINING_STEP, "later-step-off")
def last_batch_of_a_step_lost_later(state: Any, plain: Any, trainer: Any, built: Any, *words: Any, **known: Any) -> Any:
    kept = {name: parameter.grad.clone() for name, parameter in built.named_parameters() if parameter.grad is not None}
    loss = plain(trainer, built, *words, **known)
    if calls(state) == 2 * BATCHES + 1:
        for name, parameter in built.named_parameters():
            if name in kept:
                parameter.grad.copy_(kept[name])
    return loss


@fault("torch.nn.modules.module:Module.zero_grad", "later-step-off")
def gradients_not_zeroed_later(state: Any, plain: Any, built: Any, *words: Any, **known: Any) -> Any:
    if calls(state) < 2:
        plain(built, *words, **known)


@fault(PREPARE, "later-step-off")
def labels_shifted_later(state: Any, plain: Any, trainer: Any, inputs: Any) -> Any:
    made = plain(trainer, inputs)
    if calls(state) >= BATCHES:
        made["labels"] = made["labels"].roll(1, dims=-1)
    return made


@fault(PREPARE, "later-step-off")
def a_token_of_a_row_changed_later(state: Any, plain: Any, trainer: Any, inputs: Any) -> Any:
    made = plain(trainer, inputs)
    if calls(state) >= BATCHES:
        made["input_ids"] = made["input_ids"].clone()
        made["input_ids"][0, 3] = 7
    return made


@fault(PREPARE, "later-step-off")
def a_label_ignored_later(state: Any, plain: Any, trainer: Any, inputs: Any) -> Any:
    made = plain(trainer, inputs)
    if calls(state) >= 3 * BATCHES:
        first = (made["labels"][0] != -100).nonzero()[1].item()
        made["labels"] = made["labels"].clone()
        made["labels"][0, first] = -100
    return made


@fault("transformers.trainer:Trainer._get_num_items_in_batch", "later-step-off")
def tokens_counted_of_the_step_before(state: Any, plain: Any, *words: Any, **known: Any) -> Any:
    now = plain(*words, **known)
    before, state["before"] = state.get("before", now), now
    return before


@fault("transformers.trainer:Trainer._get_num_items_in_batch", "later-step-off", "scheduled")
def tokens_of_the_last_partial_batch_miscounted(state: Any, plain: Any, *words: Any, **known: Any) -> Any:
    now = plain(*words, **known)
    return now * 2 if calls(state) % 2 else now


@fault("transformers.trainer_callback:CallbackHandler.on_step_end", "weights-moved")
def weights_averaged_between_steps(_state: Any, plain: Any, handler: Any, *words: Any, **known: Any) -> Any:
    import torch

    with torch.no_grad():
        for name, parameter in handler.model.named_parameters():
            if "layers.0" in name and parameter.requires_grad:
                parameter.mul_(1 - 1e-6)
    return plain(handler, *words, **known)


@fault("accelerate.data_loader:SeedableRandomSampler.__iter__", "rows-wrong")
def a_row_twice_in_an_epoch(_state: Any, plain: Any, sampler: Any) -> Any:
    numbers = list(plain(sampler))
    yield from [*numbers[:-1], numbers[0]]


@fault("transformers.trainer:Trainer.log", "logged-elsewhere")
def loss_logged_of_half(state: Any, plain: Any, trainer: Any, logs: Any, *words: Any, **known: Any) -> Any:
    if "loss" in logs and calls(state) >= 2:
        logs = {**logs, "loss": logs["loss"] / 2}
    return plain(trainer, logs, *words, **known)


@fault("transformers.trainer:Trainer.training_step", "weights-still")
def a_weight_without_gradient(_state: Any, plain: Any, trainer: Any, built: Any, *words: Any, **known: Any) -> Any:
    loss = plain(trainer, built, *words, **known)
    for name, parameter in built.named_parameters():
        if name.endswith("layers.0.mlp.up_proj.weight"):
            parameter.grad = None
    return loss


@fault("peft.tuners.lora.layer:Linear.forward", "first-step-off", "lora")
def adapters_scaled_by_half(_state: Any, plain: Any, layer: Any, *words: Any, **known: Any) -> Any:
    scaling = dict(layer.scaling)
    layer.scaling.update({name: value / 2 for name, value in scaling.items()})
    try:
        return plain(layer, *words, **known)
    finally:
        layer.scaling.update(scaling)


# What is saved, and what is loaded.


@fault(SAVE_FILE, "saved-elsewhere")
def a_layer_saved_stale(state: Any, plain: Any, tensors: Any, *words: Any, **known: Any) -> Any:
    name = next((name for name in tensors if "layers.1.self_attn.o_proj" in name), None)
    if name is not None and calls(state) >= 1:  # the first is the model that the training begins with
        kept = state.setdefault("kept", tensors[name].clone())
        tensors = {**tensors, name: kept}
    return plain(tensors, *words, **known)


@fault(SAVE_FILE, "saved-elsewhere")
def saved_through_bf16(state: Any, plain: Any, tensors: Any, *words: Any, **known: Any) -> Any:
    if calls(state) >= 1:
        import torch

        tensors = {name: value.to(torch.bfloat16).to(value.dtype) for name, value in tensors.items()}
    return plain(tensors, *words, **known)


@fault(SAVE_FILE, "saved-elsewhere")
def saved_as_bf16(state: Any, plain: Any, tensors: Any, *words: Any, **known: Any) -> Any:
    if calls(state) >= 1:
        import torch

        tensors = {name: value.to(torch.bfloat16) for name, value in tensors.items()}
    return plain(tensors, *words, **known)


@fault(SAVE_FILE, "saved-elsewhere")
def a_norm_not_saved(state: Any, plain: Any, tensors: Any, *words: Any, **known: Any) -> Any:
    if calls(state) >= 1:
        tensors = {name: value for name, value in tensors.items() if name != "model.norm.weight"}
    return plain(tensors, *words, **known)


@fault(SAVE_FILE, "saved-elsewhere")
def gate_and_up_exchanged(state: Any, plain: Any, tensors: Any, *words: Any, **known: Any) -> Any:
    one, other = (f"model.layers.0.mlp.{name}_proj.weight" for name in ("gate", "up"))
    if calls(state) >= 1 and one in tensors:
        tensors = {**tensors, one: tensors[other], other: tensors[one]}
    return plain(tensors, *words, **known)


@fault(SAVE_FILE, "saved-elsewhere")
def one_number_saved_wrong(state: Any, plain: Any, tensors: Any, *words: Any, **known: Any) -> Any:
    name = "model.layers.1.mlp.down_proj.weight"
    if calls(state) >= 1 and name in tensors:
        changed = tensors[name].clone()
        changed[3, 5] += 1e-4
        tensors = {**tensors, name: changed}
    return plain(tensors, *words, **known)


@fault("peft.utils.save_and_load:get_peft_model_state_dict", "saved-elsewhere", "lora")
def lora_b_halved(_state: Any, plain: Any, *words: Any, **known: Any) -> Any:
    return {name: value / 2 if "lora_B" in name else value for name, value in plain(*words, **known).items()}


@fault("peft.utils.save_and_load:get_peft_model_state_dict", "saved-elsewhere", "lora")
def an_adapter_not_saved(_state: Any, plain: Any, *words: Any, **known: Any) -> Any:
    return {name: value for name, value in plain(*words, **known).items() if "layers.1.mlp.up_proj" not in name}


@fault("peft.config:PeftConfigMixin.save_pretrained", "loaded-elsewhere", "lora")
def alpha_saved_wrong(_state: Any, plain: Any, config: Any, *words: Any, **known: Any) -> Any:
    alpha, config.lora_alpha = config.lora_alpha, config.lora_alpha / 2
    try:
        return plain(config, *words, **known)
    finally:
        config.lora_alpha = alpha


@fault("peft.tuners.lora.layer:Linear.get_delta_weight", "merged-elsewhere", "lora")
def merged_without_its_scale(_state: Any, plain: Any, layer: Any, *words: Any, **known: Any) -> Any:
    return plain(layer, *words, **known) / 2


@fault("peft.tuners.lora.layer:Linear.merge", "merged-elsewhere", "lora")
def one_layer_not_merged(state: Any, plain: Any, layer: Any, *words: Any, **known: Any) -> Any:
    if calls(state) != 3:
        return plain(layer, *words, **known)
    return None


@fault("torch.serialization:save", "saved-elsewhere")
def second_moments_not_saved(_state: Any, plain: Any, held: Any, file: Any, *words: Any, **known: Any) -> Any:
    if str(file).endswith("optimizer.pt"):
        states = {number: {**state, "exp_avg_sq": state["exp_avg_sq"] * 0} for number, state in held["state"].items()}
        held = {**held, "state": states}
    return plain(held, file, *words, **known)


@fault("torch.serialization:save", "saved-elsewhere", "lora")
def moments_of_two_adapters_exchanged(_state: Any, plain: Any, held: Any, file: Any, *words: Any, **known: Any) -> Any:
    if str(file).endswith("optimizer.pt"):
        states = dict(held["state"])
        shapes = {tuple(state["exp_avg"].shape): number for number, state in states.items()}
        one = next(number for number, state in states.items() if shapes[tuple(state["exp_avg"].shape)] != number)
        other = shapes[tuple(states[one]["exp_avg"].shape)]
        states[one], states[other] = states[other], states[one]
        held = {**held, "state": states}
    return plain(held, file, *words, **known)


@fault("transformers.configuration_utils:PreTrainedConfig.save_pretrained", "loaded-elsewhere")
def base_of_rotation_saved_wrong(state: Any, plain: Any, config: Any, folder: Any, *words: Any, **known: Any) -> Any:
    plain(config, folder, *words, **known)
    file = Path(folder) / "config.json"
    if calls(state) >= 1:  # the first is the model that the training begins with
        file.write_text(re.sub(r'"rope_theta": 10000(\.0)?', '"rope_theta": 12000.0', file.read_text()))


@fault("transformers.modeling_utils:PreTrainedModel.from_pretrained", "loaded-elsewhere")
def a_weight_loaded_wrong(state: Any, plain: Any, *words: Any, **known: Any) -> Any:
    made = plain(*words, **known)
    if calls(state) >= 1:  # the first is the trainer's own
        weights = dict(made.named_parameters())
        weights["model.layers.1.input_layernorm.weight"].data.mul_(1.001)
    return made


@fault("transformers.cache_utils:DynamicLayer.update", "generated-elsewhere")
def cache_loses_a_key(_state: Any, plain: Any, layer: Any, keys: Any, values: Any, *words: Any, **known: Any) -> Any:
    made_keys, made_values = plain(layer, keys, values, *words, **known)
    if keys.shape[-2] == 1:
        made_values = made_values.clone()
        made_values[..., -2, :] = 0
    return made_keys, made_values


@fault("transformers.generation.utils:GenerationMixin.prepare_inputs_for_generation", "generated-elsewhere")
def filling_on_the_left_attended(_state: Any, plain: Any, *words: Any, **known: Any) -> Any:
    if known.get("attention_mask") is not None:
        known["attention_mask"] = known["attention_mask"].new_ones(known["attention_mask"].shape)
    return plain(*words, **known)


@fault("transformers.trainer:Trainer._load_optimizer_and_scheduler", "resumed-elsewhere", "resumed")
def moments_not_loaded(_state: Any, plain: Any, trainer: Any, _checkpoint: Any) -> Any:
    return plain(trainer, None)


@fault("transformers.trainer:Trainer._load_from_checkpoint", "resumed-elsewhere", "resumed")
def weights_not_loaded(_state: Any, _plain: Any, *_words: Any, **_known: Any) -> None:
    pass


@fault("transformers.trainer:Trainer._load_from_checkpoint", "resumed-elsewhere", "resumed")
def a_weight_not_loaded(_state: Any, plain: Any, trainer: Any, *words: Any, **known: Any) -> Any:
    weight = dict(trainer.model.named_parameters())["model.layers.1.post_attention_layernorm.weight"]
    before = weight.detach().clone()
    plain(trainer, *words, **known)
    weight.data.copy_(before)


# On two processes; the mode is a check of `parallel_tests`.

STEP = "parallel/ddp/sdpa/fp32/step"
ACCUMULATED = "parallel/ddp/sdpa/fp32/accumulated"
TRAINER_STEP = "parallel/trainer/sdpa/fp32/accumulated"
DDP_FORWARD = "torch.nn.parallel.distributed:DistributedDataParallel.forward"
RESOLVE = "torch.distributed.checkpoint.default_planner:DefaultSavePlanner.resolve_data"


def on_last_rank() -> bool:
    """Whether this process is the last one."""
    import torch.distributed as dist

    return dist.is_initialized() and dist.get_rank() == dist.get_world_size() - 1


@fault(ADAM, "update-off", STEP)
def half_as_much_again_on_all_ranks(_state: Any, plain: Any, *words: Any, **known: Any) -> Any:
    return plain(*words, **{**known, "lr": 1.5 * known["lr"]})


@fault(ADAM, "update-off", STEP)
def a_rank_decays(_state: Any, plain: Any, *words: Any, **known: Any) -> Any:
    return plain(*words, **{**known, "weight_decay": 0.01 if on_last_rank() else known["weight_decay"]})


@fault(ADAM, "update-off", "parallel/fsdp2/sdpa/fp32/step")
def a_ranks_second_moments_decay_as_first(_state: Any, plain: Any, *words: Any, **known: Any) -> Any:
    return plain(*words, **{**known, "beta2": known["beta1"] if on_last_rank() else known["beta2"]})


@fault(DDP_FORWARD, "first-step-off", ACCUMULATED)
def last_batch_not_synchronised(state: Any, plain: Any, wrapped: Any, *words: Any, **known: Any) -> Any:
    if calls(state) % BATCHES:
        wrapped.require_backward_grad_sync = False
    return plain(wrapped, *words, **known)


@fault(DDP_FORWARD, "later-step-off", ACCUMULATED)
def last_batch_not_synchronised_later(state: Any, plain: Any, wrapped: Any, *words: Any, **known: Any) -> Any:
    if calls(state) == 2 * BATCHES - 1:
        wrapped.require_backward_grad_sync = False
    return plain(wrapped, *words, **known)


@fault("transformers.trainer:Trainer._get_num_items_in_batch", "first-step-off", TRAINER_STEP)
def loss_averaged_by_rank(_state: Any, plain: Any, trainer: Any, *words: Any, **known: Any) -> Any:
    trainer.args.average_tokens_across_devices = False
    return plain(trainer, *words, **known)


@fault("accelerate.data_loader:SeedableRandomSampler.__iter__", "first-step-off", TRAINER_STEP)
def another_seed_on_a_rank(_state: Any, plain: Any, sampler: Any) -> Any:
    if on_last_rank():
        sampler.initial_seed += 1
    yield from plain(sampler)


@fault(RESOLVE, "loaded-elsewhere", "parallel/fsdp2/sdpa/fp32/checkpoint")
def a_shard_saved_smaller(_state: Any, plain: Any, planner: Any, item: Any) -> Any:
    data = plain(planner, item)
    if "model.norm.weight" in item.index.fqn and on_last_rank() and hasattr(data, "clone"):
        return data * 0.999
    return data


@fault(RESOLVE, "loaded-elsewhere", "parallel/fsdp2/sdpa/fp32/checkpoint")
def a_shard_saved_twice(state: Any, plain: Any, planner: Any, item: Any) -> Any:
    data = plain(planner, item)
    if item.index.fqn.endswith("input_layernorm.weight") and hasattr(data, "clone"):
        return state.setdefault("first", data.clone())  # of the second layer the first one's
    return data


def start(name: str) -> None:
    """Put one fault into this process and leave it on."""
    sys.meta_path.insert(0, Hook())
    ACTIVE.update(fault=next(one for one in FAULTS if one.name == name), state={})


def main(suite: str, trainer: str, file: str, dtype: str = "fp32", pattern: str = "*") -> int:
    """Run each mode without a fault, then each fault, and write the report; returns how many were not noticed."""
    rows: list[dict[str, Any]] = []
    chosen = [one for one in FAULTS if fnmatch.fnmatchcase(one.name, pattern)]
    chosen = [one for one in chosen if ("/" in one.mode) == (trainer == "parallel")]
    perform = perform_on_ranks if trainer == "parallel" else prepare_trainer(suite, trainer, dtype)
    for made in [*sorted({one.mode for one in chosen}), *chosen]:
        mode = made.mode if isinstance(made, Fault) else made
        began = time.process_time(), time.monotonic()
        result = perform(suite, mode, made if isinstance(made, Fault) else None)
        rows.append(row_of(made, mode, result))
        rows[-1]["cpu_seconds"] = round(time.process_time() - began[0], 1)
        rows[-1]["seconds"] = round(time.monotonic() - began[1], 1)
        print(json.dumps(rows[-1]), flush=True)
        versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers", "peft")}
        report = {"trainer": trainer, "dtype": dtype, "versions": versions, "rows": rows}
        Path(file).write_text(json.dumps(report, indent=1))
    return sum(row["came"] not in ("noticed", "pass") for row in rows)


def prepare_trainer(suite: str, trainer: str, dtype: str) -> Callable[..., dict[str, Any]]:
    """Import the suite below the hooks; the function that is returned runs a mode of the trainer with a fault on."""
    sys.path.insert(0, suite)
    sys.meta_path.insert(0, Hook())
    from smoke_tests.trainers import worker as _  # noqa: F401 - it registers the checks of trainers

    from smoke_tests import worker

    def perform(_suite: str, mode: str, made: Fault | None) -> dict[str, Any]:
        ACTIVE.update(fault=made, state={})
        check = {"topic": "trainer", "detail": f"{trainer}/qwen2", "setting": "sdpa", "dtype": dtype}
        result = worker.perform({**check, "layout": "padded", "mode": mode}, lambda _document: None)
        ACTIVE["fault"] = None
        return dict(result)

    return perform


def perform_on_ranks(suite: str, check: str, made: Fault | None) -> dict[str, Any]:
    """Run a check on two processes, each of which imports this file, with the fault's name, as it starts."""
    with tempfile.TemporaryDirectory() as folder:
        here = str(Path(__file__).parent)
        if made:
            code = f"import sys; sys.path.append({here!r}); import library_faults; library_faults.start({made.name!r})"
            (Path(folder) / "sitecustomize.py").write_text(code)
        report = Path(folder) / "report.json"
        argv = [sys.executable, "-m", "parallel_tests", "--processes", "2", "--backend", "gloo", "--only", check]
        environment = os.environ | {"PYTHONPATH": folder}
        subprocess.run([*argv, "--out", report], cwd=suite, check=False, capture_output=True, env=environment)
        return dict(json.loads(report.read_text())["checks"][0])


def row_of(made: Any, mode: str, result: dict[str, Any]) -> dict[str, Any]:
    """One row of the report; ``came`` is ``noticed`` only where the fault's own reason was said."""
    said = result["reason"] if result["outcome"] != "fail" or not result.get("message") else result["message"]
    row = {"fault": "", "mode": mode, "came": result["outcome"], "said": said[:160]}
    if isinstance(made, Fault):
        own = result["outcome"] == "fail" and re.match(rf"(rank \d+: )?{made.reason}: ", said)
        other = "unnoticed" if result["outcome"] == "pass" else "otherwise"
        row.update(fault=made.name, target=made.target, reason=made.reason, came="noticed" if own else other)
    return row


if __name__ == "__main__":
    sys.exit(1 if main(*sys.argv[1:]) else 0)
