"""A known failure: what it looks like in a log, which combinations it affects, why, and what helps. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from packaging.specifiers import SpecifierSet

from knowngood.core.lazy_patterns import lazy_pattern

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class IncidentKind(StrEnum):
    """The mechanism of a failure."""

    API_REMOVED = "api-removed"
    API_NOT_YET = "api-not-yet"
    API_UNKNOWN = "api-unknown"
    SIGNATURE_CHANGED = "signature-changed"
    NOT_INSTALLED = "not-installed"
    SHADOWED = "shadowed"
    FAILS_INSIDE = "fails-inside"
    UNDEFINED_SYMBOL = "undefined-symbol"
    NO_KERNEL_IMAGE = "no-kernel-image"
    ARCH_REFUSED = "arch-refused"
    CUDA_MISMATCH = "cuda-mismatch"
    SOURCE_BUILD = "source-build"
    TRITON_COMPILE = "triton-compile"
    DTYPE = "dtype"
    PADDING = "padding"
    PACKING = "packing"
    MISSING_EXTENSION = "missing-extension"
    BOUNDS = "bounds"
    GLIBC = "glibc"
    DRIVER = "driver"
    PYTHON = "python"
    MEMORY = "memory"
    NUMERICS = "numerics"
    CONFIG = "config"


class IncidentSeverity(StrEnum):
    """How a failure shows: an error, a wrong result without one, a right one that takes longer, or a mere warning."""

    FAILURE = "failure"
    SILENT = "silent"
    SLOW = "slow"
    HARMLESS = "harmless"


class OwnComponent(StrEnum):
    """What is at fault when it is no package."""

    YOUR_CODE = "your-code"
    """The program that the user wrote, or how it was called or set up."""
    MODEL = "model"
    """The checkpoint: its files, or the code that comes with it."""
    DATA = "data"
    """What the program trains on."""
    GPU_MEMORY = "gpu-memory"
    """The run wants more memory than the GPU has left."""
    HOST_MEMORY = "host-memory"
    """The run, or a compiler, wants more memory than the machine has left."""
    NCCL = "nccl"
    """The communication between GPUs, and what of the network it uses."""
    HUB = "hub"
    """The hub of models, the access to it, or the way there."""
    NETWORK = "network"
    """The way to a server from which something is fetched, other than the hub of models."""
    CONTAINER = "container"
    """The container or job, and what it was given of the machine."""
    DRIVER = "driver"
    CUDA = "cuda"
    """The CUDA toolkit, with nvcc."""
    COMPILER = "compiler"
    """The C++ compiler, and the files that it needs."""
    PYTHON = "python"
    GLIBC = "glibc"
    LIBSTDCXX = "libstdc++"
    EXTENSION = "extension"
    """Any compiled extension: the log says which."""


class IncidentTrait(StrEnum):
    """What `diagnose` must know of an incident beside its signature, because the signature alone says too little."""

    KIND_ONLY = "kind-only"
    """A log shows only the kind of it: what is said of the cause is never sure."""
    OPEN = "open"
    """The signature leaves the reason open: it is only likely, unless what narrows it says more."""
    GUESSED = "guessed"
    """What narrows it gives the most likely reason only."""
    ANY_SETTING = "any-setting"
    """It says only that some setting is refused, or a file missing: what is known of the thing itself comes first."""
    MISSING_FILE = "missing-file"
    """It says of a lost file that it was never there."""
    ANY_FILE = "any-file"
    """It says of any lost file that the program looks in the wrong place, also of a package's own."""
    BUILD = "build"
    """Its line says only that a build failed, or that torch.compile did, which compiles too."""
    NAN_LOSSES = "nan-losses"
    """It is what a log shows whose losses are nan."""


GUESS = "most likely"
"""In the title of a reason that the words or numbers of a log do not prove."""


class RangeOrigin(StrEnum):
    """Where `affected` comes from when neither uses nor a rule cover the incident."""

    ARTEFACTS = "artefacts"
    THREAD = "thread"
    ENVIRONMENT = "environment"


