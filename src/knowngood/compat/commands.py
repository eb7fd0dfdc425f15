"""The commands that this distribution adds to the command line."""

from __future__ import annotations

from knowngood.cli.main import Command

_WORDS = {
    "check": Command(
        "use", "check whether a combination of packages, GPU, driver and use works", "knowngood.cli.check"
    ),
    "pick": Command(
        "use", "the best cells for a request, or the demands that contradict each other", "knowngood.cli.pick"
    ),
    "add": ("maintain", "add a cell to matrix.yaml, lock it and render its files"),
    "api": Command(
        "facts",
        "in which releases a Python name is there, with which parameters, and where it went",
        "knowngood.cli.api",
    ),
    "breaks": Command(
        "facts", "which uses of other packages break, and with which of their releases", "knowngood.cli.breaks"
    ),
    "harvest": Command(
        "facts", "read facts from the artefacts of the package index, into facts/", "knowngood.cli.harvest"
    ),
}
COMMANDS = {word: Command(*entry, f"knowngood.cli.{word}") for word, entry in _WORDS.items()}
