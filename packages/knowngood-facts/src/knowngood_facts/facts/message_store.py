"""The words with which packages refuse to go on, read from a module or stored, and the search for one in a text."""

from __future__ import annotations

import ast
import re
import warnings
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING

from knowngood.core.lazy_patterns import lazy_pattern
from knowngood_facts.facts.atlas_file import AtlasFile
from knowngood_facts.facts.atlas_lookup import atlas_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

GAP = "{}"
"""What stands in a template for a value."""
_SEPARATOR = "\x1f"
_TEXT_LIMIT = 320
_CONDITION_LIMIT = 180
_FEWEST_LETTERS = 12
_SHORTEST_TEST = 10
_LOGGED = frozenset(("error", "critical", "fatal", "exception"))
_LOGGERS = lazy_pattern(r"log(?:ger|ging)?$", re.IGNORECASE)
_PLACEHOLDER = lazy_pattern(r"%(?:\(\w+\))?[-+#0-9.*]*[sdrfgixXe]")
_FIELD = lazy_pattern(r"\{[^{}]*\}")


class MessageKind(StrEnum):
    """The way in which a module gives a message: by an error, by an assert, or in its log."""

    RAISE = "r"
    ASSERT = "a"
    """The condition is the one that has to hold; the text may be empty."""
    LOG = "l"


@dataclass(frozen=True, slots=True, order=True)
class MessageRow:
    """One message of a module."""

    place: str
    """The function that says it, as `Class.method`; empty at the level of the module."""
    kind: MessageKind
    error: str
    """The class of the error as written; empty for what is logged."""
    text: str
    condition: str
    """The nearest `if` above it, as written, or `except ...`; empty without one."""

    @property
    def detail(self) -> str:
        """Error, text and condition as one column of a row."""
        return _SEPARATOR.join((self.error, self.text, self.condition))


def parse_message(place: str, kind: str, detail: str) -> MessageRow:
    """Return the message of a row's columns; raises `ValueError` when they are no message's."""
    error, text, condition = detail.split(_SEPARATOR)
    return MessageRow(place, MessageKind(kind), error, text, condition)


