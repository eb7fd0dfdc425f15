"""The commands that this distribution adds to the command line."""

from __future__ import annotations

from knowngood.cli.main import Command

_WORDS = {
    "diagnose": Command(
        "use", "what failed in this log, which component is at fault, what fixes it", "knowngood.cli.diagnose"
    ),
    "doctor": Command(
        "use",
        "check this machine, an environment or an image: GPU, driver, binaries, compilers, versions",
        "knowngood.cli.doctor",
    ),
    "reproduce": Command(
        "facts", "make a known failure and its cure happen, and store the evidence", "knowngood.cli.reproduce"
    ),
}
COMMANDS = {word: Command(*entry, f"knowngood.cli.{word}") for word, entry in _WORDS.items()}
