"""The errors about names in a log: what each says is not there, and the frames of the traceback above it. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from knowngood.core.lazy_patterns import lazy_pattern
from knowngood_diagnose.failures.logs.log_scan import LogBlock, strip_digits
from knowngood_facts.compat.incident import normalize_log

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MOST_ERRORS = 40
"""The most errors that are kept of a log."""
_AROUND = 1_200
_TRACEBACK = 24_000
"""How many bytes above an error its traceback is looked for."""
_TRIES = 200
"""So many occurrences of a word are looked at in one block, at its beginning and again at its end."""

_LINK = rb"(?:\]\([^\s)]{1,400}\))?"
"""The address that notebooks of Colab and editors put behind a file, in Markdown."""
_FRAME = lazy_pattern(
    rb"File \\?[\"'](?P<quoted>[^\"'\n]{1,400}?)\\?[\"'], line (?P<line>\d{1,6})(?:, in (?P<function>[\w.<>]{1,120}))?"
    rb"|(?P<short>[~/.\w][^\s:\"']{0,300}\.py):(?P<at>\d{1,6})" + _LINK + rb",? in (?P<inside>[\w.<>]{1,120})"
    rb"|(?P<old>/[^\s:\"']{1,300}\.py)" + _LINK + rb" in (?P<within>[\w.<>]{1,120})[(\n]"
    rb"|File (?P<bare>[~/.\w][^\s:\"']{0,300}\.py|<string>):(?P<on>\d{1,6})(?=\n)"
)
_BEGIN = (b"Traceback (most recent call last)",)
_CODE = lazy_pattern(rb"[ \t]{0,8}(?:\n|\\n)[^\n\w@]{0,80}([^\n\\]{1,300})")
_ARROW = lazy_pattern(rb"\n(?:-{1,6}>|[^\n]{0,12}\xe2\x9d\xb1)\s{0,3}(?P<at>\d{1,6})[^\n\w@]{1,12}([^\n]{1,300})")
"""The line of code as IPython and rich mark it."""
_IMPORT_FROM = lazy_pattern(r"from (?P<dots>\.*)(?P<module>[A-Za-z_][\w.]*)? import\b")
_SHOWN_IMPORT = lazy_pattern(
    rb"(?m)^-{1,6}>\s{0,3}\d{1,6}\s{1,12}from (?P<module>[A-Za-z_][\w.]{0,100}) import (?P<names>[^\n]{1,400})$"
)
_RAISES = lazy_pattern(rb"\braise \w+\(")
"""A line of code that a traceback quotes, with the words of the error in it."""
_RANK = lazy_pattern(r"^(?:.{0,60}?(?:rank ?)?\d+\]:|\w+ (?:pid|rank)=\d+(?:, ip=[\d.]+)?\)) *")
"""What a launcher or ray writes before each line, without its first bracket."""
_WARNS_ABOVE = lazy_pattern(rb"Warning: [^\n]{1,160}:\s*\n$")
"""A warning that quotes an error in its next line."""
_NAMES_CLASS = lazy_pattern(rb"[A-Z]\w*(?:Error|Exception)\b")
_PASSED_ON = frozenset(
    ("__getattr__", "__getattribute__", "_get_module", "_call_with_frames_removed", "import_module", "_gcd_import")
)
"""Functions that only pass an import or an attribute on: the frame above them asked for the name."""


@dataclass(frozen=True, kw_only=True)
class CodeFrame:
    """One frame of a traceback."""

    path: str
    line: int
    function: str
    code: str
    """The line of code below the frame, or empty."""

    @property
    def parts(self) -> tuple[str, ...]:
        """The folders and the file of the path, without `.py`."""
        return tuple(part for part in re.split(r"[/\\]+", self.path.removesuffix(".py")) if part)

    @property
    def short_file(self) -> str:
        """The file as an answer shows it, with the folder that it is in."""
        return "/".join(self.parts[-2:]) + ".py"

    @property
    def installed(self) -> tuple[str, ...]:
        """The parts below `site-packages` or `dist-packages`; empty for a file that is not installed there."""
        parts = self.parts
        places = [place for place, part in enumerate(parts) if part in {"site-packages", "dist-packages"}]
        return parts[places[-1] + 1 :] if places else ()


class FaultKind(StrEnum):
    """How a name was asked for."""

    IMPORT = "import"
    """`cannot import name`: `owner` is the module, `name` what it lacks; Python before 3.7 leaves the module out."""
    MODULE = "module"
    """`No module named`: `owner` is the module."""
    MODULE_ATTRIBUTE = "module-attribute"
    """`module ... has no attribute`: `owner` is the module."""
    OBJECT_ATTRIBUTE = "object-attribute"
    """`'Class' object has no attribute`: `owner` is the class without its module."""
    KEYWORD = "keyword"
    """`unexpected keyword argument`: `owner` is the function as Python names it, `name` the keyword."""
    REQUIRED = "required"
    """`missing ... required argument`: `owner` is the function, `name` the parameter."""
    KEY = "key"
    """`KeyError`: `name` is the key."""
    MODEL_TYPE = "model-type"
    """A model type that transformers does not know: `name`."""
    TOKENIZER = "tokenizer"
    """A tokenizer class that transformers does not have: `name`."""
    DISTRIBUTION = "distribution"
    """Metadata of a distribution that is not installed: `owner` is its name."""
    GLOBAL = "global"
    """`name 'X' is not defined`: `name`."""
    POSITIONS = "positions"
    """More positional arguments than a function takes: `owner` is the function, `name` how many were given."""


_I, _D = rb"[A-Za-z_]\w{0,99}", rb"[A-Za-z_][\w.]{0,199}"
_FORMS: tuple[tuple[bytes, FaultKind, re.Pattern[bytes]], ...] = tuple(
    (word, kind, lazy_pattern(pattern))
    for word, kind, pattern in (
        (
            b"cannot",
            FaultKind.IMPORT,
            rb"cannotimportname'(?P<name>"
            + _I
            + rb")'from(?P<circular>partiallyinitializedmodule)?'(?P<owner>"
            + _D
            + rb")'(?:\(mostlikelyduetoacircularimport\))?(?:\((?P<path>[^)]{0,300})\))?",
        ),
        (b"cannot", FaultKind.IMPORT, rb"ImportError:cannotimportname'?(?P<name>" + _I + rb"?)'?(?=\n|$)"),
        (
            b"named",
            FaultKind.MODULE,
            rb"[Nn]omodulenamed(?:'(?P<owner>"
            + _D
            + rb")'(?:;'(?P<plain>"
            + _D
            + rb")'isnotapackage)?|(?P<bare>"
            + _D
            + rb")(?=\n|$))",
        ),
        (
            b"attribute",
            FaultKind.MODULE_ATTRIBUTE,
            rb"(?:(?P<circular>partiallyinitialized)|\b)module'(?P<owner>"
            + _D
            + rb")'(?:\(mostlikelyduetoacircularimport\))?hasnoattribute'(?P<name>"
            + _I
            + rb")'",
        ),
        (
            b"attribute",
            FaultKind.MODULE_ATTRIBUTE,
            rb"Error:module(?P<owner>" + _D + rb"?)hasnoattribute'?(?P<name>" + _I + rb"?)(?:'|\n|\.|$)",
        ),
        (
            b"attribute",
            FaultKind.OBJECT_ATTRIBUTE,
            rb"(?:typeobject'(?P<type>"
            + _D
            + rb")'|'(?P<owner>"
            + _D
            + rb")'object)hasnoattribute'(?P<name>"
            + _I
            + rb")'",
        ),
        (
            b"attribute",
            FaultKind.OBJECT_ATTRIBUTE,
            rb"AttributeError:(?P<owner>[A-Z]\w{1,99}?)hasnoattribute'?(?P<name>" + _I + rb"?)(?:'|\n|\.|$)",
        ),
        (
            b"unexpected",
            FaultKind.KEYWORD,
            rb"(?<![\w.>])(?P<owner>" + _D + rb")\(\)gotanunexpectedkeywordargument'(?P<name>" + _I + rb")'",
        ),
        (
            b"required",
            FaultKind.REQUIRED,
            rb"(?<![\w.>])(?P<owner>"
            + _D
            + rb")\(\)missing\d{1,2}required(?:positional|keyword-only)arguments?:'(?P<name>"
            + _I
            + rb")'",
        ),
        (
            b"positional",
            FaultKind.POSITIONS,
            rb"(?<![\w.>])(?P<owner>"
            + _D
            + rb")\(\)takes(?:from\d{1,2}to)?\d{1,2}positionalarguments?but(?P<name>\d{1,2})"
            rb"(?:positionalarguments?.{0,60}?)?w(?:ere|as)given",
        ),
        (b"defined", FaultKind.GLOBAL, rb"NameError:(?:global)?name'(?P<name>" + _I + rb")'isnotdefined"),
        (
            b"metadata",
            FaultKind.DISTRIBUTION,
            rb"[Nn]opackagemetadatawasfoundfor'?(?P<bare>[A-Za-z][\w.-]{0,80}?)'?(?=\n|$|[\s,;])",
        ),
        (
            b"PackageNotFoundError",
            FaultKind.DISTRIBUTION,
            rb"PackageNotFoundError:(?P<bare>[a-z][\w.-]{0,80})(?=\n|$)",
        ),
        (b"KeyError", FaultKind.KEY, rb"KeyError:'(?P<name>[\w.+-]{1,80})'"),
        (
            b"recognize",
            FaultKind.MODEL_TYPE,
            rb"modeltype'(?P<name>[\w.+-]{1,80})'butTransformersdoesnotrecognize",
        ),
        (
            b"imported",
            FaultKind.TOKENIZER,
            rb"Tokenizerclass(?P<name>" + _I + rb"?)doesnotexistorisnotcurrentlyimported",
        ),
    )
)


@dataclass(frozen=True, kw_only=True)
class NameFault:
    """One error about a name."""

    kind: FaultKind
    owner: str = ""
    name: str = ""
    path: str = ""
    """The file that Python named behind the message, without what a wrapped line may have cut."""
    circular: bool = False
    """Python calls the module partially initialized."""
    not_a_package: str = ""
    """The module of which Python says that it is not a package."""

    @property
    def text(self) -> str:
        """What was asked for, as people would write it."""
        match self.kind:
            case FaultKind.IMPORT | FaultKind.MODULE_ATTRIBUTE | FaultKind.OBJECT_ATTRIBUTE:
                return f"{self.owner}.{self.name}"
            case FaultKind.KEYWORD | FaultKind.REQUIRED:
                return f"{self.owner}({self.name}=)"
            case FaultKind.MODULE | FaultKind.DISTRIBUTION | FaultKind.POSITIONS:
                return self.owner
        return self.name


@dataclass(frozen=True, kw_only=True)
class LoggedError:
    """An error about a name, and where it was raised."""

    fault: NameFault
    line: int
    """The number of its line in the log, from 1."""
    text: str = ""
    """The beginning of that line."""
    frames: tuple[CodeFrame, ...] = ()
    """The frames of its traceback, the one that asked for the name last."""


@dataclass(kw_only=True)
class ErrorReader:
    """Collects the errors about names (a `LogReader`)."""

    errors: list[LoggedError] = field(default_factory=list)
    _lines: int = 0
    _looked_at: set[int] = field(default_factory=set)

    @property
    def hints(self) -> frozenset[bytes]:
        """The words of the messages."""
        return FAULT_WORDS

    def feed(self, block: LogBlock, present: frozenset[bytes]) -> None:
        """Look for errors in a block."""
        if present and len(self.errors) < MOST_ERRORS:
            text = block.text
            for word in sorted(present & FAULT_WORDS):
                for at in _occurrences(text, word):
                    self._look_at(text, word, at)
        self._lines += block.fresh_lines

    def finish(self) -> None:
        """Sort the errors by their lines."""
        self.errors.sort(key=lambda error: error.line)

    def _look_at(self, text: bytes, word: bytes, at: int) -> None:
        key = hash((word, strip_digits(text[max(0, at - 150) : at]), strip_digits(text[at : at + 200])))
        if key in self._looked_at or len(self.errors) >= MOST_ERRORS:
            return
        self._looked_at.add(key)
        line = text.rfind(b"\n", max(0, at - 300), at) + 1
        if _RAISES.search(text, line, at) or text[max(0, at - 3) : at] == b"get":
            return  # the words as the source has them (`__getattribute__` too); the error itself follows
        if not _NAMES_CLASS.search(text, line, at) and _WARNS_ABOVE.search(text, max(0, line - 400), line):
            return  # a warning that goes over two lines
        above = text.rfind(b"\n", max(0, line - 300), max(0, line - 1)) + 1 or line
        for start in dict.fromkeys((line, above)):  # the line above counts only where a terminal wrapped it
            if self._take_fault(text, word, start, at):
                return

    def _take_fault(self, text: bytes, word: bytes, start: int, at: int) -> bool:
        """Keep the first fault in the text from `start` on that ends behind `at`; false when there is none."""
        before = len(normalize_log(text[start:at]).rstrip())
        for end, stated in parse_faults(normalize_log(text[start : at + _AROUND]), word):
            if end <= before:
                continue
            frames = tuple(list_frames_above(text, at))
            fault = _name_importing_module(stated, frames) or _name_shown_import(stated, text[:at], frames)
            if fault is None:
                continue
            shown = text[text.rfind(b"\n", 0, at) + 1 : at + 200].partition(b"\n")[0].decode("utf-8", "replace")
            line = self._lines + text.count(b"\n", 0, at) + 1
            if not any(error.fault == fault and error.frames == frames for error in self.errors):
                self.errors.append(LoggedError(fault=fault, line=line, text=shown, frames=frames))
            return True
        return False


def _name_importing_module(fault: NameFault, frames: Sequence[CodeFrame]) -> NameFault | None:
    """The fault with the module that the line of code imports from, where the message leaves it out; else `None`."""
    if fault.kind is not FaultKind.IMPORT or fault.owner:
        return fault
    statement = _IMPORT_FROM.match(frames[-1].code) if frames else None
    if statement is None:
        return None
    levels = len(statement["dots"])
    parents = frames[-1].installed[:-levels] if levels else ()
    if levels and not parents:
        return None
    owner = ".".join((*parents, *filter(None, (statement["module"],))))
    return replace(fault, owner=owner) if owner else None


def _name_shown_import(fault: NameFault, above: bytes, frames: Sequence[CodeFrame]) -> NameFault | None:
    """The fault with the module of the import that a notebook marks with an arrow, in a log without its file."""
    shown = list(_SHOWN_IMPORT.finditer(above[-_AROUND:]))
    if frames or fault.kind is not FaultKind.IMPORT or fault.owner or not shown:
        return None
    is_named = re.search(rf"\b{re.escape(fault.name)}\b".encode(), shown[-1]["names"])
    return replace(fault, owner=shown[-1]["module"].decode()) if is_named else None


def _occurrences(text: bytes, word: bytes) -> Iterator[int]:
    """Yield the first and the last places of a word."""
    at, count = text.find(word), 0
    while at >= 0 and count < _TRIES:
        yield at
        at, count = text.find(word, at + 1), count + 1
    if at < 0:
        return
    first, at, count = at, text.rfind(word), 0
    while at >= first and count < _TRIES:
        yield at
        at, count = text.rfind(word, 0, at), count + 1


def list_frames_above(text: bytes, at: int) -> Iterator[CodeFrame]:
    """Yield the frames of the traceback that ends at a place of a text, the innermost last; none without one."""
    above = text[max(0, at - _TRACEBACK) : at]
    begin = max(above.rfind(mark) for mark in _BEGIN)
    above = above[max(begin, 0) :]
    frames = []
    for match in _FRAME.finditer(above):
        path = (match["quoted"] or match["short"] or match["old"] or match["bare"]).decode("utf-8", "replace")
        has_next = match["quoted"] or match["bare"]
        code = _CODE.match(above, match.end()) if has_next else _ARROW.search(above, match.end(), match.end() + 900)
        function = (match["function"] or match["inside"] or match["within"] or b"").decode("ascii", "replace")
        frames.append(
            CodeFrame(
                path=path,
                line=int(match["line"] or match["at"] or match["on"] or (code["at"] if code and not has_next else 0)),
                function=function.rpartition(".")[2],
                code=_RANK.sub("", code[code.re.groups].decode("utf-8", "replace")).strip() if code else "",
            )
        )
    while len(frames) > 1 and (frames[-1].function in _PASSED_ON or frames[-1].path.startswith("<frozen ")):
        frames.pop()
    yield from frames[-60:]


FAULT_WORDS = frozenset(word for word, _, _ in _FORMS)
"""Each message has one of these words."""


def parse_faults(text: bytes, word: bytes) -> list[tuple[int, NameFault]]:
    """Return the faults with this one of the `FAULT_WORDS` in a normalized text, each with the place of its end."""
    faults: list[tuple[int, NameFault]] = []
    for own, kind, pattern in _FORMS:
        if own != word:
            continue
        for match in pattern.finditer(text):
            groups = {key: (value or b"").decode("ascii", "replace") for key, value in match.groupdict().items()}
            owner = groups.get("owner") or groups.get("type") or groups.get("bare") or ""
            if kind is FaultKind.OBJECT_ATTRIBUTE:
                owner = owner.rpartition(".")[2]
            fault = NameFault(
                kind=kind,
                owner=owner.strip("."),
                name=groups.get("name", ""),
                path=groups.get("path", ""),
                circular=bool(groups.get("circular")) or b"mostlikelyduetoacircularimport" in match.group(),
                not_a_package=groups.get("plain", ""),
            )
            if all(fault != other for _, other in faults):
                faults.append((match.end(), fault))
    return faults
