"""The packages and versions in a log: in paths, lines of pip, wheel names, banners, and the lines of a traceback.

A line of a traceback is compared with the published files: which releases have that function at that line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, NamedTuple

from knowngood.core.lazy_patterns import lazy_pattern

if TYPE_CHECKING:
    from knowngood_diagnose.failures.logs.log_scan import LogBlock

HEAD = 1 << 20
"""Up to this offset in bytes, versions are searched for in running text too, which takes longer."""
ALIKE = 50
"""How many lines are read of those that differ only in numbers."""
MOST = 3_000
"""The most matches of one pattern in one block."""

_VERSION = rb"v?(\d{1,5}(?:\.\w{1,20}){0,6}(?:\+[\w.]{1,40})?)"
_DOTTED = rb"v?(\d{1,5}(?:\.\w{1,20}){1,6}(?:\+[\w.]{1,40})?)"
_NAMES: Mapping[str, str] = {
    "pytorch": "torch",
    "torch": "torch",
    "transformers": "transformers",
    "flash-attn": "flash-attn",
    "flash-attn-4": "flash-attn-4",
    "triton": "triton",
    "pytorch-triton": "triton",
    "xformers": "xformers",
    "transformer-engine": "transformer-engine",
    "transformerengine": "transformer-engine",
    "xtuner": "xtuner",
    "mmengine": "mmengine",
    "openrlhf": "openrlhf",
    "ms-swift": "ms-swift",
    "swift": "ms-swift",
    "trl": "trl",
    "peft": "peft",
    "accelerate": "accelerate",
    "deepspeed": "deepspeed",
    "vllm": "vllm",
    "verl": "verl",
    "axolotl": "axolotl",
    "unsloth": "unsloth",
    "unsloth-zoo": "unsloth-zoo",
    "llamafactory": "llamafactory",
    "liger-kernel": "liger-kernel",
    "bitsandbytes": "bitsandbytes",
    "autoawq": "autoawq",
    "auto-gptq": "auto-gptq",
    "megatron-core": "megatron-core",
    "numpy": "numpy",
    "setuptools": "setuptools",
    "tokenizers": "tokenizers",
    "datasets": "datasets",
    "torchvision": "torchvision",
    "apex": "apex",
    "ninja": "ninja",
    "huggingface-hub": "huggingface-hub",
    "ring-flash-attn": "ring-flash-attn",
    "diffusers": "diffusers",
    "gptqmodel": "gptqmodel",
    "lightning": "lightning",
    "optimum": "optimum",
    "pydantic": "pydantic",
    "pytorch-lightning": "pytorch-lightning",
    "safetensors": "safetensors",
    "sentence-transformers": "sentence-transformers",
    "sglang": "sglang",
    "torchao": "torchao",
    "torchtitan": "torchtitan",
    "torchtune": "torchtune",
    "python": "python",
    "cuda": "cuda",
    "glibc": "glibc",
    "driver": "driver",
    "nvcc": "nvcc",
}
"""The name of a package, a tool or an axis in logs (`-` for `_` too) -> its name here."""

_ANY_NAME = b"|".join(
    name.encode().replace(b"-", b"[-_]") for name in sorted(_NAMES, key=lambda name: (-len(name), name))
)
_EQUAL = lazy_pattern(rb"==\s{0,2}['\"]?" + _VERSION)
_BEFORE_EQUAL = lazy_pattern(rb"([A-Za-z][\w.-]{0,60})(?:\[[\w, -]{0,60}\])?['\"]?\s{0,2}$")
_DIST_INFO = lazy_pattern(rb"\.dist-info")
_BEFORE_DIST_INFO = lazy_pattern(rb"([A-Za-z]\w{0,60})-(\d[\w.+!]{0,60})$")
_EGG = lazy_pattern(rb"-py3\.\d{1,2}(?:-[\w-]{1,40})?\.egg\b")
_WHEEL = lazy_pattern(rb"-(?:cp3\d{1,2}|py3|py2\.py3)-[\w.]{1,40}-[\w.]{1,80}\.whl")
_INSTALLED = lazy_pattern(rb"uccessfully installed ([^\n]{1,8000})")
_INSTALLED_ONE = lazy_pattern(rb"([A-Za-z][\w.-]{0,60}?)-" + _VERSION + rb"(?=\s|$)")
_LINE = lazy_pattern(
    rb"\n[^\w\n]{0,8}((?i:" + _ANY_NAME + rb"))`?(?: version)?(?: \([\w? /]{1,30}\))?[ \t]{0,40}(?:[:=][ \t]{0,4}){0,2}"
    rb"(?<=[\s:=])" + _DOTTED + rb"(?=[\s,)(;'\"|]|$)"
)
_TEXT = lazy_pattern(
    rb"(?<![\w/.-])((?i:"
    + _ANY_NAME
    + rb"))`?['\"]?\s{0,2}(?:(?i:version)\s{0,2})?(?:\([\w? /]{1,30}\)\s?)?(?::|={1,2}|\s)\s{0,2}['\"]?"
    + _DOTTED
    + rb"(?![\w%/-]|\s?(?:onwards?|and (?:above|later|newer)|or (?:above|higher|later|newer))\b)"
)
_NOT_HERE = lazy_pattern(
    rb"(?i:\b(?:from|since|until|than|least|most|requires?|needs|before|after"
    rb"|(?:deprecated|removed|added|new|changed) in)\s{1,2}['\"`]?$)"
)
"""Words before a version that is only mentioned, and is not the one that is installed."""
_PIP_SHOW = lazy_pattern(rb"\nName: ([\w.-]{1,60})\r?\nVersion: " + _VERSION)
_PYTHON_PATH = lazy_pattern(rb"python3\.(\d{1,2})/")
_CPYTHON = lazy_pattern(rb"cpython-3(\d{1,2})-")
_DRIVER = lazy_pattern(rb"Driver Version: (\d{3}(?:\.\d{1,3}){0,2})")
_CUDA_BUILT = lazy_pattern(rb"CUDA used to build PyTorch: (\d{1,2}\.\d{1,2})")
_NVCC = lazy_pattern(rb"Cuda compilation tools, release (\d{1,2}\.\d{1,2})")
_GLIBC = lazy_pattern(rb"(?:with-glibc|Libc version: glibc-)(2\.\d{1,2})")
_VERSION_WORD = lazy_pattern(rb"[Vv]ersion\b")
_VERSION_WORDS = frozenset((b"version", b"Version"))
_PYTHONS = {b"python3": _PYTHON_PATH, b"cpython": _CPYTHON}
_REPORTED = {
    b"Driver": ("driver", _DRIVER),
    b"CUDA": ("cuda", _CUDA_BUILT),
    b"Cuda": ("nvcc", _NVCC),
    b"glibc": ("glibc", _GLIBC),
}
_LOCAL_CUDA = lazy_pattern(r"\+cu(\d{2})(\d)\b")
_LOCAL = lazy_pattern(
    r"(?:cu\d{1,4}|cpu|rocm|xpu|nv|git|computecanada|torch|cxx|abi|pt|unsloth|d\d{8}|g?[0-9a-f]{7,12}|\d{1,4})"
    r"(?:(?:cu|torch|cxx11abi|abi|pt|git|nv|post|rc|d)?[\d.]{0,12}(?:TRUE|FALSE)?){0,6}(?:\.?g?[0-9a-f]{7,12})?",
    re.IGNORECASE,
)
_CAPABILITY = lazy_pattern(rb"CUDA capability sm_(\d{2,3})\b")
_COMPUTE = lazy_pattern(rb"(?:has compute capability|cuda capability) (\d{1,2})\.(\d)")
_CARD = lazy_pattern(
    rb"(?i:\b(?:NVIDIA|Tesla|GeForce|Quadro)\s(?:[\w-]{1,12}\s){0,2}[A-Z]{0,3}\d{1,4}[\w -]{0,24}"
    rb"|\b(?:A100|A800|H100|H800|H200|H20|V100|L40S|B200)(?![\w.])|\bRTX\s?(?:\d{4}|A\d{4}))"
)


@dataclass(kw_only=True)
class VersionReader:
    """Collects the versions of packages and axes, the names of cards and the compute capabilities in a log."""

    versions: dict[str, list[str]] = field(default_factory=dict)
    """Package or axis -> its versions, in the order of the log."""
    cards: list[str] = field(default_factory=list)
    capabilities: list[str] = field(default_factory=list)
    _read: int = 0
    _recent: list[LogBlock] = field(default_factory=list)

    @property
    def hints(self) -> frozenset[bytes]:
        """The words of which a block must have one to be read for anything but `==`."""
        return frozenset((b"info", b"egg", b"whl", b"installed", b"Name", *_VERSION_WORDS, *_PYTHONS, *_REPORTED))

    def feed(self, block: LogBlock, present: frozenset[bytes]) -> None:
        """Read a block; `present` are the hints that it may have."""
        if b"==" in block.raw:
            self._read_pins(block.text)
        if present:
            self._read_hinted(block.text, present)
        if self._read < HEAD:
            self._read_text(block.text)
        else:
            self._recent = [*self._recent[-1:], block]
            if present & _VERSION_WORDS:
                self._read_around_version(block.text)
        self._read += len(block.raw)

    def finish(self) -> None:
        """Read the end of the log, where the failure mostly is, as thoroughly as its beginning."""
        for block in self._recent:
            self._read_text(block.text[-HEAD // 4 :])
        self._recent = []

    def _read_hinted(self, text: bytes, present: frozenset[bytes]) -> None:
        for word in present & _PYTHONS.keys():
            python = _PYTHONS[word].search(text)
            if python is not None:
                self._add_version("python", b"3." + python[1])
        for word in present & _REPORTED.keys():
            kind, pattern = _REPORTED[word]
            for match in _first_matches(pattern, text):
                self._add_version(kind, match[1])
        if b"info" in present:
            self._read_file_names(_DIST_INFO, text)
        if b"egg" in present:
            self._read_file_names(_EGG, text)
        if b"whl" in present:
            self._read_file_names(_WHEEL, text)
        self._read_pip_lines(text, present)

    def _read_around_version(self, block: bytes) -> None:
        """Read the text around the word "version"."""
        for match in islice(_VERSION_WORD.finditer(block), 200):
            near = block[max(0, match.start() - 80) : match.end() + 60]
            for mention in _TEXT.finditer(near):
                if not _NOT_HERE.search(near[max(0, mention.start(1) - 20) : mention.start(1)]):
                    self._add_named(mention[1], mention[2])

    def _read_pip_lines(self, block: bytes, present: frozenset[bytes]) -> None:
        if b"installed" in present:
            for match in _first_matches(_INSTALLED, block):
                for name, version in _INSTALLED_ONE.findall(match[1]):
                    self._add_named(name, version)
        if b"Name" in present:
            for match in _first_matches(_PIP_SHOW, block):
                self._add_named(match[1], match[2])

    def _read_text(self, text: bytes) -> None:
        block = _drop_repeated_lines(text)
        padded = b"\n" + block
        for pattern in (_LINE, _TEXT):
            for count, match in enumerate(pattern.finditer(padded)):
                if count == MOST:
                    break
                if not _NOT_HERE.search(padded[max(0, match.start(1) - 20) : match.start(1)]):
                    self._add_named(match[1], match[2])
        for count, match in enumerate(_CARD.finditer(block)):
            if count == 50:
                break
            card = b" ".join(match[0].split()).decode("ascii", "replace")
            if card not in self.cards and len(self.cards) < 50:
                self.cards.append(card)
        for match in _first_matches(_CAPABILITY, block):
            self._add_capability(match[1].decode())
        for match in _first_matches(_COMPUTE, block):
            self._add_capability((match[1] + match[2]).decode())

    def _add_capability(self, number: str) -> None:
        if number not in self.capabilities:
            self.capabilities.append(number)

    def _read_pins(self, block: bytes) -> None:
        for match in _first_matches(_EQUAL, block):
            before = _BEFORE_EQUAL.search(block[max(0, match.start() - 130) : match.start()])
            if before is not None and not _NOT_HERE.search(before.string[: before.start(1)]):
                self._add_named(before[1], match[1])

    def _read_file_names(self, pattern: re.Pattern[bytes], block: bytes) -> None:
        for match in _first_matches(pattern, block):
            before = _BEFORE_DIST_INFO.search(block[max(0, match.start() - 130) : match.start()])
            if before is not None:
                self._add_named(before[1], before[2])

    def _add_named(self, name: bytes, version: bytes) -> None:
        kind = _NAMES.get(re.sub(r"[-_. ]+", "-", name.decode("ascii", "replace")).lower())
        if kind is not None:
            self._add_version(kind, version)

    def _add_version(self, kind: str, version: bytes) -> None:
        text = _without_secret(version.decode("ascii", "replace").rstrip("."))
        versions = self.versions.setdefault(kind, [])
        if text not in versions and len(versions) < 20:
            versions.append(text)
        cuda = _LOCAL_CUDA.search(text)
        if kind == "torch" and cuda is not None:
            self._add_version("cuda", f"{cuda[1]}.{cuda[2]}".encode())


def _without_secret(version: str) -> str:
    """A version without a local part that is none: a token may stand there, which must not be shown."""
    public, plus, local = version.partition("+")
    return version if not plus or _LOCAL.fullmatch(local) else public


def _drop_repeated_lines(text: bytes) -> bytes:
    """Keep only the first few of the lines that differ only in numbers, because most logs repeat themselves."""
    counted: dict[bytes, int] = {}
    kept = []
    for line in text.split(b"\n"):
        like = line.translate(None, b"0123456789")
        counted[like] = number = counted.get(like, 0) + 1
        if number <= ALIKE:
            kept.append(line)
    return b"\n".join(kept)


def _first_matches(pattern: re.Pattern[bytes], block: bytes) -> list[re.Match[bytes]]:
    """The first matches of a pattern in a block."""
    return list(islice(pattern.finditer(block), MOST))


MOST_FRAMES = 200
"""The most frames that are kept of a log."""
FRAME_MARKS = (b'.py", line ', b'.py\\", line ')
"""The mark of a frame in plain text, and in JSON."""

LineTable = Mapping[str, Mapping[str, Mapping[str, Sequence[Sequence[int]]]]]
"""Release -> file -> function -> first and last line of each function of that name."""
LoadLineTable = Callable[[str], LineTable]
"""Loads the table of a package, an empty one when there is none."""

PACKAGES = {
    b"transformers": "transformers",
    b"flash_attn": "flash-attn",
    b"transformer_engine": "transformer-engine",
    b"xtuner": "xtuner",
    b"torch": "torch",
}
"""Imported package -> the distribution whose table has its lines."""
_FRAME = lazy_pattern(
    rb"(?:site|dist)-packages[/\\]{1,4}((" + b"|".join(PACKAGES) + rb")(?:[/\\]{1,4}\w{1,80}){1,8}\.py)"
    rb"(?:[\\\"']{0,3}, line (\d{1,6}), in |:(\d{1,6}),? in )([\w.]{1,120})"
)


class TracebackFrame(NamedTuple):
    """One frame of a traceback, in a file of a package."""

    package: str
    file: str
    line: int
    function: str


@dataclass(kw_only=True)
class FrameReader:
    """Collects frames at the beginning of a log and at its end, where the failure mostly is (a `LogReader`)."""

    frames: dict[TracebackFrame, None] = field(default_factory=dict)
    _read: int = 0
    _recent: list[LogBlock] = field(default_factory=list)

    @property
    def hints(self) -> frozenset[bytes]:
        """The word that every path of an installed package has."""
        return frozenset((b"packages",))

    def feed(self, block: LogBlock, present: frozenset[bytes]) -> None:
        """Read a block at the beginning of the log, and keep the last two for the end."""
        if self._read < HEAD and b"packages" in present:
            self._read_text(block.text)
        elif self._read >= HEAD:
            self._recent = [*self._recent[-1:], block]
        self._read += len(block.raw)

    def finish(self) -> None:
        """Read the end of the log."""
        for block in self._recent:
            self._read_text(block.text[-HEAD // 4 :])
        self._recent = []

    def _read_text(self, block: bytes) -> None:
        for count, match in enumerate(_FRAME.finditer(block)):
            frame = TracebackFrame(
                package=PACKAGES[match[2]],
                file=re.sub(rb"[/\\]+", b"/", match[1]).decode("ascii", "replace"),
                line=int(match[3] or match[4]),
                function=match[5].rpartition(b".")[2].decode("ascii", "replace"),
            )
            self.frames.setdefault(frame)
            if count > 20 * MOST_FRAMES or len(self.frames) >= MOST_FRAMES:
                break


@dataclass(kw_only=True)
class TracebackDetector:
    """Tells whether a log has a frame of any traceback (a `LogReader`)."""

    present: bool = False

    @property
    def hints(self) -> frozenset[bytes]:
        """The word that every frame has."""
        return frozenset((b"line",))

    def feed(self, block: LogBlock, present: frozenset[bytes]) -> None:
        """Look for a frame in a block."""
        if not self.present and b"line" in present:
            self.present = any(mark in block.text for mark in FRAME_MARKS)

    def finish(self) -> None:
        """Nothing is left to do at the end of the log."""


@dataclass(frozen=True, kw_only=True)
class LineEvidence:
    """What the lines of a package's files in a traceback say about its release."""

    releases: tuple[str, ...]
    """The releases that fit every frame, oldest first; none when the files were changed by hand, or are a mix."""
    span: str = "no release"
    """The releases as text for people: `1.10.0, 2.1.0 to 2.2.0`."""
    claimed: str = ""
    """The version that the log states, when it does not fit; else empty."""
    frame: str = ""
    """The frame that fits the fewest releases and contradicts the stated version."""

    @property
    def exact(self) -> bool:
        """Whether exactly one release fits."""
        return len(self.releases) == 1

    def document(self) -> dict[str, Any]:
        """The evidence as `diagnose --json` prints it."""
        document: dict[str, Any] = {"releases": list(self.releases)}
        return document | ({"contradicts": self.claimed, "frame": self.frame} if self.claimed else {})