@dataclass(frozen=True, kw_only=True, slots=True)
class Fix:
    """A remedy: what to change (package -> specifier), and what that costs."""

    note: str
    change: Mapping[str, str]
    cost: str = ""
    gpu: str = ""
    """The compute capabilities for which it is meant, as a specifier such as `>=100`; empty for any."""

    @property
    def ranges(self) -> dict[str, SpecifierSet]:
        """The changes as specifier sets, in which pre-releases count."""
        return {name: SpecifierSet("" if text == "*" else text, prereleases=True) for name, text in self.change.items()}

    def document(self) -> dict[str, Any]:
        """The remedy as `diagnose --json` prints it."""
        return {
            **({"change": dict(self.change)} if self.change else {}),
            "note": self.note,
            **({"cost": self.cost} if self.cost else {}),
            **({"gpu": self.gpu} if self.gpu else {}),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class IncidentVariant:
    """One of several causes of an incident, for a log with certain words, or for what a reader of logs calls `name`."""

    words: tuple[str, ...] = ()
    """One of them is in the lines that show the incident, or in the last error; in any case of letters."""
    shows: tuple[str, ...] = ()
    """Signatures of the incident, each of which shows this variant."""
    name: str = ""
    """What `Incident.tell` is asked for; its texts may have fields in braces."""
    title: str = ""
    because: str = ""
    fix: tuple[Fix, ...] = ()
    kind: IncidentKind | None = None
    component: str = ""
    """The component at fault. What is empty stays that of the incident."""


@dataclass(frozen=True, kw_only=True, slots=True)
class IncidentUse:
    """A use of one package by another in the atlas; the incident affects the releases that break it."""

    caller: str
    target: str
    """`transformers:Trainer.__init__`, as in `knowngood api --breaks`."""
    detail: str = ""
    """The keyword, or into how many names the result is unpacked."""


GAP = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Signature:
    """A compiled signature.

    It is searched for only in a part of a log that has all of its `words` but one, since one may be wrapped.
    """

    text: str
    words: tuple[bytes, ...]
    literal: bytes
    """The longest part without wildcards, as it appears in a log without wrapped lines; it is searched for first."""
    segments: tuple[bytes, ...]
    """Regular expressions for the parts between the wildcards: literals and bounded placeholders."""
    beside: tuple[Signature, ...] = ()
    """When not empty, one of these must be in the log too, because the text alone could come from something else."""

    def search(self, text: bytes) -> bool:
        """Whether the signature is in a text that `normalize_log` returned."""
        patterns = [re.compile(segment, re.ASCII) for segment in self.segments]
        for tries, first in enumerate(patterns[0].finditer(text)):
            if _follow(patterns[1:], text, first.end()):
                return True
            if tries == 50:
                break
        return False


def _follow(patterns: Sequence[re.Pattern[bytes]], text: bytes, at: int) -> bool:
    """Whether the patterns follow in `text` from `at` on, each after a gap within the line."""
    for pattern in patterns:
        match = pattern.search(text, at, min(len(text), at + GAP + len(pattern.pattern)))
        if match is None or b"\n" in text[at : match.start()]:
            return False
        at = match.end()
    return True


_HEAD = 60
"""How many characters of the last error identify its line."""
_VARIANT_KEYS = ("title", "because", "fix", "kind", "component")


@dataclass(frozen=True, kw_only=True, slots=True)
class Incident:
    """One known failure; `knowngood_facts.compat.incident_file` explains the fields."""

    id: str
    title: str
    kind: IncidentKind
    severity: IncidentSeverity
    component: str
    """The package at fault, or an `OwnComponent`."""
    signatures: tuple[Signature, ...] = ()
    context: tuple[Signature, ...] = ()
    frames: tuple[Signature, ...] = ()
    without: tuple[Signature, ...] = ()
    affected: tuple[Mapping[str, SpecifierSet], ...] = ()
    when: Mapping[str, str] = field(default_factory=dict)
    unless: Mapping[str, str] = field(default_factory=dict)
    run_reasons: tuple[str, ...] = ()
    """What a run of the model suite says of the models of `when`, or of any model."""
    because: str
    fix: tuple[Fix, ...]
    source: tuple[str, ...]
    confidence: str
    report_erred: tuple[str, ...] = ()
    uses: IncidentUse | None = None
    rule: str = ""
    range_from: RangeOrigin | None = None
    reproduction: str = ""
    variants: tuple[IncidentVariant, ...] = ()
    """The first whose words are in the log takes the place of title, reason and remedies."""
    traits: tuple[IncidentTrait, ...] = ()
    narrowed_by: str = ""
    """What reads more of the reason out of a log: a name of `knowngood_diagnose.failures.reason_readers.READERS`."""

    @property
    def marks(self) -> tuple[Signature, ...]:
        """All signatures to look for in a log, in the order in which `line` takes their lines."""
        beside = (mark for item in self.signatures for mark in item.beside)
        return (*self.signatures, *self.context, *beside, *self.without, *self.frames)

    def choose_variant(self, lines: Mapping[str, str], error: str = "") -> Incident:
        """Return the incident with the words of its first variant that the log shows, and with its slots filled.

        A variant that the last error shows comes before those of other lines.

        Args:
            lines: the signatures that are in the log, each with its line.
            error: the last error of the log.
        """
        shown = "\n".join([*lines.values(), error]).lower()
        fitting = [
            variant
            for variant in self.variants
            if not lines.keys().isdisjoint(variant.shows) or any(word.lower() in shown for word in variant.words)
        ]
        head = error[:_HEAD] or "\n"
        last = (item for item in fitting if any(head in lines.get(text, "") for text in item.shows))
        chosen = next(last, fitting[0] if fitting else None)
        if chosen is None:
            return self.fill_slots(lines)
        own = {text: lines[text] for text in chosen.shows if text in lines}
        return self._take(chosen).fill_slots({**own, **lines})

    def fill_slots(self, lines: Mapping[str, str]) -> Incident:
        """Return it with the log's names and numbers in its slots; one that cannot be read stays in capitals."""
        texts = (self.title, self.because, self.component, *(fix.note for fix in self.fix))
        if not any(map(_SLOT.search, texts)):
            return self
        fields: dict[str, str] = {}
        for text, line in lines.items():
            fields = {**read_slots(text, line), **fields}

        def fill(text: str) -> str:
            return _SLOT.sub(lambda slot: fields.get(slot[1], slot[1].upper()), text)

        fix = tuple(replace(item, note=fill(item.note)) for item in self.fix)
        return replace(
            self, title=fill(self.title), because=fill(self.because), component=fill(self.component), fix=fix
        )

    def tell(self, variant_name: str, /, **fields: object) -> Incident:
        """Return the incident with the words of the variant of this name, whose fields are filled.

        `{because}` in them stands for the incident's own reason. Raises `KeyError` for a field that is not given.
        """
        variant = next(item for item in self.variants if item.name == variant_name)
        values = {"because": self.because, **fields}
        texts = {key: getattr(variant, key).format_map(values) for key in ("title", "because", "component")}
        fix = tuple(replace(item, note=item.note.format_map(values)) for item in variant.fix)
        return self._take(replace(variant, fix=fix, **texts))

    def _take(self, variant: IncidentVariant) -> Incident:
        """The incident with all that a variant says."""
        taken = {key: value for key in _VARIANT_KEYS if (value := getattr(variant, key))}
        return replace(self, **taken)

    def line(self, mark_lines: Sequence[int | None], *, traceback: bool) -> int | None:
        """Return the line of the log at which this incident shows; `None` when it does not.

        `mark_lines` has the line of each of the `marks`, `None` for those that are not in the log. `traceback` says
        that the log has frames of a traceback, so that those of this incident would be there too.
        """
        context = mark_lines[len(self.signatures) : len(self.signatures) + len(self.context)]
        end = len(mark_lines) - len(self.frames)
        frames, without = mark_lines[end:], mark_lines[end - len(self.without) : end]
        if (context and not any(context)) or (traceback and frames and not any(frames)) or any(without):
            return None
        lines, at = [], len(self.signatures) + len(self.context)
        for line, item in zip(mark_lines, self.signatures, strict=False):
            if line and (not item.beside or any(mark_lines[at : at + len(item.beside)])):
                lines.append(line)
            at += len(item.beside)
        return min(lines, default=None)


LEAST_LITERAL = 12
MOST_WILDCARDS = 6
MOST_PLACEHOLDERS = 4
COMMON = frozenset(
    b"Error error File line torch python packages module object attribute name import from with this that RuntimeError"
    b" ImportError AttributeError TypeError ValueError ModuleNotFoundError found version site dist modules".split()
)
"""Words that are in every log, so that they do not show where to look."""

_PLACEHOLDERS = {
    "version": rb"\d++(?:\.(?:\d++|(?:post|dev)\d++))*+(?:(?:rc|a|b)\d++)?+(?:\+(?:cu|cpu|rocm)[\d.]*+)?+",
    "number": rb"\d++",
    "name": rb"\w{1,60}",
}
_FREE = {"word": r"[^\s'\"`]{1,160}", "text": r"[^\n]{1,160}?"}
"""Slots that may have any character, so that a signature is searched for as if there were a gap."""
_SHAPES = {**{name: shape.decode() for name, shape in _PLACEHOLDERS.items()}, **_FREE}
_PLACE, _NUMBER = "\0", "\1"
"""What stands for a placeholder while words are looked for: one that may have letters, and one of digits."""
_REGEX = lazy_pattern(r"\\[dwsSWDb.]|\(\?|[)\]][+*?]|\.\*|\[\^")
_SLOT = lazy_pattern(r"\{((?:version|number|name|word|text)\d?)\}")
_PARTS = lazy_pattern(r"\\([*{\\])|(\*)|\{(\w+)\}|([^\\*{]+|.)", re.DOTALL)
_SPACED = lazy_pattern(r"\s+|['\"`]|[^\s'\"`]+")
_WORD = lazy_pattern(rb"\w+", re.ASCII)
_QUOTES = bytes.maketrans(b'"`', b"''")
_CURLY = lazy_pattern(rb"\xe2\x80[\x98\x99\x9c\x9d]")
_SPACE = b" \t\f\v"


class SignatureError(ValueError):
    """The text cannot be a signature; the message says why and what to write instead."""


def compile_signature(text: str) -> Signature:
    """Compile the text of a signature; raises `SignatureError`."""
    if _REGEX.search(text):
        raise SignatureError(f"{text!r} looks like a regular expression; write the text as it appears, * for a gap")
    if "\n" in text:
        raise SignatureError("a signature is one line; make each line a signature or a context of its own")
    segments, spans, length, placeholders = [b""], [""], 0, 0
    for escaped, star, placeholder, plain_text in _PARTS.findall(text):
        shape = placeholder.rstrip("123456789")
        if star or shape in _FREE:
            segments.append(b"")
            spans.append("")
        elif placeholder:
            if shape not in _PLACEHOLDERS:
                raise SignatureError(f"{{{placeholder}}} is not one of {', '.join(f'{{{n}}}' for n in _SHAPES)}")
            placeholders += 1
            segments[-1] += _PLACEHOLDERS[shape]
            spans[-1] += _PLACE if shape == "name" else _NUMBER
        else:
            piece = escaped or plain_text
            literal_part = _without_spaces(piece.encode())
            length += len(literal_part)
            segments[-1] += re.escape(literal_part)
            spans[-1] += piece
    if length < LEAST_LITERAL:
        raise SignatureError(f"{text!r} has only {length} characters of its own; quote at least {LEAST_LITERAL}")
    if len(segments) - 1 > MOST_WILDCARDS or placeholders > MOST_PLACEHOLDERS:
        limits = f"{MOST_WILDCARDS} * or {MOST_PLACEHOLDERS} placeholders"
        raise SignatureError(f"{text!r} has more than {limits}; quote a shorter part")
    words = _words(spans)
    if not words:
        raise SignatureError(f"{text!r} has no whole word of four letters that would show where to look; quote more")
    literal = max((part for span in spans for part in re.split(f"[{_PLACE}{_NUMBER}]", span)), key=len).strip().encode()
    return Signature(text=text, words=words, literal=literal, segments=tuple(item for item in segments if item))


def read_slots(text: str, line: str) -> dict[str, str]:
    """Return what stands in a line in the place of the slots of a signature's text; nothing where the line differs."""
    pattern = ""
    for escaped, star, slot, plain_text in _PARTS.findall(text):
        if slot:
            shape = _SHAPES[slot.rstrip("123456789")]
            pattern += f"(?P={slot})" if f"(?P<{slot}>" in pattern else f"(?P<{slot}>{shape})"
        else:
            pattern += r"[^\n]{0,200}?" if star else _SPACED.sub(_loosen, escaped or plain_text)
    line_match = re.search(f"{pattern}{'$' if text.endswith('}') else ''}", line.strip()) or re.search(pattern, line)
    return {slot: value.strip().rstrip(",.;:") for slot, value in line_match.groupdict().items()} if line_match else {}


def _loosen(part: re.Match[str]) -> str:
    """A pattern for some space, for any quote, or for the text itself."""
    return (
        r"\s*" if part[0].isspace() else "['\"`\u2018\u2019\u201c\u201d]" if part[0] in "'\"`" else re.escape(part[0])
    )


def _words(spans: list[str]) -> tuple[bytes, ...]:
    """Up to three of the longest words that no wildcard and no placeholder cuts; of four letters if none is longer."""
    whole: set[bytes] = set()
    for place, span in enumerate(spans):
        data = span.encode()
        for match in _WORD.finditer(data):
            cut_before = match.start() == 0 and place > 0
            cut_after = match.end() == len(data) and place < len(spans) - 1
            before, after = data[match.start() - 1 : match.start()], data[match.end() : match.end() + 1]
            # Words are compared without their digits, so digits behind one do not cut it.
            beyond = data[match.end() + 1 : match.end() + 2]
            cut_after = cut_after or after == b"\0" or (after == b"\1" and bool(_WORD.match(beyond)))
            if not (cut_before or cut_after or before in (b"\0", b"\1")):
                whole.add(match.group())
    rare = [word for word in whole if len(word) >= 4 and word not in COMMON and not word.isdigit()]
    rare = [word for word in rare if len(word) >= 5] or rare
    return tuple(sorted(rare, key=lambda word: (-len(word), word))[:3])


def _without_spaces(data: bytes) -> bytes:
    return _CURLY.sub(b"'", data).translate(_QUOTES, b" \t\r\f\v")


# What launchers, actors and loggers put before a line; each part is bounded.
_PREFIX = lazy_pattern(
    rb"(?:\s|[|>]|\xe2\x94[\x80-\xbf]|\xe2\x95[\x80-\xbf]"
    rb"|\[(?:default|rank|node|gpu|RANK)?\s?-?\d{1,5}(?:,\d{1,5})?\](?:<std(?:err|out)>)?:?"
    rb"|\([\w .-]{1,60}pid=\d{1,9}[^)\n]{0,60}\)"
    rb"|(?:ERROR|INFO|WARNING|DEBUG) [\d:. ,-]{5,30}(?: ?\[?[\w./]{1,40}:\d{1,5}\])?"
    rb"|\d{1,5}: )",
    re.ASCII,
)


def normalize_log(window: bytes) -> bytes:
    """Return a part of a log as signatures are compared with it: no spaces, one kind of quote, lines unwrapped."""
    text = window.replace(b"\\n", b"\n").replace(b'\\"', b'"').replace(b"\\'", b"'").replace(b"\r", b"\n")
    normalized: list[bytes] = []
    for line in text.split(b"\n"):
        rest = line
        for _ in range(6):
            prefix = _PREFIX.match(rest)
            if prefix is None:
                break
            rest = rest[prefix.end() :]
        normalized.append(_without_spaces(rest))
        normalized.append(b"" if len(line) >= 60 else b"\n")
    return b"".join(normalized)
