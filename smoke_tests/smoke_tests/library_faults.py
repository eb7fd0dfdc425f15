"""Faults that are put into libraries from outside, as an import hook finds them: none is in the suite's own code.

``put(fault)`` changes one attribute of one module, at once if the module is imported, else when it is; what the suite
does and compares stays as it is. A fault counts as noticed only where the failure is of its own ``reason``: another
failure says that the check is broken, and not that it is sharp.

Attention's faults stand between the model and the kernel, whichever the setting chose (transformers 5). Those of a rule
(cap, window, mask) add to the kernel's output what the formula with the fault gives more than the right one, so
that all gradients are those of the fault too.
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable

if TYPE_CHECKING:
    from collections.abc import Iterator

Change = Callable[[Any], Any]
"""What a fault makes of the attribute that it finds: another function."""


@dataclass(frozen=True)
class LibraryFault:
    """A fault: where it is put, what it makes of what it finds there, and the only reason that counts."""

    name: str
    module: str
    attribute: str
    change: Change
    reason: str
    """A regular expression over the reason of the check that fails."""
    dtypes: tuple[str, ...] = ("fp32", "bf16", "fp16", "bf16-pure", "fp16-pure")


@contextlib.contextmanager
def put(fault: LibraryFault) -> Iterator[None]:
    """Have the fault in its library while inside."""
    hook = _Hook(fault)
    sys.meta_path.insert(0, hook)
    if fault.module in sys.modules:
        hook.change(sys.modules[fault.module])
    try:
        yield
    finally:
        sys.meta_path.remove(hook)
        hook.undo()


class _Hook:
    """A finder of one module that changes it as soon as its own loader has run."""

    def __init__(self, fault: LibraryFault) -> None:
        self.fault = fault
        self.undo: Callable[[], None] = lambda: None

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the spec that the others find, with a loader that changes the module afterwards."""
        if name != self.fault.module:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec is not None and spec.loader is not None:
            plain = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                plain(module)
                self.change(module)

            spec.loader.exec_module = exec_module
        return spec

    def change(self, module: Any) -> None:
        """Put the fault into the module."""
        *holders, attribute = self.fault.attribute.split(".")
        holder = functools.reduce(getattr, holders, module)
        original = getattr(holder, attribute)
        setattr(holder, attribute, self.fault.change(original))
        self.undo = lambda: setattr(holder, attribute, original)


# --- attention ----------------------------------------------------------------------------------------------------

Attention = Callable[..., Any]


def _around(wrap: Callable[[Attention], Attention]) -> Change:
    """Change what transformers hands out as the attention function of a setting."""

    def change(get_interface: Any) -> Any:
        return lambda *words, **named: wrap(get_interface(*words, **named))

    return change


def _states(change: Callable[..., Any]) -> Change:
    """A fault in what the kernel makes of query, key and value before anything else."""

    def wrap(function: Attention) -> Attention:
        def faulty(module: Any, query: Any, key: Any, value: Any, *rest: Any, **named: Any) -> Any:
            return function(module, *change(query, key, value), *rest, **named)

        return faulty

    return _around(wrap)


def _output(change: Callable[[Any], Any]) -> Change:
    """A fault in what the kernel returns: rows x places x heads x width."""

    def wrap(function: Attention) -> Attention:
        def faulty(*words: Any, **named: Any) -> Any:
            output, *others = function(*words, **named)
            return (change(output), *others)

        return faulty

    return _around(wrap)


def _scale(factor: float) -> Change:
    def wrap(function: Attention) -> Attention:
        def faulty(module: Any, query: Any, *rest: Any, **named: Any) -> Any:
            named["scaling"] = (named.get("scaling") or query.shape[-1] ** -0.5) * factor
            return function(module, query, *rest, **named)

        return faulty

    return _around(wrap)


def _gradient(place: int | None, factor: float) -> Change:
    """The gradient of the query (0), key (1), value (2) or of all three (None) comes back times a factor."""

    def change(*states: Any) -> Any:
        return [scale_gradient(s, factor) if place in (None, n) else s for n, s in enumerate(states)]

    return _states(change)


def scale_gradient(states: Any, factor: float) -> Any:
    """The same states, whose gradient comes back times a factor."""
    kept = states.view_as(states)
    kept.register_hook(lambda gradient: gradient * factor)
    return kept


def _rounded(place: int) -> Change:
    """The query, key or value is rounded to fp8; gradients pass."""

    def change(*states: Any) -> Any:
        return [rounded(s, "float8_e4m3fn") if n == place else s for n, s in enumerate(states)]

    return _states(change)


def rounded(states: Any, dtype: str) -> Any:
    """The states rounded to another dtype of torch's, whose gradient passes."""
    import torch

    return states + (states.detach().to(getattr(torch, dtype)).to(states.dtype) - states.detach())


