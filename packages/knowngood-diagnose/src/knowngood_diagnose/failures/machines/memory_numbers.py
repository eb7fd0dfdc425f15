"""What fills the GPU, by the numbers of the allocator's message and the line of code that asked for more. Pure.

That the memory is full has one remedy for each thing that fills it: other processes, weights that do not fit at all,
pieces that cannot be used, the logits, the scores of attention, an optimizer's state, results kept by an evaluation.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from knowngood.core.lazy_patterns import lazy_pattern
from knowngood_diagnose.failures.logs.last_errors import LastError
from knowngood_diagnose.failures.logs.logged_errors import CodeFrame
from knowngood_diagnose.failures.names.name_situation import advise
from knowngood_facts.compat.incident import Incident

_SIZE = r"(?P<{0}>\d+(?:\.\d+)?) (?P<{0}_unit>bytes|[KMGT]iB)"
_WANTED = lazy_pattern(r"Tried to allocate " + _SIZE.format("wanted"))
_TOTAL = lazy_pattern(r"(?:total capacity of |; )" + _SIZE.format("total") + r"(?: total capacity| of which)")
_FREE = lazy_pattern(r"(?:of which |; )" + _SIZE.format("free") + r" (?:is )?free")
_ALLOCATED = lazy_pattern(_SIZE.format("allocated") + r" (?:is allocated by PyTorch|already allocated)")
_RESERVED = lazy_pattern(_SIZE.format("reserved") + r" reserved in total")
_UNUSED = lazy_pattern(_SIZE.format("unused") + r" is reserved by PyTorch but unallocated")
_OWN = lazy_pattern(r"this process has " + _SIZE.format("own") + r" memory in use")
_UNITS = {"bytes": 2.0**-30, "KiB": 2.0**-20, "MiB": 2.0**-10, "GiB": 1.0, "TiB": 2.0**10}
_CONTEXT = 1.0
"""GiB that CUDA itself and NCCL may hold in a process beside the allocator's memory."""
_MUCH, _SOME = 0.25, 0.1
"""Shares of the whole memory from which on others, or unused pieces, are called the reason."""


@dataclass(frozen=True, kw_only=True)
class AllocatorNumbers:
    """The numbers of a message of torch's allocator, in GiB; 0 for what it does not state."""

    wanted: float
    total: float
    free: float
    allocated: float
    unused: float
    """What the allocator keeps and has not given out."""
    others: float
    """What is neither free nor this process's."""


@dataclass(frozen=True, kw_only=True)
class _Stage:
    """What a program does when it asks for more, known by its functions and its lines of code."""

    functions: re.Pattern[str]
    title: str
    because: str
    fixes: tuple[str, ...]
    code: re.Pattern[str] | None = None
    is_last: bool = False
    """Whether only the innermost frames count."""


