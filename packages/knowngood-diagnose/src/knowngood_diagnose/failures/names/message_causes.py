"""The cause of an error by the message that a package's own source has: who says it, where, since when, and why. Pure.

A message that tells its own remedy is passed on as the remedy. The condition above it in the source says when it comes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.core.package_names import canonical_name
from knowngood_diagnose.failures.names.atlas_shelf import NEWER_OR_OLDER, is_about_unknown_value, upgrade_package
from knowngood_diagnose.failures.names.name_situation import advise, describe_failure, place_of_version
from knowngood_facts.compat.incident import Fix, Incident, IncidentKind, OwnComponent

if TYPE_CHECKING:
    from knowngood_diagnose.failures.logs.last_errors import LastError
    from knowngood_diagnose.failures.logs.logged_errors import CodeFrame
    from knowngood_diagnose.failures.names.atlas_shelf import AtlasShelf
    from knowngood_facts.facts.message_store import MessageKind, MessageMatch

FindMessages = Callable[[str, str], "Iterable[MessageMatch]"]
"""Finds the messages of a package (second) that a text (first) shows."""
FindAsserts = Callable[[str, str, str], "Iterable[MessageMatch]"]
"""Finds the asserts of a module (second) of a package (third) that a line of code (first) shows."""

ERROR_CLASS = lazy_pattern(
    r"^(?:[A-Za-z_]\w*\.)*(?P<name>Exception|[A-Z]\w*(?:Error|Exception|Failure))(?:$|: ?)(?P<text>.*)$"
)
SPEAKS = lazy_pattern(r"(?:if .{1,100}: ?)?(?:raise|assert)\b")
"""How a line of code begins that refuses to go on in its own words."""
_LETTERS_WITHOUT_FRAMES = 22
"""A message without a traceback must show so many characters of its text, since any program may say a shorter one."""
_SHARE_WITHOUT_FRAMES = 0.4
"""So large a part of the text must then be the message's own words, and not values that are filled in."""
_LONGEST_TEXT = 300
_ASKS = lazy_pattern(
    r"\b(?:please|try|use|set|install|upgrade|update|downgrade|pass|provide|specify|add|remove|enable|disable|consider"
    r"|make sure|ensure|you (?:should|can|must|need|have to|may)|must|should|instead|run|change|rename|requires?|needs?"
    r"|expected|only (?:be|supports?|works?))\b",
    re.IGNORECASE,
)
_ASKS_TO_REPORT = lazy_pattern(r"\breport (?:this|it|the|a bug)\b|open an? (?:new )?issue", re.IGNORECASE)
_OF_PYTHON = lazy_pattern(
    r"has no attribute|because of the following error|No module named|unexpected keyword"
    r"|index out of range|division by zero|values to unpack|is not (?:iterable|subscriptable|callable)"
)
"""Words of Python itself, or of one who passes another error on: a package that repeats them is not their cause."""
ADDRESSES = lazy_pattern(
    r"\b(?:please|you|your|must|should|expected|invalid|unsupported|(?:not|only) supported?|only supports?|cannot|can't"
    r"|does not exist|not found|provide|specify|either)\b",
    re.IGNORECASE,
)
ABOUT_ARGUMENTS = frozenset(("ValueError", "TypeError", "KeyError", "AttributeError", "OSError", "EnvironmentError"))
_WANTED = r"[A-Za-z][\w.-]*\w(?:\[[\w,-]+\])?(?:[<>=!~]=?[\w.*]*\w(?:,[<>=!~]=?[\w.*]*\w)*)?(?![\w:/@+\[])"
_NO_NAMES = r"(?!(?:and|or|to|for|in|on|before|first|it|then|if|with|from|by|the|again|via|using|package|name)\b)"
_OPTIONS = r"(?: --?(?!(?:r|e|c|requirement|editable|constraint)\b)[A-Za-z][\w-]*(?:[= ](?:https?://[^\s`'\"]+|conda-forge|nvidia))?)*"
_INSTALL_COMMAND = lazy_pattern(
    rf"\b(?:python3? -m |uv )?(?:pip3?|conda|mamba|apt|apt-get) install{_OPTIONS}"
    rf"(?P<names>(?: ['\"]?{_NO_NAMES}{_WANTED}['\"]?)+(?={_OPTIONS}[.)]?(?:[`'\"]|\n|$))"
    rf"|(?: ['\"]?{_NO_NAMES}{_WANTED}['\"]?)){_OPTIONS}"
)
"""A command that a message spells out, with the names of what it installs."""
_ONE_WANTED = lazy_pattern(r"(?P<name>[A-Za-z][\w.-]*)(?:\[[\w,-]+\])?(?P<range>[<>=!~].*)?")
_WANTS = lazy_pattern(
    r"\b(?P<before>[A-Za-z][\w-]+) (?:(?:library|package|backend|module) )?(?:is|are) "
    r"(?:required|not (?:installed|available))"
    r"|\brequires? (?:the )?(?:latest )?`?(?P<behind>[A-Za-z][\w-]+)`?"
    r"|\b(?:install|missing|without) (?:the )?`?(?P<named>[A-Za-z][\w-]+)`?",
    re.IGNORECASE,
)
_AVAILABLE = lazy_pattern(
    r"\bnot (?:\w+\.)*_?is_(?P<name>\w+?)_available\(\)|\bnot (?:\w+\.)?(?:_?HAS|USE)_(?P<flag>[A-Z_]+?)(?:_BACKEND)?\b"
)
_MOST_WORDS = 3
PASS_ON = frozenset(("torch", "ray", "joblib", "click", "hydra", "fire", "torchrun", "decorator", "tenacity"))
"""Packages that only pass a call on, or raise for what they are given."""
_SHOWN_CODE = 100


