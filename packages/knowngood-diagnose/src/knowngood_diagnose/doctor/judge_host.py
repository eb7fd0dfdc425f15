"""Judges whether the host, its GPUs, its driver and an image go together. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.version import Version

from knowngood.core.gpus import code_runs_on_gpu
from knowngood.core.hosts import DEFAULT_HOST, HostArchitecture
from knowngood.images.dockerfile import LABEL_PREFIX
from knowngood_diagnose.doctor.doctor_line import BAD, NOT_APPLICABLE, OK, UNKNOWN, WARN, DoctorLine

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from knowngood.engine.probe_gpus import GpuState, NvidiaState
    from knowngood.evidence.run_evidence import Tier
    from knowngood_diagnose.doctor.system_state import ImageDescription, SystemState
    from knowngood_facts.compat.check_answer import CheckAnswer


@dataclass(frozen=True, kw_only=True)
class ExaminedHost:
    """The host for which the doctor judges."""

    architecture: HostArchitecture | None
    """`None` for a processor that no image is for."""
    origin: str = "this machine"
    """Where it is known from, for people."""
    here: HostArchitecture | None
    """The architecture of this machine."""

    @property
    def shown(self) -> str:
        """The host and where it is known from: `aarch64, as stated with --host`."""
        return f"{self.architecture or 'a processor that no image is for'}, {self.origin}"


def choose_host(
    here: HostArchitecture | None, *, stated: HostArchitecture | None = None, arm_card: str | None = None
) -> ExaminedHost:
    """Return the host to judge for: the stated one, else that of a card with a CPU of Arm, else this machine."""
    if stated:
        return ExaminedHost(architecture=stated, origin="as stated with --host", here=here)
    if arm_card:
        return ExaminedHost(architecture=HostArchitecture.AARCH64, origin=f"the CPU beside {arm_card}", here=here)
    return ExaminedHost(architecture=here, here=here)


def judge_environment_host(host: ExaminedHost) -> DoctorLine:
    """Judge the environment of this machine for a host."""
    line = DoctorLine("host", "host's processor", host.shown)
    if host.architecture is None:
        return line.judged(UNKNOWN, f"images and facts are for {' and '.join(HostArchitecture)}")
    if host.architecture is host.here:
        return line
    images = f"or an image for it: knowngood cells host={host.architecture} lists them"
    because = (
        f"this environment is for {host.here or 'another processor'}, and nothing of it runs on {host.architecture}"
    )
    return line.judged(BAD, because, f"install its packages anew on a host of {host.architecture}", images)


def judge_image_host(host: ExaminedHost, image: str, *, cell: str | None = None, twin: str | None = None) -> DoctorLine:
    """Judge an image for a host.

    Args:
        host: where the image should run.
        image: its architecture, as OCI images name it (`arm64`); empty where it is not known.
        cell: the id of its cell, if it has one.
        twin: the id of the same cell for the host, if matrix.yaml has it.
    """
    line = DoctorLine("host", "host's processor", host.shown)
    if host.architecture is None:
        return line.judged(UNKNOWN, f"images are for {' and '.join(HostArchitecture)}")
    if not image or image == host.architecture.debian:
        return line
    names = {item.debian: item for item in HostArchitecture}
    made_for = names.get(image)
    because = f"the image is for {made_for or image}, and its programs do not run on {host.architecture}"
    other = f"the image of its twin: {twin}" if twin else f"an image for it: knowngood cells host={host.architecture}"
    fixes = [other, f"or a host of {made_for}"] if made_for else [other]
    if made_for is not DEFAULT_HOST and made_for and host.architecture is host.here and cell:
        fixes.append(f"without a GPU its core can be tried under QEMU: knowngood smoke {cell}")
    return line.judged(BAD, because, *fixes)


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


_MINIMUM_CUDA = re.compile(r"\bcuda>=(\d+\.\d+)")
_PROVEN_TIERS = frozenset({"trains-emulated", "trains-on-cpu", "trains-on-gpu"})


def judge_image(  # noqa: PLR0913 - all that an image is judged by
    image: ImageDescription,
    state: SystemState,
    *,
    host: ExaminedHost,
    twin: str | None = None,
    stated_gpus: Sequence[str],
    stated_driver: str | None,
    minimums: Mapping[str, str],
    answer: CheckAnswer | None,
    tier: Tier | None,
) -> Iterator[DoctorLine]:
    """Judge an image for this machine, or for what the user states about another one (--gpu, --driver, --host).

    `twin` is the id of the image's cell for the host, where matrix.yaml has it. `minimums` maps a CUDA release to the
    oldest driver that runs it. `answer` and `tier` are what `knowngood check` says about the image's cell and how far
    the cell is proven.
    """
    cell = image.labels.get(LABEL_PREFIX + "cell")
    yield _judge_contents(image, tier)
    yield judge_image_host(host, image.architecture, cell=cell, twin=twin)
    yield from judge_gpus(state, tuple(stated_gpus))
    cuda = image.labels.get(LABEL_PREFIX + "cuda") or _required_cuda(image)
    if cuda:
        yield judge_driver(state.nvidia, stated_driver, cuda, minimums, "the image")
    if cell is not None:
        yield from (_judge_target_gpu(image, gpu) for gpu in stated_gpus or state.nvidia.capabilities)
        if answer is not None:
            yield from _judge_versions(answer)
    if state.nvidia.gpus and image.runtimes is not None:
        yield _judge_runtime(image.runtimes)


def _required_cuda(image: ImageDescription) -> str | None:
    """Return the CUDA release that the image tells NVIDIA's runtime to demand of the driver."""
    match = _MINIMUM_CUDA.search(image.variables.get("NVIDIA_REQUIRE_CUDA", ""))
    return match[1] if match else None


