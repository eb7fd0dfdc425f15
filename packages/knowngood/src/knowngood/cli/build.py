"""`knowngood build [SELECT]`: build the images of cells, without the smoke suite."""

from __future__ import annotations

import argparse

from knowngood.cli.build_matrix import add_build_arguments, build_cells
from knowngood.cli.main import Answer


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `build-matrix` that do not concern the suite."""
    add_build_arguments(parser)


def run(arguments: argparse.Namespace) -> Answer:
    """Prepare the engine and the bases, then lock, render and build the selected cells."""
    return build_cells(arguments, suite=None)
