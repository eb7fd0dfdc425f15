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
class MemoryStage:
    """What a program does when it asks for more, known by its functions and its lines of code."""

    name: str
    """The name of the incident's variant that tells of it."""
    functions: re.Pattern[str] | None = None
    code: re.Pattern[str] | None = None
    is_last: bool = False
    """Whether only the innermost frames count."""


STAGES = (
    MemoryStage(
        name="evaluation",
        functions=lazy_pattern(
            r"^(?:nested_concat|nested_gather|torch_pad_and_concatenate|evaluation_loop|prediction_step|"
            r"compute_metrics)$"
        ),
    ),
    MemoryStage(
        name="saving",
        functions=lazy_pattern(
            r"^(?:save_\w+|_save\w*|_?save_to_state_dict|state_dict|merge_and_unload|_unload_and_optionally_merge|merge"
            r"|undo_layout|_maybe_log_save_evaluate)$"
        ),
    ),
    MemoryStage(
        name="weights",
        functions=lazy_pattern(
            r"^(?:from_pretrained|_from_pretrained|_load_pretrained_model|load_pretrained|load_model\w*|"
            r"load_weights|_load_state_dict\w*"
            r"|load_state_dict|load_checkpoint\w*|dispatch_model|set_module_tensor_to_device|create_quantized_param"
            r"|load_shard_file|caching_allocator_warmup|_load_from_state_dict)$"
        ),
    ),
    MemoryStage(
        name="optimizer",
        functions=lazy_pattern(
            r"^(?:_init_group|_init_state|init_optimizer_state|initialize_optimizer_states|_configure_zero_optimizer"
            r"|_setup_for_real_optimizer|_create_fp32_partitions|_multi_tensor_adam\w*|adamw?|_single_tensor_adam\w*)$"
        ),
    ),
    MemoryStage(
        name="logits",
        code=lazy_pattern(
            r"\blm_head\(|logits\.float\(\)|logits\.to\(torch\.float|cross_entropy\(|\bloss_f(?:ct|n|"
            r"unction)\(|log_softmax\("
            r"|selective_log_softmax|logits = |logits\[|\.logsumexp\(|shift_logits"
        ),
        is_last=True,
    ),
    MemoryStage(
        name="scores",
        code=lazy_pattern(
            r"matmul\((?:query|q\b|q_|attn|self\.\w*q)|softmax\((?:attn|scores|attention)|attn_weights? "
            r"?[=+]|attention_scores|baddbmm\("
            r"|causal_mask|attn_mask\b.*expand"
        ),
        is_last=True,
    ),
    MemoryStage(
        name="engine",
        functions=lazy_pattern(
            r"^(?:determine_\w*available\w*|profile_run|_dummy_run|capture\w*|_initialize_kv_caches|init_memory_pool)$"
        ),
    ),
    MemoryStage(name="moving", functions=lazy_pattern(r"^(?:_apply|convert|to|cuda)$"), is_last=True),
    MemoryStage(
        name="backward", functions=lazy_pattern(r"^(?:_engine_run_backward|backward|run_backward)$"), is_last=True
    ),
    MemoryStage(
        name="generating",
        functions=lazy_pattern(r"^(?:generate|_sample|_beam_search|sample|beam_search|greedy_search)$"),
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
        if numbers.wanted > numbers.total - _CONTEXT:
            return _describe_one_piece(incident, numbers, stage, stated)
        if numbers.others > max(2.0, _MUCH * numbers.total):
            return _describe_others(incident, numbers, stated)
        # Windows lends memory of the machine: what is reserved beyond the GPU is no proof of pieces.
        is_lent = numbers.allocated + numbers.unused > numbers.total
        if not is_lent and numbers.unused >= numbers.wanted and numbers.unused > _SOME * numbers.total:
            return _describe_pieces(incident, numbers, stated)
    else:
        stated = ""
    if stage is None and numbers is not None and numbers.total:
        return _describe_own(incident, numbers, stated)
    if stage is None:
        return None
    variant = incident.tell(stage.name)
    return replace(variant, because=f"{variant.because} {stated}.") if stated else variant


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


def _find_stage(frames: Sequence[CodeFrame]) -> MemoryStage | None:
    """What the program does; what the innermost frames say of the logits or the scores counts before the rest."""
    last = frames[-_INNERMOST:]
    for stage in STAGES:
        inner = last if stage.is_last else frames
        if stage.code is not None:
            if any(stage.code.search(frame.code) for frame in inner):
                return stage
        elif stage.functions is not None and any(stage.functions.search(frame.function) for frame in inner):
            return stage
    return None


def _describe_others(incident: Incident, numbers: AllocatorNumbers, stated: str) -> Incident:
    return incident.tell(
        "others",
        others=_show(numbers.others),
        total=_show(numbers.total),
        stated=stated,
        held=_show(numbers.allocated + numbers.unused),
    )


def _describe_pieces(incident: Incident, numbers: AllocatorNumbers, stated: str) -> Incident:
    return incident.tell("pieces", unused=_show(numbers.unused), stated=stated)


def _describe_own(incident: Incident, numbers: AllocatorNumbers, stated: str) -> Incident:
    """The GPU is full of this process's own tensors, of which the log does not say more."""
    return incident.tell("own", allocated=_show(numbers.allocated), total=_show(numbers.total), stated=stated)


def _describe_one_piece(
    incident: Incident, numbers: AllocatorNumbers, stage: MemoryStage | None, stated: str
) -> Incident:
    piece = incident.tell("one-piece", wanted=_show(numbers.wanted), stated=stated)
    if stage is None:
        return piece
    doing = incident.tell(stage.name)
    return replace(piece, because=f"{piece.because} {doing.because}", fix=doing.fix)
