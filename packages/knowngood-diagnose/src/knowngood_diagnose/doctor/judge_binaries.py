"""Judges installed binaries: whole, for this Python, loadable, for this torch, with code for this GPU. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from knowngood.core.gpus import code_runs_on_gpu, parse_capability
from knowngood.index.gpu_code import describe_gpu_code, sort_architectures
from knowngood_diagnose.doctor.doctor_line import BAD, NOT_APPLICABLE, OK, WARN, DoctorLine

if TYPE_CHECKING:
    from knowngood_diagnose.doctor.system_state import InstalledBinary, SystemState

_SHOWN = 3
_NVIDIA = re.compile(r"nvidia-|cuda-")


def judge_binaries(state: SystemState, gpus: Sequence[str], diagnose: LogDiagnosis) -> Iterator[DoctorLine]:
    """Yield a line for torch, then for each distribution that has GPU code, is linked with torch or is broken.

    `gpus` are the architectures to judge for. All other binaries share one line, and so do NVIDIA's libraries.
    """
    groups: dict[str, list[InstalledBinary]] = defaultdict(list)
    for binary in state.binaries:
        groups[binary.distribution or "installed by nobody"].append(binary)
    quiet: list[InstalledBinary] = []
    optional: list[InstalledBinary] = []
    nvidia: list[str] = []
    for name, binaries in sorted(groups.items(), key=lambda item: (not item[0].startswith("torch "), item[0])):
        group = _BinaryGroup(name, binaries, state, gpus, diagnose)
        line = group.judge()
        of_interest = any(item.code or item.torch for item in binaries) or name.startswith("torch ")
        if line.verdict in (OK, NOT_APPLICABLE) and not of_interest:
            quiet += binaries
            optional += group.unloadable_modules()
        elif line.verdict is OK and _NVIDIA.match(name):
            nvidia.append(re.sub(r"^nvidia-|-cu\d+(?= )", "", name))
        else:
            yield line
    if nvidia:
        yield DoctorLine("binary:nvidia", "NVIDIA's libraries", ", ".join(nvidia))
    if quiet:
        yield _quiet_binaries_line(quiet, optional)


def _quiet_binaries_line(binaries: Sequence[InstalledBinary], optional: Sequence[InstalledBinary]) -> DoctorLine:
    """Return the line about all binaries that are in order; `optional` are modules among them that lack something."""
    count = len({item.distribution for item in binaries})
    shown = f"{len(binaries)} libraries of {count} distributions: whole"
    if optional:
        names = ", ".join(item.path.rpartition("/")[2].partition(".cpython")[0] for item in optional[:_SHOWN])
        more = f" and {len(optional) - _SHOWN} more" if optional[_SHOWN:] else ""
        shown += f"; optional modules that cannot be loaded here: {names}{more}"
    else:
        shown += ", and what they need is found"
    return DoctorLine("binary:others", "other binaries", shown)


class _BinaryGroup:
    """The binaries of one distribution."""

    def __init__(
        self,
        name: str,
        binaries: Sequence[InstalledBinary],
        state: SystemState,
        gpus: Sequence[str],
        diagnose: LogDiagnosis,
    ) -> None:
        self.name, self.binaries, self.state, self.gpus, self.diagnose = name, binaries, state, gpus, diagnose
        self.package = name.partition(" ")[0]
        self.loadable = [item for item in binaries if is_loadable(item, state)]

    def judge(self) -> DoctorLine:
        """Return the line about the gravest fault, or one without a fault."""
        judges = (
            self._judge_damage,
            self._judge_python,
            self._judge_loading,
            self._judge_abi,
            self._judge_numpy,
            self._judge_gpu_code,
            self._judge_lazy_symbols,
        )
        return next((line for judge in judges if (line := judge())), self._line())

    def unloadable_modules(self) -> list[InstalledBinary]:
        """Return the modules of this Python that cannot be loaded here, which is no fault in optional ones."""
        return [item for item in self.binaries if item.module and not item.other_python and item not in self.loadable]

    def _line(self, observation: str = "") -> DoctorLine:
        return DoctorLine(f"binary:{self.package}", self.name.partition("+")[0], observation or self._describe())

    def _describe(self) -> str:
        with_code = [item for item in self.loadable if item.code]
        if not with_code:
            return f"{len(self.binaries)} libraries, no GPU code" if len(self.binaries) > 1 else "no GPU code"
        largest = max(with_code, key=_amount_of_code)
        code = next(iter(largest.code))
        text = describe_gpu_code(code)
        more = frozenset().union(*(item.sass for binary in with_code for item in binary.code)) - code.sass
        text += f"; some kernels for {', '.join(sort_architectures(frozenset(more)))} too" if more else ""
        local = self.name.partition("+")[2]
        text += f"; build {local}" if local else ""
        others = len(self.binaries) - len(self.loadable)
        return text + (f"; {others} of {len(self.binaries)} libraries are for other systems" if others else "")

    def _judge_damage(self) -> DoctorLine | None:
        damaged = [item for item in self.binaries if item.damaged]
        if not damaged:
            return None
        more = f" (and {len(damaged) - 1} more)" if damaged[1:] else ""
        pin = self.name.replace(" ", "==")
        fix = f"reinstall it: pip install --force-reinstall --no-deps --no-cache-dir {pin}"
        return self._line(damaged[0].path).judged(BAD, f"{damaged[0].damaged}{more}", fix)

    def _judge_python(self) -> DoctorLine | None:
        """Judge modules of another Python, unless the same module for this Python is beside them."""
        tag = self.state.python.tag if self.state.python else ""
        stems = {_stem(item.path) for item in self.binaries if not item.other_python}
        wrong = [item for item in self.binaries if item.other_python and _stem(item.path) not in stems]
        if not wrong:
            return None
        other, own = wrong[0].other_python.split("-x86")[0], tag.split("-x86")[0]
        return self._line(wrong[0].path).judged(
            BAD,
            f"it was compiled for {other}; this Python is {own}, and does not find it",
            f"a wheel or a build of {self.package} for this Python",
            incidents=("flash-attn-wheel-other-python",) if self.package == "flash-attn" else (),
        )

    def _judge_loading(self) -> DoctorLine | None:
        """Judge what Python certainly loads; of what is loaded on demand, one library with GPU code must load."""
        whole = [item for item in self.binaries if not item.other_python]
        failing = [item for item in whole if item.used and item not in self.loadable]
        own = [item for item in failing if self._is_own_fault(item)]
        if own and not self._is_grave(own, whole):
            return None
        if failing and not own:
            because = "torch itself cannot be loaded (its line says why)"
            return self._line(failing[0].path).judged(BAD, because, "repair torch first")
        if not own:
            own = [item for item in whole if item.code and not item.used]
            if not own or any(item in self.loadable for item in own) or any(item.used for item in whole):
                return None
        worst = max(own, key=lambda item: (_amount_of_code(item), len(undefined_symbols(item, self.state))))
        failure = explain_load_failure(worst, self.package, self.state, self.diagnose)
        return self._line(worst.path).judged(BAD, failure.because, *failure.fix, incidents=failure.incidents)

    def _is_grave(self, failing: Sequence[InstalledBinary], whole: Sequence[InstalledBinary]) -> bool:
        """Return false for modules that a package tries and does without: numba's for TBB, mpi4py's for each MPI."""
        sure = any(item.torch or item.linked.versions for item in failing) or self.package == "torch"
        return sure or len(failing) == sum(item.used for item in whole)

    def _is_own_fault(self, binary: InstalledBinary) -> bool:
        """Return false when the fault is in a library of another distribution that this one needs."""
        paths = tuple(f"/{item.path}" for item in self.binaries)
        missing = [by for name, by in binary.linked.missing if name not in DRIVER_LIBRARIES]
        undefined = undefined_symbols(binary, self.state)
        return bool(undefined or binary.linked.versions or any(by.endswith(paths) for by in missing))

    def _judge_abi(self) -> DoctorLine | None:
        torch_abi = self.state.torch.cxx11abi if self.state.torch else None
        wrong = [
            item for item in self.binaries if None not in (item.cxx11abi, torch_abi) and item.cxx11abi != torch_abi
        ]
        if not wrong:
            return None
        return self._line(wrong[0].path).judged(
            BAD,
            f"its C++11 ABI is {str(wrong[0].cxx11abi).lower()}, torch's is {str(torch_abi).lower()}",
            f"a build of {self.package} with cxx11abi{str(torch_abi).upper()}",
            incidents=("flash-attn-cxx11-abi",) if self.package == "flash-attn" else (),
        )

    def _judge_numpy(self) -> DoctorLine | None:
        numpy = self.state.packages.get("numpy", "1")
        old = [item for item in self.binaries if item.numpy_1]
        if not old or int(numpy.partition(".")[0]) < 2:
            return None
        because = f"it was compiled with NumPy 1 and fails with NumPy {numpy}"
        fix = f"pip install 'numpy<2', or a newer release of {self.package}"
        return self._line(old[0].path).judged(BAD, because, fix, incidents=("numpy-1-binary-on-numpy-2",))

    def _judge_gpu_code(self) -> DoctorLine | None:
        """Judge whether there is code for each GPU; NVIDIA's own libraries also keep code in forms of their own."""
        with_code = [item for item in self.loadable if item.code]
        if not with_code or _NVIDIA.match(self.name):
            return None
        for gpu in self.gpus:
            runnable = [item for item in with_code if any(code_runs_on_gpu(gpu, c.sass, c.ptx) for c in item.code)]
            if not runnable or (self.package == "torch" and not any("libtorch_cuda.so" in x.path for x in runnable)):
                blackwell = self.package == "torch" and parse_capability(gpu) >= (10, 0)
                return self._line().judged(
                    BAD,
                    f"it has no code that runs on {gpu}, whatever the driver",
                    f"a build of {self.package} for {gpu}; knowngood pick --gpu {gpu} names versions that fit together",
                    incidents=("torch-without-gpu-code" if blackwell else "cuda-no-kernel-image",),
                )
            lacking = sorted(item.path.rpartition("/")[2] for item in with_code if item not in runnable)
            if lacking:
                because = f"{', '.join(lacking)} has no code that runs on {gpu}: its functions do not work there"
                return self._line().judged(WARN, because)
        return None

    def _judge_lazy_symbols(self) -> DoctorLine | None:
        """Judge symbols that are missed only in a call, in the library with the most GPU code."""
        late = [(item, names) for item in self.binaries if (names := lazily_missed_symbols(item))]
        if not late:
            return None
        worst, names = max(late, key=lambda pair: _amount_of_code(pair[0]))
        shown = "; ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if names[_SHOWN:] else "")
        because = f"it is loaded lazily, and fails when it calls what no library here has ({len(names)}): {shown}"
        return self._line(worst.path).judged(WARN, because)


