"""Judges environment variables that break things or change what runs: one small function for each. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from knowngood.compat.rule_relations import parse_capability
from knowngood.doctor.doctor_line import BAD, OK, WARN, DoctorLine, DoctorVerdict
from knowngood.doctor.system_state import SystemState

VariableJudge = Callable[[DoctorLine, str, SystemState, tuple[str, ...]], DoctorLine | None]
"""Takes the line to judge, the variable's value, the system's state and the architectures of the GPUs; returns the
judged line, or `None` when the variable has no effect here."""

_ON = frozenset({"1", "true", "yes", "on"})


def judge_variables(state: SystemState, gpus: tuple[str, ...]) -> Iterator[DoctorLine]:
    """Judge each variable that has an effect here; without any, yield one line that says so."""
    lines = [
        judged
        for name, judge in _JUDGES.items()
        if (value := state.machine.variables.get(name)) is not None
        and (judged := judge(DoctorLine(f"variable:{name}", name, value or "(empty)"), value, state, gpus)) is not None
    ]
    yield from lines or [DoctorLine("variables", "environment variables", "none that would change what runs")]


def _judge_library_path(line: DoctorLine, _value: str, state: SystemState, _: tuple[str, ...]) -> DoctorLine | None:
    if not state.shadows:
        return None
    names = ", ".join(f"{item.name} from {item.taken}" for item in state.shadows[:3])
    more = f" and {len(state.shadows) - 3} more" if len(state.shadows) > 3 else ""
    because = f"it is searched before the folders of the installed wheels: {names}{more}, for {state.shadows[0].by}"
    folders = ", ".join(sorted({item.taken.rpartition("/")[0] for item in state.shadows}))
    nvjitlink = any("nvJitLink" in item.name for item in state.shadows)
    return line.judged(
        WARN,
        because,
        f"unset LD_LIBRARY_PATH, or remove {folders} from it",
        incidents=("cusparse-nvjitlink",) if nvjitlink else (),
    )


def _judge_python_path(line: DoctorLine, value: str, state: SystemState, _: tuple[str, ...]) -> DoctorLine | None:
    python = state.python
    other = re.search(r"python(\d+\.\d+)/", value)
    if other and python and python.version and not python.version.startswith(f"{other[1]}."):
        because = f"it puts packages of Python {other[1]} before those of this Python {python.version}"
        return line.judged(BAD, because, "unset PYTHONPATH")
    folders = tuple(f"{folder}/" for folder in value.split(":") if folder)
    names = [item.name for item in state.distributions if item.info.startswith(folders)]
    if names:
        because = f"it puts {', '.join(names[:3])}{' and more' if names[3:] else ''} before what is installed"
        return line.judged(WARN, because, "unset PYTHONPATH unless that is intended")
    return None


def _judge_cuda_home(line: DoctorLine, value: str, state: SystemState, _: tuple[str, ...]) -> DoctorLine | None:
    """Judge a folder without nvcc; an nvcc of another release than torch's is the line about nvcc."""
    nvcc = state.machine.nvcc
    if nvcc and nvcc.problem and nvcc.path.startswith(value.rstrip("/") + "/"):
        return line.judged(
            WARN, nvcc.problem, "unset it, or set it to the folder of a toolkit", incidents=("cuda-home-not-set",)
        )
    return None


def _judge_arch_list(line: DoctorLine, value: str, _: SystemState, gpus: tuple[str, ...]) -> DoctorLine | None:
    listed = re.findall(r"(\d+)\.(\d+)[af]?(\+PTX)?", value)
    for gpu in gpus if listed else ():
        major, minor = parse_capability(gpu)
        has_binary_code = any(int(a) == major and int(b) <= minor for a, b, _ in listed)
        has_older_ptx = any((int(a), int(b)) <= (major, minor) for a, b, ptx in listed if ptx)
        if not (has_binary_code or has_older_ptx):
            because = f"extensions compiled under this setting get no code for {gpu}"
            fix = f"TORCH_CUDA_ARCH_LIST={major}.{minor}"
            return line.judged(BAD, because, fix, incidents=("cuda-no-kernel-image",))
    return None


