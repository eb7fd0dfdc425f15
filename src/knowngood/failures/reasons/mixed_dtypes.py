"""Which dtypes FSDP was to join in one tensor, by its message. Pure."""

from __future__ import annotations

from dataclasses import replace

from knowngood.compat.incident import Incident
from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.failures.logs.last_errors import LastError
from knowngood.failures.names.name_situation import advise

_TWO = lazy_pattern(r"got torch\.(?P<one>\w+) and torch\.(?P<other>\w+)")


def describe_mixed_dtypes(incident: Incident, error: LastError) -> Incident | None:
    """Say whose parameters have the two dtypes; `None` where the message does not name them."""
    dtypes = _TWO.search(error.message)
    if dtypes is None:
        return None
    pair = {dtypes["one"], dtypes["other"]}
    quantized = sorted(pair & {"int8", "uint8"})
    if not quantized:
        one, other = dtypes["one"], dtypes["other"]
        return replace(incident, title=f"FSDP cannot join parameters in {one} and in {other}")
    rest = next(iter(pair - set(quantized)), "another dtype")
    bits = "8 bits" if quantized == ["int8"] else "4 bits"
    without = advise("Without quantisation under FSDP, or with it and without FSDP (DDP, one GPU)")
    storage = advise(f"4 bits with bnb_4bit_quant_storage=torch.{rest}, so that all parameters have one dtype")
    return replace(
        incident,
        title=f"FSDP cannot join weights in {bits} ({quantized[0]}) with parameters in {rest}",
        because=(
            f"FSDP joins the parameters of a wrapped block into one tensor of one dtype. In {quantized[0]} are weights "
            f"that bitsandbytes quantised to {bits}, in {rest} the layers that it leaves (norms, embeddings), or an "
            "adapter."
        ),
        fix=(without, storage) if bits == "8 bits" else (storage, without),
    )
