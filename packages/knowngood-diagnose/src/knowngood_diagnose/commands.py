"""The commands that this distribution adds to the command line."""

from __future__ import annotations

from knowngood.cli.main import Command

_WORDS = {
    "diagnose": (
        "use",
        "what failed in this log, which component is at fault, what fixes it",
    ),
    "doctor": (
        "use",
        "check this machine, an environment or an image: GPU, driver, binaries, compilers, versions",
    ),
    "reproduce": (
        "facts",
        "make a known failure and its cure happen, and store the evidence",
    ),
}
COMMANDS = {word: Command(*entry, f"knowngood_diagnose.cli.{word}") for word, entry in _WORDS.items()}
