"""Why libraries do not go together: what a linker or CMake says, two releases in one process, a missing one. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from knowngood.core.lazy_patterns import lazy_pattern
from knowngood_diagnose.failures.names.message_causes import MessageCause, shorten_text
from knowngood_diagnose.failures.names.name_situation import advise, describe_failure
from knowngood_facts.compat.incident import Incident, IncidentKind, OwnComponent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from knowngood_diagnose.failures.logs.last_errors import LastError

_TOOLKIT = lazy_pattern(
    r"^(?:cuda(?:rt|rt_static|devrt)|cublas|cublasLt|cufft|cufile|curand|cusolver|cusparse|nvrtc|nvToolsExt|nvJitLink"
    r"|nppc|nvjpeg|cupti)$"
)
_STATED = lazy_pattern(
    r"(?:\bld(?:\.\w+)?: |LINK : fatal error LNK1181: )(?:cannot find |library not found for |cannot open input file ')"
    r"(?:-l)?(?P<library>[\w.+-]+)"
    r"|(?P<symbol>undefined reference to [`'](?:[^'\n@]{1,200}@+(?P<newer>GLIBC(?:XX)?_[\d.]+)|[^'\n]{1,200})')"
    r"|(?P<killed>^Killed\s*$)"
    r"|\bnvcc fatal +: +(?P<nvcc>[^\n]{3,200})"
    r"|Could NOT find (?P<part>[A-Za-z]\w*)\b(?P<detail>[^\n]{0,120})"
    r"|Could not find a package configuration file provided by \"(?P<package>\w+)\""
)
_LINKER_FIXES = (
    "In conda: conda install -c nvidia cuda-libraries-dev of torch's CUDA; or an image whose name has `devel`",
)


@dataclass(frozen=True, kw_only=True)
class BuildReason:
    """Why a build ended, as its tools say it."""

    component: str
    title: str
    because: str
    fixes: Sequence[str]


def find_build_reason(line: str) -> BuildReason | None:
    """Return what a line of a build says is missing; `None` where it says nothing of the kind."""
    stated = _STATED.search(line)
    if stated is None:
        return None
    if stated["killed"]:
        return _describe_killed()
    if stated["library"]:
        return _describe_library(stated["library"].removesuffix(".lib"))
    if stated["symbol"]:
        return _describe_symbol(stated["symbol"], stated["newer"] or "")
    if stated["nvcc"]:
        return _describe_nvcc(stated["nvcc"].strip())
    part = stated["part"] or stated["package"]
    return BuildReason(
        component=OwnComponent.CUDA if part.lower().startswith(("cuda", "cudnn", "nccl")) else OwnComponent.COMPILER,
        title=f"CMake does not find {part}, which the build needs",
        because=(
            f"CMake stops where it looks for {part}: {(stated['detail'] or '').strip(' ()') or 'it is not installed'}."
        ),
        fixes=(
            f"Install {part} with its headers (-dev), or tell CMake where it is: CMAKE_PREFIX_PATH, or {part}_ROOT",
            "A ready wheel, which needs no build",
        ),
    )


def _describe_killed() -> BuildReason:
    return BuildReason(
        component=OwnComponent.HOST_MEMORY,
        title="A compiler was killed while it built: the machine's memory was full",
        because=(
            "Between the commands of the build stands Killed: the kernel ended a compiler for want of "
            "memory. Kernels such as those "
            "of flash-attn take several GB for each compiler, and ninja starts one for each processor."
        ),
        fixes=("MAX_JOBS=2 (or 1) and NVCC_THREADS=1 before the build", "More memory or swap; or a ready wheel"),
    )


def _describe_symbol(symbol: str, version: str) -> BuildReason:
    if version:
        return BuildReason(
            component=OwnComponent.GLIBC,
            title=f"The linker works with an older C library than a library was built with ({version})",
            because=(
                f"{symbol} is a symbol of the system's C library with its version. The compiler (conda's, with a "
                "sysroot of its own) links against an older one than the library that it joins."
            ),
            fixes=(
                (
                    "One toolchain: the system's g++ (CC=/usr/bin/gcc CXX=/usr/bin/g++) with the system's CUDA, "
                    "or conda's compiler with conda's CUDA"
                ),
                "conda install sysroot_linux-64 of at least that version",
            ),
        )
    return BuildReason(
        component=OwnComponent.COMPILER,
        title=f"The linker finds no library with what the object files ask for: {symbol}",
        because=(
            "The objects were compiled and could not be joined: the library with this function is not among those "
            "that are linked, or is one of another release or of another compiler."
        ),
        fixes=(
            (
                "Build again from a clean folder (rm -r build), so that no object of another torch, CUDA or "
                "compiler is left"
            ),
            "One toolchain: the g++, the CUDA toolkit and the libraries from conda, or all of the system",
        ),
    )


def explain_build_reason(error: LastError) -> MessageCause | None:
    """Return the first reason that a linker, nvcc or CMake states in a log whose build failed; `None` without one."""
    text = error.log_end.decode("utf-8", "replace")
    for line in text.split("\n"):
        if not line.lstrip().startswith("--") and (reason := find_build_reason(line)) is not None:
            incident = describe_failure(
                "build-reason",
                IncidentKind.SOURCE_BUILD,
                reason.component,
                title=reason.title,
                because=reason.because,
                fixes=[advise(fix) for fix in reason.fixes],
                source="the message of the linker, nvcc or CMake",
            )
            return MessageCause(incident=incident, line=_find_line(error, line), package="")
    return None


def _find_line(error: LastError, line: str) -> int:
    """The number of a line above the last error, as far as that can be told; else that of the last error."""
    at = error.above.rfind(line.encode())
    return error.line - error.above.count(b"\n", at) if at >= 0 else error.line


def _describe_library(name: str) -> BuildReason:
    if name in {"cuda", "nvidia-ml"}:
        return BuildReason(
            component=OwnComponent.DRIVER,
            title=f"The linker does not find lib{name}, which comes with the driver",
            because=(
                f"-l{name} wants a file lib{name}.so. The driver brings only lib{name}.so.1, and a container gets it "
                "from the host; the CUDA toolkit has a stub of it for building."
            ),
            fixes=(
                "LIBRARY_PATH=/usr/local/cuda/lib64/stubs (in conda $CONDA_PREFIX/lib/stubs) while it builds",
                f"ldconfig, and ln -s lib{name}.so.1 lib{name}.so beside it",
            ),
        )
    if _TOOLKIT.match(name):
        return BuildReason(
            component=OwnComponent.CUDA,
            title=f"The linker does not find -l{name}: the CUDA toolkit's libraries are not where it looks",
            because=(
                f"Compiling went well; then the linker looked for lib{name}.so in the folders that -L names and in "
                "the system's. The toolkit is installed without it (only nvcc, or only the wheels of torch, whose "
                "libraries have names with a number), or in a folder that is not among them (lib64 of CUDA_HOME)."
            ),
            fixes=(
                (
                    "export CUDA_HOME=/usr/local/cuda LIBRARY_PATH=$CUDA_HOME/lib64:$LIBRARY_PATH (find / -name "
                    f"'lib{name}.so*' shows the folder)"
                ),
                (
                    f"ln -s the file lib{name}.so.NUMBER that find shows to lib{name}.so, in a folder of "
                    "LIBRARY_PATH or -L"
                ),
                *_LINKER_FIXES,
            ),
        )
    if name.startswith(("c10", "torch")):
        return BuildReason(
            component="torch",
            title=f"The linker does not find -l{name}, a library of torch",
            because=(
                "It is linked against the libraries of torch, and this torch has none of that name (a build for "
                "a CPU has no CUDA ones), or is not where the build looks."
            ),
            fixes=(
                (
                    "The torch with CUDA that the extension wants, and --no-build-isolation, so that the "
                    "installed one is used"
                ),
            ),
        )
    return BuildReason(
        component=OwnComponent.COMPILER,
        title=f"The linker does not find the library -l{name}",
        because=(
            f"lib{name}.so is not in the folders in which the linker looks: it is not installed, or only without "
            "the file for building."
        ),
        fixes=(
            (
                f"Install the package of the system with lib{name}.so (apt-file search lib{name}.so; its name "
                "mostly ends in -dev), or conda's"
            ),
            f"LIBRARY_PATH to the folder with lib{name}.so",
        ),
    )


def _describe_nvcc(words: str) -> BuildReason:
    return BuildReason(
        component=OwnComponent.CUDA,
        title=f"nvcc refuses how it is called: {words}",
        because=(
            "nvcc stops before it compiles: the options that the build gives it are not those that this release of "
            "the CUDA toolkit takes, or its own configuration and host compiler are not as it needs them."
        ),
        fixes=(
            (
                "nvcc --version, beside torch.version.cuda: a toolkit of torch's CUDA, named by CUDA_HOME and "
                "first in PATH"
            ),
            "A newer release of the package that is built, made for this CUDA; or a ready wheel, which needs no nvcc",
        ),
    )


_CLASH = lazy_pattern(
    r"(?P<path>[^\s'\"()]{0,300}/(?P<file>lib[\w.+-]+\.so[\w.]*)): (?:undefined symbol: (?P<name>\w{1,300}), version "
    r"|symbol (?P<other>\w{1,300}),? version )(?P<needed>lib[\w+-]+\.so[\w.]*)"
)
_FRAME = lazy_pattern(
    r"(?:^|\] |\s)\[? ?\d+\]? +(?P<path>/\S{1,300}?/)?(?P<file>lib[\w.+-]+\.so[\w.]*)\(|(?:#\d+\s.{0,200}? "
    r"(?:from|in) )(?P<from>\S{1,300}\.so[\w.]*)"
)
_OF_C = lazy_pattern(r"^(?:libc|libpthread|libstdc\+\+|libgcc_s|libm|libdl|libpython\S*|ld-linux\S*)[.-]")
_SYSTEM = ("/usr/local/cuda", "/usr/lib", "/lib/", "/opt/")
_OWNERS = (
    (lazy_pattern(r"libnccl"), "nccl"),
    (lazy_pattern(r"libcuda\.so|libnvidia"), "driver"),
    (lazy_pattern(r"libtorch|libc10"), "torch"),
    (lazy_pattern(r"libcudnn|libcublas|libcusparse|libcusolver|libcufft|libnvrtc|libcudart"), "cuda"),
    (lazy_pattern(r"libbitsandbytes"), "bitsandbytes"),
    (lazy_pattern(r"libtriton"), "triton"),
)


def describe_clash(incident: Incident, error: LastError) -> Incident | None:
    """Which library asks for what another one lacks, and from which folder the first was loaded."""
    stated = _CLASH.search(error.log_end.decode("utf-8", "replace"))
    if stated is None:
        return None
    path, needed = stated["path"], stated["needed"]
    symbol = shorten_text(stated["name"] or stated["other"], 60)
    of_wheels = "/nvidia/" in path or "/torch/lib" in path
    of_system = path.startswith(_SYSTEM) and not of_wheels
    if of_system:
        because = (
            f"{path} was loaded, which is not that of torch's own wheels: LD_LIBRARY_PATH or the linker's list has "
            f"its folder. It and the {needed} that is loaded already are of two releases."
        )
    else:
        because = (
            f"{path} asks {needed} for {symbol}. The {needed} that the loader found first is another one, of an older "
            "toolkit in LD_LIBRARY_PATH, of conda, of the system, or loaded by another package (TensorFlow) before."
        )
    return replace(incident.tell("clash", file=stated["file"], needed=needed, symbol=symbol), because=because)


_BUILT_FOR = lazy_pattern(
    r"xFormers was built for:\s*(?:\S+ STDERR: *)?PyTorch (?P<wanted>\d[\w.+]*) with CUDA \S+ \(you have "
    r"(?P<there>\d[\w.+]*)\)"
)


def describe_xformers(incident: Incident, error: LastError) -> Incident | None:
    """Which torch xformers was built for, and which is there; `None` where its warning does not say."""
    text = re.sub(r"(?m)^[\w ]{3,40} STDERR: ?", "", error.log_end.decode("utf-8", "replace"))
    stated = _BUILT_FOR.search(text)
    if stated is None or stated["wanted"] == stated["there"]:
        return None
    of_cpu = stated["there"].endswith("+cpu")
    wanted = stated["wanted"].partition("+")[0]
    fix = (
        (
            f"pip install torch=={wanted} --index-url of torch's index for CUDA "
            f"({stated['wanted'].partition('+')[2]}), after pip uninstall torch"
        )
        if of_cpu
        else (
            f"The xformers built for torch {stated['there']}, in one command with torch; or torch=={wanted} for "
            "this one"
        )
    )
    return replace(
        incident,
        title=f"xformers was built for torch {stated['wanted']}, and {stated['there']} is installed",
        component="torch" if of_cpu else "xformers",
        because=(
            f"The warning states both. {'This torch is a build for CPUs, without CUDA. ' if of_cpu else ''}An "
            "extension of torch is loaded only by the very release it was built with; without it xformers has no "
            "kernels, and callers fall back or fail later."
        ),
        fix=(advise(fix), *incident.fix[1:]),
    )


def describe_crash(incident: Incident, error: LastError) -> Incident | None:
    """In which library a process crashed, where the log has the frames of the crash."""
    text = error.log_end.decode("utf-8", "replace")
    for match in _FRAME.finditer(text):
        file = match["file"] or match["from"].rpartition("/")[2]
        if _OF_C.match(file):
            continue
        owner = next((name for pattern, name in _OWNERS if pattern.search(file)), "")
        path = f"{match['path'] or ''}{file}" if match["file"] else match["from"]
        return replace(
            incident,
            title=f"The process crashed inside of {file}",
            kind=IncidentKind.FAILS_INSIDE,
            component=owner or incident.component,
            because=(
                f"The innermost frame of the crash that is not of the C library is in {path}. Either that "
                "library has a defect that this "
                "machine or these inputs show, or it is another release than the one with which its callers were built."
            ),
            fix=(
                advise(
                    f"Another release of {file}, and only one of it in the process: ldd, and LD_LIBRARY_PATH "
                    "unset (torch's wheels bring their own)"
                ),
                *incident.fix[:2],
            ),
        )
    return None


_MISSING = lazy_pattern(r"(?P<file>lib[\w+-]+\.so(?:\.[\d.]*\d)?): cannot open shared object file")
_WSL = lazy_pattern(r"\bWSL\b|microsoft-standard|/mnt/[a-z]/", re.IGNORECASE)
_WHEELS = (
    (lazy_pattern(r"^libcudnn"), "nvidia-cudnn-cu12 (-cu13)"),
    (lazy_pattern(r"^libnccl"), "nvidia-nccl-cu12 (-cu13)"),
    (lazy_pattern(r"^libcusparseLt"), "nvidia-cusparselt-cu12 (-cu13)"),
    (lazy_pattern(r"^libcublas"), "nvidia-cublas-cu12 (nvidia-cublas for CUDA 13)"),
    (lazy_pattern(r"^libcusparse"), "nvidia-cusparse-cu12 (nvidia-cusparse for CUDA 13)"),
    (lazy_pattern(r"^libcusolver"), "nvidia-cusolver-cu12 (nvidia-cusolver for CUDA 13)"),
    (lazy_pattern(r"^libcurand"), "nvidia-curand-cu12 (nvidia-curand for CUDA 13)"),
    (lazy_pattern(r"^libcufft"), "nvidia-cufft-cu12 (nvidia-cufft for CUDA 13)"),
    (lazy_pattern(r"^libnvrtc"), "nvidia-cuda-nvrtc-cu12 (nvidia-cuda-nvrtc for CUDA 13)"),
    (lazy_pattern(r"^libcudart"), "nvidia-cuda-runtime-cu12 (nvidia-cuda-runtime for CUDA 13)"),
    (lazy_pattern(r"^libnvJitLink"), "nvidia-nvjitlink-cu12 (nvidia-nvjitlink for CUDA 13)"),
)


def describe_missing_library(incident: Incident, error: LastError) -> Incident | None:
    """Name the library that is missing; `None` where the log does not name one of a known owner."""
    files = [match["file"] for match in _MISSING.finditer(error.log_end.decode("utf-8", "replace"))]
    if not files:
        return None
    file = files[-1]
    if re.match(r"libcuda\.so|libnvidia-", file):
        return _describe_driver_library(incident, error, file)
    wheel = next((name for pattern, name in _WHEELS if pattern.match(file)), "")
    if not wheel:
        return None
    return replace(
        incident,
        title=f"{file} is not where the loader looks",
        because=f"{incident.because} Here it is {file}, which the wheel {wheel} has.",
        fix=(
            *incident.fix[:2],
            advise(
                f"pip install the wheel {wheel} whose library has that number, and LD_LIBRARY_PATH to its folder "
                "site-packages/nvidia/*/lib, when the binary cannot be exchanged"
            ),
        ),
    )


def _describe_driver_library(incident: Incident, error: LastError, file: str) -> Incident:
    of_wsl = bool(_WSL.search(error.log_end.decode("utf-8", "replace")))
    return replace(
        incident,
        title=f"The driver's library {file} is not where the loader looks",
        component=OwnComponent.DRIVER,
        because=(
            f"{file} comes with the driver and with no wheel. "
            + ("Under WSL it lies in /usr/lib/wsl/lib. " if of_wsl else "Under WSL it lies in /usr/lib/wsl/lib; ")
            + (
                "a container gets it from the host when it is started with a GPU. What asked for it (cuDNN, "
                "Triton) is whole."
            )
        ),
        fix=(
            advise(
                "export LD_LIBRARY_PATH=/usr/lib/wsl/lib:$LD_LIBRARY_PATH under WSL; elsewhere the folder that find "
                "/ -name 'libcuda.so*' shows, and ldconfig"
            ),
            advise(f"ln -s libcuda.so.1 {file} in that folder, when only the file with the number is there"),
            advise("In a container: --gpus all and the nvidia-container-toolkit"),
        ),
    )
