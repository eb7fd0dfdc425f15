"""OpenRLHF's own functions take the padding out of two rows, as its actor does for flash attention, and put it back."""

import json

import torch
from openrlhf.models.ring_attn_utils import gather_and_pad_tensor, unpad_and_slice_tensor

tokens = torch.arange(1, 13).reshape(2, 6)
attention_mask = torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]])
packed, position_ids, _, padding, indices = unpad_and_slice_tensor(tokens, attention_mask, None)
back = gather_and_pad_tensor(packed, None, padding, indices, *tokens.shape)
if not torch.equal(back, tokens * attention_mask):
    raise SystemExit(f"the rows did not come back: {back.tolist()}")
print(json.dumps({"packed": packed.tolist(), "position_ids": position_ids.tolist()}))
