"""Why something did not compile: the first error of a C++ compiler or nvcc, or what torch.compile or Triton says."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from knowngood.core.lazy_patterns import lazy_pattern
from knowngood_diagnose.failures.names.message_causes import MessageCause, shorten_text
from knowngood_diagnose.failures.names.name_situation import advise, describe_failure
from knowngood_facts.compat.incident import Fix, Incident, IncidentKind, OwnComponent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from knowngood_diagnose.failures.logs.last_errors import LastError
    from knowngood_diagnose.failures.logs.log_scan import LogBlock

_MARK = lazy_pattern(rb"error(?: C\d{4})?: ")
_STATED = lazy_pattern(
    r"(?P<file>[^\s:()'\"]{1,300}\.(?:c|cc|cpp|cxx|cu|cuh|h|hh|hpp|hip|inl))(?::\d+(?::\d+)?|\(\d+\)) ?: "
    r"(?:fatal |catastrophic )?error(?: C\d{4})?: (?P<text>\S.*)$"
    r"|^[\s>|]*fatal error: (?P<header>'?[\w+-]*[./][\w./+-]+'?(?:: No such file or directory| file not found))\s*$"
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
        names=lazy_pattern(r"^(?:glm|Eigen|boost|opencv2?|portaudio|sndfile|GL|GLFW|X11|lmdb|jpeglib|png)(?:/|\.h$)"),
        title="A library that the source uses is not installed with its headers",
        component=OwnComponent.COMPILER,
        fixes=(
            (
                "apt-get install -y what has it: libglm-dev, libeigen3-dev (and CPATH=/usr/include/eigen3), "
                "libboost-all-dev, libopencv-dev, portaudio19-dev, libsndfile1-dev, libgl1-mesa-dev, libx11-dev, "
                "liblmdb-dev, libjpeg-dev, libpng-dev, as the name says; or conda install glm eigen boost"
            ),
            "git submodule update --init --recursive, where the sources carry it in a folder of their own",
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
                    file, message = stated["file"] or "the source", stated["text"] or stated["header"]
                    self.error = CompilerError(file=file, text=message, line=number)
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
    incident = describe_failure(
        "compiler-error",
        IncidentKind.SOURCE_BUILD,
        component,
        title=title,
        because=because,
        fixes=fixes,
        source="the compiler's message",
    )
    return MessageCause(incident=incident, line=error.line, package="", is_likely=is_likely)


_INNER = lazy_pattern(
    r"(?:LoweringException|InductorError|SubprocException|InternalTorchDynamoError|backend='\w+' raised): *\n?\s*"
    r"(?:(?:torch\S*\.)?(?:LoweringException|InductorError): *)*"
    r"(?P<text>(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Assertion|OutOfResources|Interrupt)\b[^\n]{0,400})"
)
_UNSUPPORTED = lazy_pattern(r"exc\.Unsupported: (?P<text>[^\n]{3,300})")
_FAKE = lazy_pattern(
    r"TorchRuntimeError: (?:Failed running|Dynamo failed to run FX node with fake tensors:) *(?P<call>[^\n]{3,300})"
)
_FAKE_REASON = lazy_pattern(r"got (?P<reason>[A-Z]\w*(?:Error|Exception)\([^\n]{3,300})")
_USER_CODE = lazy_pattern(r"from user code:\s*\n?\s*File \"(?P<file>[^\"\n]{1,300})\", line (?P<line>\d+)")
_LIMIT = lazy_pattern(
    r"FailOnRecompileLimitHit|RecompileLimitExceeded|recompile_limit reached|cache_size_limit reached"
)
_FLEX = lazy_pattern(r"flex_attention|flex_decoding|create_block_mask")
_CL = lazy_pattern(r"Compiler: (?P<name>[^\s{}]+) is not found")
COMPILERS_OWN = lazy_pattern(r"(?:LoweringException|InductorError|BackendCompilerFailed|InternalTorchDynamoError): ")
"""Before an error that is one of torch's compiler itself: its names are not looked up."""
_OFF = "Without compilation: torch_compile=False, TORCHDYNAMO_DISABLE=1 or --enforce-eager, at the price of speed"
_PASS = lazy_pattern(r"in (?P<stage>make_(?:ttir|ttgir|llir|ptx|cubin))\b|make_(?P<other>ttir|ttgir|llir|ptx|cubin)\(")
_KERNEL = lazy_pattern(r"\b(?P<kernel>_?[a-z]\w*(?:_kernel|_fwd|_bwd)\w*)\[|Name=(?P<name>triton_\w+)")
_SHOWN_WORDS = 200


