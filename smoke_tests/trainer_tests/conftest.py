"""Registers the checks of trainers with the suite, whose own files stay the same when a trainer's checks change."""

from __future__ import annotations

import sys

from smoke_tests.trainers import checks

from smoke_tests import catalogue, suite
from smoke_tests.runner import Runner

catalogue.TOPICS["trainers"] = checks.trainers
suite.Runner = lambda: Runner([sys.executable, "-u", "-m", "smoke_tests.trainers.worker"])
