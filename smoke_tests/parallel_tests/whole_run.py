"""One run over all ways of training: processes, joined results, and the report that grows check by check."""

from __future__ import annotations

import hashlib
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parallel_tests import joining, launcher
from smoke_tests import environment, nvml, report, table
from smoke_tests.outcomes import PASS, unreached
from smoke_tests.runner import Runner

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smoke_tests.catalogue import Check

SCHEMA = "knowngood/parallel-report/1"


def run_all(  # noqa: PLR0913
    checks: list[Check],
    processes: int | None,
    backend: str,
    *,
    predictions: Path | None,
    file: Path | None,
    quick: bool,
    budget: float | None = None,
) -> dict[str, Any]:
    """Run the checks, print a line for each, write the report after each, and return it.

    ``budget`` is in seconds: no way of training is begun after it, and its checks are not run.
    """
    known = report.read_predictions(predictions) if predictions else {}
    described, broken = describe_environment()
    gpus = described.get("gpu_count") or 0
    if backend == "auto":
        backend = "nccl" if gpus >= max(processes or 2, 2) else "gloo"
    size = processes or (max(2, gpus - gpus % 2) if backend == "nccl" else 2)
    started, clock = _now(), time.monotonic()
    host = (
        [f"NCCL wants a GPU for each of {size} processes, and torch sees {gpus}"]
        if backend == "nccl" and gpus < size
        else []
    )
    entries: list[dict[str, Any]] = []
    end = None if budget is None else clock + budget

    def document(*, finished: bool) -> dict[str, Any]:
        made = {
            "schema": SCHEMA,
            "suite_hash": suite_hash(),
            "smoke_suite_hash": environment.suite_hash(),
            "selection": "quick" if quick else "whole",
            "processes": size,
            "backend": backend,
            "started": started,
            "finished": _now(),
            "seconds": round(time.monotonic() - clock, 1),
            "environment": described,
            "host_problems": host,
            "verdict": report.verdict(entries, host, finished=finished),
            "checks": entries,
        }
        if file is not None:
            report.write(file, made)
        return made

    for check, result in _results(checks, size, backend, broken=broken, host=host, end=end):
        entries.append(report.entry(check, result, known))
        print(line_of(entries[-1]), flush=True)
        document(finished=False)
    made = document(finished=True)
    print(f"verdict: {'good' if made['verdict']['ok'] else 'bad'}: {made['verdict']['text']}")
    return made


def _results(  # noqa: PLR0913
    checks: list[Check],
    size: int,
    backend: str,
    *,
    broken: dict[str, Any] | None,
    host: list[str],
    end: float | None,
) -> Iterator[tuple[Check, dict[str, Any]]]:
    """Each check with its result; where nothing can run, or ``end`` of the clock has passed, with the reason."""
    for way in joining.ways_of(checks).values():
        if broken is not None:
            reason = f"torch or transformers cannot be imported: {broken['reason']}"
            yield from ((check, {**broken, "reason": reason}) for check in way)
        elif host:
            yield from ((check, unreached(f"host: {host[0]}")) for check in way)
        elif end is not None and time.monotonic() > end:
            yield from ((check, unreached("the time given to the run was used up")) for check in way)
        else:
            for check, results in launcher.run_checks(way, size, backend):
                yield check, joining.join_results(check.__dict__, results, check.timeout)


def describe_environment() -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The environment as the smoke suite describes it, asked of a process of its own, and what it said if it failed."""
    runner = Runner()
    try:
        first = runner.run({"topic": "environment"}, 60.0)
    finally:
        runner.close()
    described = {**environment.static(), "driver": nvml.driver(), **first.get("environment", {})}
    return described, None if first["outcome"] == PASS else first


def suite_hash() -> str:
    """One hash over these files and those of the smoke suite that they use."""
    own = environment.suite_hash(Path(__file__).parent)
    return hashlib.sha256(f"{own} {environment.suite_hash()}".encode()).hexdigest()


def line_of(made: dict[str, Any]) -> str:
    """One line on the terminal for a check."""
    said = made["reason"]
    if made["outcome"] == PASS and made.get("noticed"):
        said = f"noticed: {made['noticed']}"
    elif made["outcome"] == PASS and made["errors"]:
        said = f"loss off by {made['errors']['loss']:.1e}, gradients by {made['errors']['gradient']:.1e}"
    if made.get("message"):
        said = f"{said}: {made['exception']}: {made['message']}"
    return f"{table.SIGNS[made['outcome']]:8}{made['id']}  {' '.join(said.split())[:220]}"


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
