"""The first error that a C++ compiler or nvcc states in a log, and what it means for who builds an extension.

That a build failed is said again and again below it, by ninja, setuptools, torch and pip; only this line says why.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from knowngood.compat.incident import Fix, IncidentKind, OwnComponent
from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.failures.logs.log_scan import LogBlock
from knowngood.failures.names.message_causes import MessageCause, describe_traceback, shorten_text
from knowngood.failures.names.name_situation import advise

BUILD_INCIDENTS = frozenset(
    (
        "deepspeed-jit-build",
        "dynamo-failed",
        "extension-build-failed",
        "torch-extension-not-compiled",
        "wheel-not-built",
    )
)
"""The incidents of lines that only say that a build failed, or that torch.compile did, which compiles too."""
_MARK = lazy_pattern(rb"error(?: C\d{4})?: ")
_STATED = lazy_pattern(
    r"(?P<file>[^\s:()'\"]{1,300}\.(?:c|cc|cpp|cxx|cu|cuh|h|hh|hpp|hip|inl))(?::\d+(?::\d+)?|\(\d+\)) ?: "
    r"(?:fatal |catastrophic )?error(?: C\d{4})?: (?P<text>\S.*)$"
)
_HEADER = lazy_pattern(
    r"^(?P<gcc>[\w./+-]+): No such file or directory|'(?P<clang>[\w./+-]+)' file not found"
    r"|cannot open (?:source|include) file:? [\"'](?P<nvcc>[\w./+-]+)[\"']|include file '(?P<tcc>[\w./+-]+)' not found",
    re.IGNORECASE,
)
_OF_TORCH = lazy_pattern(
    r"\b(?:at|c10|torch|caffe2)::|[\"'\u2018](?:at|c10|torch)[\"'\u2019]|\b(?:AT|TORCH|C10)_[A-Z]|\bTHC?\w*\b"
)
_CALLED = lazy_pattern(r"could not convert|cannot convert|no suitable (?:conversion|constructor)|no matching function")
"""What a header of torch says of how it is used: the fault is the source's, which uses it as an older torch allowed."""
_STANDARD = lazy_pattern(r"(?P<standard>C\+\+\d\d) or later compatible compiler is required")
_SHOWN = 160
_LINE_BYTES = 2_000


@dataclass(frozen=True, kw_only=True)
class _Headers:
    """Headers that come together: whose they are, and how to get them."""

    names: re.Pattern[str]
    title: str
    component: str
    fixes: tuple[str, ...]


_FAMILIES = (
    _Headers(
        names=lazy_pattern(
            r"^(?:cu(?:da|blas|sparse|solver|fft|rand|dss)|nv(?:rtc|ml|ToolsExt|JitLink|toolsext)|cub/|thrust/|crt/"
            r"|driver_types|device_launch_parameters|math_constants)"
        ),
        title="The CUDA toolkit that compiles has not all of its headers",
        component=OwnComponent.CUDA,
        fixes=(
            (
                "Install the whole toolkit with torch's CUDA version, not only nvcc (apt-get: cuda-toolkit-12-4; "
                "conda install -c nvidia cuda-toolkit=12.4), and set CUDA_HOME to it"
            ),
            "An image whose name has `devel`: those with `runtime` have no headers",
            "When the header is in another folder (find / -name 'cusparse.h'): CPATH=that folder",
        ),
    ),
    _Headers(
        names=lazy_pattern(r"^Python\.h$"),
        title="Python's headers are missing",
        component=OwnComponent.COMPILER,
        fixes=("apt-get install python3-dev (python3.12-dev) of the very Python that runs",),
    ),
    _Headers(
        names=lazy_pattern(r"^nccl\.h$"),
        title="NCCL's header is missing",
        component=OwnComponent.NCCL,
        fixes=("apt-get install libnccl-dev; or CPATH to the folder include of the wheel nvidia-nccl-cu12",),
    ),
    _Headers(
        names=lazy_pattern(r"^cudnn"),
        title="cuDNN's headers are missing",
        component=OwnComponent.CUDA,
        fixes=("apt-get install libcudnn9-dev-cuda-12; or CUDNN_PATH and CPATH to the wheel nvidia-cudnn-cu12",),
    ),
    _Headers(
        names=lazy_pattern(r"^(?:cutlass|cute|composable_kernel|ck_tile|ck)/"),
        title="The sources came without the folders of other projects that they need",
        component=OwnComponent.YOUR_CODE,
        fixes=("git submodule update --init --recursive, in the folder of the sources; or a release from the index",),
    ),
    _Headers(
        names=lazy_pattern(r"^(?:torch|ATen|c10)/|^torch/extension\.h$"),
        title="The headers of torch that the source asks for are not in the torch that builds it",
        component="torch",
        fixes=(
            "pip install --no-build-isolation, so that it is built with the torch that is installed",
            "The release of the package that was made for this torch",
        ),
    ),
    _Headers(
        names=lazy_pattern(r"^(?:libaio|numa|mpi|omp|infiniband/\w+|libibverbs)(?:\.h)?$|^oneapi/"),
        title="A library of the system has no headers here",
        component=OwnComponent.COMPILER,
        fixes=(
            "apt-get install libaio-dev, libnuma-dev, libopenmpi-dev, libomp-dev or libibverbs-dev, as the name says",
            "Without that part: DS_BUILD_AIO=0 and the like for DeepSpeed",
        ),
    ),
    _Headers(
        names=lazy_pattern(
            r"^(?:features|stdint|stdlib|math|string|limits|bits/.*|sys/.*|c\w+|vector|memory)(?:\.h)?$"
        ),
        title="The C library's own headers are missing",
        component=OwnComponent.COMPILER,
        fixes=("apt-get install build-essential; in conda: conda install gxx_linux-64 sysroot_linux-64",),
    ),
)


