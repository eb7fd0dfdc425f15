"""GPUs and driver, against the CUDA of the torch that is installed. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from packaging.version import Version

from knowngood.doctor.line import Line, Verdict
from knowngood.doctor.seen import Gpu, Nvidia, Seen

_GIB = 1 << 30
_BUSY = 0.1
"""Of its memory in use, from which on a GPU counts as busy."""


def lines(seen: Seen, stated: tuple[str, ...], driver: str | None, minimums: Mapping[str, str]) -> Iterator[Line]:
    """`stated` and `driver` are what the asker says of another machine; `minimums` is CUDA -> least driver."""
    yield from gpus(seen, stated)
    torch = seen.torch
    if torch is not None and torch.cuda is not None:
        yield against(seen.nvidia, driver, torch.cuda, minimums, f"torch {torch.version}")
        return
    because = "torch is a CPU build" if torch else "there is no torch to compare it with"
    shown = _shown(seen.nvidia, driver)
    yield Line(id="driver", what="NVIDIA driver", seen=shown, verdict=Verdict.NOT_APPLICABLE, because=because)


def gpus(seen: Seen, stated: tuple[str, ...]) -> Iterator[Line]:
    """The GPUs, and who uses them."""
    if stated:
        yield Line(id="gpu", what="GPU", seen=f"{', '.join(stated)}, as you say", verdict=Verdict.OK)
    elif not seen.nvidia.gpus:
        yield _none(seen)
    for gpu in () if stated else seen.nvidia.gpus:
        yield from _gpu(gpu)


def _none(seen: Seen) -> Line:
    if seen.torch is not None and seen.torch.cuda is None:
        return Line(
            id="gpu",
            what="GPU",
            seen=seen.nvidia.problem or "none",
            verdict=Verdict.NOT_APPLICABLE,
            because="torch is a CPU build",
        )
    fixes = ["name the GPU that is meant with --gpu, to have the binaries judged for it"]
    if seen.machine.container:
        fixes = ["start the container with the GPU (docker run --gpus all)", *fixes]
    elif seen.nvidia.loaded:
        fixes = ["install the driver's user libraries of the same version, or reboot after an update", *fixes]
    return Line(
        id="gpu",
        what="GPU",
        seen=f"no GPU: {seen.nvidia.problem or 'the driver lists none'}",
        verdict=Verdict.UNKNOWN,
        because="without NVML's answer nothing can be said of this machine's GPU",
        fix=tuple(fixes),
    )


def _gpu(gpu: Gpu) -> Iterator[Line]:
    size = f"{gpu.memory / _GIB:.0f} GiB"
    shown = f"{gpu.name}, {gpu.sm}, {size}"
    notes = [text for text in ("MIG on" if gpu.mig else "", "ECC off" if gpu.ecc_errors is None else "") if text]
    verdict, because, fix = Verdict.OK, "", ""
    if gpu.ecc_errors:
        verdict, because = Verdict.BAD, f"{gpu.ecc_errors} uncorrected memory errors since the driver was loaded"
        fix = "reset the GPU or reboot; when they come back, the card is failing"
    elif gpu.exclusive:
        verdict, because = Verdict.WARN, f"its compute mode is {gpu.exclusive}"
        fix = f"as root: nvidia-smi -i {gpu.index} -c DEFAULT (one process a GPU is fine as it is)"
    elif gpu.mig:
        verdict, because = Verdict.WARN, "a process gets one slice of it, and slices do not talk to each other by NCCL"
        fix = "name a slice in CUDA_VISIBLE_DEVICES, or turn MIG off for training on the whole"
    yield Line(
        id=f"gpu:{gpu.index}",
        what=f"GPU {gpu.index}",
        seen=", ".join([shown, *notes]),
        verdict=verdict,
        because=because,
        fix=(fix,) if fix else (),
    )
    yield _use(gpu)


def _use(gpu: Gpu) -> Line:
    free = f"{(gpu.memory - gpu.used) / _GIB:.1f} of {gpu.memory / _GIB:.0f} GiB free"
    if not gpu.processes and gpu.used < _BUSY * gpu.memory:
        return Line(id=f"gpu-use:{gpu.index}", what=f"GPU {gpu.index} in use", seen=free, verdict=Verdict.OK)
    names = ", ".join(f"{item.name or 'process'} ({item.pid})" for item in gpu.processes[:5])
    return Line(
        id=f"gpu-use:{gpu.index}",
        what=f"GPU {gpu.index} in use",
        seen=f"{free}; {names}" if names else free,
        verdict=Verdict.WARN,
        because="another process works on it"
        if names
        else "its memory is in use by a process that is not seen from here",
        fix=("wait for it, end it, or choose another GPU with CUDA_VISIBLE_DEVICES",),
    )


def against(nvidia: Nvidia, stated: str | None, cuda: str, minimums: Mapping[str, str], whose: str) -> Line:
    """The driver, against the CUDA of a torch."""
    have, shown, least = stated or nvidia.driver, _shown(nvidia, stated), minimums.get(cuda)
    if least is None:
        because = f"there is no least driver for CUDA {cuda} in the facts"
        return Line(id="driver", what="NVIDIA driver", seen=shown, verdict=Verdict.UNKNOWN, because=because)
    need = f"{whose} has CUDA {cuda}, which needs driver {least} or newer"
    source = (f"facts/drivers.json ({cuda})",)
    if have is None or Version(have) >= Version(least):
        verdict = Verdict.OK if have else Verdict.UNKNOWN
        return Line(id="driver", what="NVIDIA driver", seen=shown, verdict=verdict, because=need, source=source)
    return Line(
        id="driver",
        what="NVIDIA driver",
        seen=shown,
        verdict=Verdict.BAD,
        because=need,
        fix=(
            f"a driver of {least} or newer, on the host",
            f"or a torch built for an older CUDA: knowngood pick --driver {have}",
        ),
        incidents=("nvidia-driver-too-old",),
        source=source,
    )


def _shown(nvidia: Nvidia, stated: str | None) -> str:
    if stated:
        return f"{stated}, as you say"
    known = f" (CUDA {nvidia.cuda})" if nvidia.cuda else ""
    return f"{nvidia.driver}{known}" if nvidia.driver else "none"
