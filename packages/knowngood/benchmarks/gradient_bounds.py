"""Measure how near right gradients of the smoke suite's model are to the reference's, and how far faulty ones.

    PYTHONPATH=smoke_tests python3 packages/knowngood/benchmarks/gradient_bounds.py OUT [--seconds 280] [--runs 200]
    PYTHONPATH=smoke_tests python3 packages/knowngood/benchmarks/gradient_bounds.py --summary OUT...

It needs torch and transformers, and runs on a GPU if torch sees one. OUT gets one JSON line for each training, as soon
as it has ended: the setting, dtype, layout and seed (of weights and rows), the fault in it or none, and for each step
and kind of weight the worst signed share and the worst size of an error (``smoke_tests/gradient_shares.py``). Of every
seed one step is taken, of some all of them. A run goes on where OUT ends, and ends by itself after ``--seconds``.
A setting that is not there or refuses says so in a line. ``--summary`` prints the largest of each, and what the suite's
bounds say of every training: false alarms, and faults that are noticed, and for their own reason.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

SETTINGS = ("sdpa-flash", "sdpa-cudnn", "sdpa-efficient", "sdpa-math", "fa2", "fa4", "flex", "eager", "sdpa")
LAYOUTS = ("dense", "packed")
DTYPES = ("bf16", "fp16", "bf16-pure", "fp16-pure", "fp32")
LONG = 10  # seeds of which all steps are taken
FAULTY = 4  # seeds of which each sharp fault is tried; of the others one is enough
SHARP = (
    *("scale-3-percent", "query-gradient-5-percent", "value-gradient-5-percent", "value-fp8", "softcap-30"),
    "noise-2-percent",
)


def main() -> None:
    """Measure, or sum up what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="+", type=Path, metavar="OUT")
    parser.add_argument("--seconds", type=float, default=280.0, help="begin no training after this time")
    parser.add_argument("--runs", type=int, default=200, help="seeds for each setting, dtype and layout")
    parser.add_argument("--setting", action="append", choices=SETTINGS, help="one setting; may be repeated")
    parser.add_argument("--dtype", action="append", choices=DTYPES, help="one dtype; may be repeated")
    parser.add_argument("--summary", action="store_true", help="print the largest of what the files hold")
    options = parser.parse_args()
    if options.summary:
        summarize([json.loads(line) for path in options.file for line in path.read_text().splitlines()])
    else:
        Measurement(options.file[0], options.seconds).run(
            options.dtype or DTYPES, options.setting or SETTINGS, options.runs
        )


class Measurement:
    """A file that grows line by line, and the time until which it may."""

    def __init__(self, file: Path, seconds: float) -> None:
        self.file, self.end = file, time.monotonic() + seconds
        lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        self.done = {_key(line) for line in lines if "setting" in line}
        self.refused = {(line["setting"], line["dtype"], line["layout"]) for line in lines if "refused" in line}
        self.models: dict[tuple[str, str], Any] = {}
        if not lines:
            self.write(_environment())

    def write(self, line: dict[str, Any]) -> None:
        """Append one training's outcome to the file, as a line of JSON."""
        with self.file.open("a") as stream:
            stream.write(json.dumps(line) + "\n")

    def run(self, dtypes: tuple[str, ...], settings: tuple[str, ...], runs: int) -> None:
        """Train with each seed under every setting, dtype by dtype, until the time is over."""
        for dtype in dtypes:
            self.models.clear()
            for seed in range(runs):
                for line in _trainings(seed, dtype, settings):
                    if time.monotonic() > self.end:
                        print(f"the time is over at seed {seed} of {dtype}; the same command goes on", flush=True)
                        return
                    if _key(line) not in self.done and _place(line) not in self.refused:
                        self.measure(line)
                if seed % 20 == 0:
                    print(f"{dtype}: seed {seed}, {self.end - time.monotonic():.0f} s left", flush=True)

    def measure(self, line: dict[str, Any]) -> None:
        """One training; a setting that cannot train in this dtype and layout is not asked again."""
        started = time.monotonic()
        try:
            steps = self.train(line)
        except Exception as error:
            said = {"refused": f"{type(error).__name__}: {str(error)[:300]}"}
            if "CUDA error" in str(error):
                raise  # the process is lost, and the same command goes on
            if line["fault"] is None:
                self.refused.add(_place(line))
                print({**line, **said}, flush=True)
        else:
            said = {"steps": steps}
        self.write({**line, **said, "seconds": round(time.monotonic() - started, 3)})

    def train(self, line: dict[str, Any]) -> list[dict[str, Any]]:
        """Take the steps of a training; of each, how far its loss and its gradients are off, by kind of weight."""
        import torch

        from smoke_tests import library_faults, reference, training
        from smoke_tests.precision import PRECISIONS
        from smoke_tests.settings import SETTINGS as KNOWN

        setting, precision, device = KNOWN[line["setting"]], PRECISIONS[line["dtype"]], training.device_here()
        faults = {fault.name: fault for fault in library_faults.ATTENTION}
        found = []
        with training.backend(setting), contextlib.ExitStack() as stack:
            key = (line["setting"], line["dtype"])
            if key not in self.models:
                self.models[key] = training.Trainee(setting, precision, line["layout"], "full", device)
            trainee = self.models[key]
            weights = _weights_of(line["seed"], trainee.weights, device)
            with torch.no_grad():
                for name, parameter in trainee.model.named_parameters():
                    parameter.copy_(weights[name])
            trainee.restart(line["layout"], line["seed"])
            if line["fault"] is not None:
                stack.enter_context(library_faults.put(faults[line["fault"]]))
            for number in range(training.STEPS + 1 if line["long"] else 1):
                if number:
                    trainee.step()
                loss = trainee.forward_backward()
                if precision.scaled and not all(bool(p.grad.isfinite().all()) for p in trainee.trained().values()):
                    found.append({"skipped": True})
                    continue
                expected = trainee.expected() if number else _expected(line["seed"], trainee, line["layout"] == "dense")
                errors = reference.distances(trainee.trained(), loss, *expected)
                kinds = {kind: [own["share"], own["size"]] for kind, own in errors["shares"].items()}
                found.append({"loss": errors["loss"], "kinds": kinds})
        return found


