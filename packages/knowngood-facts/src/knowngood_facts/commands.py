"""The commands that this distribution adds to the command line."""

from __future__ import annotations

from knowngood.cli.main import Command

_WORDS = {
    "check": (
        "use",
        "check whether a combination of packages, GPU, driver and use works",
        "check --gpu H100 torch==2.11.0 transformers==5.17.0",
    ),
    "pick": ("use", "the best cells for a request, or the demands that contradict each other", "pick --gpu H100 trl"),
    "add": ("maintain", "add a cell to matrix.yaml, lock it and render its files", "add --gpu H100 --dry-run"),
    "api": (
        "facts",
        "in which releases a Python name is there, with which parameters, and where it went; which uses it --breaks",
        "api transformers.Qwen2ForCausalLM",
    ),
    "harvest": ("facts", "read facts from the artefacts of the package index, into facts/", "harvest torch"),
}
COMMANDS = {word: Command(*entry, f"knowngood_facts.cli.{word}") for word, entry in _WORDS.items()}
