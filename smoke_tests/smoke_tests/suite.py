"""One run of the suite: the workers, the predictions, and the report that grows check by check."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from smoke_tests import beside, environment, nvml, report
from smoke_tests.catalogue import MEASURING
from smoke_tests.outcomes import unreached
from smoke_tests.runner import Runner

if TYPE_CHECKING:
    from pathlib import Path

    from smoke_tests.catalogue import Check


@dataclass(frozen=True)
class Options:
    """What the command line asks for."""

    report: Path | None = None
    predictions: Path | None = None
    quick: bool = False
    demand_gpu: bool = False
    cell_gpu: str | None = None
    budget: float | None = None


class Suite:
    """Everything that outlives a single check."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.predictions = report.read_predictions(options.predictions) if options.predictions else {}
        self.started, self.clock = _now(), time.monotonic()
        self.entries: list[dict[str, Any]] = []
        others = nvml.processes()
        self.runner = Runner()
        first = self.runner.run({"topic": "environment"}, 60.0)
        self.broken = None if first["outcome"] == "pass" else first
        self.environment = {**environment.static(), "driver": nvml.driver(), **first.get("environment", {})}
        self.host = report.host_problems(
            self.environment, others, demand_gpu=options.demand_gpu, cell_gpu=options.cell_gpu
        )
        self.suite_hash = environment.suite_hash()
        further = beside.count_workers(self.environment, shared_gpu=nvml.takes_several_processes())
        self.beside = beside.Beside([Runner() for _ in range(further)]) if further else None
        self.write(finished=False)

    def begin(self, checks: list[Check]) -> None:
        """Start those of the checks to come that can run beside the others."""
        if self.beside is not None and self.broken is None and not self.host:
            self.beside.begin(
                [check for check in checks if check.compiles and check.topic not in MEASURING], self._perform
            )

    def run(self, check: Check) -> dict[str, Any]:
        """Run one check, unless it is known already what comes of it, and keep its entry."""
        made = report.entry(check, self._result(check), self.predictions)
        self.entries.append(made)
        self.write(finished=False)
        return made

    def _result(self, check: Check) -> dict[str, Any]:
        if self.broken is not None:
            return {
                **self.broken,
                "reason": f"torch or transformers cannot be imported: {self.broken['reason']}",
            }
        if self.host:
            return unreached(f"host: {self.host[0]}")
        if self.beside is not None:
            if check.topic in MEASURING:
                self.beside.wait()
            begun = self.beside.result(check)
            if begun is not None:
                return begun
            return self._perform(check, self.beside.runner_of(check) or self.runner)
        return self._perform(check, self.runner)

    def _perform(self, check: Check, runner: Runner) -> dict[str, Any]:
        budget = self.options.budget
        if budget is not None and time.monotonic() - self.clock > budget:
            return unreached(f"the time given to the run ({budget:.0f} s) was used up")
        return runner.run(check.__dict__, check.timeout)

    def document(self, *, finished: bool) -> dict[str, Any]:
        """The report as it stands."""
        return {
            "schema": report.SCHEMA,
            "suite_hash": self.suite_hash,
            "selection": "quick" if self.options.quick else "whole",
            "started": self.started,
            "finished": _now(),
            "seconds": round(time.monotonic() - self.clock, 1),
            "environment": self.environment,
            "host_problems": self.host,
            "verdict": report.verdict(self.entries, self.host, finished=finished),
            "checks": self.entries,
        }

    def write(self, *, finished: bool) -> None:
        """Write the report if a place for it was given."""
        if self.options.report is not None:
            report.write(self.options.report, self.document(finished=finished))

    def close(self, *, finished: bool) -> dict[str, Any]:
        """End the workers, write the last report and return it."""
        if self.beside is not None:
            self.beside.close()
        self.runner.close()
        self.write(finished=finished)
        return self.document(finished=finished)


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
