"""The driver, and who else is on the GPU, asked of NVML through ctypes: no package needed, no nvidia-smi
scraped.

https://docs.nvidia.com/deploy/nvml-api/
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Process(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("memory", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


def driver() -> str | None:
    """The driver's version, or None where there is none."""
    with _library() as nvml:
        if nvml is None:
            return None
        text = ctypes.create_string_buffer(96)
        failed = nvml.nvmlSystemGetDriverVersion(text, ctypes.c_uint(len(text)))
        return None if failed else text.value.decode()


def processes() -> list[int]:
    """The processes that compute on the GPU of this run. Ask before this run has touched the GPU itself."""
    with _library() as nvml:
        if nvml is None or not hasattr(nvml, "nvmlDeviceGetComputeRunningProcesses_v3"):
            return []
        handle, count, found = ctypes.c_void_p(), ctypes.c_uint(64), (_Process * 64)()
        if nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(_index()), ctypes.byref(handle)):
            return []
        if nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), found):
            return []
        return [found[number].pid for number in range(count.value)]


def takes_several_processes() -> bool:
    """Whether the GPU of this run is in its default compute mode, not kept for one process."""
    with _library() as nvml:
        if nvml is None:
            return False
        handle, mode = ctypes.c_void_p(), ctypes.c_uint()
        if nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(_index()), ctypes.byref(handle)):
            return False
        return not nvml.nvmlDeviceGetComputeMode(handle, ctypes.byref(mode)) and mode.value == 0


def _index() -> int:
    """NVML's number of the first GPU that torch will see."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0]
    return int(first) if first.isdecimal() else 0


@contextlib.contextmanager
def _library() -> Iterator[Any]:
    nvml = None
    with contextlib.suppress(OSError):
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    if nvml is None or nvml.nvmlInit_v2():
        yield None
        return
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()
