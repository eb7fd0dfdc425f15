"""`knowngood doctor`: what a careful colleague would check on this machine, in one table."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from knowngood.cli import Answer
from knowngood.errors import UsageError

if TYPE_CHECKING:
    from knowngood.doctor.line import Line

_NOTHING = 4


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument(
        "--python",
        metavar="PATH",
        help="the interpreter or the folder of an environment (default: VIRTUAL_ENV's, else the first python on PATH)",
    )
    parser.add_argument("--image", metavar="REF", help="an image, or a cell's id, in place of an environment")
    parser.add_argument("--insecure", action="store_true", help="plain HTTP, to a registry on this machine only")
    parser.add_argument("--gpu", metavar="GPU", help="judge for this GPU, in place of the machine's: H100, sm_90")
    parser.add_argument("--driver", metavar="VERSION", help="and for this driver: 580.65.06")


def run(arguments: argparse.Namespace) -> Answer:
    """Look, judge, tell."""
    from knowngood import progress
    from knowngood.doctor import line

    if arguments.image and arguments.python:
        raise UsageError("--image and --python are two questions; ask one")
    start = time.monotonic()
    with progress.reporter("doctor") as say:
        found, subject = _image(arguments, say) if arguments.image else _environment(arguments, say)
    code = line.exit_code(found)
    if subject is None and code != 1:
        code = _NOTHING
        print("knowngood: nothing to look at: no GPU, no torch, no binary with GPU code", file=sys.stderr)
    document = {
        "verdict": str(line.overall(found)),
        "subject": subject,
        "lines": [item.document() for item in found],
        "seconds": round(time.monotonic() - start, 2),
    }
    return Answer(code, document, text(found))


def _environment(arguments: argparse.Namespace, say: Callable[[str], None]) -> tuple[list[Line], str | None]:
    """The lines, and the interpreter; `None` for it where there was nothing to look at."""
    from knowngood.doctor import examine, look

    about = examine.context(arguments.gpu, arguments.driver)
    seen = look.look(arguments.python, os.environ, say)
    say("judging")
    python = seen.python.path if seen.python else None
    return examine.lines(seen, about), python if examine.something(seen) else None


def _image(arguments: argparse.Namespace, say: Callable[[str], None]) -> tuple[list[Line], str]:
    from knowngood.doctor import examine, image, nvml
    from knowngood.doctor.seen import Seen

    about = examine.context(arguments.gpu, arguments.driver)
    found = image.find(arguments.image, say, insecure=arguments.insecure)
    return examine.image_lines(found, Seen(nvidia=nvml.look()), about), found.name


def text(found: Iterable[Line]) -> str:
    """The table; what is not fine has its reason and its remedy under it."""
    from knowngood import table

    return table.text(["verdict", "what", "seen"], [_row(item) for item in found])


def _row(item: Line) -> list[str]:
    from knowngood.doctor.line import Verdict

    cell = [item.seen]
    if item.verdict is not Verdict.OK or item.id == "driver":
        cell += [f"because {item.because}"] if item.because else []
        cell += [f"fix: {fix}" for fix in item.fix]
        cell += [f"leads to: {', '.join(item.incidents)}"] if item.incidents else []
    return [str(item.verdict), item.what, "\n".join(cell)]
