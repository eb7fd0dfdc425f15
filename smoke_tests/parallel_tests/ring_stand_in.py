"""torch's ring attention for CPUs: its own exchange, merging and load balance around torch's CPU kernel.

torch's context parallelism takes the kernels of GPUs only; on a CPU it ends with "Operator
aten._scaled_dot_product_flash_attention_for_cpu.default does not have a sharding strategy registered". With these two
handlers its Python code runs with gloo, so that positions, seams and the sum over the parts can be compared. It proves
nothing of the kernels of GPUs.
"""

from __future__ import annotations

from typing import Any

import torch

TOLD = "torch's ring attention around the CPU's kernel (parallel_tests/ring_stand_in.py), since it takes no CPU kernel"
SEQUENCE = 2  # the dimension of (batch, heads, sequence, size) that is divided


def install() -> str:
    """Let torch's context parallelism dispatch the CPU's attention to its ring."""
    from torch.distributed.tensor.experimental._context_parallel import _attention as ring

    aten = torch.ops.aten
    ring.custom_ops[aten._scaled_dot_product_flash_attention_for_cpu.default] = _forward
    ring.custom_ops[aten._scaled_dot_product_flash_attention_for_cpu_backward.default] = _backward
    return TOLD


def _forward(_operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    from torch.distributed.tensor.experimental._context_parallel import _attention as ring

    query, key, value, dropout, is_causal = (*args, *(0.0, False)[len(args) - 3 :])
    if kwargs.get("attn_mask") is not None:
        raise NotImplementedError("the ring takes no mask")
    results = ring._templated_ring_attention(
        query.device_mesh.get_group(),
        SEQUENCE,
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu,
        *(tensor.to_local() for tensor in (query, key, value)),
        is_causal=is_causal,
        dropout_p=dropout,
        scale=kwargs.get("scale"),
    )
    return _divided(results, query.device_mesh)


def _backward(_operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    from torch.distributed.tensor.experimental._context_parallel import _attention as ring

    tensors, (dropout, is_causal) = args[:6], args[6:8]
    mesh = tensors[1].device_mesh
    grad_out, query, key, value, out, logsumexp = (tensor.to_local() for tensor in tensors)
    results = ring._templated_ring_attention_backward(
        mesh.get_group(),
        SEQUENCE,
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward,
        grad_out=grad_out,
        grad_out_name="grad_out",
        query=query,
        key=key,
        value=value,
        out=out,
        logsumexp=logsumexp,
        is_causal=is_causal,
        dropout_p=dropout,
        scale=kwargs.get("scale"),
    )
    return _divided(results, mesh)


def _divided(results: tuple[Any, ...], mesh: Any) -> tuple[Any, ...]:
    from torch.distributed.tensor import DTensor, Shard

    return tuple(DTensor.from_local(result, mesh, [Shard(SEQUENCE)], run_check=False) for result in results)
