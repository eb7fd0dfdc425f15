"""`knowngood engine up|down|status|env|prune`: the engine, and what is kept for runs."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from knowngood.cli.main import Answer, Word
from knowngood.cli.progress import report_progress
from knowngood.core.errors import MissingError
from knowngood.core.formatting import format_bytes, format_table
from knowngood.engine import container_engine, embedded_engine
from knowngood.engine.container_engine import Engine

if TYPE_CHECKING:
    from knowngood.launch.stored_data import StoredItem


def start_engine(_: argparse.Namespace) -> Answer:
    """Use the engine that answers, else start the embedded one."""
    with report_progress("engine") as notify:
        engine = container_engine.ensure_engine(notify=notify)
    return Answer(0, _document(engine), _line(engine))


def _configure_down(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--force", action="store_true", help="stop it even while a build or a container uses it")


def remove_engine(arguments: argparse.Namespace) -> Answer:
    """Remove the embedded engine and all that it stored."""
    if not arguments.force:
        embedded_engine.check_engine_idle()
    with report_progress("engine") as notify:
        embedded_engine.remove_embedded_engine(notify)
    return Answer(0, {"embedded": None}, "the embedded engine and all that it stored are removed")


def show_engine(_: argparse.Namespace) -> Answer:
    """Describe the engine that runs."""
    engine = _running_engine()
    return Answer(0, _document(engine), _line(engine))


def show_environment(_: argparse.Namespace) -> Answer:
    """Return the shell lines with which other programs find the engine that runs."""
    engine = _running_engine()
    return Answer(0, _document(engine), container_engine.render_shell_environment(engine))


def _running_engine() -> Engine:
    system = container_engine.find_system_engine()
    running = system if isinstance(system, container_engine.Engine) else container_engine.find_embedded_engine()
    if running is None:
        reason = system.reason if isinstance(system, container_engine.UnsuitableEngine) else ""
        raise MissingError(f"{reason}; `knowngood engine up` starts the embedded engine")
    return running


def _line(engine: Engine) -> str:
    document = _document(engine)
    kind = "embedded engine" if document["embedded"] else "engine"
    return f"{kind} {document['version']} (BuildKit {document['buildkit']}) at {document['host']}"


def _document(engine: Engine) -> dict[str, object]:
    return {name: getattr(engine, name) for name in ("host", "version", "buildkit", "containerd_store", "embedded")}


def _configure_prune(parser: argparse.ArgumentParser) -> None:
    from knowngood.launch import stored_data

    parser.add_argument(
        "kinds",
        nargs="*",
        metavar="KIND",
        help=f"what to remove: {', '.join(stored_data.StoredKind)} (default: all of them)",
    )
    parser.add_argument("--yes", action="store_true", help="remove it; without this, it is only listed")


def prune_stored_data(arguments: argparse.Namespace) -> Answer:
    """List or remove derived images, the cache volume, build cache and files; exit 1 when one could not be removed."""
    from knowngood.launch import stored_data

    kinds = stored_data.parse_stored_kinds(arguments.kinds)
    engine = container_engine.find_running_engine(builds=False)
    items = [item for item in stored_data.list_stored_items(engine, os.getuid()) if item.kind in kinds]
    if arguments.yes:
        items = [stored_data.remove_stored_item(engine, item) for item in items]
    freed = sum(item.size for item in items if (item.removed if arguments.yes else not item.in_use))
    document = {"items": [item.document() for item in items], "removed": arguments.yes, "bytes": freed}
    failed = arguments.yes and any(item.problem for item in items)
    text = _stored_text(items, freed, removed=arguments.yes, engine=engine is not None)
    return Answer(1 if failed else 0, document, text)


def _stored_text(items: list[StoredItem], freed: int, *, removed: bool, engine: bool) -> str:
    rows = [[str(item.kind), item.name, format_bytes(item.size), _state(item)] for item in items]
    lines = [format_table(["kind", "name", "size", ""], rows)] if rows else []
    lines += [] if engine else ["no engine runs, so nothing of one is listed"]
    if removed:
        return "\n".join([*lines, f"freed at most {format_bytes(freed)}"])
    return "\n".join([*lines, f"--yes frees at most {format_bytes(freed)}; the images of cells stay"])


def _state(item: StoredItem) -> str:
    return "removed" if item.removed else item.problem or ("in use" if item.in_use else "")


WORDS = {
    "up": Word("use the engine that answers, else start the embedded one", start_engine),
    "down": Word("remove the embedded engine and all that it stored", remove_engine, _configure_down),
    "status": Word("describe the engine that runs", show_engine),
    "env": Word('print shell lines, for eval "$(knowngood engine env)"', show_environment),
    "prune": Word(
        "list what can be made again and how much it takes, and remove it with --yes",
        prune_stored_data,
        _configure_prune,
    ),
}