def blurred(states: Any, share: float) -> Any:
    """The states with noise of a share of their size, the same at every call."""
    import torch

    generator = torch.Generator(states.device).manual_seed(states.shape[1])
    noise = torch.randn(states.shape, generator=generator, device=states.device, dtype=torch.float32)
    return states + (share * states.detach().float().square().mean().sqrt() * noise).to(states.dtype)


def _rule(**rule: Any) -> Change:
    """Attention by a rule that is off: ``cap``, ``window``, ``shift`` of the causal edge, ``alone``."""

    def wrap(function: Attention) -> Attention:
        def faulty(module: Any, query: Any, key: Any, value: Any, *rest: Any, **named: Any) -> Any:
            import torch

            output, *others = function(module, query, key, value, *rest, **named)
            with torch.autocast(query.device.type, enabled=False):
                states = [given.float() for given in (query, key, value)]
                places = named.get("position_ids")
                scale = named.get("scaling") or query.shape[-1] ** -0.5
                more = _attend(states, scale, places, **rule) - _attend(states, scale, places)
            return (output + more.to(output.dtype), *others)

        return faulty

    return _around(wrap)


def _attend(  # noqa: PLR0913 - the parts of a rule
    states: list[Any],
    scale: float,
    places: Any,
    *,
    cap: float | None = None,
    window: int | None = None,
    shift: int = 0,
    alone: bool = False,
) -> Any:
    """Attention by its formula in the states' precision; rows x places x heads x width."""
    import torch

    query, key, value = states
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    if alone:  # one query head of each group sends gradients to the keys and values
        first = (torch.arange(key.shape[1], device=key.device) % group == 0)[None, :, None, None]
        key, value = torch.where(first, key, key.detach()), torch.where(first, value, value.detach())
    scores = query @ key.transpose(2, 3) * scale
    if cap is not None:
        scores = cap * torch.tanh(scores / cap)
    place = torch.arange(scores.shape[-1], device=scores.device)
    back = place[:, None] - place[None, :]
    allowed = back >= -shift
    if window is not None:
        allowed = allowed & (back < window)
    if places is not None and places.shape[-1] == len(place):
        owner = (places[:1] == 0).cumsum(-1)[0]
        allowed = allowed & (owner[:, None] == owner[None, :])
    return (scores.masked_fill(~allowed, -math.inf).softmax(-1) @ value).transpose(1, 2)


def _heads(order: tuple[int, ...], *, queries: bool) -> Change:
    """Query heads are taken in another order, and put back (``queries``) or left so."""

    def wrap(function: Attention) -> Attention:
        def faulty(module: Any, query: Any, *rest: Any, **named: Any) -> Any:
            output, *others = function(module, query[:, list(order)] if queries else query, *rest, **named)
            return (output[:, :, list(order)], *others)

        return faulty

    return _around(wrap)


def _late(number: int, change: Change) -> Change:
    """A fault of the calls that come after the ``number`` first ones of each layer."""

    def begin(get_interface: Any) -> Any:
        calls: dict[int, int] = {}

        def choose(*words: Any, **named: Any) -> Any:
            right, wrong = get_interface(*words, **named), change(get_interface)(*words, **named)

            def late(module: Any, *states: Any, **options: Any) -> Any:
                calls[module.layer_idx] = calls.get(module.layer_idx, 0) + 1
                function = wrong if calls[module.layer_idx] > number else right
                return function(module, *states, **options)

            return late

        return choose

    return begin


def _rotation(offset: int) -> Change:
    """Keys are rotated as if they stood further along the row than they do."""

    def change(apply: Any) -> Any:
        def rotate(query: Any, key: Any, cos: Any, sin: Any, *rest: Any, **named: Any) -> Any:
            query = apply(query, key, cos, sin, *rest, **named)[0]
            key = apply(key, key, cos.roll(offset, -2), sin.roll(offset, -2), *rest, **named)[1]
            return query, key

        return rotate

    return change


INTERFACE = ("transformers.modeling_utils", "AttentionInterface.get_interface")
QWEN2 = "transformers.models.qwen2.modeling_qwen2"


def _at_step(number: int, kinds: str) -> str:
    """The reason of a gradient that is wrong at a step, and furthest of one of these kinds of weights."""
    return rf"wrong-gradient: step {number}: ({kinds}) "


def _among(number: int, kinds: str) -> str:
    """The reason of gradients that are wrong at a step, with one of these kinds among them."""
    return rf"wrong-gradient: step {number}: (.*, )?({kinds}) weights"


