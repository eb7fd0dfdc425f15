"""The runs of the speed suite in `evidence/speed/`: which points can be compared, and what is fastest."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from knowngood.core.cell import Cell, parse_cell
from knowngood.evidence import run_evidence, sealed_files
from knowngood.evidence.cell_answer import CellAnswer, SettingStateKind
from knowngood.evidence.run_evidence import Evidence

SPEED_RUNS_FOLDER = "speed"
SPEED_SCHEMA = "knowngood/speed-report/1"
DEFAULT_SETTING = "sdpa"
_OTHER_WORK = frozenset({"padded", "packed", "lora", "fp32-weights"})
"""The words of points that train on other data, or other weights, than the plain point of their shape."""
_OWN_CODE = frozenset({"chunked", "causal"})
"""The words of what no option of transformers gives."""
_WORDS = {
    "compiled": "torch.compile",
    "compiled-layers": "torch.compile of each layer",
    "chunked": "a chunked loss",
    "causal": "no mask but the kernel's own",
    "checkpointing": "gradient checkpointing",
    "trainer": "Trainer's loop",
    "adamw-foreach": "AdamW that is not fused",
    "warm": "warm kernels",
}


@dataclass(frozen=True, kw_only=True)
class SpeedPoint:
    """One way of training, as one run measured it."""

    run: Evidence
    file: str
    """Path of the run below the folder of evidence."""
    name: str
    """The point's id, which `smoke_tests/speed_tests/points.py` explains."""
    values: Mapping[str, Any]
    """What the suite measured, as its README.md explains it."""

    @property
    def shape(self) -> str:
        """The shape of the model."""
        return self.name.split("/")[0]

    @property
    def setting(self) -> str:
        """The attention setting, by the name that the smoke suite has for it."""
        return self.name.split("/")[1]

    @property
    def length(self) -> int:
        """The tokens in a row, with padding."""
        return int(self.name.split("/")[2].partition("x")[0])

    @property
    def words(self) -> tuple[str, ...]:
        """What is not default in it."""
        return tuple(self.name.split("/")[3:])

    @property
    def way(self) -> str:
        """The setting and what is not default, in words."""
        words = " and ".join(_WORDS.get(word, word) for word in self.words)
        return f"{self.setting} with {words}" if words else self.setting

    @property
    def gpu(self) -> str:
        """The name of the card that it ran on."""
        return str(self.run.report["environment"].get("gpu") or "CPU")

    @property
    def tokens_a_second(self) -> float:
        """Tokens in a second, without padding."""
        return float(self.values["tokens_a_second"])


def load_speed_runs(
    evidence: Path, seal: sealed_files.RunSeal | None = None
) -> tuple[list[tuple[str, Evidence]], list[str]]:
    """Return the runs in `<evidence>/speed/` with their files, the oldest first, and why others are left out."""
    lost = sealed_files.find_missing_files(evidence, seal)
    runs, left_out = [], []
    for path in sorted((evidence / SPEED_RUNS_FOLDER).glob("*/*.json")):
        file = path.relative_to(evidence).as_posix()
        run = run_evidence.load_evidence(path)
        if path.parent.relative_to(evidence).as_posix() in lost:
            left_out += lost[path.parent.relative_to(evidence).as_posix()]
        elif not isinstance(run, Evidence):
            left_out.append(run)
        elif seal and not seal.covers_run(file):
            left_out.append(sealed_files.describe_unsigned_run(file))
        else:
            runs.append((file, run))
    return sorted(runs, key=lambda item: item[1].when), left_out


def list_points(runs: Iterable[tuple[str, Evidence]]) -> list[SpeedPoint]:
    """Return the points that these runs measured."""
    return [
        SpeedPoint(run=run, file=file, name=name, values=values)
        for file, run in runs
        for name, values in run.report["points"].items()
        if values["outcome"] == "pass"
    ]


def find_faults(point: SpeedPoint, answer: CellAnswer) -> list[str]:
    """Return why a point is not compared: what the suite noticed, or that its setting is not proven in its own cell.

    `answer` is what is known of that cell.
    """
    faults = [str(fault) for fault in point.values["faults"]]
    state = answer.settings[point.setting]
    if state.kind is not SettingStateKind.SEEN_ON_GPU:
        faults.append(f"{point.setting} is not proven in {answer.cell}: {state.text}")
    if "packed" in point.words and any("packed" in name for name in (*state.limits, *state.defects)):
        faults.append(f"packed rows are wrong under {point.setting} in {answer.cell}")
    return faults


