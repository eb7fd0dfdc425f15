"""`knowngood engine up|down|status|env`: the embedded engine, for hosts where none answers."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from knowngood.cli import Answer

if TYPE_CHECKING:
    from knowngood.engines.engine import Engine


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument(
        "action",
        choices=["up", "down", "status", "env"],
        help="up: use the engine that answers, else start the embedded one; down: remove the embedded one and all it "
        'stored; env: shell lines, for eval "$(knowngood engine env)"',
    )


def run(arguments: argparse.Namespace) -> Answer:
    """Do the action."""
    from knowngood import progress
    from knowngood.engines import embedded, engine
    from knowngood.errors import MissingError

    if arguments.action == "down":
        with progress.reporter("engine") as say:
            embedded.down(say)
        return Answer(0, {"embedded": None}, "the embedded engine and all it stored are gone")
    if arguments.action == "up":
        with progress.reporter("engine") as say:
            found = engine.ensure(say=say)
        return Answer(0, _document(found), _line(found))
    system = engine.find_system()
    running = system if isinstance(system, engine.Engine) else engine.find_embedded()
    if running is None:
        reason = system.reason if isinstance(system, engine.Unsuitable) else ""
        raise MissingError(f"{reason}; `knowngood engine up` starts the embedded engine")
    return Answer(0, _document(running), engine.shell(running) if arguments.action == "env" else _line(running))


def _line(found: Engine) -> str:
    document = _document(found)
    kind = "embedded engine" if document["embedded"] else "engine"
    return f"{kind} {document['version']} (BuildKit {document['buildkit']}) at {document['host']}"


def _document(found: Engine) -> dict[str, object]:
    return {name: getattr(found, name) for name in ("host", "version", "buildkit", "containerd_store", "embedded")}
