"""Errors by which libraries refuse what a model needs, beside those that smoke_tests/refusals.py knows."""

from __future__ import annotations

import contextlib
import re
import traceback
import warnings
from typing import TYPE_CHECKING

import torch

from model_tests.subject import ModelProblem
from smoke_tests import outcomes
from smoke_tests.outcomes import Elsewhere, NotRun
from smoke_tests.refusals import KNOWN, Refusal

if TYPE_CHECKING:
    from collections.abc import Iterator

MODELS = (
    Refusal(
        r"`kernels` is either not installed|pip install kernels",
        "not-run",
        "the kernels' package is not installed",
    ),
    Refusal(
        r"does not support an attention implementation through torch\.nn\.functional\.scaled_dot_product_attention",
        "refused",
        "transformers has no SDPA for this model",
    ),
    Refusal(
        r"does not support an attention implementation through torch's flex_attention|does not support flex",
        "refused",
        "transformers has no FlexAttention for this model",
    ),
    Refusal(
        r"does not support Flash Attention|does not support `?flash_attention",
        "refused",
        "transformers has no flash attention for this model",
    ),
    Refusal(
        r"attn_implementation\S* is not supported",
        "refused",
        "transformers refuses this setting for the model as it is configured",
    ),
    Refusal(
        r"only supports? head ?dim|head dimension|head_dim.*(at most|multiple|must be|up to)",
        "refused",
        "the kernel takes no heads of this width",
    ),
)


@contextlib.contextmanager
def recognised() -> Iterator[None]:
    """Turn an error that is a refusal into its outcome."""
    try:
        yield
    except ModelProblem as error:
        raise NotRun(str(error)) from error
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        for refusal in (*MODELS, *KNOWN):
            if re.search(refusal.pattern, text, re.DOTALL):
                traceback.print_exc()
                ended = outcomes.from_exception(error)
                ended = {**ended, "outcome": refusal.outcome, "reason": refusal.reason}
                raise Elsewhere(ended) from error
        raise


def ask_flex(device: torch.device) -> None:
    """Raise FlexAttention's own refusal of a backward pass on this device, which comes only after a long compile."""
    from torch.nn.attention.flex_attention import flex_attention

    states = torch.zeros(1, 1, 16, 16, device=device, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        flex_attention(states, states, states)