_WEIGHTS: dict[Any, Any] = {}
_EXPECTED: dict[Any, Any] = {}


def _weights_of(seed: int, dtype: Any, device: Any) -> dict[str, Any]:
    """The weights of a seed on the device; the same for every setting."""
    from smoke_tests import model
    from smoke_tests.settings import SETTINGS as KNOWN

    if (seed, dtype) not in _WEIGHTS:
        _WEIGHTS.pop(next(iter(_WEIGHTS), None), None)
        built = model.build(KNOWN["eager"], model.TINY, dtype, device)
        model.fill(built, seed)
        _WEIGHTS[seed, dtype] = {name: parameter.detach() for name, parameter in built.named_parameters()}
    return _WEIGHTS[seed, dtype]


def _expected(seed: int, trainee: Any, dense: bool) -> Any:
    """The reference of a first step; the same for every setting."""
    key = (seed, trainee.weights, dense)
    if key not in _EXPECTED:
        for old in [old for old in _EXPECTED if old[:2] != key[:2]]:
            del _EXPECTED[old]
        _EXPECTED[key] = trainee.expected()
    return _EXPECTED[key]


def _trainings(seed: int, dtype: str, settings: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """What is to be measured with a seed: right trainings first, then those with a fault."""
    from smoke_tests import library_faults

    for setting in settings:
        for layout in LAYOUTS:
            line = {"setting": setting, "dtype": dtype, "layout": layout, "seed": seed, "fault": None}
            yield {**line, "long": seed < LONG}
            for fault in library_faults.ATTENTION:
                if seed < (FAULTY if fault.name in SHARP else 1):
                    yield {**line, "fault": fault.name, "long": fault.name.startswith("late-")}


def _key(line: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(line[name] for name in ("setting", "dtype", "layout", "seed", "fault"))


def _place(line: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(line[name] for name in ("setting", "dtype", "layout"))


def _environment() -> dict[str, Any]:
    import platform

    import torch
    import transformers

    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    return {"environment": {"gpu": gpu, "python": platform.python_version(), **versions}}


def summarize(lines: list[dict[str, Any]]) -> None:
    """Print the largest of right trainings by dtype and kind of weight, false alarms, and which faults are noticed."""
    from smoke_tests import library_faults

    own_reasons = {fault.name: fault.reason for fault in library_faults.ATTENTION}
    largest: dict[tuple[str, str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    tried: dict[tuple[str, ...], list[int]] = defaultdict(lambda: [0, 0, 0])
    for line in (line for line in lines if "steps" in line):
        reason = next(filter(None, (_fault(line, number) for number in range(1, len(line["steps"]) + 1))), "")
        where, fault = (line["dtype"], line["setting"], line["layout"]), line["fault"]
        if fault is None:
            for number, step in enumerate(line["steps"], 1):
                when = "later" if number > 1 else "first"
                for kind, pair in {**step.get("kinds", {}), "loss": [0.0, step.get("loss", 0.0)]}.items():
                    own = largest[line["dtype"], when, kind]
                    own[:] = [max(own[0], abs(pair[0])), max(own[1], pair[1])]
            _count(tried["right", *where], bool(reason), reason=reason, where=line)
        elif fault in own_reasons:
            for row in ((fault, line["dtype"], "", ""), ("faults", *where)):
                _count(tried[row], bool(reason), own=bool(re.search(own_reasons[fault], reason)))
    for (dtype, when, kind), (share, size) in sorted(largest.items()):
        print(f"largest {dtype} {when} {kind}: share {share:.1e}, size {size:.1e}")
    for row, (count, noticed, own) in sorted(tried.items()):
        print(f"{' '.join(filter(None, row))}: {count} tried, {noticed} noticed, {own} for their own reason")


def _fault(line: dict[str, Any], number: int) -> str:
    """What the suite would say of a step of this training, by its bounds of today."""
    from smoke_tests import training
    from smoke_tests.precision import PRECISIONS

    step = line["steps"][number - 1]
    if "kinds" not in step:
        return ""
    shares = {kind: {"share": share, "size": size} for kind, (share, size) in step["kinds"].items()}
    return training.wrong(PRECISIONS[line["dtype"]], {"loss": step["loss"], "shares": shares}, number)


def _count(row: list[int], noticed: bool, *, own: bool = False, reason: str = "", where: Any = None) -> None:
    row[:] = [row[0] + 1, row[1] + noticed, row[2] + own]
    if reason:
        print("false alarm:", {name: where[name] for name in ("setting", "dtype", "layout", "seed")}, reason[:200])


if __name__ == "__main__":
    main()