def judge_frames(
    frames: Sequence[TracebackFrame], load_lines: LoadLineTable, claimed: Mapping[str, Sequence[str]]
) -> dict[str, LineEvidence]:
    """Return what the frames of each package say about its release, given the versions that the log states.

    Packages without a table, and packages whose frames are of functions that no release has, are left out.
    """
    evidence: dict[str, LineEvidence] = {}
    for package in dict.fromkeys(frame.package for frame in frames):
        table = load_lines(package)
        own = [frame for frame in frames if frame.package == package]
        fitting = [(frame, fits) for frame in own if (fits := _fitting_releases(frame, table)) is not None]
        if not fitting:
            continue
        releases = tuple(version for version in table if all(version in fits for _, fits in fitting))
        stated = [version for text in claimed.get(package, ()) if (version := text.partition("+")[0]) in table]
        against = "" if not stated or any(version in releases for version in stated) else stated[-1]
        worst = min((item for item in fitting if against not in item[1]), key=lambda item: len(item[1]), default=None)
        frame = "" if not against or worst is None else f"{worst[0].file}, line {worst[0].line}, in {worst[0].function}"
        span = _span(table, frozenset(releases)) or "no release"
        evidence[package] = LineEvidence(releases=releases, span=span, claimed=against, frame=frame)
    return evidence


