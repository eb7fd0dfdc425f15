"""Compare what `check` says of requirement lists with the labels that uv gave them, without a network.

    python requirement_comparison.py [LISTS.json ...] [--processes 10]

It prints the verdicts for each label, the four rates of issue 20, and each list where the two disagree. uv judges by
metadata alone. So a list that is broken for another reason (`broken beyond`: an incident, a name that is gone) is told
apart, and so is one that names a package or an extra without metadata here (`no metadata`); the rate of sound lists is
given without them too. With
`--processes`, so many lists are also put to whole processes, and their seconds and memory are printed.
`requirement_lists.py` makes and labels the lists; without a file, all of data/ are compared.
"""

from __future__ import annotations

import argparse
import collections
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from knowngood.core.errors import KnowngoodError
from knowngood_facts.compat import knowledge
from knowngood_facts.compat.check_answer import check_query
from knowngood_facts.compat.query import Query, parse_requirement

LISTS = sorted((Path(__file__).parent / "data").glob("requirement_lists*.json"))
VERDICTS = ("compatible", "broken", "broken beyond", "unknown", "no metadata", "refused")
_OF_METADATA = ("requires:", "resolution:", "wheel:")
"""How the ids of findings begin that follow from metadata."""
GOALS = (
    ("direct contradictions found", "direct", "broken", 0.99),
    ("deep contradictions found", "deep", "broken", 0.90),
    ("sound lists called sound", "sound", "compatible", 0.97),
)


def ask(known: knowledge.CompatKnowledge, item: Mapping[str, Any]) -> tuple[str, str]:
    """Return the verdict on a list (one of `VERDICTS`), and the reasons."""
    try:
        packages = [parse_requirement(text, python=item["python"]) for text in item["requirements"]]
        query = Query(axes={"python": item["python"]}, packages=tuple(filter(None, packages)))
        answer = check_query(known.for_query(query), query, known.published, suggest=False)
    except KnowngoodError as error:
        return "refused", str(error)
    verdict = "compatible" if answer.verdict == "verified" else str(answer.verdict)
    errors = [finding for finding in answer.findings if finding.severity == "error"]
    if errors and not any(finding.id.startswith(_OF_METADATA) for finding in errors):
        verdict = "broken beyond"
    elif verdict == "unknown" and answer.uncovered:
        verdict = "no metadata"
    reasons = [finding.because for finding in errors]
    return verdict, "; ".join(reasons) or ("not covered: " + ", ".join(answer.uncovered) if answer.uncovered else "")


def measure_processes(items: list[Mapping[str, Any]]) -> None:
    """Print the seconds and the memory of whole processes."""
    seconds = []
    for item in items:
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "knowngood", "check", "--python", item["python"], *item["requirements"]],
            check=False,
            capture_output=True,
            stdin=subprocess.DEVNULL,
        )
        seconds.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(
        f"{len(items)} processes: median {statistics.median(seconds):.2f} s, most {max(seconds):.2f} s, {peak:.0f} MB"
    )


def main() -> None:
    """Compare, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lists", type=Path, nargs="*", default=LISTS)
    parser.add_argument("--processes", type=int, default=0, metavar="N")
    arguments = parser.parse_args()
    starts = [start for path in arguments.lists for start in json.loads(path.read_text("utf-8"))["starts"].values()]
    items = [item for start in starts for item in start]
    known = knowledge.load_knowledge()
    start = time.perf_counter()
    answers = [(item, *ask(known, item)) for item in items]
    took = time.perf_counter() - start
    table = collections.Counter((item["label"], verdict) for item, verdict, _ in answers)
    labels = collections.Counter(item["label"] for item in items)
    print(f"{'label':16}{'lists':>8}" + "".join(f"{verdict:>15}" for verdict in VERDICTS))
    for label, count in labels.most_common():
        print(f"{label:16}{count:8}" + "".join(f"{table[label, verdict]:15}" for verdict in VERDICTS))
    for name, label, verdict, goal in GOALS:
        if labels[label]:
            print(f"{name}: {table[label, verdict] / labels[label]:.1%} (goal {goal:.0%})")
    judged = labels["sound"] - table["sound", "broken beyond"] - table["sound", "no metadata"]
    if judged:
        print(f"sound lists called sound, of {judged} judged by metadata: {table['sound', 'compatible'] / judged:.1%}")
    if impossible := labels["direct"] + labels["deep"]:
        wrong = table["direct", "compatible"] + table["deep", "compatible"]
        print(f"impossible lists called compatible: {wrong / impossible:.1%} (goal at most 1%)")
    print(f"{took / max(1, len(items)) * 1000:.1f} ms for each list in one process")
    expected = {"sound": "compatible", "direct": "broken", "deep": "broken"}
    for item, verdict, reasons in answers:
        if verdict != expected.get(item["label"], verdict):
            print(f"\n{item['label']}, check says {verdict}: Python {item['python']} {' '.join(item['requirements'])}")
            print(f"  uv: {item['because'] or 'resolves'}\n  check: {reasons[:400] or 'nothing'}")
    if arguments.processes:
        measure_processes(items[: arguments.processes])


main()