@dataclass(frozen=True, kw_only=True)
class MessageCause:
    """An error that a package raises in its own words."""

    incident: Incident
    line: int
    package: str
    version: str = ""
    """The package's version in the log; empty when the log states none."""
    is_likely: bool = False
    """Whether it is only likely, whatever else the log has."""


@dataclass(frozen=True, kw_only=True)
class MessageReading:
    """What is needed to explain a message."""

    shelf: AtlasShelf
    packages: Sequence[str]
    """The packages whose messages were read."""
    find: FindMessages
    find_asserts: FindAsserts

    def explain_message(self, error: LastError, versions: Mapping[str, Sequence[str]]) -> MessageCause | None:
        """Return the cause of the last error of a log; `None` when no package is known to say it."""
        named = ERROR_CLASS.match(error.message)
        text = named["text"].strip() if named else error.message
        if _OF_PYTHON.search(text):
            return None
        inner = _innermost(error.frames)
        module = self.shelf.module_of(inner) if inner else ""
        owner = self.shelf.owner(module.partition(".")[0]) if module else None
        if inner is not None and owner is None:
            return None  # the user's own code, or that of another package, says it
        candidates = [
            match
            for package in ([owner] if owner else self.packages)
            for match in self.find(text, package)
            if _is_of(match, named["name"] if named else "")
        ]
        if not candidates and inner is not None and owner and inner.code.startswith("assert"):
            candidates = list(self.find_asserts(inner.code, module, owner))
        if inner is None:
            least = max(_LETTERS_WITHOUT_FRAMES, _SHARE_WITHOUT_FRAMES * min(len(text), _LONGEST_TEXT))
            candidates = [match for match in candidates if match.letters >= least]
        best = self._choose(candidates, module, versions)
        if best is None:
            return None
        return _explain(best, candidates, error, text, versions, self.shelf)

    @staticmethod
    def _choose(
        candidates: Sequence[MessageMatch], module: str, versions: Mapping[str, Sequence[str]]
    ) -> MessageMatch | None:
        """Return the candidate that fits best: by the module of the traceback, the packages of the log, its length."""
        if not candidates:
            return None
        longest = max(match.letters for match in candidates)
        near = [match for match in candidates if match.letters >= 0.8 * longest]

        def rank(match: MessageMatch) -> tuple[bool, bool, bool, int, int]:
            return (
                match.module != module,
                match.package not in versions,
                match.row.kind.name == "LOG",
                -match.letters,
                -match.mask.bit_length(),
            )

        near.sort(key=rank)
        if not module and near[0].package not in versions and len({match.package for match in near}) > _MOST_WORDS:
            return None  # words that many packages use
        return near[0]


def _is_of(match: MessageMatch, name: str) -> bool:
    """Whether a message is raised with this class; a class of one's own may be another's subclass."""
    written = match.row.error.rpartition(".")[2]
    pairs = {frozenset((written, name)), frozenset((written.replace("Environment", "OS"), name))}
    return not name or not written or any(len(pair) == 1 for pair in pairs) or not written.endswith("Error")