@dataclass(frozen=True, kw_only=True)
class CompilerError:
    """An error that a compiler states."""

    file: str
    text: str
    line: int


class CompilerErrorReader:
    """Finds the first error of a compiler in a log (a `LogReader`)."""

    def __init__(self) -> None:
        self.error: CompilerError | None = None
        self._lines = 0

    @property
    def hints(self) -> frozenset[bytes]:
        """The word that each such line has."""
        return frozenset((b"error",))

    def feed(self, block: LogBlock, present: frozenset[bytes]) -> None:
        """Look for it in a block."""
        if present and self.error is None:
            text = block.text
            for mark in _MARK.finditer(text):
                start = text.rfind(b"\n", 0, mark.start()) + 1
                end = text.find(b"\n", mark.end())
                line = text[max(start, mark.start() - _LINE_BYTES) : end if end >= 0 else len(text)][: 2 * _LINE_BYTES]
                if stated := _STATED.search(line.decode("utf-8", "replace").rstrip()):
                    number = self._lines + text.count(b"\n", 0, mark.start()) + 1
                    self.error = CompilerError(file=stated["file"], text=stated["text"], line=number)
                    break
        self._lines += block.fresh_lines

    def finish(self) -> None:
        """Nothing is left to do at the end."""


def explain_compiler_error(error: CompilerError) -> MessageCause:
    """Return what the first error of a compiler says is missing, or does not go together."""
    shown = shorten_text(error.text, _SHOWN)
    file = "/".join(error.file.replace("\\", "/").split("/")[-2:])
    because = f"It is the first error of the compiler, in {file}: {shown}."
    if header := _HEADER.search(error.text):
        name = next(filter(None, header.groups()))
        family = next((item for item in _FAMILIES if item.names.search(name)), None)
        if family is not None:
            fixes = [advise(fix) for fix in family.fixes]
            return _cause(error, family.component, f"{family.title}: {name}", because, fixes)
        title = f"A header that the source needs is not there: {name}"
        fixes = [
            advise(
                f"Install what has {name} (apt-file search {name}), with its headers (-dev); or CPATH to its folder"
            ),
            advise("git submodule update --init --recursive, when it is one of the project's own folders"),
        ]
        return _cause(error, OwnComponent.COMPILER, title, because, fixes)
    path = error.file.replace("\\", "/")
    is_header = any(
        part in path for part in ("/include/c++/", "torch/include/", "/cuda/include/", "/targets/", "/MSVC/")
    )
    if standard := _STANDARD.search(error.text):
        return _explain_standard(error, standard["standard"], because)
    if _OF_TORCH.search(error.text) and (not is_header or _CALLED.search(error.text)):
        title = f"The source was written for another torch: {shown}"
        fixes = [
            advise("A newer release or commit of what is built, made for this torch; or a ready wheel made for it"),
            advise("The torch that its own instructions name"),
        ]
        return _cause(error, OwnComponent.COMPILER, title, because, fixes, is_likely=True)
    if is_header:
        title = f"This C++ compiler or nvcc does not take the headers of torch, CUDA or C++ itself: {shown}"
        fixes = [
            advise(
                "A g++ that the toolkit takes and that is new enough for torch (since 2.1: C++17, g++ 9 to 12): "
                "CC=gcc-11 CXX=g++-11 CUDAHOSTCXX=g++-11; on Windows the MSVC that this CUDA names"
            ),
            advise(
                "nvcc of the same CUDA as torch.version.cuda (nvcc --version); newer sources say -std=c++17 themselves"
            ),
            advise("A ready wheel, which needs no compiler"),
        ]
        return _cause(error, OwnComponent.COMPILER, title, because, fixes, is_likely=True)
    title = f"The compiler refuses the source: {shown}"
    fixes = [
        advise("A newer release or commit of what is built: its source does not go with this compiler, CUDA or torch"),
        advise("nvcc and g++ that its own instructions name; or a ready wheel, which needs no compiler"),
    ]
    return _cause(error, OwnComponent.COMPILER, title, because, fixes, is_likely=True)


def _explain_standard(error: CompilerError, standard: str, because: str) -> MessageCause:
    """A header of torch that demands a newer C++ than the option with which its caller is compiled."""
    fixes = [
        advise(
            "A newer release of what is built (of DeepSpeed, when it compiles its own operators): older "
            "ones pass -std=c++14 themselves, "
            f"which torch since 2.1 refuses; or -std={standard.lower()} in its setup.py or op_builder"
        ),
        advise("The torch of its time (before 2.1)"),
        advise(f"g++ 9 or newer, when the command above has -std={standard.lower()} already"),
    ]
    title = f"The source is compiled as an older C++ than this torch demands: {standard} or later"
    return _cause(error, OwnComponent.COMPILER, title, because, fixes, is_likely=True)


def _cause(  # noqa: PLR0913
    error: CompilerError, component: str, title: str, because: str, fixes: Sequence[Fix], *, is_likely: bool = False
) -> MessageCause:
    incident = describe_traceback(
        "compiler-error", IncidentKind.SOURCE_BUILD, component, title=title, because=because, fixes=fixes
    )
    incident = replace(incident, source=("the compiler's message",))
    return MessageCause(incident=incident, line=error.line, package="", is_likely=is_likely)