_STAGES = (
    _Stage(
        functions=lazy_pattern(
            r"^(?:nested_concat|nested_gather|torch_pad_and_concatenate|evaluation_loop|prediction_step|"
            r"compute_metrics)$"
        ),
        title="An evaluation fills the GPU",
        because=(
            "The evaluation runs with a batch of its own, and the trainer keeps the logits of all batches on the GPU "
            "until it ends (rows x length x vocabulary), unless only the loss is wanted."
        ),
        fixes=(
            "per_device_eval_batch_size=1, and prediction_loss_only=True when no metric needs the logits",
            (
                "eval_accumulation_steps=1 moves them to the CPU after each step; preprocess_logits_for_metrics "
                "keeps only the argmax"
            ),
            "Fewer or shorter rows to evaluate",
        ),
    ),
    _Stage(
        functions=lazy_pattern(
            r"^(?:save_\w+|_save\w*|_?save_to_state_dict|state_dict|merge_and_unload|_unload_and_optionally_merge|merge"
            r"|undo_layout|_maybe_log_save_evaluate)$"
        ),
        title="Saving fills the GPU",
        because=(
            "While it saves or merges, a program makes copies of the weights on the GPU (whole ones that were "
            "divided or quantized), when training has filled it to the brim."
        ),
        fixes=(
            (
                "Save only the adapter (model.save_pretrained of peft), and merge later in a process of its own, "
                "on the CPU"
            ),
            (
                "offload to the CPU while saving (offload_to_cpu of FSDP's state dict; "
                "stage3_gather_16bit_weights_on_model_save: false, then zero_to_fp32.py)"
            ),
            "A little less memory in training: a smaller batch or shorter rows",
        ),
    ),
    _Stage(
        functions=lazy_pattern(
            r"^(?:from_pretrained|_from_pretrained|_load_pretrained_model|load_pretrained|load_model\w*|"
            r"load_weights|_load_state_dict\w*"
            r"|load_state_dict|load_checkpoint\w*|dispatch_model|set_module_tensor_to_device|create_quantized_param"
            r"|load_shard_file|caching_allocator_warmup|_load_from_state_dict)$"
        ),
        title="The weights alone do not fit on the GPU",
        because=(
            "It is full while the model is loaded, before the first step: the batch and the length do not matter "
            "yet. The weights take about 2 bytes a parameter in bf16, 4 in float32, and every process that loads the "
            "whole model onto the same GPU takes them once more."
        ),
        fixes=(
            (
                "Load in 4 bits (BitsAndBytesConfig(load_in_4bit=True)) or in bfloat16 (torch_dtype, dtype), not "
                "in float32"
            ),
            (
                "Divide the weights over the GPUs: device_map='auto' in one process; ZeRO-3 or FSDP with "
                "several, with low_cpu_mem_usage"
            ),
            "Each process its own GPU (torch.cuda.set_device(local_rank)); a smaller model",
        ),
    ),
    _Stage(
        functions=lazy_pattern(
            r"^(?:_init_group|_init_state|init_optimizer_state|initialize_optimizer_states|_configure_zero_optimizer"
            r"|_setup_for_real_optimizer|_create_fp32_partitions|_multi_tensor_adam\w*|adamw?|_single_tensor_adam\w*)$"
        ),
        title="The optimizer's state fills the GPU",
        because=(
            "AdamW keeps two values for each trained parameter, in float32 8 bytes each, and mixed precision a copy "
            "of the weights besides: a whole model of N billion parameters takes about 16 N GB in all. They are made "
            "at the first step."
        ),
        fixes=(
            "LoRA, which trains a small part; or an optimizer in 8 bits (optim='paged_adamw_8bit') or Adafactor",
            "DeepSpeed ZeRO or FSDP, which divide them over the GPUs; offload_optimizer to the CPU",
        ),
    ),
    _Stage(
        functions=lazy_pattern(r"."),
        code=lazy_pattern(
            r"\blm_head\(|logits\.float\(\)|logits\.to\(torch\.float|cross_entropy\(|\bloss_f(?:ct|n|"
            r"unction)\(|log_softmax\("
            r"|selective_log_softmax|logits = |logits\[|\.logsumexp\(|shift_logits"
        ),
        title="The logits fill the GPU",
        because=(
            "The last layer gives a value for each word of the vocabulary at each position: batch x length x "
            "vocabulary, in float32 and several times over for the loss. With a vocabulary of 150,000 that is 0.6 GB "
            "for 1000 tokens, each time."
        ),
        fixes=(
            "per_device_train_batch_size=1 with more gradient_accumulation_steps, and shorter rows (max_length)",
            "A loss that never makes all logits: use_liger_kernel=True, or cut_cross_entropy",
            "Of GRPO and DPO: fewer generations or shorter completions at once (they compute logits of every row)",
        ),
        is_last=True,
    ),
    _Stage(
        functions=lazy_pattern(r"."),
        code=lazy_pattern(
            r"matmul\((?:query|q\b|q_|attn|self\.\w*q)|softmax\((?:attn|scores|attention)|attn_weights? "
            r"?[=+]|attention_scores|baddbmm\("
            r"|causal_mask|attn_mask\b.*expand"
        ),
        title="The scores of plain attention fill the GPU",
        because=(
            "This attention makes a whole matrix of length x length for each head and row, which grows with the "
            "square of the length."
        ),
        fixes=(
            "attn_implementation='sdpa' or 'flash_attention_2', which never make that matrix",
            "Shorter rows (max_length), smaller images; a batch of 1",
        ),
        is_last=True,
    ),
    _Stage(
        functions=lazy_pattern(
            r"^(?:determine_\w*available\w*|profile_run|_dummy_run|capture\w*|_initialize_kv_caches|init_memory_pool)$"
        ),
        title="The engine for generation does not get the memory that it takes at its start",
        because=(
            "vLLM and sglang take a share of the whole GPU for weights and cache. What a trainer or another process "
            "holds on the same GPU is not left over for them."
        ),
        fixes=(
            (
                "A smaller share (gpu_memory_utilization, --mem-fraction-static), a smaller max_model_len and "
                "max_num_seqs, enforce_eager"
            ),
            "GPUs of their own for generation and training; or the engine's sleep mode while the trainer works",
        ),
    ),
    _Stage(
        functions=lazy_pattern(r"^(?:_apply|convert|to|cuda)$"),
        title="The model does not fit on the GPU that it is moved to",
        because=(
            "The whole model is moved to one GPU in one piece, with the dtype that it was loaded in (4 bytes a "
            "parameter in float32, 2 in float16), beside what that GPU holds already."
        ),
        fixes=(
            (
                "Load it in half precision or quantized (torch_dtype=torch.bfloat16, load_in_4bit=True), then "
                "without .to() or .cuda()"
            ),
            "device_map='auto' over all GPUs; a GPU that is free (nvidia-smi), a larger one, or a smaller model",
        ),
        is_last=True,
    ),
    _Stage(
        functions=lazy_pattern(r"^(?:_engine_run_backward|backward|run_backward)$"),
        title="The backward pass fills the GPU",
        because=(
            "While it goes back, a program holds the activations that it kept from the forward pass, and makes a "
            "gradient for each trained parameter: the most memory of a step. Activations grow with batch x length."
        ),
        fixes=(
            (
                "Gradient checkpointing, which keeps few activations; per_device_train_batch_size=1 with more "
                "gradient_accumulation_steps"
            ),
            "Shorter rows (max_length, smaller images); attn_implementation='sdpa' or 'flash_attention_2'",
            "LoRA in the place of all parameters; ZeRO or FSDP, which divide gradients and optimizer over the GPUs",
        ),
        is_last=True,
    ),
    _Stage(
        functions=lazy_pattern(r"^(?:generate|_sample|_beam_search|sample|beam_search|greedy_search)$"),
        title="Generating fills the GPU",
        because="The cache of keys and values grows with rows x beams x tokens while the model generates.",
        fixes=(
            "Fewer rows at once, num_beams=1, a smaller max_new_tokens",
            "torch.no_grad() around it, when it is not generate() itself",
        ),
    ),
)
_INNERMOST = 6


