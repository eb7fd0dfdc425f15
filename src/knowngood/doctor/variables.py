"""Environment variables that break things or change what runs: one small judge each. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from knowngood.doctor.line import Line, Verdict
from knowngood.doctor.seen import Seen
from knowngood.solving.relations import sm

Judged = tuple[Verdict, str, str, tuple[str, ...]]
"""Verdict, because, fix, incidents."""

_ON = frozenset({"1", "true", "yes", "on"})


def lines(seen: Seen, gpus: tuple[str, ...]) -> Iterator[Line]:
    """A line for each variable that means something here; one line when none does."""
    count = 0
    for name, judge in _JUDGES.items():
        value = seen.machine.variables.get(name)
        if value is None or (judged := judge(value, seen, gpus)) is None:
            continue
        verdict, because, fix, incidents = judged
        count += 1
        yield Line(
            id=f"variable:{name}",
            what=name,
            seen=value or "(empty)",
            verdict=verdict,
            because=because,
            fix=(fix,) if fix else (),
            incidents=incidents,
        )
    if not count:
        yield Line(
            id="variables",
            what="environment variables",
            seen="none that would change what runs",
            verdict=Verdict.OK,
        )


def _library_path(_value: str, seen: Seen, _: tuple[str, ...]) -> Judged | None:
    if not seen.shadows:
        return None
    names = ", ".join(f"{item.name} from {item.taken}" for item in seen.shadows[:3])
    more = f" and {len(seen.shadows) - 3} more" if len(seen.shadows) > 3 else ""
    nvjitlink = ("cusparse-nvjitlink",) if any("nvJitLink" in item.name for item in seen.shadows) else ()
    because = f"it is looked at before the installed wheels' own folders: {names}{more}, for {seen.shadows[0].by}"
    folders = ", ".join(sorted({item.taken.rpartition("/")[0] for item in seen.shadows}))
    return Verdict.WARN, because, f"unset LD_LIBRARY_PATH, or take {folders} out of it", nvjitlink


def _python_path(value: str, seen: Seen, _: tuple[str, ...]) -> Judged | None:
    other = re.search(r"python(\d+\.\d+)/", value)
    if other and seen.python and seen.python.version and not seen.python.version.startswith(f"{other[1]}."):
        because = f"it puts packages of Python {other[1]} before those of this Python {seen.python.version}"
        return Verdict.BAD, because, "unset PYTHONPATH", ()
    names = [item.name for item in seen.distributions if any(item.info.startswith(f"{x}/") for x in value.split(":"))]
    if names:
        because = f"it puts {', '.join(names[:3])}{' and more' if names[3:] else ''} before what is installed"
        return Verdict.WARN, because, "unset PYTHONPATH unless that is meant", ()
    return None


def _python_home(*_: object) -> Judged:
    return Verdict.BAD, "it gives every python another standard library than its own", "unset PYTHONHOME", ()


def _cuda_home(value: str, seen: Seen, _: tuple[str, ...]) -> Judged | None:
    nvcc = seen.machine.nvcc
    if nvcc and nvcc.problem and nvcc.path.startswith(value.rstrip("/") + "/"):
        return Verdict.WARN, nvcc.problem, "unset it, or point it at a toolkit", ("cuda-home-not-set",)
    return None  # another release than torch's is the line about nvcc


def _arch_list(value: str, _: Seen, gpus: tuple[str, ...]) -> Judged | None:
    if not gpus:
        return None
    asked = re.findall(r"(\d+)\.(\d+)[af]?(\+PTX)?", value)
    if not asked:
        return None
    for gpu in gpus:
        major, minor = sm(gpu)
        same = any(int(a) == major and int(b) <= minor for a, b, _ in asked)
        older = any((int(a), int(b)) <= (major, minor) for a, b, ptx in asked if ptx)
        if not (same or older):
            because = f"an extension that is compiled now gets no code for {gpu}"
            return Verdict.BAD, because, f"TORCH_CUDA_ARCH_LIST={major}.{minor}", ("cuda-no-kernel-image",)
    return None


def _visible(value: str, seen: Seen, _: tuple[str, ...]) -> Judged | None:
    if not seen.nvidia.gpus:
        return None
    words = [word.strip() for word in value.split(",")]
    count = len(seen.nvidia.gpus)
    if not value.strip() or words[0] == "-1":
        return Verdict.BAD, "it hides every GPU from CUDA", "unset CUDA_VISIBLE_DEVICES", ()
    wrong = [word for word in words if word.isdigit() and int(word) >= count]
    if wrong:
        because = f"there is no GPU {wrong[0]} (there are {count}, from 0); it and all after it are hidden"
        named = f"name GPUs from 0 to {count - 1}" if count > 1 else "CUDA_VISIBLE_DEVICES=0"
        return Verdict.BAD, because, named, ()
    return Verdict.OK, f"CUDA sees {len(words)} of {count} GPUs", "", ()


def _container_gpus(value: str, *_: object) -> Judged | None:
    if value in ("void", "none", ""):
        return Verdict.WARN, "it asks NVIDIA's runtime for a container without GPUs", "start it with --gpus all", ()
    return None


def _offline(value: str, *_: object) -> Judged | None:
    if value.lower() not in _ON:
        return None
    return Verdict.WARN, "nothing is fetched from the hub: what is not in the cache is an error", "unset it", ()


def _bitsandbytes(value: str, seen: Seen, _: tuple[str, ...]) -> Judged | None:
    cuda = seen.torch.cuda if seen.torch else None
    if cuda is None or value == cuda.replace(".", ""):
        return None
    because = f"bitsandbytes loads its binary for CUDA {value}; torch has CUDA {cuda}"
    return Verdict.WARN, because, "unset BNB_CUDA_VERSION", ("bitsandbytes-binary-missing",)


def _slow(because: str) -> Callable[..., Judged | None]:
    def judge(value: str, *_: object) -> Judged | None:
        return (Verdict.WARN, because, "unset it when you are done with it", ()) if value.lower() in _ON else None

    return judge


def _interpreted(value: str, *_: object) -> Judged | None:
    if value.lower() not in _ON:
        return None
    return Verdict.BAD, "Triton interprets kernels on the CPU, thousands of times slower", "unset TRITON_INTERPRET", ()


def _without_torch(value: str, *_: object) -> Judged | None:
    if value.lower() in {"0", "off", "no", "false"}:
        return Verdict.BAD, "transformers acts as if there were no torch", "unset USE_TORCH", ()
    return None


def _preload(value: str, *_: object) -> Judged | None:
    if not value:
        return None
    because = "its libraries come before all others, in every program"
    return Verdict.WARN, because, "unset LD_PRELOAD unless that is meant (an allocator, say)", ()


_JUDGES: Mapping[str, Callable[[str, Seen, tuple[str, ...]], Judged | None]] = {
    "LD_LIBRARY_PATH": _library_path,
    "LD_PRELOAD": _preload,
    "PYTHONPATH": _python_path,
    "PYTHONHOME": _python_home,
    "CUDA_HOME": _cuda_home,
    "CUDA_PATH": _cuda_home,
    "TORCH_CUDA_ARCH_LIST": _arch_list,
    "CUDA_VISIBLE_DEVICES": _visible,
    "NVIDIA_VISIBLE_DEVICES": _container_gpus,
    "HF_HUB_OFFLINE": _offline,
    "TRANSFORMERS_OFFLINE": _offline,
    "HF_DATASETS_OFFLINE": _offline,
    "BNB_CUDA_VERSION": _bitsandbytes,
    "USE_TORCH": _without_torch,
    "TRITON_INTERPRET": _interpreted,
    "CUDA_LAUNCH_BLOCKING": _slow("every kernel is waited for: for debugging only"),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": _slow("every tensor is allocated by the driver: for debugging only"),
    "TORCHDYNAMO_DISABLE": _slow("torch.compile does nothing; FlexAttention runs unfused"),
    "TORCH_COMPILE_DISABLE": _slow("torch.compile does nothing; FlexAttention runs unfused"),
    "PYTORCH_NVML_BASED_CUDA_CHECK": _slow(
        "torch.cuda.is_available() asks NVML, and says yes where CUDA itself cannot start"
    ),
}
NAMES = tuple(_JUDGES)
"""The variables that are looked at."""