def _innermost(frames: Sequence[CodeFrame]) -> CodeFrame | None:
    return next((frame for frame in reversed(frames) if not frame.path.startswith("<")), None)


def _explain(  # noqa: PLR0913, PLR0917 - one step of `explain_message`
    match: MessageMatch,
    candidates: Sequence[MessageMatch],
    error: LastError,
    text: str,
    versions: Mapping[str, Sequence[str]],
    shelf: AtlasShelf,
) -> MessageCause:
    from knowngood_facts.facts.atlas_answer import describe_spans, spans_of_mask  # most logs need nothing of the atlas

    package, row = match.package, match.row
    mask = 0
    for other in candidates:
        if other.package == package and other.row.text == row.text and other.module == match.module:
            mask |= other.mask
    version = next(iter(reversed(versions.get(package, ()))), "")
    missing = find_missing_package(text, row.condition, package, shelf)
    package_frame, caller = find_callers(error.frames)
    title = (
        f"{package} refuses to go on: {shorten_text(text, 140)}"
        if text
        else f"{package}'s own check failed: {row.condition}"
    )
    place = f"{row.place} of {match.module}" if row.place else match.module
    because = [f"{package} says so itself, in {place}{_condition_words(row.kind, row.condition)}."]
    spans = describe_spans(spans_of_mask(mask, match.releases))
    because.append(
        f"Of the releases that were read ({match.releases[0]} to {match.releases[-1]}) these say it: {spans}."
    )
    fixes = list(_fixes(match, mask, text, version, missing, caller))
    asker = package_frame.installed[0] if package_frame is not None else ""
    if asker and not (missing or shelf.owner(asker)):
        passing = shelf.distribution_of(asker) or asker
        fixes.insert(0, advise(f"A newer {passing}, which passes what this {package} takes"))
    component: str = package
    kind = IncidentKind.CONFIG
    if missing:
        component, kind = missing, IncidentKind.NOT_INSTALLED
        title = f"{missing} is missing, or too old: {shorten_text(text, 140)}"
    elif caller and row.error.rpartition(".")[2] in ABOUT_ARGUMENTS and ADDRESSES.search(text):
        component = OwnComponent.YOUR_CODE
    incident = describe_failure(
        f"message:{match.module}:{row.place}" if row.place else f"message:{match.module}",
        kind,
        component,
        title=title,
        because=" ".join(because) + describe_callers(error.frames),
        fixes=fixes,
        source=f"{package} {match.releases[0]} to {match.releases[-1]}: {match.module}",
        confidence="artefact",
    )
    return MessageCause(incident=incident, line=error.line, package=package, version=version)


def _condition_words(kind: MessageKind, condition: str) -> str:
    if not condition:
        return ""
    if kind.name == "ASSERT":
        return f", which asks that `{condition}`"
    if condition.startswith("except "):
        return f", where {condition.removeprefix('except ')} was caught"
    return f", when `{condition}`"


def find_callers(frames: Sequence[CodeFrame]) -> tuple[CodeFrame | None, CodeFrame | None]:
    """Return who called the package of the innermost frame: another package's frame, and the last of the program's."""
    own = next((at for at in reversed(range(len(frames))) if _is_own(frames[at])), -1)
    inner = frames[-1].installed[:1] if frames else ()
    behind = (frame for frame in reversed(frames[own + 1 :]) if frame.installed[:1] not in {inner, ()})
    package = next((frame for frame in behind if frame.installed[0] not in PASS_ON), None)
    return package, frames[own] if own >= 0 else None


def _is_own(frame: CodeFrame) -> bool:
    return not frame.installed and frame.path.endswith(".py")


def describe_callers(frames: Sequence[CodeFrame]) -> str:
    """Say which lines of another package and of the program lead to an error; empty where the log has neither."""
    package, own = find_callers(frames)
    places = [f"{name_file(frame)}, line {frame.line}{_quote(frame)}" for frame in (package, own) if frame is not None]
    return f" What leads there is {', by way of '.join(reversed(places))}." if places else ""


def name_file(frame: CodeFrame) -> str:
    """Return the file of a frame as an answer shows it: below its package, or its name alone."""
    return f"{'/'.join(frame.installed) or frame.parts[-1]}.py"


def _quote(frame: CodeFrame) -> str:
    return f" ({shorten_text(frame.code, _SHOWN_CODE)})" if frame.code else ""


