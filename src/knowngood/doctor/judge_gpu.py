"""Judges the GPUs, and the driver against the CUDA of the installed torch. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from packaging.version import Version

from knowngood.doctor.doctor_line import BAD, NOT_APPLICABLE, OK, UNKNOWN, WARN, DoctorLine
from knowngood.doctor.system_state import GpuState, NvidiaState, SystemState

_GIB = 1 << 30
_BUSY = 0.1
"""The share of its memory in use from which a GPU counts as busy."""


def judge_gpus_and_driver(
    state: SystemState, stated_gpus: tuple[str, ...], stated_driver: str | None, minimums: Mapping[str, str]
) -> Iterator[DoctorLine]:
    """Judge this machine, or what the user states about another one (--gpu, --driver).

    `minimums` maps a CUDA release to the oldest driver that runs it.
    """
    yield from judge_gpus(state, stated_gpus)
    torch = state.torch
    if torch is not None and torch.cuda is not None:
        yield judge_driver(state.nvidia, stated_driver, torch.cuda, minimums, f"torch {torch.version}")
        return
    because = "torch is a CPU build" if torch else "there is no torch to compare it with"
    yield _driver_line(state.nvidia, stated_driver).judged(NOT_APPLICABLE, because)


def judge_gpus(state: SystemState, stated: tuple[str, ...]) -> Iterator[DoctorLine]:
    """Judge each GPU and its use by other processes."""
    if stated:
        yield DoctorLine("gpu", "GPU", f"{', '.join(stated)}, as stated with --gpu")
        return
    if not state.nvidia.gpus:
        yield _judge_absent_gpu(state)
    for gpu in state.nvidia.gpus:
        yield _judge_gpu(gpu)
        yield _judge_gpu_use(gpu)


def _judge_absent_gpu(state: SystemState) -> DoctorLine:
    if state.torch is not None and state.torch.cuda is None:
        line = DoctorLine("gpu", "GPU", state.nvidia.problem or "none")
        return line.judged(NOT_APPLICABLE, "torch is a CPU build")
    fixes = ["name a GPU with --gpu to have the binaries judged for it"]
    if state.machine.container:
        fixes = ["start the container with the GPU (docker run --gpus all)", *fixes]
    elif state.nvidia.loaded:
        fixes = ["install the driver's user libraries of the same version, or reboot after an update", *fixes]
    line = DoctorLine("gpu", "GPU", f"no GPU: {state.nvidia.problem or 'the driver lists none'}")
    return line.judged(UNKNOWN, "without an answer from NVML nothing is known about this machine's GPU", *fixes)


def _judge_gpu(gpu: GpuState) -> DoctorLine:
    notes = [text for text in ("MIG on" if gpu.mig else "", "ECC off" if gpu.ecc_errors is None else "") if text]
    shown = ", ".join([gpu.name, gpu.sm, f"{gpu.memory / _GIB:.0f} GiB", *notes])
    line = DoctorLine(f"gpu:{gpu.index}", f"GPU {gpu.index}", shown)
    if gpu.ecc_errors:
        because = f"{gpu.ecc_errors} uncorrected memory errors since the driver was loaded"
        return line.judged(BAD, because, "reset the GPU or reboot; if the errors come back, the card is failing")
    if gpu.exclusive:
        fix = f"as root: nvidia-smi -i {gpu.index} -c DEFAULT (not needed with one process on each GPU)"
        return line.judged(WARN, f"its compute mode is {gpu.exclusive}", fix)
    if gpu.mig:
        because = "a process gets one slice of it, and slices cannot communicate by NCCL"
        return line.judged(WARN, because, "name a slice in CUDA_VISIBLE_DEVICES, or turn MIG off to train on the whole")
    return line


def _judge_gpu_use(gpu: GpuState) -> DoctorLine:
    free = f"{(gpu.memory - gpu.used) / _GIB:.1f} of {gpu.memory / _GIB:.0f} GiB free"
    names = ", ".join(f"{item.name or 'process'} ({item.pid})" for item in gpu.processes[:5])
    line = DoctorLine(f"gpu-use:{gpu.index}", f"GPU {gpu.index} in use", f"{free}; {names}" if names else free)
    if not gpu.processes and gpu.used < _BUSY * gpu.memory:
        return line
    because = "another process uses it" if names else "a process that is not visible from here uses its memory"
    return line.judged(WARN, because, "wait for it, end it, or choose another GPU with CUDA_VISIBLE_DEVICES")


def judge_driver(
    nvidia: NvidiaState, stated: str | None, cuda: str, minimums: Mapping[str, str], whose: str
) -> DoctorLine:
    """Judge the driver against a CUDA release; `whose` names what contains that CUDA."""
    line, driver, minimum = _driver_line(nvidia, stated), stated or nvidia.driver, minimums.get(cuda)
    if minimum is None:
        return line.judged(UNKNOWN, f"facts/drivers.json has no minimum driver for CUDA {cuda}")
    need = f"{whose} has CUDA {cuda}, which needs driver {minimum} or newer"
    source = (f"facts/drivers.json ({cuda})",)
    if driver is None or Version(driver) >= Version(minimum):
        return line.judged(OK if driver else UNKNOWN, need, source=source)
    return line.judged(
        BAD,
        need,
        f"install driver {minimum} or newer on the host",
        f"or use a torch built for an older CUDA: knowngood pick --driver {driver}",
        incidents=("nvidia-driver-too-old",),
        source=source,
    )


def _driver_line(nvidia: NvidiaState, stated: str | None) -> DoctorLine:
    cuda = f" (CUDA {nvidia.cuda})" if nvidia.cuda else ""
    installed = f"{nvidia.driver}{cuda}" if nvidia.driver else "none"
    return DoctorLine("driver", "NVIDIA driver", f"{stated}, as stated with --driver" if stated else installed)
