"""One step of a miniature under a setting, in a precision and a layout, with everything that is seen of it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from model_tests import attention_formulas as formulas
from model_tests.attention_seam import is_text_attention, replace_attention
from model_tests.batches import lay_out, places_of, sequences_of
from model_tests.paired import AttentionCall, record_calls
from model_tests.routing import TopKReplay
from smoke_tests import data, profiling

if TYPE_CHECKING:
    from collections.abc import Callable

    from model_tests.reference import Reference
    from model_tests.subject import Subject
    from smoke_tests.precision import Precision
    from smoke_tests.settings import Setting

LOSS_SCALE = 2.0**12  # of fp16; see smoke_tests/training.py
LEAK = 1e-3
"""The share by which predictions may differ when nothing they depend on is another: experts of other tokens round."""
NOTHING = 1e-12
"""The share of the largest gradient up to which one in fp64 is rounding: seen are 1e-17 to 1e-15."""


class Trial:
    """A model under a setting; ``step`` may be called for several batches, each from fresh gradients."""

    def __init__(self, subject: Subject, setting: Setting, precision: Precision, device: torch.device) -> None:
        self.setting, self.precision, self.device = setting, precision, device
        weights = getattr(torch, precision.weights)
        self.autocast = getattr(torch, precision.autocast) if precision.autocast else None
        self.model = subject.build(setting.implementation, weights, device).train()
        self.pictures = subject.pictures
        self.kernels: list[str] = []
        self.calls: list[AttentionCall] = []
        self.flips: tuple[int, int] = (0, 0)
        self.owners = torch.empty(0, 0, dtype=torch.long)

    @property
    def text_config(self) -> Any:
        """The configuration of the language model."""
        return self.model.config.get_text_config()

    def resolved(self) -> str:
        """The implementation that transformers kept for the language model."""
        return str(self.text_config._attn_implementation)

    def step(self, layout: str, number: int, reference: Reference, *, fault: Any = None, watch: bool = False) -> float:
        """Run a batch forward and backward; return the loss. The gradients are in the parameters, unscaled.

        ``fault`` wraps the attention function, under what records its calls; with ``watch`` the names of the kernels
        are kept.
        """
        batch = lay_out(layout, number, self.device, self.pictures, self.model)
        self.owners = batch.owners
        self.calls = []
        recorder = record_calls(self.calls)
        wrap = recorder if fault is None else lambda function: recorder(fault(function))
        watched = profiling.watched(self.device) if watch else contextlib.nullcontext([])
        self.model.zero_grad()
        replay = TopKReplay(reference.choices, places_of(batch.owners), tuple(batch.owners.shape))
        with replace_attention(self.model, self.setting.implementation, wrap), watched as names:
            with replay, self._precision():
                logits = self.model(**batch.inputs, use_cache=False).logits
            loss = functional.cross_entropy(
                logits.float().flatten(0, 1), batch.targets.flatten(), ignore_index=data.IGNORED
            )
            self._backward(loss)
        self.kernels = names
        self.flips = (replay.different, replay.compared)
        return loss.item()

    def step_alone(self, layout: str, number: int, reference: Reference) -> float:
        """The same batch one sequence at a time, with right attention in fp32: right in this precision.

        Attention is by the formulas, or by the model's own function where they are not written for it.
        """
        rows = sequences_of(layout, number, self.pictures)
        predicted = sum(len(row) - 1 for row in rows)
        self.model.zero_grad()
        total, begin = 0.0, 0
        right = self._by_formulas if reference.fits_formulas else _in_single_precision
        with replace_attention(self.model, self.setting.implementation, right):
            for row in rows:
                tokens = torch.tensor([row], device=self.device)
                images = self.pictures.inputs(self.model, [row], tokens) if self.pictures else {}
                own = [None if choice is None else choice[begin : begin + len(row)] for choice in reference.choices]
                begin += len(row)
                with TopKReplay(own, torch.arange(len(row), device=self.device), (1, len(row))), self._precision():
                    logits = self.model(input_ids=tokens, **images, use_cache=False).logits[0]
                targets = torch.tensor(data.targets(row), device=self.device)
                loss = (
                    functional.cross_entropy(logits.float(), targets, ignore_index=data.IGNORED, reduction="sum")
                    / predicted
                )
                self._backward(loss)
                total += loss.item()
        return total

    def leaks(self, layout: str) -> bool:
        """Whether another first sequence of a packed row changes what is predicted in the others."""
        batch = lay_out(layout, 0, self.device, self.pictures, self.model)
        others = (batch.owners > 0)[0]
        tokens = batch.inputs["input_ids"]
        changed = torch.where(batch.owners == 0, tokens.flip(-1), tokens)
        with torch.no_grad(), self._precision():
            one, other = (
                self.model(**{**batch.inputs, "input_ids": ids}, use_cache=False).logits[0, others].float()
                for ids in (tokens, changed)
            )
        return bool((one - other).norm() > LEAK * one.norm())

    def _precision(self) -> Any:
        return torch.autocast(self.device.type, dtype=self.autocast, enabled=self.autocast is not None)

    def _backward(self, loss: torch.Tensor) -> None:
        """Gradients of the loss, scaled on the way where the precision asks for it."""
        if not self.precision.scaled:
            loss.backward()
            return
        before = {name: p.grad for name, p in self.model.named_parameters() if p.grad is not None}
        self.model.zero_grad()
        (loss * LOSS_SCALE).backward()
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None:
                parameter.grad /= LOSS_SCALE
                if name in before:
                    parameter.grad += before[name]

    def _by_formulas(self, function: Callable) -> Callable:
        config = self.text_config

        def attend(module: Any, query: Any, key: Any, value: Any, *rest: Any, **named: Any) -> Any:
            if not is_text_attention(module):
                return function(module, query, key, value, *rest, **named)
            rule = formulas.rule_of(config, module)
            owners = torch.zeros(query.shape[0], query.shape[2], dtype=torch.long, device=query.device)
            low = self.autocast or query.dtype
            with torch.autocast(self.device.type, enabled=False):
                states = [given.to(low).float() for given in (query, key, value)]
                output = formulas.attend(*states, rule, formulas.allowed_places(owners, rule))
            return output.to(low).contiguous(), None

        return attend


def _in_single_precision(function: Callable) -> Callable:
    def attend(module: Any, query: Any, key: Any, value: Any, *rest: Any, **named: Any) -> Any:
        with torch.autocast(query.device.type, enabled=False):
            output, weights = function(module, query.float(), key.float(), value.float(), *rest, **named)
        return output.to(query.dtype), weights

    return attend


def gradient_errors(parameters: dict[str, Any], expected: dict[str, torch.Tensor]) -> dict[str, float]:
    """For each parameter ||g - r|| / ||r||; infinite where the gradient is missing or not a number.

    Where the gradient is nothing but rounding in fp64 (the bias of keys without a rotary embedding moves all scores of
    a query alike), its error is a share of the model's largest gradient.
    """
    largest = max((gradient.norm().item() for gradient in expected.values()), default=0.0)
    errors = {}
    for name, gradient in expected.items():
        own = parameters[name].grad
        size = gradient.norm().item()
        size = max(size, 1e-6 * largest) if size > NOTHING * largest else largest
        error = float("inf") if own is None else ((own.double().cpu() - gradient).norm() / size).item()
        errors[name] = error if error == error else float("inf")  # noqa: PLR0124 - NaN is the worst
    return errors