def _fixes(  # noqa: PLR0913, PLR0917 - the parts of one explanation
    match: MessageMatch, mask: int, text: str, version: str, missing: str, caller: CodeFrame | None
) -> Iterator[Fix]:
    """Yield what the message itself asks for, then the releases that do not say it."""
    own = list(read_own_fixes(text, missing))
    yield from own
    if find_install_command(text) is not None:
        return
    if not own:
        what = f"what {caller.parts[-1]}.py, line {caller.line}, passes" if caller else "what your program passes"
        condition = match.row.condition
        if condition.startswith(("except ", "not (")) or not condition:
            yield Fix(note=f"Change {what}: the message says what is refused", change={})
        else:
            verb = "holds" if match.row.kind.name == "ASSERT" else "does not hold"
            yield Fix(note=f"Change {what}, so that `{condition}` {verb}", change={})
    newest = len(match.releases) - 1
    at = place_of_version(version, match.releases) if version else None
    if not mask >> newest & 1:
        first = match.releases[mask.bit_length()]
        if at is None or at < mask.bit_length():
            yield Fix(
                change={match.package: f">={first}"},
                note="no longer says it: what it refuses may work there",
                cost="an upgrade",
            )
    elif not missing and is_about_unknown_value(text):
        yield upgrade_package(match.package, NEWER_OR_OLDER)


def read_own_fixes(text: str, missing: str) -> Iterator[Fix]:
    """Yield what a message itself asks for.

    Args:
        text: the message.
        missing: the package that it says is not there; empty for none.
    """
    if (command := find_install_command(text)) is not None:
        yield command
    elif missing:
        yield Fix(change={missing: "*"}, note=f"install it: pip install -U {missing}")
    parts = re.split(r"(?<=[.!?;])\s+|\n", text)
    asking = [part for part in parts if _ASKS.search(part) and not _ASKS_TO_REPORT.search(part)]
    if asking:
        yield Fix(note=f"The message says what to do: {shorten_text(' '.join(asking), 400)}", change={})


def explain_told_command(error: LastError) -> MessageCause | None:
    """Return what an error says is to be installed by a command, whoever says it; `None` for other errors."""
    command = find_install_command(error.message)
    if command is None:
        return None
    name = next(iter(command.change), OwnComponent.CONTAINER)
    incident = describe_failure(
        f"told-command:{name}",
        IncidentKind.NOT_INSTALLED,
        name,
        title=f"Something is missing, and the message says how to install it: {shorten_text(error.message, 140)}",
        because="The message itself spells the command out." + describe_callers(error.frames),
        fixes=[command],
        source="the message",
    )
    return MessageCause(incident=incident, line=error.line, package=name)


def find_install_command(text: str) -> Fix | None:
    """Return the command that a message spells out, with what it installs by pip; `None` when it has none."""
    stated = _INSTALL_COMMAND.search(text)
    if stated is None:
        return None
    wanted = [_ONE_WANTED.match(item.strip("'\"")) for item in stated["names"].split()]
    by_pip = "pip" in stated[0].split(" install ")[0]
    change = {canonical_name(item["name"]): item["range"] or "*" for item in wanted if item} if by_pip else {}
    command = stated[0].strip()
    if any(command.count(quote) % 2 for quote in "'\""):
        command = command.rstrip("'\"")  # the quotes are around the command
    return Fix(change=change, note=f"The message says how: {command}")


def find_missing_package(text: str, condition: str, package: str, shelf: AtlasShelf) -> str:
    """Return the package that a message, or the condition above it, says is not there; empty for none.

    Args:
        text: the message.
        condition: the condition as the source has it.
        package: the package that says it.
        shelf: the atlas of all packages.
    """
    command = find_install_command(text)
    named = [*command.change] if command is not None else []
    names = [*named] + [item["name"] or item["flag"].lower() for item in _AVAILABLE.finditer(condition)]
    if not names and re.search(r"install|required|requires|not available", text, re.IGNORECASE):
        names += [next(filter(None, item.groups())) for item in _WANTS.finditer(text)]
    for name in names:
        plain = name.lower().rstrip(".").replace("_", "-")
        known = shelf.distribution_of(plain.replace("-", "_")) or (
            plain if plain in shelf.distributions or plain in shelf.packages else None
        )
        known = known or (plain if plain in named else None)
        if known and known not in {package, "torch", "python", "cuda"}:
            return known
    return ""


def shorten_text(text: str, limit: int) -> str:
    """Return the beginning of a text, with dots where it is cut."""
    return text if len(text) <= limit else f"{text[:limit].rstrip()} ..."
