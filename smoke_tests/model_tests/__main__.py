"""``python -m model_tests``: run the checks of families or of one configuration, or put shards together."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from model_tests import model_catalogue, model_report
from model_tests.families import FAMILIES
from smoke_tests import environment, nvml, outcomes, report
from smoke_tests.runner import Runner

WORKER = [sys.executable, "-u", "-m", "model_tests.worker"]
FAULT_FAMILIES = ("qwen2", "gemma2")


def main() -> int:
    """Run what the command line asks for; 0 if all is as it should be, 1 if not, 2 for wrong usage."""
    options = _parser().parse_args()
    predictions = report.read_predictions(options.predictions) if options.predictions else {}
    if options.join:
        document = model_report.join_reports([json.loads(path.read_text(encoding="utf-8")) for path in options.join])
    else:
        document = run_checks(options, predictions)
    if options.report:
        report.write(options.report, document)
    if document.get("problem"):
        print(document["problem"]["text"], file=sys.stderr)
        return 3 if document["problem"]["kind"] == "unknown-model" else 2
    print(model_report.format_table(document))
    return 0 if document["verdict"]["ok"] else 1


def run_checks(options: argparse.Namespace, predictions: dict[str, Any]) -> dict[str, Any]:
    """Run the checks one after another, each in the worker, and return the report."""
    given = _given_configurations(options)
    listed = [
        check
        for family in given
        for check in model_catalogue.list_checks(family, faults=family in FAULT_FAMILIES and not options.config)
        if (check.quick or not options.quick) and _is_selected(check, options)
    ]
    own = model_catalogue.choose_shard(listed, *options.shard)
    started, clock = _now(), time.monotonic()
    others, runner = nvml.processes(), Runner(WORKER)
    first = runner.run({"topic": "environment"}, 180.0)
    described = {**environment.static(), "driver": nvml.driver(), **first.get("environment", {})}
    problems = report.host_problems(described, others, demand_gpu=options.demand_gpu, cell_gpu=options.cell_gpu)
    document: dict[str, Any] = {
        "schema": model_report.SCHEMA,
        "suite_hash": hash_suites(),
        "selection": "quick" if options.quick else "whole",
        "shard": None if options.shard == (1, 1) else list(options.shard),
        "given": given,
        "environment": described,
        "host_problems": problems,
        "listed": [check.id for check in listed],
        "started": started,
        "checks": [],
    }
    if options.config and first["outcome"] == "pass":
        probed = runner.run({"topic": "probe", **_extra(given, listed[0], options)}, 240.0)
        document.update({name: probed[name] for name in ("miniature", "changes", "notes") if name in probed})
        if probed["outcome"] != "pass":
            probed["problem"] = {"kind": "broken", "text": f"{probed['reason']} {probed.get('message', '')}".strip()}
        if "problem" in probed:
            document["problem"], own = probed["problem"], []
    document.update(finished=_now(), seconds=0.0, verdict=model_report.verdict_of([]))
    for check in own:
        if first["outcome"] != "pass":
            result = {**first, "reason": f"torch or transformers cannot be imported: {first['reason']}"}
        elif problems:
            result = outcomes.unreached(f"host: {problems[0]}")
        elif options.budget is not None and time.monotonic() - clock > options.budget:
            result = outcomes.unreached(f"the time given to the run ({options.budget:.0f} s) was used up")
        else:
            result = runner.run({**check.__dict__, **_extra(given, check, options)}, check.timeout)
        entry = model_report.describe_check(check, result, predictions)
        document["checks"].append(entry)
        print(f"{entry['outcome']:8} {entry['id']} {entry['seconds']:.1f} s", file=sys.stderr, flush=True)
        document.update(finished=_now(), seconds=round(time.monotonic() - clock, 1))
        document["verdict"] = model_report.verdict_of(document["checks"])
        if options.report:
            report.write(options.report, document)
    runner.close()
    return document


def _extra(given: dict[str, Any], check: model_catalogue.ModelCheck, options: argparse.Namespace) -> dict[str, Any]:
    """What a check's request says beside the check itself."""
    return {"given": given[check.family], "quick_run": options.quick, "remote_code": options.remote_code}


def hash_suites() -> str:
    """One hash over this suite and the smoke suite, of whose modules it uses several."""
    own = environment.suite_hash(Path(__file__).parent)
    return hashlib.sha256(f"{own}{environment.suite_hash()}".encode()).hexdigest()


def _given_configurations(options: argparse.Namespace) -> dict[str, Any]:
    if options.config:
        config = json.loads(options.config.read_text(encoding="utf-8"))
        return {str(config["model_type"]): config}
    chosen = options.family or list(FAMILIES)
    return {name: {"model_type": FAMILIES[name].model_type, **FAMILIES[name].fields} for name in chosen}


def _is_selected(check: model_catalogue.ModelCheck, options: argparse.Namespace) -> bool:
    """Whether the check is among what --setting, --dtype and --layout leave; a check without one stays."""
    wanted = ((check.setting, options.setting), (check.dtype, options.dtype), (check.layout, options.layout))
    return check.topic == "formulas" or all(not chosen or value in chosen for value, chosen in wanted)


def _shard(text: str) -> tuple[int, int]:
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise argparse.ArgumentTypeError(f"{text!r} is no shard; write NUMBER/COUNT, such as 2/4")
    return int(number), int(count)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m model_tests", description=__doc__)
    parser.add_argument("--config", type=Path, metavar="FILE", help="a model's config.json, in place of the families")
    parser.add_argument("--remote-code", metavar="FOLDER", help="run the model's code in this folder")
    parser.add_argument("--family", action="append", choices=list(FAMILIES), help="one family; may be repeated")
    for name in ("setting", "dtype", "layout"):
        parser.add_argument(f"--{name}", action="append", help=f"one {name}; may be repeated")
    parser.add_argument("--quick", action="store_true", help="only the checks that say most")
    parser.add_argument("--shard", type=_shard, default=(1, 1), metavar="NUMBER/COUNT", help="one part of the checks")
    parser.add_argument("--join", nargs="+", type=Path, metavar="REPORT", help="put the reports of shards together")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the report (JSON) here")
    parser.add_argument(
        "--predictions", type=Path, metavar="FILE", help="compare outcomes with this JSON of predicted ones"
    )
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="start no check after this time")
    parser.add_argument("--demand-gpu", action="store_true", help="no GPU: the host is at fault")
    parser.add_argument("--cell-gpu", metavar="sm_XX", help="the architecture that the environment was made for")
    return parser


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


if __name__ == "__main__":
    sys.exit(main())
