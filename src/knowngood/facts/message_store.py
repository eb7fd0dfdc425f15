"""The messages of packages on this machine, and the search for the one that a text shows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from knowngood.facts.atlas_file import AtlasFile
from knowngood.facts.atlas_lookup import atlas_folder
from knowngood.facts.message_rows import GAP, MessageKind, MessageRow, parse_message

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

MESSAGES_FOLDER = "messages"
"""The folder below that of the atlas with one file for each package."""
_WINDOWS = 10
_SHORTEST_WINDOW = 12
_FEWEST_LETTERS = 12
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