ANY_KIND = r"^wrong-loss: step 1: .*wrong-gradient: step 1:|^wrong-gradient: step 1:"
ATTENTION = (
    LibraryFault("scale-3-percent", *INTERFACE, _scale(1.03), _among(1, "query|key")),
    LibraryFault("scale-of-72-wide-heads", *INTERFACE, _scale((64 / 72) ** 0.5), _among(1, "query|key")),
    LibraryFault("query-gradient-5-percent", *INTERFACE, _gradient(0, 0.95), _at_step(1, "query")),
    LibraryFault("key-gradient-5-percent", *INTERFACE, _gradient(1, 0.95), _at_step(1, "key")),
    LibraryFault("value-gradient-5-percent", *INTERFACE, _gradient(2, 0.95), _at_step(1, "value")),
    LibraryFault("all-gradients-2-percent", *INTERFACE, _gradient(None, 0.98), _at_step(1, "query|key|value")),
    LibraryFault("query-fp8", *INTERFACE, _rounded(0), _among(1, "query|key")),
    LibraryFault("key-fp8", *INTERFACE, _rounded(1), _among(1, "query|key")),
    LibraryFault("value-fp8", *INTERFACE, _rounded(2), _among(1, "value|output|query|key")),
    LibraryFault("softcap-30", *INTERFACE, _rule(cap=30.0), _among(1, "query|key")),
    LibraryFault(
        "noise-2-percent",
        *INTERFACE,
        _output(lambda output: blurred(output, 0.02)),
        _among(1, "output|value|query|key"),
    ),
    LibraryFault("output-1-percent", *INTERFACE, _output(lambda output: output * 1.01), _among(1, "output|value")),
    LibraryFault("window-48", *INTERFACE, _rule(window=48), ANY_KIND),
    LibraryFault("causality-off-by-one", *INTERFACE, _rule(shift=1), ANY_KIND),
    LibraryFault("group-gradient-lost", *INTERFACE, _rule(alone=True), _at_step(1, "key|value")),
    LibraryFault("heads-swapped", *INTERFACE, _heads((1, 0, 2, 3), queries=False), ANY_KIND),
    LibraryFault("groups-tiled", *INTERFACE, _heads((0, 2, 1, 3), queries=True), ANY_KIND),
    LibraryFault("keys-one-place-late", QWEN2, "apply_rotary_pos_emb", _rotation(1), ANY_KIND),
    LibraryFault("late-scale-3-percent", *INTERFACE, _late(1, _scale(1.03)), _among(2, "query|key")),
    LibraryFault("late-value-gradient-lost", *INTERFACE, _late(1, _gradient(2, 0.0)), _at_step(2, "value")),
)

# --- optimizers, schedules, clipping, losses ----------------------------------------------------------------------


def _in_groups(**changed: Callable[[Any], Any]) -> Change:
    """AdamW takes its steps with other numbers in its groups than those that it was given."""

    def change(step: Any) -> Any:
        @functools.wraps(step)
        def faulty(self: Any, *words: Any, **named: Any) -> Any:
            before = [dict(group) for group in self.param_groups]
            for group in self.param_groups:
                group.update({name: of(group) for name, of in changed.items()})
            made = step(self, *words, **named)
            for group, old in zip(self.param_groups, before):
                group.update({name: old[name] for name in changed})
            return made

        return faulty

    return change


def _moved(share: float, step_of: int = 1) -> Change:
    """The last parameter of each group moves by a share of its step, from a step on."""

    def change(step: Any) -> Any:
        calls = []

        @functools.wraps(step)
        def faulty(self: Any, *words: Any, **named: Any) -> Any:
            calls.append(1)
            last = [group["params"][-1] for group in self.param_groups]
            before = [parameter.detach().clone() for parameter in last]
            made = step(self, *words, **named)
            if len(calls) >= step_of:
                for parameter, old in zip(last, before):
                    parameter.data.copy_(old + share * (parameter.detach() - old))
            return made

        return faulty

    return change


def _zeroed_from(number: int) -> Change:
    """AdamW sees no gradient of half of its parameters from a step on."""

    def change(step: Any) -> Any:
        calls = []

        @functools.wraps(step)
        def faulty(self: Any, *words: Any, **named: Any) -> Any:
            calls.append(1)
            for group in self.param_groups if len(calls) >= number else ():
                for parameter in group["params"][::2]:
                    parameter.grad.zero_()
            return step(self, *words, **named)

        return faulty

    return change


def _without_bias_correction(step: Any) -> Any:
    """Every step is a late one to AdamW, so that it does not correct the bias of its moments."""

    @functools.wraps(step)
    def faulty(self: Any, *words: Any, **named: Any) -> Any:
        for state in self.state.values():
            state["step"] += 10_000
        made = step(self, *words, **named)
        for state in self.state.values():
            state["step"] -= 10_000 if state["step"] > 10_000 else 0
        return made

    return faulty


def _dropping_schedule(step: Any) -> Any:
    """The schedule drops to a tenth after the second step."""

    @functools.wraps(step)
    def faulty(self: Any, *words: Any, **named: Any) -> Any:
        made = step(self, *words, **named)
        if self.last_epoch >= 2:
            for group in self.optimizer.param_groups:
                group["lr"] *= 0.1
        return made

    return faulty


