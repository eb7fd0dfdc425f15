"""The suite's worker, which knows the checks of trainers too. ``python -m smoke_tests.trainers.worker FD``."""

from __future__ import annotations

from smoke_tests.trainers import checks

from smoke_tests import refusals, worker

refusals.KNOWN += tuple(known for module in checks.lists() for known in getattr(module, "SETTING_REFUSALS", ()))
worker.TOPICS["trainer"] = "smoke_tests.trainers.trainer"

if __name__ == "__main__":
    worker.main()
