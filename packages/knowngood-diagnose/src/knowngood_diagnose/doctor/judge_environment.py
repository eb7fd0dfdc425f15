"""Judges the interpreter, the metadata, versions by `check`, and the environment variables. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from knowngood.core.gpus import parse_capability
from knowngood_diagnose.doctor.doctor_line import BAD, NOT_APPLICABLE, OK, UNKNOWN, WARN, DoctorLine, DoctorVerdict
from knowngood_diagnose.doctor.system_state import SystemState
from knowngood_facts.python_environment import FileOverlap, InstalledDistribution

if TYPE_CHECKING:
    from knowngood_facts.compat.check_answer import CheckAnswer
    from knowngood_facts.compat.findings import Finding

_JUDGED_ELSEWHERE = frozenset({"driver-for-cuda", "torch-runs-on-gpu", "binary:torch:glibc"})
"""Findings of `check` that other lines state better, because the doctor has examined the binary itself."""
_HARMLESS_FILES = ("tests/", "test/", "docs/", "examples/", "benchmarks/", "LICENSE", "README", "licenses/")


def judge_environment(state: SystemState, answer: CheckAnswer | None) -> Iterator[DoctorLine]:
    """Judge the environment, the interpreter first; `answer` is what `check` says about its versions."""
    yield _judge_python(state)
    yield _judge_torch(state)
    yield _judge_metadata(state)
    yield from _judge_duplicates(state, answer)
    yield from _judge_overlaps(state)
    if answer is not None:
        yield from _judge_versions(state, answer)


def _judge_python(state: SystemState) -> DoctorLine:
    python = state.python
    if python is None:
        return DoctorLine("python", "Python", "not examined").judged(NOT_APPLICABLE)
    line = DoctorLine("python", "Python", f"{python.version or '?'}, {python.path} ({python.why})")
    if python.problem:
        fix = "create the environment again, or name another interpreter with --python"
        return line.judged(BAD, python.problem, fix)
    return line


def _judge_torch(state: SystemState) -> DoctorLine:
    torch = state.torch
    if torch is None:
        return DoctorLine("torch", "torch", "not installed").judged(NOT_APPLICABLE)
    abi = {True: ", C++11 ABI", False: ", old C++ ABI", None: ""}[torch.cxx11abi]
    cuda = f"CUDA {torch.cuda}" if torch.cuda else "a CPU build"
    line = DoctorLine("torch", "torch", f"{torch.version}, {cuda}{abi}")
    installed = state.packages.get("torch", "")
    if installed and installed.partition("+")[0] != torch.version.partition("+")[0]:
        because = f"its metadata says {installed}, its files are of {torch.version}"
        fix = f"pip install --force-reinstall --no-cache-dir torch=={installed.partition('+')[0]}"
        return line.judged(BAD, because, fix)
    if torch.cuda is None and state.nvidia.gpus:
        because = "there is a GPU, and this torch has no CUDA"
        return line.judged(BAD, because, "reinstall torch from the default index, without +cpu")
    return line


def _judge_metadata(state: SystemState) -> DoctorLine:
    count = f"{len(state.distributions)} distributions"
    if not state.broken:
        return DoctorLine("metadata", "metadata", count)
    path, why = next(iter(state.broken.items()))
    more = f" (and {len(state.broken) - 1} more)" if len(state.broken) > 1 else ""
    because = f"{why}; pip, and programs that ask for versions, fail or err because of it"
    fix = f"remove {path}, and reinstall the distribution that it belonged to"
    return DoctorLine("metadata", "metadata", f"{count}; {path}{more}").judged(WARN, because, fix)


def _judge_duplicates(state: SystemState, answer: CheckAnswer | None) -> Iterator[DoctorLine]:
    """Judge distributions that are installed more than once: Python takes the first, its files may be the other's.

    In different folders (Debian's, the user's) that is normal; only distributions with binaries or facts get a line.
    """
    important = {(item.distribution or "").partition(" ")[0] for item in state.binaries}
    important |= state.packages.keys() - answer.uncovered.keys() if answer else set()
    by_name: dict[str, list[InstalledDistribution]] = defaultdict(list)
    for item in state.distributions:
        by_name[item.name].append(item)
    for name, items in by_name.items():
        one_folder = len({item.info.rpartition("/")[0] for item in items}) == 1
        one_version = len({item.version for item in items}) == 1
        if len(items) < 2 or (one_folder and one_version):  # Debian has a .dist-info and an .egg-info for one release
            continue
        if not one_folder and name not in important:
            continue
        if one_folder:
            because = "two releases in one folder: which of them a file belongs to is not known"
        else:
            because = f"Python takes {items[0].version} of {items[0].info.rpartition('/')[0]}"
            because += "" if one_version else "; the other one is never used"
        line = DoctorLine(f"twice:{name}", f"{name} installed twice", ", ".join(item.info for item in items))
        yield line.judged(
            BAD if one_folder else WARN,
            because,
            f"pip uninstall -y {name}, until it says that none is installed; then install one",
            incidents=("flash-attn-two-installations",) if name == "flash-attn" and not one_version else (),
        )


def _judge_overlaps(state: SystemState) -> Iterator[DoctorLine]:
    """Judge different distributions that wrote the same files."""
    subject = "files of two distributions"
    harmless: list[FileOverlap] = []
    for item in state.overlaps:
        first, second = (text.partition(" ")[0] for text in (item.first, item.second))
        if first == second:
            continue  # `_judge_duplicates` has a line about it
        paths = [_relative_path(state, path) for path in item.paths]
        if all(path.startswith(_HARMLESS_FILES) or "/" not in path for path in paths):
            harmless.append(item)
            continue
        more = f" and {len(paths) - 1} more files" if paths[1:] else ""
        line = DoctorLine(f"shared:{first}:{second}", subject, f"{item.first} and {item.second}: {paths[0]}{more}")
        yield line.judged(
            WARN,
            "both wrote them, with different contents: the last one won; to uninstall one breaks the other",
            f"install {second} last (flash_attn/cute belongs to it)"
            if {first, second} == {"flash-attn", "flash-attn-4"}
            else f"uninstall {first} or {second}, and install the other again",
        )
    if harmless:
        names = ", ".join(f"{item.first} and {item.second}" for item in harmless[:2])
        yield DoctorLine("shared", subject, f"only tests, examples or licences ({names})")


def _relative_path(state: SystemState, path: str) -> str:
    folders = state.python.folders if state.python else ()
    return next((path.removeprefix(f"{folder}/") for folder in folders if path.startswith(f"{folder}/")), path)


def _judge_versions(state: SystemState, answer: CheckAnswer) -> Iterator[DoctorLine]:
    verdicts = {"error": BAD, "warning": WARN}
    relevant = [item for item in answer.findings if item.id not in _JUDGED_ELSEWHERE and item.severity in verdicts]
    findings = [item for item in relevant if not item.when]
    first_error = next((item for item in findings if item.severity == "error"), None)
    for item in findings:
        yield _finding_line(item, verdicts[item.severity], answer.changes if item is first_error else None)
    if conditional := [item for item in relevant if item.when]:
        yield _conditional_line(conditional)
    if first_error is None:
        yield _coverage_line(state, answer)


def _coverage_line(state: SystemState, answer: CheckAnswer) -> DoctorLine:
    """Return the line for versions without an error: what `check` answers, and how much of them has facts."""
    covered = len(state.packages) - len(answer.uncovered)
    word = str(answer.covered_verdict)
    if word == "broken":  # by findings that have lines of their own
        word, verdict = "no rule but those above is broken", OK
    elif covered <= 0:
        verdict = NOT_APPLICABLE
    else:
        verdict = UNKNOWN if word == "unknown" else OK
    line = DoctorLine("versions", "versions", f"{word}; {covered} of {len(state.packages)} distributions have facts")
    if verdict is not UNKNOWN:
        return line.judged(verdict, source=answer.evidence)
    because = next((item.because for item in answer.findings if item.id.startswith("unknown:")), "")
    return line.judged(UNKNOWN, because, "knowngood check --here gives the full answer", source=answer.evidence)


def _conditional_line(findings: list[Finding]) -> DoctorLine:
    """Return the line about failures of certain uses; whether somebody uses it so cannot be observed here."""
    keys = sorted({key for item in findings for key in item.when})
    shown = f"{len(findings)} are known of these versions, by {', '.join(keys)}; "
    line = DoctorLine(
        "versions:use", "ways of use that fail", shown + "knowngood check --here --with KEY=VALUE judges yours"
    )
    return line.judged(OK, incidents=tuple(item.id for item in findings if item.kind == "incident"))


def _finding_line(item: Finding, verdict: DoctorVerdict, changes: Mapping[str, str] | None) -> DoctorLine:
    fixes = [_describe_fix(fix) for fix in item.fix]
    if changes:
        listed = ", ".join(f"{name} {version}" for name, version in changes.items())
        fixes.append(f"these changes would fix all of it: {listed}")
    packages = " ".join(f"{name} {version}" for name, version in item.packages.items())
    incidents = (item.id,) if item.kind == "incident" else ()
    line = DoctorLine(f"versions:{item.id}", "versions", packages)
    return line.judged(verdict, item.because, *fixes, incidents=incidents, source=item.source)


def _describe_fix(fix: Mapping[str, Any]) -> str:
    change = ", ".join(f"{name} {version}" for name, version in (fix.get("change") or {}).items())
    return ": ".join(filter(None, [change, str(fix.get("note", ""))]))


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
    return line.judged(WARN, because, "unset BNB_CUDA_VERSION", incidents=("bitsandbytes-cuda-setup",))


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
