"""Lets transformers choose FlashAttention 2 where there is no GPU: to be imported before any model of transformers.

Its two questions whether there is a GPU are answered with yes, and nothing else: the kernels are stood in for too.
XTuner 0.2 asks torch's module of the device at hand for bfloat16, and the CPU's does not know that question.
"""

from unittest import mock

import torch
from transformers import utils

utils.is_flash_attn_2_available = utils.import_utils.is_flash_attn_2_available = lambda: True

from transformers import modeling_utils

_model = modeling_utils.PreTrainedModel
_check = _model._check_and_enable_flash_attn_2.__func__


def _answered(cls, *arguments, **named):
    with mock.patch.object(torch.cuda, "is_available", return_value=True):
        return _check(cls, *arguments, **named)


_model._check_and_enable_flash_attn_2 = classmethod(_answered)

if not hasattr(torch.cpu, "is_bf16_supported"):
    torch.cpu.is_bf16_supported = lambda: False
