"""The commands that this distribution adds to the command line."""

from __future__ import annotations

from knowngood.cli.main import Command

_WORDS = {
    "diagnose": ("use", "what failed in this log, which component is at fault, what fixes it", "diagnose train.log"),
    "doctor": (
        "use",
        "check this machine, an environment or an image: GPU, driver, binaries, compilers, versions",
        "doctor --gpu H100",
    ),
    "reproduce": (
        "facts",
        "make a known failure and its cure happen, and store the evidence",
        "reproduce cutlass-dsl-libraries-overwritten --in venv",
    ),
}
COMMANDS = {word: Command(*entry, f"knowngood_diagnose.cli.{word}") for word, entry in _WORDS.items()}
