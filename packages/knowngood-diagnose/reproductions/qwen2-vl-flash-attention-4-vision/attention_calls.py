"""Calls of FlashAttention 4's two functions, as the vision tower makes them and others beside: which gradient is wrong.

What its source lets expect for Hopper: the backward kernel stores the sum of dq in blocks whose rows are padded to a
multiple of 16 numbers (FlashAttentionBackwardSm90.tile_hdim), and the kernels before and after it take a multiple of 32
(hdim_multiple_of). For a width where the two differ, every block but the first is read at the wrong place. `misread`
computes what comes of it, so that dq can be compared with that too.
"""

import json
import time

import torch

ALLOWED = 0.03  # bfloat16 is less than 1 % off
SECONDS = 40  # no further call is begun after these; compiling takes most of the time
DEVICE = "cuda" if torch.cuda.device_count() else "cpu"
SHORT, LONG = (24, 24, 24), (200,)
# (variable-length function?, lengths, causal?, heads, heads of keys and values)
TOWER = (True, SHORT, False, 4, 4)
CALLS = {
    64: [TOWER, (False, LONG, False, 4, 4)],
    80: [
        TOWER,
        (False, LONG, False, 4, 4),
        (True, (24,), False, 4, 4),
        (False, SHORT, False, 4, 4),
        (True, LONG, False, 4, 4),
        (True, SHORT, True, 4, 4),
        (False, LONG, True, 4, 4),
        (False, (24,), False, 4, 2),
        (True, SHORT, True, 4, 2),
    ],
}


def attend(query, key, value, lengths, causal):
    """Return attention of each sequence in the dtype of its arguments: tensors of (tokens, heads, width)."""
    shared = query.shape[1] // key.shape[1]
    mixed = []
    for q, k, v in zip(*(item.split(lengths) for item in (query, key, value))):
        keys, values = (item.repeat_interleave(shared, 1) for item in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, keys) / q.shape[-1] ** 0.5
        if causal:
            scores = scores.masked_fill(torch.ones_like(scores[0], dtype=torch.bool).triu(1), float("-inf"))
        mixed.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), values))
    return torch.cat(mixed)


def call_kernel(states, lengths, causal, varlen):
    """Return what the function of flash_attn.cute gives for tensors of (tokens, heads, width)."""
    from flash_attn.cute import flash_attn_func, flash_attn_varlen_func

    if varlen:  # as transformers calls it
        seams = torch.tensor([0, *lengths], device=DEVICE).cumsum(0).int()
        longest = max(lengths)
        out = flash_attn_varlen_func(
            *states, cu_seqlens_q=seams, cu_seqlens_k=seams, max_seqlen_q=longest, max_seqlen_k=longest, causal=causal
        )
    else:
        out = flash_attn_func(*(item.unflatten(0, (len(lengths), -1)) for item in states), causal=causal)
    out = out[0] if isinstance(out, tuple) else out
    return out if varlen else out.flatten(0, 1)


def misread(gradient, lengths, varlen):
    """Return dq as it is after blocks of 64 rows were stored by one padded width and read by another.

    A block is a row of pieces of 64 x 8 numbers, in the order of its columns. This holds for widths of 65 to 96, where
    one warpgroup has all columns of a block.
    """
    width = gradient.shape[-1]
    stored, read = -(-width // 16) * 2, -(-width // 32) * 4  # pieces in a block
    result = torch.zeros_like(gradient)
    pieces, places, start = {}, [], 0
    for number, length in enumerate(lengths):
        first = (start + number * 64) // 64 if varlen else 0
        buffer = 0 if varlen else number
        for offset in range(0, length, 64):
            rows = slice(start + offset, start + min(offset + 64, length))
            places.append((buffer, first + offset // 64, rows))
            for piece in range(width // 8):
                own = gradient[rows, :, piece * 8 : piece * 8 + 8]
                pieces[buffer, (first + offset // 64) * stored + piece] = own
        start += length
    for buffer, block, rows in places:
        for piece in range(width // 8):
            other = pieces.get((buffer, block * read + piece), gradient[:0, :, :8])[: rows.stop - rows.start]
            result[rows.start : rows.start + len(other), :, piece * 8 : piece * 8 + 8] = other
    return result


def difference(ours, theirs):
    return ((ours.double() - theirs).norm() / theirs.norm()).item()


def compare(width, varlen, lengths, causal, heads, shared):
    """Return the relative errors of one call by name; `misread`: how far dq is from the one that is read wrongly."""
    torch.manual_seed(width)
    tokens = sum(lengths)
    shapes = [(tokens, heads, width), (tokens, shared, width), (tokens, 3, shared, width)]
    query, key, all_three = (torch.randn(shape).to(DEVICE, torch.bfloat16) for shape in shapes)
    # Values are a view of a wider tensor, as in the tower.
    ours = [item.requires_grad_() for item in (query, key, all_three[:, 2])]
    theirs = [item.detach().double().requires_grad_() for item in ours]
    out, expected = call_kernel(ours, lengths, causal, varlen), attend(*theirs, lengths, causal)
    direction = torch.randn(tokens, heads, width).to(DEVICE, torch.bfloat16)
    out.backward(direction)
    expected.backward(direction.double())
    errors = {"out": difference(out.detach(), expected.detach())}
    errors |= {name: difference(a.grad, b.grad) for name, a, b in zip(("dq", "dk", "dv"), ours, theirs)}
    if 64 < width <= 96:
        errors["misread"] = difference(ours[0].grad, misread(theirs[0].grad, lengths, varlen))
    return errors


def describe(width, varlen, lengths, causal, heads, shared):
    kind = "varlen" if varlen else "dense"
    of = f", {heads} heads on {shared}" if heads != shared else ""
    return f"{width} {kind} {'+'.join(map(str, lengths))}{' causal' if causal else ''}{of}"


def describe_outcome(call):
    """Return a call's errors as a text, and what is wrong in them; an exception is both, so that other calls go on."""
    try:
        errors = compare(*call)
    except Exception as error:  # noqa: BLE001 - a compiler's errors have many types
        text = f"{type(error).__name__}: {error}".partition("\n")[0][:150]
        return text, text
    faults = [part for part in ("out", "dq", "dk", "dv") if not errors[part] <= ALLOWED]
    return " ".join(f"{part} {error:.4f}" for part, error in errors.items()), ", ".join(faults)


def main(widths):
    """Print a table of the calls for these widths of a head; ends with an error where a gradient is wrong."""
    began, found, wrong = time.monotonic(), {}, []
    for call in [(width, *rest) for width in widths for rest in CALLS.get(width, [TOWER])]:
        name = describe(*call)
        found[name], faults = (
            describe_outcome(call) if time.monotonic() - began < SECONDS else ("left out for time", "")
        )
        wrong += [f"{name}: {faults}"] if faults else []
        print(f"{time.monotonic() - began:6.1f} s  {name:40} {found[name]}{'  WRONG' if faults else ''}", flush=True)
    print(json.dumps(found), flush=True)
    assert not wrong, f"wrong in {len(wrong)} of {len(found)} calls: {'; '.join(wrong)}"
