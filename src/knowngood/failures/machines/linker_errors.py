"""What a linker, nvcc or CMake says of why a build ended, where no line of a source is at fault. Pure.

A compiler's error names a file and a line; these name a library, an option or a part that is not found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from knowngood.compat.incident import IncidentKind, OwnComponent
from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.failures.logs.last_errors import LastError
from knowngood.failures.names.message_causes import MessageCause, describe_traceback
from knowngood.failures.names.name_situation import advise

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
                f"{symbol} is a symbol of the system's C library with its version. The compiler "
                "(conda's, with a sysroot of its "
                "own) links against an older one than the library that it joins."
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
            incident = describe_traceback(
                "build-reason",
                IncidentKind.SOURCE_BUILD,
                reason.component,
                title=reason.title,
                because=reason.because,
                fixes=[advise(fix) for fix in reason.fixes],
            )
            incident = replace(incident, source=("the message of the linker, nvcc or CMake",))
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
                f"-l{name} wants a file lib{name}.so. The driver brings only lib{name}.so.1, and a container "
                "gets it from "
                "the host; the CUDA toolkit has a stub of it for building."
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
                f"Compiling went well; then the linker looked for lib{name}.so in the folders that -L names and in the "
                "system's. The toolkit is installed without it (only nvcc, or only the wheels of torch, "
                "whose libraries have "
                "names with a number), or in a folder that is not among them (lib64 of CUDA_HOME)."
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
            "nvcc stops before it compiles: the options that the build gives it are not those that this "
            "release of the CUDA "
            "toolkit takes, or its own configuration and host compiler are not as it needs them."
        ),
        fixes=(
            (
                "nvcc --version, beside torch.version.cuda: a toolkit of torch's CUDA, named by CUDA_HOME and "
                "first in PATH"
            ),
            "A newer release of the package that is built, made for this CUDA; or a ready wheel, which needs no nvcc",
        ),
    )
