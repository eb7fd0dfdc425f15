"""Judges an image against this machine: architecture, GPU, driver, the engine's runtime, versions. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from knowngood.compat.rule_relations import code_runs_on_gpu
from knowngood.doctor.doctor_line import BAD, OK, UNKNOWN, WARN, DoctorLine
from knowngood.doctor.judge_gpu import judge_driver, judge_gpus
from knowngood.doctor.judge_host import ExaminedHost, judge_image_host
from knowngood.doctor.system_state import ImageDescription, SystemState
from knowngood.images.dockerfile import LABEL_PREFIX

if TYPE_CHECKING:
    from knowngood.compat.check_answer import CheckAnswer
    from knowngood.evidence.run_evidence import Tier

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