def extract_messages(source: str) -> tuple[MessageRow, ...]:
    """Return the messages of a module's source, sorted; none for a source that does not parse."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return ()
    reader = _MessageReader()
    reader.read_body(tree.body, "", "")
    return tuple(sorted(set(reader.rows)))


@dataclass(kw_only=True)
class _MessageReader:
    rows: list[MessageRow] = field(default_factory=list)
    _texts: dict[str, str] = field(default_factory=dict)
    """The strings that the variables of the function have."""

    def read_body(self, body: Sequence[ast.stmt], place: str, condition: str) -> None:
        for statement in body:
            self._read(statement, place, condition)

    def _read(self, node: ast.stmt, place: str, condition: str) -> None:  # noqa: C901, PLR0912 - one case a statement
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                outer, self._texts = self._texts, {}
                self.read_body(node.body, f"{place}.{node.name}" if place else node.name, "")
                self._texts = outer
            case ast.If():
                test = _source_of(node.test)
                self.read_body(node.body, place, test)
                self.read_body(node.orelse, place, f"not ({test})")
            case ast.Try() | ast.TryStar():
                self.read_body([*node.body, *node.orelse, *node.finalbody], place, condition)
                for handler in node.handlers:
                    self.read_body(handler.body, place, f"except {_source_of(handler.type) or 'Exception'}")
            case ast.For() | ast.AsyncFor() | ast.While():
                self.read_body([*node.body, *node.orelse], place, condition)
            case ast.With() | ast.AsyncWith():
                self.read_body(node.body, place, condition)
            case ast.Match():
                for case in node.cases:
                    self.read_body(case.body, place, condition)
            case ast.Assign(targets=[ast.Name(id=name)]):
                self._texts[name] = self._text_of(node.value)
            case ast.Raise(exc=ast.Call(args=[first, *_]) as call):
                self._add(place, MessageKind.RAISE, _source_of(call.func), self._text_of(first), condition)
            case ast.Assert():
                text = self._text_of(node.msg) if node.msg is not None else ""
                test = _source_of(node.test)
                if len(test) >= _SHORTEST_TEST:
                    self._add(place, MessageKind.ASSERT, "AssertionError", text, test)
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner, attr=verb), args=[first, *_])):
                if verb in _LOGGED and _LOGGERS.search(_source_of(owner)):
                    self._add(place, MessageKind.LOG, "", self._text_of(first), condition)
            case _:
                pass

    def _add(self, place: str, kind: MessageKind, error: str, text: str, condition: str) -> None:
        text = _shorten(text, _TEXT_LIMIT)
        letters = sum(char.isalpha() for char in text.replace(GAP, ""))
        if letters < _FEWEST_LETTERS or " " not in text.strip():
            if kind is not MessageKind.ASSERT:
                return
            text = ""
        if place.isprintable() and error.isprintable():
            self.rows.append(MessageRow(place, kind, error[:80], text, _shorten(condition, _CONDITION_LIMIT)))

    def _text_of(self, node: ast.expr) -> str:  # noqa: PLR0911 - one case for each form of text
        """Return the template of an expression; a gap for what is no text."""
        match node:
            case ast.Constant(value=str(text)):
                return text
            case ast.JoinedStr():
                return "".join(
                    part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else GAP
                    for part in node.values
                )
            case ast.BinOp(op=ast.Add()):
                return self._text_of(node.left) + self._text_of(node.right)
            case ast.BinOp(left=left, op=ast.Mod()):
                return _PLACEHOLDER.sub(GAP, self._text_of(left))
            case ast.Call(func=ast.Attribute(value=value, attr="format")):
                return _FIELD.sub(GAP, self._text_of(value))
            case ast.Call(func=ast.Attribute(value=value, attr="strip" | "lstrip" | "rstrip")):
                return self._text_of(value)
            case ast.Call(args=[first, *_]) if "dedent" in _source_of(node.func):
                return self._text_of(first)
            case ast.Name(id=name):
                return self._texts.get(name, GAP)
        return GAP


def _source_of(node: ast.expr | None) -> str:
    return "" if node is None else ast.unparse(node)


def _shorten(text: str, limit: int) -> str:
    """The text in one line without what cannot be printed, cut at a limit."""
    text = " ".join(text.split())
    text = "".join(char if char.isprintable() else " " for char in text)
    return text if len(text) <= limit else text[:limit].rstrip()


def group_rows(messages: Mapping[str, Sequence[MessageRow]]) -> Iterator[tuple[str, list[str]]]:
    """Yield each module with its messages as rows of an atlas file."""
    for module, rows in messages.items():
        yield module, [f"{row.place}\t{row.kind}\t{row.detail}" for row in rows]


MESSAGES_FOLDER = "messages"
"""The folder below that of the atlas with one file for each package."""
_WINDOWS = 10
_SHORTEST_WINDOW = 12
_LEAST_SHARE = 0.5


@dataclass(frozen=True, kw_only=True)
class MessageMatch:
    """A message of a package that a text shows."""

    package: str
    releases: Sequence[str]
    """The releases that were read, oldest first: of each series the last."""
    module: str
    row: MessageRow
    mask: int
    """The releases with this row, as bits."""
    letters: int
    """How many characters of its literal text the text shows."""


def list_message_packages(folder: Path | None = None) -> list[str]:
    """Return the packages whose messages were read, sorted."""
    return sorted(path.stem for path in (folder or atlas_folder() / MESSAGES_FOLDER).glob("*.atlas"))


@cache
def open_messages(package: str, folder: Path | None = None) -> AtlasFile | None:
    """Open the messages of a package; `None` when there are none. `InputError` when the file is damaged."""
    path = (folder or atlas_folder() / MESSAGES_FOLDER) / f"{package}.atlas"
    return AtlasFile(path) if path.exists() else None


def find_messages(text: str, file: AtlasFile) -> Iterator[MessageMatch]:
    """Yield the messages of a package that a text shows.

    Args:
        text: what stands behind the class of an error, in one line.
        file: the package's messages.
    """
    looked_at: set[tuple[str, str]] = set()
    for window in _windows(text):
        for module, (place, kind, detail, mask) in file.search_rows(window):
            if (module, f"{place}\t{detail}") in looked_at:
                continue
            looked_at.add((module, f"{place}\t{detail}"))
            row = parse_message(place, kind, detail)
            if row.text and (letters := match_template(row.text, text)):
                yield MessageMatch(
                    package=file.package, releases=file.releases, module=module, row=row, mask=mask, letters=letters
                )


def find_bare_asserts(code: str, module: str, file: AtlasFile) -> Iterator[MessageMatch]:
    """Yield the asserts of a module that a line of code shows, as a traceback quotes it."""
    shown = re.sub(r"[\s()'\"]", "", code.partition("assert ")[2])
    for place, kind, detail, mask in file.rows(module) if shown else ():
        row = parse_message(place, kind, detail)
        test = re.sub(r"[\s()'\"]", "", row.condition)
        if row.kind is MessageKind.ASSERT and (shown.startswith(test) or (test.startswith(shown) and len(shown) > 30)):
            yield MessageMatch(
                package=file.package, releases=file.releases, module=module, row=row, mask=mask, letters=len(test)
            )


def match_template(template: str, text: str) -> int:
    """Return how many characters of a template's literal text a text shows, in order; 0 when it shows another one."""
    at = letters = every = 0
    cut = False
    for number, part in enumerate(template.split(GAP)):
        literal = part.strip()
        every += len(literal)
        if not literal or cut:
            continue
        place = text.find(literal, at)
        if place < 0 or (not letters and not number and place > 40):
            whole = text.strip()
            if not number and len(whole) >= 2 * _FEWEST_LETTERS and literal.startswith(whole):
                return len(whole)  # the log cuts the message off
            if letters < 3 * _FEWEST_LETTERS:
                return 0
            cut = True
            continue
        at, letters = place + len(literal), letters + len(literal)
    return letters if letters >= max(_FEWEST_LETTERS, _LEAST_SHARE * min(every, len(text))) else 0


def _windows(text: str) -> list[str]:
    """The longest runs of three words of a text, as whose literal parts a template can be searched."""
    words = text[:500].split(" ")
    if len(words) < 3:
        return [text] if len(text) >= _SHORTEST_WINDOW else []
    runs = dict.fromkeys(" ".join(words[at : at + 3]) for at in range(len(words) - 2))
    plain = [run for run in runs if len(run) >= _SHORTEST_WINDOW]
    return sorted(plain, key=lambda run: (bool(re.search(r"[\d/='\"]", run)), -len(run)))[:_WINDOWS]