def _amount_of_code(binary: InstalledBinary) -> int:
    return sum(binary.code.values())


def _stem(path: str) -> str:
    return path.partition(".cpython-")[0].partition(".abi3")[0].removesuffix(".so")


DRIVER_LIBRARIES = frozenset(
    {
        "libcuda.so",
        "libcuda.so.1",
        "libnvidia-ml.so.1",
        "libnvcuvid.so.1",
        "libnvidia-encode.so.1",
    }
)
"""Libraries that come with the driver, not with a package."""

LogDiagnosis = Callable[[str], tuple[str, ...]]
"""From a log to the ids of the incidents that it shows, best match first."""

_TORCH_SYMBOL = re.compile(r"_ZNK?(3c10|2at|5torch)")
_DRIVER_SYMBOL = re.compile(r"cu[A-Z]|nvml[A-Z]|cuvid[A-Z]|NvEncode")
_TORCH_LIBRARY = re.compile(r"lib(torch|c10)(_\w+)?\.so")
_OTHER_TORCH = {
    "flash-attn": "extension-other-torch",
    "vllm": "extension-other-torch",
    "xformers": "xformers-extensions-not-loaded",
}
"""Package -> the incident of a build for another torch, for packages that hide ld.so's own message."""
_WITHOUT_LIBRARY = {"bitsandbytes": "bitsandbytes-cuda-setup", "xformers": "xformers-extensions-not-loaded"}
"""Package -> the incident of a build for another CUDA."""