def describe_memory(incident: Incident, error: LastError) -> Incident | None:
    """What fills the GPU; `None` where neither the numbers nor the frames tell."""
    described = _describe_filling(incident, error)
    if described is None or described.because.startswith(incident.because):
        return described
    return replace(described, because=f"The GPU's memory does not suffice (out of memory). {described.because}")


def _describe_filling(incident: Incident, error: LastError) -> Incident | None:
    numbers = read_allocator_numbers(error.message) or read_allocator_numbers(error.text)
    stage = _find_stage(error.frames)
    if numbers is not None and numbers.total:
        stated = f"{_show(numbers.wanted)} were asked for, and {_show(numbers.free)} of {_show(numbers.total)} are free"
        if numbers.others > max(2.0, _MUCH * numbers.total):
            return _describe_others(incident, numbers, stated)
        if numbers.unused >= numbers.wanted and numbers.unused > _SOME * numbers.total:
            return _describe_pieces(incident, numbers, stated)
        if numbers.wanted > numbers.total:
            return _describe_one_piece(incident, numbers, stage, stated)
    else:
        stated = ""
    if stage is None and numbers is not None and numbers.total:
        return _describe_own(incident, numbers, stated)
    if stage is None:
        return None
    because = f"{stage.because} {stated[:1].upper()}{stated[1:]}." if stated else stage.because
    return replace(incident, title=stage.title, because=because, fix=tuple(advise(fix) for fix in stage.fixes))


