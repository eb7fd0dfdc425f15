"""Reads the driver and the GPUs through NVML, NVIDIA's own interface; the text of `nvidia-smi` changes. An edge."""

from __future__ import annotations

import contextlib
import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MODES = {1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
_KERNEL_FILES = (Path("/sys/module/nvidia/version"), Path("/proc/driver/nvidia/version"))


@dataclass(frozen=True, kw_only=True)
class GpuProcess:
    """A process of somebody else that uses a GPU."""

    pid: int
    name: str


@dataclass(frozen=True, kw_only=True)
class GpuState:
    """A GPU as NVML describes it."""

    index: int
    name: str
    sm: str
    """The compute capability, such as `sm_90`."""
    memory: int
    """Memory of the GPU in bytes."""
    used: int
    """Memory that is in use, in bytes."""
    processes: tuple[GpuProcess, ...] = ()
    ecc_errors: int | None = None
    """Uncorrected errors since the driver was loaded; `None` without ECC."""
    mig: bool = False
    exclusive: str = ""
    """The compute mode when it is not the default: `exclusive process`, `prohibited`."""


@dataclass(frozen=True, kw_only=True)
class NvidiaState:
    """The NVIDIA driver and its GPUs."""

    driver: str | None = None
    """The version of the driver, such as `580.65.06`."""
    cuda: str | None = None
    """The newest CUDA that the driver supports, `13.0`."""
    gpus: tuple[GpuState, ...] = ()
    problem: str = ""
    """Why NVML does not answer."""
    loaded: bool = False
    """Whether the kernel has the driver, even when NVML does not answer."""

    @property
    def capabilities(self) -> tuple[str, ...]:
        """The architectures of the GPUs, each once: `sm_90`."""
        return tuple(dict.fromkeys(gpu.sm for gpu in self.gpus))


def read_nvidia_state(nvml: Any = None, kernel: tuple[Path, ...] = _KERNEL_FILES) -> NvidiaState:
    """Return what the driver reports; tests pass their own `nvml` and the files of `kernel`."""
    nvml = nvml or importlib.import_module("pynvml")
    kernel_driver = _read_kernel_driver(kernel)
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return NvidiaState(
            driver=kernel_driver, problem=_explain_error(nvml, error, kernel_driver), loaded=kernel_driver is not None
        )
    try:
        cuda = nvml.nvmlSystemGetCudaDriverVersion()
        gpus, problem = [], ""
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                gpus.append(_read_gpu(nvml, index))
            except nvml.NVMLError as error:  # a GPU that fell off the bus is still in the list
                problem = f"GPU {index} does not answer: {error}"
        return NvidiaState(
            driver=_text(nvml.nvmlSystemGetDriverVersion()),
            cuda=f"{cuda // 1000}.{cuda % 1000 // 10}",
            gpus=tuple(gpus),
            problem=problem,
            loaded=True,
        )
    except nvml.NVMLError as error:
        return NvidiaState(driver=kernel_driver, problem=f"NVML: {error}", loaded=kernel_driver is not None)
    finally:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def _read_gpu(nvml: Any, index: int) -> GpuState:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    mig = _ask_or_none(nvml, lambda: nvml.nvmlDeviceGetMigMode(handle)[0])
    return GpuState(
        index=index,
        name=_text(nvml.nvmlDeviceGetName(handle)),
        sm=f"sm_{major}{minor}",
        memory=memory.total,
        used=memory.used,
        processes=tuple(
            GpuProcess(pid=item.pid, name=_process_name(nvml, item.pid))
            for item in _ask_or_none(nvml, lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle)) or ()
        ),
        ecc_errors=_ask_or_none(
            nvml,
            lambda: nvml.nvmlDeviceGetTotalEccErrors(
                handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
            ),
        ),
        mig=mig == 1,
        exclusive=_MODES.get(_ask_or_none(nvml, lambda: nvml.nvmlDeviceGetComputeMode(handle)) or 0, ""),
    )


def _ask_or_none(nvml: Any, call: Callable[[], Any]) -> Any:
    """Return the answer to a call, or `None` where this GPU does not support it."""
    try:
        return call()
    except nvml.NVMLError:
        return None


def _process_name(nvml: Any, pid: int) -> str:
    name = _ask_or_none(nvml, lambda: nvml.nvmlSystemGetProcessName(pid))
    return _text(name).split("\0")[0].rpartition("/")[2] if name else ""


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _read_kernel_driver(files: tuple[Path, ...]) -> str | None:
    """Return the version of the driver in the kernel, which is readable in a container too."""
    for path in files:
        with contextlib.suppress(OSError):
            if match := re.search(r"\b(\d{3}\.\d+(\.\d+)?)\b", path.read_text(encoding="utf-8", errors="replace")):
                return match[1]
    return None


def _explain_error(nvml: Any, error: Any, kernel_driver: str | None) -> str:
    code = getattr(error, "value", None)
    if code == nvml.NVML_ERROR_LIBRARY_NOT_FOUND:
        if kernel_driver:
            return f"the kernel has driver {kernel_driver}, but its libraries are not here (libnvidia-ml.so.1)"
        return "NVML's library (libnvidia-ml.so.1) is not found"
    if code == nvml.NVML_ERROR_DRIVER_NOT_LOADED:
        return "the driver's libraries are here, but the kernel has no driver loaded"
    if code == nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        version = kernel_driver or "unknown"
        return f"the driver's libraries are of another version than the driver in the kernel ({version})"
    return f"NVML: {error}"
