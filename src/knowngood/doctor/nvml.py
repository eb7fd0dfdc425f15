"""Driver and GPUs by NVML, NVIDIA's own interface: no text of `nvidia-smi`, which changes. An edge."""

from __future__ import annotations

import contextlib
import importlib
import re
from pathlib import Path
from typing import Any

from knowngood.doctor.seen import Gpu, Nvidia, Process

_MODES = {1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
_KERNEL = (Path("/sys/module/nvidia/version"), Path("/proc/driver/nvidia/version"))


def look(nvml: Any = None, kernel: tuple[Path, ...] = _KERNEL) -> Nvidia:
    """What the driver tells (`nvml` and `kernel` are for tests)."""
    nvml = nvml or importlib.import_module("pynvml")
    of_kernel = _kernel_driver(kernel)
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return Nvidia(driver=of_kernel, problem=_reason(nvml, error, of_kernel), loaded=of_kernel is not None)
    try:
        known = nvml.nvmlSystemGetCudaDriverVersion()
        gpus, problem = [], ""
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                gpus.append(_gpu(nvml, index))
            except nvml.NVMLError as error:  # a GPU that fell off the bus stands in the list, and answers no more
                problem = f"GPU {index} does not answer: {error}"
        return Nvidia(
            driver=_text(nvml.nvmlSystemGetDriverVersion()),
            cuda=f"{known // 1000}.{known % 1000 // 10}",
            gpus=tuple(gpus),
            problem=problem,
            loaded=True,
        )
    except nvml.NVMLError as error:
        return Nvidia(driver=of_kernel, problem=f"NVML: {error}", loaded=of_kernel is not None)
    finally:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def _gpu(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    mig = _told(nvml, lambda: nvml.nvmlDeviceGetMigMode(handle)[0])
    return Gpu(
        index=index,
        name=_text(nvml.nvmlDeviceGetName(handle)),
        sm=f"sm_{major}{minor}",
        memory=memory.total,
        used=memory.used,
        processes=tuple(
            Process(pid=item.pid, name=_process(nvml, item.pid), memory=item.usedGpuMemory)
            for item in _told(nvml, lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle)) or ()
        ),
        ecc_errors=_told(
            nvml,
            lambda: nvml.nvmlDeviceGetTotalEccErrors(
                handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
            ),
        ),
        mig=mig == 1,
        exclusive=_MODES.get(_told(nvml, lambda: nvml.nvmlDeviceGetComputeMode(handle)) or 0, ""),
    )


def _told(nvml: Any, ask: Any) -> Any:
    """An answer, or `None` where this GPU has no such thing."""
    try:
        return ask()
    except nvml.NVMLError:
        return None


def _process(nvml: Any, pid: int) -> str:
    name = _told(nvml, lambda: nvml.nvmlSystemGetProcessName(pid))
    return _text(name).split("\0")[0].rpartition("/")[2] if name else ""


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _kernel_driver(files: tuple[Path, ...]) -> str | None:
    """The version of the driver in the kernel, which a container sees too."""
    for path in files:
        with contextlib.suppress(OSError):
            if found := re.search(r"\b(\d{3}\.\d+(\.\d+)?)\b", path.read_text(encoding="utf-8", errors="replace")):
                return found[1]
    return None


def _reason(nvml: Any, error: Any, of_kernel: str | None) -> str:
    code = getattr(error, "value", None)
    if code == nvml.NVML_ERROR_LIBRARY_NOT_FOUND:
        if of_kernel:
            return f"the kernel has driver {of_kernel}, but its libraries are not here (libnvidia-ml.so.1)"
        return "NVML's library (libnvidia-ml.so.1) is not found"
    if code == nvml.NVML_ERROR_DRIVER_NOT_LOADED:
        return "the driver's libraries are here, but the kernel has no driver loaded"
    if code == nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        return f"the driver's libraries are of another version than the driver in the kernel ({of_kernel or 'unknown'})"
    return f"NVML: {error}"
