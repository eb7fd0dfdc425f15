"""The reference for any causal model: its own modules in fp64 with eager attention, one sequence at a time.

No padding, no cache, no packing, no position ids. Eager attention is shared with one of the settings under test, so
``formulas`` holds it, in the same run, to attention computed from the configuration alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import functional

from model_tests import attention_formulas as formulas
from model_tests.attention_seam import is_text_attention, replace_attention
from model_tests.batches import sequences_of
from model_tests.doubling import FloatsDoubled
from model_tests.routing import TopKRecorder
from model_tests.subject import Subject
from smoke_tests import data


@dataclass
class Reference:
    """What a batch must give: its mean loss, every gradient, and which experts each token goes to."""

    loss: float
    gradients: dict[str, torch.Tensor]
    choices: list[torch.Tensor | None]
    """One entry for each choice of the model, its rows the tokens of all sequences one after another; none of experts
    is one whose number depends on the sequence's length."""
    formulas: dict[int, float] = field(default_factory=dict)
    """Layer -> how far eager attention is from the formulas: the largest ||eager - formula|| / ||formula||."""
    widths: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """Layer -> the widths of a head's query, key and value at the attention function."""

    @property
    def fits_formulas(self) -> bool:
        """Whether eager attention was seen, and is what the formulas say."""
        return bool(self.formulas) and max(self.formulas.values()) <= formulas.AGREES


def compute_reference(
    subject: Subject, layout: str, number: int, weights: torch.dtype, reached: dict[str, torch.Tensor] | None = None
) -> Reference:
    """Run the sequences of a batch through the model in fp64, its weights rounded to ``weights`` first.

    ``reached`` are weights to which it was trained, in place of those that it began with.
    """
    with FloatsDoubled():
        model = _double_model(subject, weights, reached or subject.weights)
        made = Reference(0.0, {}, [])
        pictures = subject.pictures
        rows = sequences_of(layout, number, pictures)
        predicted = sum(len(row) - 1 for row in rows)
        choices: list[list[torch.Tensor]] = []
        with replace_attention(model, "eager", lambda eager: _compare(eager, model, made)):
            for row in rows:
                tokens, targets = torch.tensor([row]), torch.tensor(data.targets(row))
                images = pictures.inputs(model, [row], tokens) if pictures else {}
                with TopKRecorder(len(row)) as recorder:
                    logits = model(input_ids=tokens, **images, use_cache=False).logits[0]
                loss = functional.cross_entropy(logits, targets, ignore_index=data.IGNORED, reduction="sum") / predicted
                loss.backward()
                made.loss += loss.item()
                choices.append(recorder.choices)
        made.choices = [_joined(parts) for parts in zip(*choices)]
        made.gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return made


def _double_model(subject: Subject, weights: torch.dtype, values: dict[str, torch.Tensor]) -> Any:
    named = {"experts_implementation": "eager"} if _chooses_experts() else {}
    model = subject.build("eager", torch.float64, torch.device("cpu"), **named)
    rounded = {name: value.to(weights).double() for name, value in values.items()}
    model.load_state_dict(rounded, strict=False)
    return model.train()


def _chooses_experts() -> bool:
    """Whether this transformers lets one choose how experts are computed; only its plain loop takes fp64."""
    import transformers

    return int(transformers.__version__.split(".")[0]) >= 5


def _compare(eager: Any, model: Any, made: Reference) -> Any:
    """Wrap eager attention so that each call is compared with the formulas."""
    config = model.config.get_text_config()

    def compared(module: Any, query: Any, key: Any, value: Any, *rest: Any, **named: Any) -> Any:
        result = eager(module, query, key, value, *rest, **named)
        if is_text_attention(module):
            with torch.no_grad():
                distance = _distance(result[0], (query, key, value), formulas.rule_of(config, module))
            layer = module.layer_idx
            made.formulas[layer] = max(made.formulas.get(layer, 0.0), distance)
            made.widths[layer] = (query.shape[-1], key.shape[-1], value.shape[-1])
        return result

    return compared


def _joined(parts: tuple[torch.Tensor, ...]) -> torch.Tensor | None:
    return torch.cat(parts) if len({part.shape[1:] for part in parts}) == 1 else None


def _distance(output: torch.Tensor, states: tuple[torch.Tensor, ...], rule: formulas.AttentionRule) -> float:
    """How far a call's output is from the formulas; infinite where keys are not those of the queries' places."""
    query, key, _ = states
    if query.shape[2] != key.shape[2]:
        return math.inf
    allowed = formulas.allowed_places(torch.zeros(query.shape[0], query.shape[2], dtype=torch.long), rule)
    expected = formulas.attend(*states, rule, allowed)
    return ((output - expected).norm() / expected.norm()).item() if output.shape == expected.shape else math.inf
