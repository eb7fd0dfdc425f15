"""Stands in for flash-attn 2.6's compiled extension: the same four functions and numbers, in plain torch.

flash-attn's own Python files call it; only what they compile is replaced. Dropout, ALiBi and paged keys are left out.
"""

import math

import torch


def _attention(q, k, v, scale, causal, left, right, softcap):
    """Out and log-sum-exp of (length, heads, dim) tensors; the mask is aligned at the bottom right, as flash-attn's."""
    groups = q.shape[-2] // k.shape[-2]
    key, value = (x.repeat_interleave(groups, dim=-2).float() for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.float(), key) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    rows = torch.arange(q.shape[0], device=q.device)[:, None] + k.shape[0] - q.shape[0]
    columns = torch.arange(k.shape[0], device=q.device)[None, :]
    right = 0 if causal else right
    hidden = (columns > rows + right) if right >= 0 else torch.zeros_like(columns > rows)
    if left >= 0:
        hidden |= columns < rows - left
    scores = scores.masked_fill(hidden, -math.inf)
    out = torch.einsum("hqk,khd->qhd", scores.softmax(-1).nan_to_num(), value)
    return out.to(q.dtype), scores.logsumexp(-1)


def _refuse(q, dropout, alibi, *others):
    if q.dtype not in (torch.float16, torch.bfloat16):
        raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
    if dropout or alibi is not None or any(other is not None for other in others):
        raise NotImplementedError("the stand-in has no dropout, ALiBi, paged keys or left padding")


def _backward(dout, q, k, v, dq, dk, dv, *how):
    with torch.enable_grad():
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        grads = torch.autograd.grad(_attention(*leaves, *how)[0], leaves, dout)
    for into, grad in zip((dq, dk, dv), grads):
        into.copy_(grad)


def _pieces(starts):
    ends = starts.tolist()
    return [slice(a, b) for a, b in zip(ends, ends[1:])]  # noqa: RUF007 - Pythons before 3.10 have no pairwise


def fwd(q, k, v, out, alibi, dropout, scale, causal, left, right, softcap, probabilities, generator):
    _refuse(q, dropout, alibi)
    made = [_attention(*qkv, scale, causal, left, right, softcap) for qkv in zip(q, k, v)]
    out, lse = (torch.stack(x) for x in zip(*made))
    return out, q, k, v, out, lse, None, torch.zeros(2, dtype=torch.int64)


def bwd(dout, q, k, v, out, lse, dq, dk, dv, alibi, dropout, scale, causal, left, right, softcap, exact, *rest):
    _refuse(q, dropout, alibi)
    for tensors in zip(dout, q, k, v, dq, dk, dv):
        _backward(*tensors, scale, causal, left, right, softcap)
    return dq, dk, dv, None


def varlen_fwd(q, k, v, out, starts_q, starts_k, used_k, leftpad_k, blocks, alibi, longest_q, longest_k, dropout, scale,
               zero, causal, left, right, softcap, probabilities, generator):  # fmt: skip
    _refuse(q, dropout, alibi, used_k, leftpad_k, blocks)
    out, lse = torch.zeros_like(q), q.new_zeros(q.shape[1], q.shape[0], dtype=torch.float32)
    for of_q, of_k in zip(_pieces(starts_q), _pieces(starts_k)):
        out[of_q], lse[:, of_q] = _attention(q[of_q], k[of_k], v[of_k], scale, causal, left, right, softcap)
    return out, q, k, v, out, lse, None, torch.zeros(2, dtype=torch.int64)


def varlen_bwd(dout, q, k, v, out, lse, dq, dk, dv, starts_q, starts_k, alibi, longest_q, longest_k, dropout, scale,
               zero, causal, left, right, softcap, exact, *rest):  # fmt: skip
    _refuse(q, dropout, alibi)
    for of_q, of_k in zip(_pieces(starts_q), _pieces(starts_k)):
        tensors = dout[of_q], q[of_q], k[of_k], v[of_k], dq[of_q], dk[of_k], dv[of_k]
        _backward(*tensors, scale, causal, left, right, softcap)
    return dq, dk, dv, None
