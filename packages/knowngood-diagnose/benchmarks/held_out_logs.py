"""Measure `knowngood diagnose` on logs of public threads that nothing in the repository cites.

    python held_out_logs.py [LOGS.yaml] [--all] [--json OUT.json]

LOGS.yaml is tests/unit/logs/held_out_eleventh.yaml when it is not named; it says of each log what is right, and was
written before `diagnose` saw the log. An answer is judged by its first failure:

- `right cause`: its component is one of those that the judgement allows, and its words say what the judgement asks for.
  The judgements of the two oldest files name what is no package in free words; `SAME_COMPONENTS` says which
  `OwnComponent` of the program each of them means;
- `right remedy`: the cause is right, and one of its remedies that go with the log is one of the judgement's;
- `wrong`: a failure is named, and it is another one; for a healthy log, any failure. An answer that calls itself
  `likely` is then `likely wrong`, all others are confidently wrong, which is what the goal is about;
- `unknown`: no failure is named.

The judgement of the machine is strict about words. With `--all` each answer is printed, to be read by a person.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import io
import json
import re
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

LOGS = Path(__file__).parents[2] / "knowngood-diagnose/tests/unit/logs" / "held_out_eleventh.yaml"
GOALS = {"right cause": 0.80, "right remedy": 0.70, "wrong": 0.02}
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


def main() -> None:
    """Ask `diagnose` about each log of the named file, judge the answers, and print the shares beside the goals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", type=Path, nargs="?", default=LOGS)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    cases = yaml.safe_load(arguments.logs.read_text(encoding="utf-8"))
    rows = []
    for case in cases:
        answer = ask_diagnose(case["log"])
        rows.append((case, answer, judge_answer(case, answer)))
        if arguments.all:
            first = answer["matches"][0] if answer["matches"] else {}
            print(f"{rows[-1][2]:13} {case['kind']:15} {case['thread']}: {case['cause']}")
            if first:
                print(f"    says: {first['component']}: {first['title']}")
                for fix in first["fix"]:
                    print(f"    fix: {fix.get('install') or fix.get('change') or ''} {fix.get('note', '')}"[:220])
    table = collections.defaultdict(collections.Counter)
    for case, _, verdict in rows:
        table[case["kind"]][verdict] += 1
    verdicts = ("right remedy", "right cause", "wrong", "likely wrong", "unknown", "quiet")
    print(f"{'kind':16}{'logs':>6}" + "".join(f"{verdict:>14}" for verdict in verdicts))
    for kind, counter in table.items():
        print(f"{kind:16}{counter.total():6}" + "".join(f"{counter[verdict]:14}" for verdict in verdicts))
    total = collections.Counter(verdict for _, _, verdict in rows)
    failures = sum(case["kind"] != "healthy" for case in cases)
    remedied = total["right remedy"]
    print(f"right cause {(remedied + total['right cause']) / failures:.0%} of {failures} (goal at least 80%)")
    print(f"right remedy {remedied / failures:.0%} of {failures} (goal at least 70%)")
    print(f"wrong {total['wrong'] / len(cases):.0%} of {len(cases)} (goal at most 2%)")
    likely = sum(answer["matches"][:1] != [] and answer["matches"][0]["certainty"] == "likely" for _, answer, _ in rows)
    print(f"wrong and called likely: {total['likely wrong']} of {likely} answers that are called so")
    if arguments.json:
        judged = {case["thread"]: verdict for case, _, verdict in rows}
        arguments.json.write_text(json.dumps(judged, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