def median_point(same: Sequence[SpeedPoint]) -> SpeedPoint:
    """Return of several runs of a point the one in the middle, the slower of two."""
    return sorted(same, key=lambda point: point.tokens_a_second)[(len(same) - 1) // 2]


def compare_points(points: Iterable[SpeedPoint]) -> tuple[SpeedPoint, list[SpeedPoint]] | None:
    """Return the plain point and those to compare with it, the fastest first; of the node and shape with the most.

    `points` are those without faults. Points that do other work, or have rows of another length, are not compared. Of
    several runs of a point the median counts.
    """
    groups: dict[tuple[str, str, str, int], dict[str, list[SpeedPoint]]] = defaultdict(lambda: defaultdict(list))
    for point in points:
        if not _OTHER_WORK & set(point.words):
            key = (str(point.run.node["name"]), point.gpu, point.shape, point.length)
            groups[key][point.name].append(point)
    compared = []
    for by_name in groups.values():
        group = sorted(map(median_point, by_name.values()), key=lambda point: -point.tokens_a_second)
        plain = next((point for point in group if point.setting == DEFAULT_SETTING and not point.words), None)
        if plain and len(group) > 1:
            compared.append((plain, group))
    return max(compared, key=lambda pair: len(pair[1]), default=None)


AnswerAboutCell = Callable[[Cell], CellAnswer]


def advise_on_speed(points: Iterable[SpeedPoint], cell: Cell, answer: AnswerAboutCell) -> str:
    """Return what is fastest in a cell in one line, with the card, shape and length it was seen on; empty if unknown.

    Points count that were measured with the versions of the cell, for any Python; where there are none, those with its
    torch on its GPU, and the line names the cell that ran.
    """
    # What no point can be near to is not judged, which can take a while.
    alike = [(measured, point) for point in points if _is_near(measured := parse_cell(point.run.cell), cell)]
    trains = answer(cell).settings if alike else {}
    known = {measured: answer(measured) for measured, _ in alike}
    counting = [
        (measured, point)
        for measured, point in alike
        if trains[point.setting].trains and not find_faults(point, known[measured])
    ]
    same = [point for measured, point in counting if replace(measured, python=cell.python) == cell]
    if not (pair := compare_points(same) or compare_points(point for _, point in counting)):
        return ""
    plain, group = pair
    best = next(point for point in group if not _OWN_CODE & set(point.words))
    place = f"{best.gpu}, {best.shape}, {best.length} tokens, {plain.run.when[:10]}"
    place += "" if best in same else f", in {best.run.cell}"
    text = f"fastest ({place}): {_describe_gain(best, plain)}"
    return text if group[0] is best else f"{text}; with code of your own, {_describe_gain(group[0], plain)}"


def _is_near(measured: Cell, cell: Cell) -> bool:
    return (measured.gpu, measured.torch) == (cell.gpu, cell.torch)


def _describe_gain(point: SpeedPoint, plain: SpeedPoint) -> str:
    gain = "the default" if point is plain else f"{point.tokens_a_second / plain.tokens_a_second:.2f} of the default"
    memory = point.values["peak_bytes"]
    return f"{point.way}: {gain}" + (f", {memory / 2**30:.0f} GiB" if memory else "")


PARTS: Mapping[str, str] = {
    "product_tflops": "matrix products, TFLOP/s",
    "memory_gbs": "the card's memory, GB/s",
    "to_card_gbs": "to the card, GB/s",
    "from_card_gbs": "from the card, GB/s",
    "tokens_a_second": "a step of the reference shape, tokens/s",
}
"""The parts of a node that are compared, with what they are in words."""
_REFERENCE = "qwen2.5-1.5b/sdpa/4096x2"


def read_parts(report: Mapping[str, Any]) -> dict[str, float]:
    """Return what a run measured of the parts of its node; without those that its faults make doubtful."""
    parts = report.get("parts", {})
    point = report["points"].get(_REFERENCE, {})
    named = {name: parts[name] for name in PARTS if name in parts and not parts.get("faults")}
    if point.get("outcome") == "pass" and not point["faults"]:
        named["tokens_a_second"] = point["tokens_a_second"]
    return named


def find_machine(report: Mapping[str, Any], node: Mapping[str, Any]) -> str:
    """Return what tells the machine of a run from others: its card where the run says that, else the node's name."""
    return str(report.get("parts", {}).get("card_id") or node["name"])


def known_good_parts(runs: Iterable[Evidence], gpu: str) -> dict[str, tuple[float, int]]:
    """Return the part -> its median over nodes with this card, and on how many nodes it was measured."""
    by_part: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        if run.report["environment"].get("gpu") == gpu:
            for part, value in read_parts(run.report).items():
                by_part[part][find_machine(run.report, run.node)].append(value)
    middle: Callable[[Iterable[float]], float] = statistics.median
    return {part: (middle(map(middle, nodes.values())), len(nodes)) for part, nodes in by_part.items()}