def _judge_visible_devices(line: DoctorLine, value: str, state: SystemState, _: tuple[str, ...]) -> DoctorLine | None:
    count = len(state.nvidia.gpus)
    if not count:
        return None
    words = [word.strip() for word in value.split(",")]
    if not value.strip() or words[0] == "-1":
        return line.judged(BAD, "it hides every GPU from CUDA", "unset CUDA_VISIBLE_DEVICES")
    wrong = [word for word in words if word.isdigit() and int(word) >= count]
    if wrong:
        because = f"there is no GPU {wrong[0]} (there are {count}, from 0); it and all after it are hidden"
        return line.judged(BAD, because, f"name GPUs from 0 to {count - 1}" if count > 1 else "CUDA_VISIBLE_DEVICES=0")
    return line.judged(OK, f"CUDA sees {len(words)} of {count} GPUs")


def _judge_container_gpus(line: DoctorLine, value: str, *_: object) -> DoctorLine | None:
    if value not in ("void", "none", ""):
        return None
    return line.judged(WARN, "it asks NVIDIA's runtime for a container without GPUs", "start it with --gpus all")


def _judge_bitsandbytes(line: DoctorLine, value: str, state: SystemState, _: tuple[str, ...]) -> DoctorLine | None:
    cuda = state.torch.cuda if state.torch else None
    if cuda is None or value == cuda.replace(".", ""):
        return None
    because = f"bitsandbytes loads its binary for CUDA {value}; torch has CUDA {cuda}"
    return line.judged(WARN, because, "unset BNB_CUDA_VERSION", incidents=("bitsandbytes-binary-missing",))


def _judge_use_torch(line: DoctorLine, value: str, *_: object) -> DoctorLine | None:
    if value.lower() not in {"0", "off", "no", "false"}:
        return None
    return line.judged(BAD, "transformers behaves as if torch were not installed", "unset USE_TORCH")


def _judge_preload(line: DoctorLine, value: str, *_: object) -> DoctorLine | None:
    if not value:
        return None
    because = "its libraries are loaded before all others, in every program"
    return line.judged(WARN, because, "unset LD_PRELOAD unless that is intended (for an allocator, for example)")


def _judge_python_home(line: DoctorLine, _value: str, *_: object) -> DoctorLine:
    return line.judged(BAD, "it gives every python another standard library than its own", "unset PYTHONHOME")


def _judge_switch(because: str, fix: str, verdict: DoctorVerdict = WARN) -> VariableJudge:
    """Return a judge of a variable that has its effect when it is turned on."""

    def judge(line: DoctorLine, value: str, *_: object) -> DoctorLine | None:
        return line.judged(verdict, because, fix) if value.lower() in _ON else None

    return judge


def _judge_debugging_switch(because: str) -> VariableJudge:
    return _judge_switch(because, "unset it when you have finished debugging")


_judge_offline = _judge_switch("nothing is fetched from the hub: what is not in the cache is an error", "unset it")
_judge_compile_off = _judge_debugging_switch("torch.compile does nothing; FlexAttention runs unfused")

_JUDGES: Mapping[str, VariableJudge] = {
    "LD_LIBRARY_PATH": _judge_library_path,
    "LD_PRELOAD": _judge_preload,
    "PYTHONPATH": _judge_python_path,
    "PYTHONHOME": _judge_python_home,
    "CUDA_HOME": _judge_cuda_home,
    "CUDA_PATH": _judge_cuda_home,
    "TORCH_CUDA_ARCH_LIST": _judge_arch_list,
    "CUDA_VISIBLE_DEVICES": _judge_visible_devices,
    "NVIDIA_VISIBLE_DEVICES": _judge_container_gpus,
    "HF_HUB_OFFLINE": _judge_offline,
    "TRANSFORMERS_OFFLINE": _judge_offline,
    "HF_DATASETS_OFFLINE": _judge_offline,
    "BNB_CUDA_VERSION": _judge_bitsandbytes,
    "USE_TORCH": _judge_use_torch,
    "TRITON_INTERPRET": _judge_switch(
        "Triton interprets kernels on the CPU, thousands of times slower", "unset TRITON_INTERPRET", BAD
    ),
    "CUDA_LAUNCH_BLOCKING": _judge_debugging_switch("every kernel launch waits for its end: for debugging only"),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": _judge_debugging_switch(
        "every tensor is allocated by the driver: for debugging only"
    ),
    "TORCHDYNAMO_DISABLE": _judge_compile_off,
    "TORCH_COMPILE_DISABLE": _judge_compile_off,
    "PYTORCH_NVML_BASED_CUDA_CHECK": _judge_debugging_switch(
        "torch.cuda.is_available() asks NVML, and says yes where CUDA itself cannot start"
    ),
}
JUDGED_VARIABLES = tuple(_JUDGES)
"""The environment variables that are examined."""
