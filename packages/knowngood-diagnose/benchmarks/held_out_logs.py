"""Score `knowngood diagnose` on the corpus of judged logs, set by set, and compare the scores with their floors.

    python held_out_logs.py [SET.yaml ...] [--all] [--json OUT.json] [--write-floors]

Without a SET it asks of every log of every `held_out*.yaml` in tests/unit/logs. Each set says of each log what is
right, and was written before `diagnose` saw the log. An answer is judged by its first failure:

- `right cause`: its component is one of those that the judgement allows, and its words say what the judgement asks for.
  The judgements of the two oldest files name what is no package in free words; `SAME_COMPONENTS` says which
  `OwnComponent` of the program each of them means;
- `right remedy`: the cause is right, and one of its remedies that go with the log is one of the judgement's;
- `wrong`: a failure is named, and it is another one; for a healthy log, any failure. An answer that calls itself
  `likely` is then `likely wrong`, all others are confidently wrong, which is what the goal is about;
- `unknown`: no failure is named.

The judgement of the machine is strict about words. With `--all` each answer is printed, to be read by a person.
`tests/unit/logs/floors.yaml` has the least that each set must keep; `--write-floors` records what it has now. A change
that is meant to lose some (a pattern that only one log had) writes them again, and the diff says what it cost.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import io
import json
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from knowngood.cli.main import main as run_knowngood

LOGS = Path(__file__).parents[1] / "tests/unit/logs"
FLOORS = LOGS / "floors.yaml"
VERDICTS = ("right remedy", "right cause", "wrong", "likely wrong", "unknown", "quiet")
SAME_COMPONENTS: Mapping[str, tuple[str, ...]] = {
    "gpu": ("gpu-memory",),
    "memory": ("gpu-memory",),
    "extension": ("a-compiled-extension",),
    "an-extension": ("a-compiled-extension",),
    "user's-code": ("your-code",),
    "user's-settings": ("your-code",),
    "environment": ("your-code",),
    "checkpoint": ("model",),
    "remote-code": ("model",),
    "model's-own-code": ("model",),
    "docker": ("container",),
    "nvidia-container-toolkit": ("container",),
    "container-toolkit": ("container",),
    "nvidia-driver": ("driver",),
    "system": ("glibc", "libstdc++"),
    "c-library": ("glibc",),
    "flashinfer-python": ("flashinfer",),
    "huggingface-hub": ("hub",),
}
"""What a judgement of the first two files calls the component -> what the program calls it."""


def name_component(text: str) -> str:
    """Return the name of a component in one form."""
    return canonicalize_name(text.replace(" ", "-"))


def ask_diagnose(log: str) -> dict[str, Any]:
    """Return what `knowngood diagnose --json` says of a log."""
    with tempfile.NamedTemporaryFile("w", suffix=".log", encoding="utf-8") as file:
        file.write(log)
        file.flush()
        with contextlib.redirect_stdout(io.StringIO()) as output:
            code = run_knowngood(["diagnose", "--json", file.name])
    answer: dict[str, Any] = json.loads(output.getvalue())
    return {**answer, "exit": code}


def judge_answer(case: Mapping[str, Any], answer: Mapping[str, Any]) -> str:
    """Return `right remedy`, `right cause`, `wrong`, `likely wrong`, `unknown`, or for a healthy log `quiet`."""
    failures = [match for match in answer["matches"] if match.get("severity", "failure") == "failure"]
    wrong = "likely wrong" if failures and failures[0].get("certainty") == "likely" else "wrong"
    if case["kind"] == "healthy":
        return wrong if failures or answer["exit"] == 0 else "quiet"
    if not failures:
        return "unknown"
    first = failures[0]
    words = " ".join(str(first.get(key, "")) for key in ("title", "because", "component", "incident"))
    names = {name_component(name) for name in case["at_fault"]}
    names |= {other for name in names for other in SAME_COMPONENTS.get(name, ())}
    if name_component(first["component"]) not in names or not _has_any(case["says"], words):
        return wrong
    if "lies elsewhere" in words and "elsewhere" not in case["cause"]:
        return wrong  # the right name, and the wrong thing said of it
    return "right remedy" if any(_helps(case, fix) for fix in first["fix"]) else "right cause"


def _has_any(patterns: list[str], text: str) -> bool:
    return not patterns or any(re.search(pattern, text, re.IGNORECASE) for pattern in patterns)


def _helps(case: Mapping[str, Any], fix: Mapping[str, Any]) -> bool:
    if "broken_by" in fix:
        return False
    words = " ".join(str(fix.get(key, "")) for key in ("note", "install", "change"))
    for remedy in case["remedy"]:
        if "words" in remedy:
            if re.search(remedy["words"], words, re.IGNORECASE):
                return True
        elif any(_is_within(name, remedy, specifier) for name, specifier in _changes(fix)):
            return True
    return False


def _changes(fix: Mapping[str, Any]) -> Iterator[tuple[str, SpecifierSet]]:
    """Yield the packages that a remedy changes, with their releases."""
    for text in re.findall(r'"([^"]+)"', fix.get("install", "")):
        requirement = Requirement(text)
        yield canonicalize_name(requirement.name), requirement.specifier
    for name, specifier in (fix.get("change") or {}).items():
        yield canonicalize_name(name), SpecifierSet("" if specifier == "*" else specifier)


def _is_within(name: str, remedy: Mapping[str, str], specifier: SpecifierSet) -> bool:
    """Whether the releases that a remedy names are among the right ones, judged by the ends of its range."""
    right = {canonicalize_name(key): SpecifierSet(value) for key, value in remedy.items()}.get(name)
    if right is None:
        return False
    ends = []
    for part in specifier:
        try:
            ends.append((part.operator, Version(part.version.removesuffix(".*"))))
        except InvalidVersion:
            return False
    pinned = [version for operator, version in ends if operator == "=="]
    if pinned:
        return right.contains(pinned[0], prereleases=True)
    lower = [version for operator, version in ends if operator in {">=", "~="}]
    upper = [version for operator, version in ends if operator in {"<", "<="}]
    wants_lower = [part for part in right if part.operator in {">=", ">"}]
    wants_upper = [part for part in right if part.operator in {"<", "<="}]
    meet = all(part.contains(end, prereleases=True) for part in wants_upper for end in lower)
    meet = meet and all(end > Version(part.version) for part in wants_lower for end in upper)
    low = meet and all(any(end >= Version(part.version) for end in lower) for part in wants_lower if not upper or lower)
    return low and all(any(end <= Version(part.version) for end in upper) for part in wants_upper if not lower or upper)


def list_sets() -> list[Path]:
    """Return the files of the corpus, in the order of their names."""
    return sorted(LOGS.glob("held_out*.yaml"))


def score_set(path: Path, *, show: bool = False) -> tuple[dict[str, str], dict[str, int]]:
    """Ask `diagnose` of each log of a set.

    Returns:
        The judgement of each log by its thread, and the score: the numbers of `logs` and `failures`, and of the
        failures with the right `cause` and `remedy`, of the sure answers that are `wrong`, and of the healthy logs for
        which a failure is named (`alarms`).
    """
    cases = yaml.safe_load(path.read_text(encoding="utf-8"))
    judged: dict[str, str] = {}
    alarms = 0
    for case in cases:
        answer = ask_diagnose(case["log"])
        judged[case["thread"]] = verdict = judge_answer(case, answer)
        alarms += case["kind"] == "healthy" and verdict != "quiet"
        if show:
            print(f"{verdict:13} {case['kind']:15} {case['thread']}: {case['cause']}")
            for first in answer["matches"][:1]:
                print(f"    says: {first['component']}: {first['title']}")
                for fix in first["fix"]:
                    print(f"    fix: {fix.get('install') or fix.get('change') or ''} {fix.get('note', '')}"[:220])
    counts = collections.Counter(judged.values())
    score = {
        "logs": len(cases),
        "failures": sum(case["kind"] != "healthy" for case in cases),
        "cause": counts["right cause"] + counts["right remedy"],
        "remedy": counts["right remedy"],
        "wrong": counts["wrong"],
        "alarms": alarms,
    }
    return judged, score


def find_shortfalls(score: Mapping[str, int], floor: Mapping[str, int]) -> list[str]:
    """Return how a score is worse than its floor, in a sentence for each number."""
    less = [f"{key} is {score[key]}, less than {floor[key]}" for key in ("cause", "remedy") if score[key] < floor[key]]
    more = [f"{key} is {score[key]}, more than {floor[key]}" for key in ("wrong", "alarms") if score[key] > floor[key]]
    return less + more


def main() -> int:
    """Score the named sets, or all; exit 1 where one is below its floor."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", type=Path, nargs="*", metavar="SET")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--write-floors", action="store_true")
    arguments = parser.parse_args()
    floors = yaml.safe_load(FLOORS.read_text(encoding="utf-8")) if FLOORS.exists() else {}
    scores: dict[str, dict[str, int]] = {}
    verdicts: dict[str, str] = {}
    shortfalls: list[str] = []
    print(f"{'set':24}{'logs':>6}{'cause':>12}{'remedy':>12}{'wrong':>7}{'alarms':>8}")
    for path in arguments.sets or list_sets():
        judged, score = score_set(path, show=arguments.all)
        verdicts |= judged
        scores[path.stem] = score
        _print_score(path.stem, score)
        shortfalls += [f"{path.stem}: {text}" for text in find_shortfalls(score, floors.get(path.stem, score))]
    _print_score("all", {key: sum(score[key] for score in scores.values()) for key in next(iter(scores.values()))})
    if arguments.json:
        arguments.json.write_text(json.dumps(verdicts, indent=1) + "\n", encoding="utf-8")
    if arguments.write_floors:
        _write_floors({**floors, **scores})
        return 0
    print(*shortfalls, sep="\n", end="\n" if shortfalls else "")
    return 1 if shortfalls else 0


def _print_score(name: str, score: Mapping[str, int]) -> None:
    shares = "".join(f"{score[key]:6} {score[key] / score['failures']:4.0%} " for key in ("cause", "remedy"))
    print(f"{name:24}{score['logs']:6}{shares}{score['wrong']:7}{score['alarms']:8}", flush=True)


def _write_floors(scores: Mapping[str, Mapping[str, int]]) -> None:
    lines = [
        "# The least that `diagnose` must keep of each set of judged logs; held_out_logs.py --write-floors writes it.",
        "# cause, remedy: failures of which they are right; wrong: sure answers that are wrong;",
        "# alarms: healthy logs for which a failure is named.",
    ]
    lines += [
        f"{name}: {{{', '.join(f'{key}: {score[key]}' for key in ('cause', 'remedy', 'wrong', 'alarms'))}}}"
        for name, score in sorted(scores.items())
    ]
    FLOORS.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
