"""`knowngood build [SELECT]`: images of cells, without the smoke suite."""

from __future__ import annotations

import argparse

from knowngood.cli import Answer
from knowngood.commands import build_matrix


def configure(parser: argparse.ArgumentParser) -> None:
    """The same arguments as `build-matrix`."""
    build_matrix.configure(parser)


def run(arguments: argparse.Namespace) -> Answer:
    """Engine, base, lock, render and build."""
    return build_matrix.run(arguments, smoke=False)
