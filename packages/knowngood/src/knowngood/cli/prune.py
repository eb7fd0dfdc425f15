"""`knowngood prune`: show what can be made again and how much it takes, and remove it with `--yes`."""

from __future__ import annotations

import argparse
import os

from knowngood.cli.main import Answer
from knowngood.core.formatting import format_bytes, format_table
from knowngood.engine import container_engine
from knowngood.launch import stored_data
from knowngood.launch.stored_data import StoredItem


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "kinds",
        nargs="*",
        metavar="KIND",
        help=f"what to remove: {', '.join(stored_data.StoredKind)} (default: all of them)",
    )
    parser.add_argument("--yes", action="store_true", help="remove it; without this, it is only listed")


def run(arguments: argparse.Namespace) -> Answer:
    """List or remove derived images, the cache volume, build cache and files; exit 1 when one could not be removed."""
    kinds = stored_data.parse_stored_kinds(arguments.kinds)
    engine = container_engine.find_running_engine(builds=False)
    items = [item for item in stored_data.list_stored_items(engine, os.getuid()) if item.kind in kinds]
    if arguments.yes:
        items = [stored_data.remove_stored_item(engine, item) for item in items]
    freed = sum(item.size for item in items if (item.removed if arguments.yes else not item.in_use))
    document = {"items": [item.document() for item in items], "removed": arguments.yes, "bytes": freed}
    failed = arguments.yes and any(item.problem for item in items)
    return Answer(1 if failed else 0, document, _text(items, freed, removed=arguments.yes, engine=engine is not None))


def _text(items: list[StoredItem], freed: int, *, removed: bool, engine: bool) -> str:
    rows = [[str(item.kind), item.name, format_bytes(item.size), _state(item)] for item in items]
    lines = [format_table(["kind", "name", "size", ""], rows)] if rows else []
    lines += [] if engine else ["no engine runs, so nothing of one is listed"]
    if removed:
        return "\n".join([*lines, f"freed at most {format_bytes(freed)}"])
    return "\n".join([*lines, f"--yes frees at most {format_bytes(freed)}; the images of cells stay"])


def _state(item: StoredItem) -> str:
    return "removed" if item.removed else item.problem or ("in use" if item.in_use else "")