def _standing_schedule(step: Any) -> Any:
    """The schedule stands still after the second step."""
    return lambda self, *words, **named: step(self, *words, **named) if self.last_epoch < 1 else None


def _late_labels(cross_entropy: Any) -> Any:
    """The targets are shifted by one from the second loss on."""
    calls = []

    @functools.wraps(cross_entropy)
    def faulty(logits: Any, targets: Any, *words: Any, **named: Any) -> Any:
        if logits.requires_grad and str(logits.dtype) != "torch.float64":  # the reference is no part of the training
            calls.append(1)
            targets = targets.roll(1) if len(calls) > 1 else targets
        return cross_entropy(logits, targets, *words, **named)

    return faulty


def _clip_argument(largest: Callable[[float], float]) -> Change:
    def change(clip: Any) -> Any:
        return lambda parameters, norm, *words, **named: clip(parameters, largest(norm), *words, **named)

    return change


def _never_skips(_: Any) -> Any:
    """The loss scaler takes a step whose gradients overflowed."""
    return lambda _scaler, optimizer, *words, **named: optimizer.step(*words, **named)


def _wrong_step(numbers: str, part: str) -> str:
    return rf"^wrong-step: step [{numbers}]: the {part} of "


ADAMW_DTYPES = ("fp32", "bf16", "fp16")
CLIPPED, SCHEDULED, SCALED = ("bf16", "fp16"), ("fp32", "bf16"), ("fp16",)
FIRST_MOVE = "12"
"""The first step with a rate: warm-up, where there is some, leaves none to the first."""
MOMENT, ANY_PART = "(first|second) moment", "(weight|first moment|second moment)"


def _adamw(name: str, change: Change, reason: str) -> LibraryFault:
    return LibraryFault(name, "torch.optim", "AdamW.step", change, reason, dtypes=ADAMW_DTYPES)


def _clip(name: str, largest: Callable[[float], float]) -> LibraryFault:
    change, reason = _clip_argument(largest), _wrong_step("1", MOMENT)
    return LibraryFault(name, "torch.nn.utils", "clip_grad_norm_", change, reason, dtypes=CLIPPED)


def _lambda_lr(name: str, change: Change) -> LibraryFault:
    reason = _wrong_step("34", "weight")
    return LibraryFault(name, "torch.optim.lr_scheduler", "LambdaLR.step", change, reason, dtypes=SCHEDULED)


OPTIMIZER = (
    _adamw("rate-doubled", _in_groups(lr=lambda group: 2 * group["lr"]), _wrong_step(FIRST_MOVE, "weight")),
    _adamw("rate-1-percent-high", _in_groups(lr=lambda group: 1.01 * group["lr"]), _wrong_step(FIRST_MOVE, "weight")),
    _adamw(
        "decay-doubled",
        _in_groups(weight_decay=lambda group: 2 * group["weight_decay"]),
        _wrong_step(FIRST_MOVE, "weight"),
    ),
    _adamw("decay-everywhere", _in_groups(weight_decay=lambda _: 0.1), _wrong_step(FIRST_MOVE, "weight")),
    _adamw("decay-nowhere", _in_groups(weight_decay=lambda _: 0.0), _wrong_step(FIRST_MOVE, "weight")),
    _adamw(
        "second-moment-as-first",
        _in_groups(betas=lambda group: group["betas"][:1] * 2),
        _wrong_step("1", "second moment"),
    ),
    _adamw(
        "first-moment-slow", _in_groups(betas=lambda group: (0.95, group["betas"][1])), _wrong_step("1", "first moment")
    ),
    _adamw("epsilon-large", _in_groups(eps=lambda _: 1e-6), _wrong_step(FIRST_MOVE, "weight")),
    _adamw("bias-uncorrected", _without_bias_correction, _wrong_step("2", "weight")),
    _adamw("last-parameter-moves-a-hundredth", _moved(0.01), _wrong_step(FIRST_MOVE, "weight")),
    _adamw("gradients-zeroed-late", _zeroed_from(2), _wrong_step("2", ANY_PART)),
    _clip("clipped-at-double", lambda norm: 2 * norm),
    _clip("never-clipped", lambda _: 1e9),
    _lambda_lr("schedule-drops", _dropping_schedule),
    _lambda_lr("schedule-stands-still", _standing_schedule),
    LibraryFault("labels-shifted-late", "torch.nn.functional", "cross_entropy", _late_labels, "^wrong-loss: step 2:"),
    LibraryFault(
        "overflow-taken", "torch.amp", "GradScaler.step", _never_skips, _wrong_step("3", ANY_PART), dtypes=SCALED
    ),
)