def _span(table: LineTable, releases: frozenset[str]) -> str:
    runs = [list(group) for inside, group in groupby(table, key=releases.__contains__) if inside]
    return ", ".join(run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)


def _fitting_releases(frame: TracebackFrame, table: LineTable) -> frozenset[str] | None:
    """The releases with this function at this line; `None` when no release in the table has such a function."""
    places = {
        version: files[frame.file][frame.function]
        for version, files in table.items()
        if frame.function in files.get(frame.file, {})
    }
    if not places:
        return None
    return frozenset(
        version for version, ranges in places.items() if any(first <= frame.line <= last for first, last in ranges)
    )


_BINARY = lazy_pattern(rb"([^\s'\"():,]{1,300}\.so)(?:\.\d+)*\s{0,2}:\s{0,2}(?:undefined symbol|symbol)")
_OPERATOR = lazy_pattern(rb"operator (\w{1,60})::\w{1,80}(?: does not exist)?")
_REFUSED_FILE = lazy_pattern(
    rb"(?:Requested|package '|package `|Failed to install: |has wheel `) ?([A-Za-z][\w.-]{0,80}?)(?:==|-\d| from |['`])"
)
"""How pip and uv name the package of a file that they refuse."""
_EXTENSION_PATH = lazy_pattern(rb"(?:site|dist)-packages[/\\]{1,4}(\w{1,80})")
_TORCH_ITSELF = lazy_pattern(rb"from torch\._C import|\b_load_global_deps\b|\b_preload_cuda_deps\b")
"""What torch does while it is imported itself: the library that is missing is one of its own."""
_SUFFIX = lazy_pattern(r"(?:_\d+)?(?:_(?:cuda|gpu|ext|C|kernels?|lib))*$")
_OTHER_NAMES = {
    "selective-scan": "mamba-ssm",
    "dropout-layer-norm": "flash-attn",
    "rotary-emb": "flash-attn",
    "fused-layer-norm": "apex",
    "amp-C": "apex",
    "awq": "autoawq-kernels",
    "nvidia": "torch",
    "C": "vllm",
    "flash-attn-2": "flash-attn",
    "transformer-engine-extensions": "transformer-engine",
    "scaled-upper-triang-masked-softmax": "apex",
    "scaled-masked-softmax": "apex",
    "scaled-softmax": "apex",
    "fused-weight-gradient-mlp": "apex",
}
"""Extensions whose file has another name than their package."""