def describe_compilation(incident: Incident, error: LastError) -> Incident | None:
    """What the compiler of torch says failed inside it; `None` where it says no more than its class."""
    text = error.log_end.decode("utf-8", "replace")
    if compiler := _CL.search(text):
        return _describe_compiler(incident, compiler["name"])
    if unsupported := _UNSUPPORTED.search(text):
        return _describe_construct(incident, unsupported["text"], _find_user_code(text))
    if fake := _FAKE.search(text):
        return _describe_shapes(incident, fake["call"], text)
    return _describe_limit(incident) if _LIMIT.search(text) else _describe_inner(incident, text)


def _describe_limit(incident: Incident) -> Incident:
    return incident.tell("limit")


def _describe_inner(incident: Incident, text: str) -> Incident | None:
    inner = _INNER.search(text)
    if inner is None:
        return None
    shown = shorten_text(inner["text"].strip(), _SHOWN_WORDS)
    if _FLEX.search(text):
        return _describe_flex(incident, shown)
    return incident.tell("inner", shown=shown)


def describe_launcher(incident: Incident, error: LastError) -> Incident | None:
    """What the C compiler lacks for Triton's small file; `None` where its own line is not in the log."""
    text = error.log_end.decode("utf-8", "replace")
    of_windows = "win_amd64" in text or "tcc.exe" in text
    if re.search(r"include file 'Python\.h' not found|Python\.h['\"]?: No such file|Failed to find Python libs", text):
        fixes = (
            (
                "Copy the folders include (Include) and libs of a full Python of the very same version "
                "beside the embedded python.exe, "
                "which comes without them; or an environment made with a Python that python.org's installer put there"
            )
            if of_windows
            else "apt-get install python3-dev (python3.12-dev) of the very Python that runs",
        )
        return replace(
            incident,
            title="Python.h is missing: Triton cannot compile its launcher",
            component=OwnComponent.PYTHON,
            because=(
                (
                    "Triton compiles a small C file at run time, against the headers and the library of the "
                    "Python that runs"
                )
                + (", and an embedded Python on Windows has neither." if of_windows else ", which are not installed.")
            ),
            fix=(*(advise(fix) for fix in fixes), advise(_OFF)),
        )
    return None


def describe_kernel_compilation(incident: Incident, error: LastError) -> Incident | None:
    """Which step of Triton's compiler fails on which kernel; `None` where the log does not say."""
    text = error.log_end.decode("utf-8", "replace")
    stages = [match["stage"] or f"make_{match['other']}" for match in _PASS.finditer(text)]
    kernels = [match["kernel"] or match["name"] for match in _KERNEL.finditer(text)]
    if not (stages or kernels):
        return None
    where = f" in its step {stages[-1]}" if stages else ""
    what = f" the kernel {kernels[-1]}" if kernels else " a kernel"
    return incident.tell("kernel-compilation", what=what, where=where)


def _find_user_code(text: str) -> str:
    places = list(_USER_CODE.finditer(text))
    if not places:
        return ""
    parts = places[-1]["file"].replace("\\", "/").split("/")
    return f"{'/'.join(parts[-2:])}, line {places[-1]['line']}"


def _describe_compiler(incident: Incident, name: str) -> Incident:
    return incident.tell("compiler", name=name)


def _describe_construct(incident: Incident, words: str, place: str) -> Incident:
    at = f" ({place})" if place else ""
    return incident.tell("construct", at=at, words=shorten_text(words, _SHOWN_WORDS))


def _describe_shapes(incident: Incident, call: str, text: str) -> Incident:
    reason = _FAKE_REASON.search(text)
    shown = shorten_text(reason["reason"] if reason else call, _SHOWN_WORDS)
    place = _find_user_code(text)
    at = f" ({place})" if place else ""
    return incident.tell("shapes", at=at, shown=shown, call=shorten_text(call, _SHOWN_WORDS))


def _describe_flex(incident: Incident, shown: str) -> Incident:
    return incident.tell("flex", shown=shown)


_NEWEST_GCC = lazy_pattern(r"gcc versions later than (?P<newest>\d{1,2})\b")


def describe_newest_compiler(incident: Incident, error: LastError) -> Incident | None:
    """With the g++ that this nvcc takes at most, by its own words; `None` where it names none."""
    stated = _NEWEST_GCC.search(error.log_end.decode("utf-8", "replace"))
    return incident.tell("newest", newest=stated["newest"]) if stated is not None else None
