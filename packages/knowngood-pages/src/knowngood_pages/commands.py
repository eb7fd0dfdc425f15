"""The commands that this distribution adds to the command line."""

from __future__ import annotations

from knowngood.cli.main import Command

_WORDS = {
    "site": (
        "maintain",
        "write static pages where people find their image, and catalog.json for programs",
        "site -o public",
    ),
}
COMMANDS = {word: Command(*entry, f"knowngood_pages.cli.{word}") for word, entry in _WORDS.items()}
