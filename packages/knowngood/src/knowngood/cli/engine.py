"""`knowngood engine up|down|status|env`: start, remove or describe the engine; embedded where none answers."""

from __future__ import annotations

import argparse

from knowngood.cli.main import Answer
from knowngood.cli.progress import report_progress
from knowngood.core.errors import MissingError, UsageError
from knowngood.engine import container_engine, embedded_engine
from knowngood.engine.container_engine import Engine


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "action",
        choices=["up", "down", "status", "env"],
        help="up: use the engine that answers, else start the embedded one; down: remove the embedded one and all it "
        'stored; env: shell lines, for eval "$(knowngood engine env)"',
    )
    parser.add_argument("--force", action="store_true", help="down: stop it even while a build or a container uses it")


def run(arguments: argparse.Namespace) -> Answer:
    """Start, remove or describe the engine that builds use."""
    if arguments.force and arguments.action != "down":
        raise UsageError(f"engine {arguments.action} --force: only `down` has --force")
    if arguments.action == "down":
        if not arguments.force:
            embedded_engine.check_engine_idle()
        with report_progress("engine") as notify:
            embedded_engine.remove_embedded_engine(notify)
        return Answer(0, {"embedded": None}, "the embedded engine and all that it stored are removed")
    if arguments.action == "up":
        with report_progress("engine") as notify:
            engine = container_engine.ensure_engine(notify=notify)
        return Answer(0, _document(engine), _line(engine))
    system = container_engine.find_system_engine()
    running = system if isinstance(system, container_engine.Engine) else container_engine.find_embedded_engine()
    if running is None:
        reason = system.reason if isinstance(system, container_engine.UnsuitableEngine) else ""
        raise MissingError(f"{reason}; `knowngood engine up` starts the embedded engine")
    return Answer(
        0,
        _document(running),
        container_engine.render_shell_environment(running) if arguments.action == "env" else _line(running),
    )


def _line(engine: Engine) -> str:
    document = _document(engine)
    kind = "embedded engine" if document["embedded"] else "engine"
    return f"{kind} {document['version']} (BuildKit {document['buildkit']}) at {document['host']}"


def _document(engine: Engine) -> dict[str, object]:
    return {name: getattr(engine, name) for name in ("host", "version", "buildkit", "containerd_store", "embedded")}