def _judge_contents(image: ImageDescription, tier: Tier | None) -> DoctorLine:
    cell = image.labels.get(LABEL_PREFIX + "cell")
    parts = [image.name, image.where]
    parts += [image.digest[:19]] if image.digest else []
    parts += [f"{image.download / 1e9:.2f} GB to pull"] if image.download else []
    shown = ", ".join(parts)
    if cell is None:
        because = "it has none of knowngood's labels, so its contents are not known"
        return DoctorLine("image", "image", shown).judged(UNKNOWN, because, "run knowngood doctor inside it")
    if cell != image.name:
        shown += f"; {cell} is proven: {tier}" if tier and str(tier) in _PROVEN_TIERS else f"; {cell}"
    return DoctorLine("image", "image", shown)


def _judge_target_gpu(image: ImageDescription, gpu: str) -> DoctorLine:
    """Judge by the GPU it was made for: its flash-attn 2 has code for that alone, the rest was proven on it."""
    made_for = image.labels.get(LABEL_PREFIX + "gpu", "")
    flash_attn = image.labels.get(LABEL_PREFIX + "flash-attn", "0")
    line = DoctorLine(f"image-gpu:{gpu}", f"image on {gpu}", f"made for {made_for}")
    if made_for == gpu:
        return line
    fix = f"an image for it: knowngood pick --gpu {gpu}"
    if flash_attn.startswith("2.") and not code_runs_on_gpu(gpu, [made_for.removeprefix("sm_")]):
        because = f"its flash-attn {flash_attn} was compiled for {made_for} alone"
        return line.judged(BAD, because, fix, incidents=("cuda-no-kernel-image",))
    return line.judged(WARN, f"no run has shown that it trains on {gpu}", fix)


def _judge_versions(answer: CheckAnswer) -> Iterator[DoctorLine]:
    errors = [item for item in answer.findings if item.severity == "error" and item.id != "driver-for-cuda"]
    for item in errors:
        packages = " ".join(f"{name} {version}" for name, version in item.packages.items())
        fixes = [str(fix.get("note", "")) for fix in item.fix] or ["another image: knowngood pick"]
        line = DoctorLine(f"versions:{item.id}", "versions", packages)
        yield line.judged(BAD, item.because, *fixes, source=item.source)
    if not errors:
        verdict = UNKNOWN if str(answer.verdict) == "unknown" else OK
        word = "no rule is broken" if str(answer.verdict) == "broken" else str(answer.verdict)
        yield DoctorLine("versions", "versions", word).judged(verdict, source=answer.evidence)


def _judge_runtime(runtimes: Sequence[str]) -> DoctorLine:
    subject = "engine's NVIDIA runtime"
    if "nvidia" in runtimes:
        return DoctorLine("runtime", subject, "nvidia")
    return DoctorLine("runtime", subject, ", ".join(runtimes) or "none").judged(
        BAD,
        "docker run --gpus needs NVIDIA's container toolkit",
        "install nvidia-container-toolkit; nvidia-ctk runtime configure; restart the engine",
    )