def find_extension_package(text: bytes) -> str:
    """Return the package of the extension that a text of a log names last, or `a compiled extension`.

    It is the package whose file an installer refuses, the file before `undefined symbol`, or the library of an operator
    that does not exist, else the installed package in the traceback above, which is torch only where its own import
    fails.
    """
    if b"version" in text and (refused := _REFUSED_FILE.findall(text)):
        return str(refused[-1].decode()).replace("_", "-").lower()
    binaries, operators = _BINARY.findall(text), _OPERATOR.findall(text)
    if operators and not binaries:
        library: str = operators[-1].decode().lstrip("_").replace("_", "-")
        return _OTHER_NAMES.get(library, library)
    if binaries:
        path = binaries[-1].decode("utf-8", "replace").replace("\\", "/")
        folder = re.search(r"(?:site|dist)-packages/(\w+)/", path)
        name = folder[1] if folder else path.rpartition("/")[2].partition(".")[0].removeprefix("lib")
        if "/fused_kernels/build/" in path:  # Megatron compiles these itself
            return "megatron-lm"
        if not folder and name in {"_C", "_C_flashattention"}:
            name = path.rpartition("/")[0].rpartition("/")[2]
    else:
        installed = [name for name in _EXTENSION_PATH.findall(text) if name != b"torch"]
        if not installed:
            return "torch" if _TORCH_ITSELF.search(text) else "a compiled extension"
        name = installed[-1].decode()
    return name_package(name)


def name_package(module: str) -> str:
    """Return the package that a compiled module belongs to, by the module's name."""
    name = (_SUFFIX.sub("", module) or module).replace("_", "-")
    return _OTHER_NAMES.get(name, name)
