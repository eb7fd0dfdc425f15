"""What the text of an error says about a name that is not there. Pure.

The text is one that `normalize_log` returned: it has no spaces and one kind of quote, and wrapped lines are joined.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from knowngood.core.lazy_patterns import lazy_pattern


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
    CONFIGURATION = "configuration"
    """A configuration that an auto class does not take: `owner` is the auto class, `name` the configuration class."""
    TOKENIZER = "tokenizer"
    """A tokenizer class that transformers does not have: `name`."""
    ARGUMENT = "argument"
    """Arguments that no dataclass of a `HfArgumentParser` has: `name` is the first."""
    DISTRIBUTION = "distribution"
    """Metadata of a distribution that is not installed: `owner` is its name."""
    CLASS_KEY = "class-key"
    """`KeyError` of a class: `name` is the class with its module, which a table of classes lacks."""
    GLOBAL = "global"
    """`name 'X' is not defined`: `name`."""
    POSITIONS = "positions"
    """More positional arguments than a function takes: `owner` is the function, `name` how many were given."""
    CHOICE = "choice"
    """A value that an enumeration does not have: `owner` is the enumeration, `name` the value."""


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
    speaker: str = ""
    """What stands before a module's name without quotes: `ImportError` in Python 2, `python` after `python -m`."""

    @property
    def text(self) -> str:
        """What was asked for, as people would write it."""
        match self.kind:
            case FaultKind.IMPORT | FaultKind.MODULE_ATTRIBUTE | FaultKind.OBJECT_ATTRIBUTE:
                return f"{self.owner}.{self.name}"
            case FaultKind.KEYWORD | FaultKind.REQUIRED:
                return f"{self.owner}({self.name}=)"
            case FaultKind.CONFIGURATION:
                return f"{self.owner} for {self.name}"
            case FaultKind.MODULE | FaultKind.DISTRIBUTION | FaultKind.POSITIONS:
                return self.owner
        return self.name


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
            rb"(?P<speaker>ImportError:|python[\d.]*:)?[Nn]omodulenamed(?:'(?P<owner>"
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
        (b"KeyError", FaultKind.CLASS_KEY, rb"KeyError:<class'(?P<name>" + _D + rb")'>"),
        (b"KeyError", FaultKind.KEY, rb"KeyError:'(?P<name>[\w.+-]{1,80})'"),
        (
            b"recognize",
            FaultKind.MODEL_TYPE,
            rb"modeltype'(?P<name>[\w.+-]{1,80})'butTransformersdoesnotrecognize",
        ),
        (
            b"Unrecognized",
            FaultKind.CONFIGURATION,
            rb"Unrecognizedconfigurationclass<class'(?P<name>" + _D + rb")'>(?:forthiskindof\w{1,40}|tobuildan\w{1,40})"
            rb":(?P<owner>(?:TF|Flax)?Auto\w{1,60}?)(?:\.|Model|\n|$)",
        ),
        (
            b"imported",
            FaultKind.TOKENIZER,
            rb"Tokenizerclass(?P<name>" + _I + rb"?)doesnotexistorisnotcurrentlyimported",
        ),
        (
            b"HfArgumentParser",
            FaultKind.ARGUMENT,
            rb"argumentsarenotusedbythe'?HfArgumentParser'?:\[[^\]]{0,400}?'--(?P<name>[\w-]{1,80})",
        ),
        (
            b"valid",
            FaultKind.CHOICE,
            rb"Error:'(?P<name>[\w.-]{1,60})'isnotavalid(?P<owner>" + _I + rb"?),pleaseselectoneof",
        ),
    )
)
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
                speaker=groups.get("speaker", "").rstrip(":") if groups.get("bare") else "",
            )
            if all(fault != other for _, other in faults):
                faults.append((match.end(), fault))
    return faults