@dataclass(frozen=True, kw_only=True)
class LoadFailure:
    """Why a binary cannot be loaded."""

    because: str
    fix: tuple[str, ...]
    incidents: tuple[str, ...] = ()


def missing_libraries(binary: InstalledBinary) -> list[str]:
    """Return the names of the libraries that are not found, without those of the driver."""
    return list(dict.fromkeys(name for name, _ in binary.linked.missing if name not in DRIVER_LIBRARIES))


def undefined_symbols(binary: InstalledBinary, state: SystemState) -> list[str]:
    """Return the symbols that none of the libraries has.

    Where the driver is missing, its symbols do not count. Where another library is missing, only those count that
    torch would have.
    """
    if not missing_libraries(binary):
        return _without_driver_symbols(binary, binary.linked.undefined)
    return [text for text in binary.linked.undefined if _TORCH_SYMBOL.match(text)] if state.torch else []


def lazily_missed_symbols(binary: InstalledBinary) -> list[str]:
    """Return the symbols whose absence shows only in a call; where the driver is missing, its symbols do not count."""
    return _without_driver_symbols(binary, binary.linked.later)


def _without_driver_symbols(binary: InstalledBinary, symbols: tuple[str, ...]) -> list[str]:
    return [text for text in symbols if not (binary.linked.missing and _DRIVER_SYMBOL.match(text))]


