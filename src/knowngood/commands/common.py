"""Arguments that several commands take."""

from __future__ import annotations

import argparse


def add_select(parser: argparse.ArgumentParser) -> None:
    """SELECT, as `knowngood.select` reads it."""
    parser.add_argument(
        "select",
        nargs="*",
        metavar="SELECT",
        help="a cell id, a glob over ids, an axis filter (torch>=2.11,gpu=sm_90) or an alias",
    )


def add_wheelhouse(parser: argparse.ArgumentParser) -> None:
    """The folder of flash-attn wheels."""
    parser.add_argument(
        "--wheelhouse",
        metavar="FOLDER",
        help="flash-attn wheels (default: KNOWNGOOD_WHEELHOUSE, else a cache folder)",
    )


def add_locked(parser: argparse.ArgumentParser) -> None:
    """Refuse to change a lock."""
    parser.add_argument(
        "--locked", action="store_true", help="fail when a committed lock is stale, instead of renewing it"
    )
