"""An image against this machine: architecture, GPU, driver, the engine's runtime, versions. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from knowngood.doctor import judge_gpu
from knowngood.doctor.line import Line, Verdict
from knowngood.doctor.seen import Image, Seen
from knowngood.render import LABEL
from knowngood.solving.relations import runs

if TYPE_CHECKING:
    from knowngood.evidence import Tier
    from knowngood.solving.verdict import Result

_FLOOR = re.compile(r"\bcuda>=(\d+\.\d+)")
_BUILT = frozenset({"trains-on-cpu", "trains-on-gpu"})


def lines(  # noqa: PLR0913 - what an image is judged by
    image: Image,
    seen: Seen,
    *,
    here: str,
    stated: Sequence[str],
    driver: str | None,
    minimums: Mapping[str, str],
    checked: Result | None,
    tier: Tier | None,
) -> Iterator[Line]:
    """`here` is this machine's architecture; `stated` and `driver` are what the asker says of another machine."""
    yield _image(image, here, tier)
    yield from judge_gpu.gpus(seen, tuple(stated))
    cuda = image.labels.get(LABEL + "cuda") or _floor(image)
    if cuda:
        yield judge_gpu.against(seen.nvidia, driver, cuda, minimums, "the image")
    gpus = stated or tuple(dict.fromkeys(gpu.sm for gpu in seen.nvidia.gpus))
    if LABEL + "cell" in image.labels:
        yield from (_gpu(image, gpu) for gpu in gpus)
        if checked is not None:
            yield from _versions(checked)
    if seen.nvidia.gpus and image.runtimes is not None:
        yield _runtime(image.runtimes)


def _floor(image: Image) -> str | None:
    """The CUDA that NVIDIA's runtime is told to demand of the driver."""
    found = _FLOOR.search(image.variables.get("NVIDIA_REQUIRE_CUDA", ""))
    return found[1] if found else None


def _image(image: Image, here: str, tier: Tier | None) -> Line:
    parts = [image.name, image.where]
    parts += [image.digest[:19]] if image.digest else []
    parts += [f"{image.download / 1e9:.2f} GB to pull"] if image.download else []
    shown = ", ".join(parts)
    if image.architecture and image.architecture != here:
        because = f"it is for {image.architecture}, this machine is {here}"
        fix = (f"an image for {here}",)
        return Line(id="image", what="image", seen=shown, verdict=Verdict.BAD, because=because, fix=fix)
    if LABEL + "cell" not in image.labels:
        return Line(
            id="image",
            what="image",
            seen=shown,
            verdict=Verdict.UNKNOWN,
            because="it has no labels of knowngood: they do not say what is in it",
            fix=("run knowngood doctor inside it",),
        )
    cell = image.labels[LABEL + "cell"]
    proven = f"; {cell} is proven: {tier}" if tier and str(tier) in _BUILT else f"; {cell}"
    return Line(id="image", what="image", seen=shown + (proven if cell != image.name else ""), verdict=Verdict.OK)


def _gpu(image: Image, gpu: str) -> Line:
    """The GPU that it was made for: flash-attn 2 has code for that alone, the rest was proven on it."""
    made_for = image.labels.get(LABEL + "gpu", "")
    flash = image.labels.get(LABEL + "flash-attn", "0")
    name, what = f"image-gpu:{gpu}", f"image on {gpu}"
    if made_for == gpu:
        return Line(id=name, what=what, seen=f"made for {made_for}", verdict=Verdict.OK)
    fix = (f"an image for it: knowngood pick --gpu {gpu}",)
    if flash.startswith("2.") and not runs(gpu, [made_for.removeprefix("sm_")]):
        return Line(
            id=name,
            what=what,
            seen=f"made for {made_for}",
            verdict=Verdict.BAD,
            because=f"its flash-attn {flash} was compiled for {made_for} alone",
            fix=fix,
            incidents=("cuda-no-kernel-image",),
        )
    because = f"nobody watched it train on {gpu}"
    return Line(id=name, what=what, seen=f"made for {made_for}", verdict=Verdict.WARN, because=because, fix=fix)


def _versions(checked: Result) -> Iterator[Line]:
    errors = [item for item in checked.findings if item.severity == "error" and item.id != "driver-for-cuda"]
    for item in errors:
        shown = " ".join(f"{name} {version}" for name, version in item.packages.items())
        fixes = tuple(str(fix.get("note", "")) for fix in item.fix) or ("another image: knowngood pick",)
        yield Line(
            id=f"versions:{item.id}",
            what="versions",
            seen=shown,
            verdict=Verdict.BAD,
            because=item.because,
            fix=fixes,
            source=item.source,
        )
    if not errors:
        verdict = Verdict.UNKNOWN if str(checked.verdict) == "unknown" else Verdict.OK
        word = "no rule is broken" if str(checked.verdict) == "broken" else str(checked.verdict)
        yield Line(id="versions", what="versions", seen=word, verdict=verdict, source=checked.evidence)


def _runtime(runtimes: Sequence[str]) -> Line:
    if "nvidia" in runtimes:
        return Line(id="runtime", what="engine's NVIDIA runtime", seen="nvidia", verdict=Verdict.OK)
    return Line(
        id="runtime",
        what="engine's NVIDIA runtime",
        seen=", ".join(runtimes) or "none",
        verdict=Verdict.BAD,
        because="docker run --gpus needs NVIDIA's container toolkit",
        fix=("install nvidia-container-toolkit; nvidia-ctk runtime configure; restart the engine",),
    )
