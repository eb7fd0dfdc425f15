"""Whose kernel has no code for the GPU, by the line of code that called it. Pure.

torch carries code for the GPUs of its list. When the innermost line calls another package's binary, it is that one
which was compiled for other GPUs, and another torch would not end it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.failures.logs.log_versions import name_package
from knowngood.failures.names.name_situation import advise

if TYPE_CHECKING:
    from knowngood.compat.incident import Incident
    from knowngood.failures.logs.last_errors import LastError

_CALL = lazy_pattern(
    r"\b(?P<module>[a-z]\w*?_(?:cuda|ext|gpu|kernels?|C|backend)|_C|ops|flash_attn_gpu|fused_\w+|"
    r"selective_scan\w*|causal_conv1d\w*)\.\w+\("
)
_PLAIN = frozenset(
    ("torch", "transformers", "accelerate", "peft", "trl", "lightning", "pytorch_lightning", "diffusers")
)
"""Packages without kernels of their own: a line of theirs calls torch's."""


def describe_kernel_owner(incident: Incident, error: LastError) -> Incident | None:
    """Name the extension whose kernel was called; `None` where it was torch's, or where the log does not say."""
    if not error.frames or "is not compatible with the current PyTorch" in error.log_end.decode("utf-8", "replace"):
        return None
    frame = error.frames[-1]
    installed = frame.installed[:1]
    call = _CALL.search(frame.code)
    if not installed or installed[0] in _PLAIN or call is None:
        return None
    module = call["module"]
    owner = name_package(installed[0] if module in {"_C", "ops"} else module)
    return replace(
        incident,
        title=f"{owner} was compiled without code for this GPU",
        component=owner,
        because=(
            f"The line that failed calls a kernel of {owner} ({frame.short_file}: {frame.code}), not one of "
            "torch: no kernel image in it is for this GPU. Its binary has "
            "code for the architectures that were on the list when it was compiled, and this GPU is not among them."
        ),
        fix=(
            advise(
                f"Compile {owner} on this machine: TORCH_CUDA_ARCH_LIST=X.Y (python -c 'import torch; "
                "print(torch.cuda.get_device_capability())') pip install --no-build-isolation "
                f"--no-cache-dir --force-reinstall --no-deps --no-binary {owner} {owner}"
            ),
            advise(
                f"A release or a wheel of {owner} that names this GPU; an old GPU may be below what its "
                "kernels need at all"
            ),
            advise("The slower path of plain torch, where the model has one"),
        ),
    )
