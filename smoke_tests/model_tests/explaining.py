"""Says which rule of attention a kernel breaks: what it computed is compared with attention under a rule that is off.

A kernel whose output is that of the formulas without the soft-cap drops the soft-cap. Where no such rule fits, nothing
is said.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from model_tests import attention_formulas as formulas
from model_tests.batches import PADDING
from model_tests.paired import AttentionCall, with_changes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from model_tests.attention_formulas import AttentionRule

POSITIONS = "positions count the padding before a sequence: pass position_ids, or pad behind it"
LEAKS = "the sequences of a row are not kept apart: what is predicted in one depends on the one before it"
FITS = 3e-2  # ||output - formula|| / ||formula||, in any precision


def explain_calls(calls: list[AttentionCall], owners: torch.Tensor, config: Any) -> list[str]:
    """Return what the wrong calls have in common with a rule that is off, each explanation once."""
    explanations: dict[str, None] = {}
    for call in calls:
        rule = formulas.rule_of(config, call.module)
        if _distance(call, rule, owners, owners) <= FITS:
            continue
        for words, changed, places in _alternatives(rule, owners, call.inputs[0].shape[-1]):
            if _distance(call, changed, places, owners) <= FITS:
                explanations.setdefault(words)
                break
    return list(explanations)


def outside_attention(layout: str, config: Any, *, leaks: bool) -> str:
    """Say where a wrong gradient comes from when every call of attention was right.

    ``leaks`` says whether what is predicted depends on another sequence of the row.
    """
    fields = config.to_dict()
    stateful = "linear_attention" in (fields.get("layer_types") or ()) or any("mamba" in name for name in fields)
    if stateful and layout.startswith("packed"):
        return (
            "attention is right in every layer; the layers of linear attention or state space do not stop between the"
            " sequences of a row"
        )
    if stateful and "padded" in layout:
        return "attention is right in every layer; the layers of linear attention or state space read the padding"
    if leaks:
        return "attention is right in every layer; layers beside it do not stop between the sequences of a row"
    return "attention is right in every layer; the difference arises outside it"


def _alternatives(
    rule: AttentionRule, owners: torch.Tensor, width: int
) -> Iterator[tuple[str, AttentionRule, torch.Tensor]]:
    one_row = torch.arange(owners.shape[0], device=owners.device)[:, None].expand_as(owners)
    last = torch.where(owners == PADDING, owners.max() + 1, owners)
    broken: list[tuple[str, AttentionRule, torch.Tensor]] = []
    if rule.softcap is not None:
        broken.append(("the soft-cap of the scores is dropped", with_changes(rule, softcap=None), owners))
    if rule.window is not None:
        broken.append(("the sliding window is ignored", with_changes(rule, window=None), owners))
        for off in (-1, 1):
            words = f"the sliding window is off by one ({rule.window + off} places instead of {rule.window})"
            broken.append((words, with_changes(rule, window=rule.window + off), owners))
    if rule.chunk is not None:
        broken.append(("the chunks of the layer are ignored", with_changes(rule, chunk=None), owners))
        counted = with_changes(rule, chunks_of_row=True)
        broken.append(("the chunks of the layer are counted from the start of the row", counted, owners))
    if rule.sinks is not None:
        broken.append(("the attention sinks are dropped", with_changes(rule, sinks=None), owners))
    if abs(rule.scale - width**-0.5) > 1e-6:
        plain = with_changes(rule, scale=width**-0.5)
        broken.append(("the scale of the configuration is replaced by 1/sqrt(head width)", plain, owners))
    broken.append(("attention does not stop between the sequences of a row", rule, one_row))
    if bool((owners == PADDING).any()):
        broken.append(("padding is attended to", rule, one_row))
        broken.append(("padding is attended to", rule, last))
    yield from broken
    if rule.softcap is not None and rule.window is not None:
        both = with_changes(rule, softcap=None, window=None)
        yield "the soft-cap of the scores is dropped and the sliding window is ignored", both, owners
    if rule.window is not None:
        words = "the sliding window is ignored, and attention does not stop between the sequences of a row"
        yield words, with_changes(rule, window=None), one_row


def _distance(call: AttentionCall, rule: AttentionRule, places: torch.Tensor, owners: torch.Tensor) -> float:
    """How far the call's output is from a rule's, over the real tokens."""
    real = (owners >= 0)[:, :, None, None]
    with torch.no_grad():
        inputs = [states.double() for states in call.inputs]
        expected = formulas.attend(*inputs, rule, formulas.allowed_places(places, rule)) * real
        output = call.output.double().reshape(expected.shape) * real
        return ((output - expected).norm() / expected.norm()).item()
