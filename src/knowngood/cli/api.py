"""`knowngood api NAME`: in which releases a Python name is there, with which parameters, and where it went."""

from __future__ import annotations

import argparse
import re

from knowngood.cli.main import Answer
from knowngood.core.errors import UnknownError, UsageError
from knowngood.facts import atlas_answer, atlas_store

_NAME = re.compile(r"[^\W\d]\w*(?:[.:][^\W\d]\w*)*(?:\[[^\]]+\])?")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "name",
        metavar="NAME",
        help="a dotted name, such as transformers.models.qwen2.modeling_qwen2.Qwen2FlashAttention2",
    )


def run(arguments: argparse.Namespace) -> Answer:
    """Look the name up: exit 0 when any release has it, 1 when none has, 3 when the sources do not tell."""
    dotted = arguments.name.strip().replace(":", ".")
    if not _NAME.fullmatch(dotted):
        raise UsageError(f"{arguments.name!r} is not a dotted Python name such as transformers.Trainer")
    module = re.split(r"[.\[]", dotted, maxsplit=1)[0]
    package = atlas_store.find_owner(module)
    lookup = atlas_store.open_atlas(package) if package else None
    if lookup is None:
        known = ", ".join(atlas_store.list_atlas_packages()) or "nothing"
        raise UnknownError(f"the atlas does not have {module}; it has {known}")
    answer = atlas_answer.answer_about_name(lookup, dotted)
    code = 0 if answer.present else 3 if answer.unclear else 1
    return Answer(code, answer.document(), answer.text())