def read_allocator_numbers(message: str) -> AllocatorNumbers | None:
    """Return the numbers of an allocator's message; `None` for another message."""
    wanted = _read(_WANTED, message)
    if wanted is None:
        return None
    total, free = _read(_TOTAL, message) or 0.0, _read(_FREE, message) or 0.0
    allocated, unused = _read(_ALLOCATED, message) or 0.0, _read(_UNUSED, message)
    reserved = _read(_RESERVED, message)
    if unused is None:
        unused = max(0.0, (reserved or 0.0) - allocated)
    own = _read(_OWN, message) or allocated + unused + _CONTEXT
    others = total - free - own if total and allocated else 0.0
    return AllocatorNumbers(
        wanted=wanted, total=total, free=free, allocated=allocated, unused=unused, others=max(0.0, others)
    )


def _read(pattern: re.Pattern[str], message: str) -> float | None:
    stated = pattern.search(message)
    if stated is None:
        return None
    name = next(iter(stated.groupdict()))
    return float(stated[name]) * _UNITS[stated[f"{name}_unit"]]


def _show(size: float) -> str:
    return f"{size:.1f} GiB" if size >= 1 else f"{size * 1024:.0f} MiB"


def _find_stage(frames: Sequence[CodeFrame]) -> _Stage | None:
    """What the program does; what the innermost frames say of the logits or the scores counts before the rest."""
    last = frames[-_INNERMOST:]
    for stage in _STAGES:
        inner = last if stage.is_last else frames
        if stage.code is not None:
            if any(stage.code.search(frame.code) for frame in inner):
                return stage
        elif any(stage.functions.search(frame.function) for frame in inner):
            return stage
    return None


def _describe_others(incident: Incident, numbers: AllocatorNumbers, stated: str) -> Incident:
    return replace(
        incident,
        title=f"Other processes hold about {_show(numbers.others)} of the {_show(numbers.total)} of this GPU",
        because=(
            f"{stated[:1].upper()}{stated[1:]}, while this process's own allocator holds "
            f"{_show(numbers.allocated + numbers.unused)}. The rest belongs to other processes on the same GPU: "
            "another job, a run that was not quite ended, an engine such as vLLM's beside the trainer, or other "
            "ranks that all took this GPU."
        ),
        fix=(
            advise("nvidia-smi (or fuser -v /dev/nvidia*) shows them: end what is left over, by its process id"),
            advise("CUDA_VISIBLE_DEVICES to a GPU that is free; each rank its own (torch.cuda.set_device(local_rank))"),
            advise("An engine on the same GPU: a smaller gpu_memory_utilization for it, or a GPU of its own"),
        ),
    )


def _describe_pieces(incident: Incident, numbers: AllocatorNumbers, stated: str) -> Incident:
    return replace(
        incident,
        title=f"The allocator keeps {_show(numbers.unused)} in pieces that are too small",
        because=(
            f"{stated[:1].upper()}{stated[1:]}, and {_show(numbers.unused)} are reserved without being in use: they "
            "are in pieces, because the sizes of the rows change from step to step."
        ),
        fix=(
            advise("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, set before the program starts"),
            advise(
                "Rows of like length in a batch, or all padded to one length; torch.cuda.empty_cache() between phases"
            ),
            advise("A smaller batch, or shorter rows"),
        ),
    )


def _describe_own(incident: Incident, numbers: AllocatorNumbers, stated: str) -> Incident:
    """The GPU is full of this process's own tensors, of which the log does not say more."""
    return replace(
        incident,
        title=f"This run fills the GPU: {_show(numbers.allocated)} of {_show(numbers.total)} are its tensors",
        because=(f"{incident.because} Here {stated}; no other process holds much of it."),
    )


def _describe_one_piece(incident: Incident, numbers: AllocatorNumbers, stage: _Stage | None, stated: str) -> Incident:
    reason = f" {stage.because}" if stage is not None else ""
    fixes = (
        stage.fixes
        if stage is not None
        else (
            (
                "The line of the program in the traceback, and the shapes of its tensors: shorter rows, smaller "
                "images, a smaller batch"
            ),
            "attn_implementation='sdpa' or 'flash_attention_2' when it is a matrix of length x length",
        )
    )
    return replace(
        incident,
        title=f"A single tensor of {_show(numbers.wanted)} is asked for, more than the whole GPU has",
        because=(
            f"{stated[:1].upper()}{stated[1:]}: freeing memory cannot help; its size comes from the shapes.{reason}"
        ),
        fix=tuple(advise(fix) for fix in fixes),
    )