def is_loadable(binary: InstalledBinary, state: SystemState) -> bool:
    """Return whether the binary could be loaded on a machine that has the driver."""
    spoilt = binary.damaged or binary.other_python or binary.linked.versions
    return not (spoilt or missing_libraries(binary) or undefined_symbols(binary, state))


def explain_load_failure(
    binary: InstalledBinary, package: str, state: SystemState, diagnose: LogDiagnosis
) -> LoadFailure:
    """Return the gravest cause, with the incidents that `diagnose` recognises in the message that ld.so would print."""
    if binary.linked.versions:
        version, library = binary.linked.versions[0]
        message = f"ImportError: {library}: version `{version}' not found (required by {binary.path})"
        return LoadFailure(
            because=f"it needs {version}, which {library} does not have",
            fix=("a newer base system (or image)", f"or a build of {package} made on this one"),
            incidents=diagnose(message),
        )
    lacking = undefined_symbols(binary, state)
    if not lacking:
        return _explain_missing_library(binary, package, state)
    message = "\n".join(f"ImportError: {binary.path}: undefined symbol: {text}" for text in lacking)
    incidents = diagnose(message)
    names = [binary.demangled.get(text, text) for text in lacking[:_SHOWN]]
    shown = "; ".join(names) + (f" and {len(lacking) - _SHOWN} more" if lacking[_SHOWN:] else "")
    torch = state.torch
    if torch is None or not any(map(_TORCH_SYMBOL.match, lacking)):
        return _explain_other_release(lacking, shown, package, incidents)
    own = [
        name for name, by in binary.linked.missing if name not in DRIVER_LIBRARIES and by.endswith(f"/{binary.path}")
    ]
    too = f"; {', '.join(own)} not found either" if own else ""
    if binary.cache:
        fix: tuple[str, ...] = (f"rm -r {binary.cache}; it is compiled again when it is used",)
    else:
        abi = f", C++11 ABI {str(torch.cxx11abi).lower()}" if torch.cxx11abi is not None else ""
        fix = (
            f"a build of {package} for torch {torch.version} (CUDA {torch.cuda}{abi})",
            f"or compile it: pip install --no-build-isolation --no-cache-dir --force-reinstall {package}",
        )
    because = f"it was compiled for another torch; {torch.version} lacks {len(lacking)} of its symbols: {shown}{too}"
    named = (_OTHER_TORCH[package],) if package in _OTHER_TORCH else ()
    return LoadFailure(because=because, fix=fix, incidents=incidents or named)


def _explain_other_release(lacking: list[str], shown: str, package: str, incidents: tuple[str, ...]) -> LoadFailure:
    """Explain symbols that are not torch's: as a rule their library is installed in another release."""
    libraries = sorted({version for text in lacking if ".so" in (version := text.partition(", version ")[2])})
    named = ", ".join(libraries)
    if libraries:
        because = f"symbols that it needs are not in the installed {named} ({len(lacking)}): {shown}"
        fix = f"the release of {named} that {package} was built with, or another release of {package}"
    else:
        because = f"symbols that it needs are in none of its libraries ({len(lacking)}): {shown}"
        fix = f"its requirements in the releases that {package} was built with, or another release of {package}"
    return LoadFailure(because=because, fix=(fix,), incidents=incidents)


def _explain_missing_library(binary: InstalledBinary, package: str, state: SystemState) -> LoadFailure:
    names, torch = missing_libraries(binary), state.torch
    if torch is None and any(map(_TORCH_LIBRARY.fullmatch, names)):
        because = "it is linked with torch, and torch is not installed"
        return LoadFailure(because=because, fix=("install the torch that it was built for",))
    stem = names[0].partition(".so")[0] + ".so"
    near = sorted({item.path.rpartition("/")[2] for item in state.binaries if f"/{stem}" in f"/{item.path}"})
    because = f"{', '.join(names)} not found" + (f"; installed is {', '.join(near)}" if near else "")
    if package == "torch":
        fix = "reinstall torch with everything it requires: pip install --force-reinstall torch"
    else:
        cuda = f" for CUDA {torch.cuda}" if torch and torch.cuda else ""
        fix = f"a build of {package}{cuda}, or the package that has {names[0]}"
    named = (_WITHOUT_LIBRARY[package],) if package in _WITHOUT_LIBRARY else ()
    return LoadFailure(because=because, fix=(fix,), incidents=named)
