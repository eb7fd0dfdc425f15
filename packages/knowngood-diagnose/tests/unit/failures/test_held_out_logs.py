"""The logs on which `diagnose` is measured: nothing else in the repository may cite their threads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[5]
LOGS = Path(__file__).parents[1] / "logs"
HELD_OUT = [LOGS / "held_out_fourteenth.yaml", LOGS / "held_out_twentysecond.yaml"]
"""The sets that still measure."""
LATEST = [
    LOGS / f"held_out_{name}.yaml"
    for name in (
        "tenth",
        "eleventh",
        "twelfth",
        "thirteenth",
        "fifteenth",
        "sixteenth",
        "seventeenth",
        "eighteenth",
        "nineteenth",
        "twentieth",
        "twentyfirst",
        "twentythird",
    )
]
"""The last sets that were used for mending."""
CASES = [case for path in (*LATEST, *HELD_OUT) for case in yaml.safe_load(path.read_text(encoding="utf-8"))]
FOLDERS = ("docs", "packages", "smoke_tests", "templates")
KINDS = {
    *("names", "symbol", "system-library", "gpu", "build", "cuda-library", "attention", "deepspeed", "nccl", "memory"),
    *("driver", "quantisation", "binary", "healthy", "model", "data", "hub", "install"),
    *("program", "python", "numerics"),
}
_THREAD = re.compile(r"[\w.-]+/[\w.-]+#\d+")
_ADDRESS = re.compile(r"github\.com/([\w.-]+/[\w.-]+)/(?:issues|pull|discussions)/(\d+)")


def cited_threads(text: str) -> Iterator[str]:
    """Yield the threads that a text cites, as `owner/name#number`, in lower case."""
    yield from (match.lower() for match in _THREAD.findall(text))
    yield from (f"{name}#{number}".lower() for name, number in _ADDRESS.findall(text))


def repository_citations() -> dict[str, Path]:
    """Return thread -> a file that cites it, over everything that may have taught `diagnose` something."""
    cited: dict[str, Path] = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.name.startswith("held_out") or path.suffix not in {".yaml", ".yml", ".md", ".py", ".json", ".txt"}:
                continue
            cited.update(dict.fromkeys(cited_threads(path.read_text(encoding="utf-8", errors="replace")), path))
    return cited


def find_cited(path: Path, cited: dict[str, Path]) -> dict[str, Path]:
    """Return the threads of a set that the repository cites -> a file that does."""
    threads = [case["thread"] for case in yaml.safe_load(path.read_text(encoding="utf-8"))]
    return {thread: cited[thread.lower()] for thread in threads if thread.lower() in cited}


def test_no_thread_of_a_held_out_log_is_cited_elsewhere():
    cited = repository_citations()
    assert cited, "no citation was found at all"
    assert {path.name: find_cited(path, cited) for path in HELD_OUT if find_cited(path, cited)} == {}


def test_a_set_that_was_used_for_mending_does_not_count_as_held_out():
    cited = repository_citations()
    used = [path for path in sorted(LOGS.glob("held_out*.yaml")) if find_cited(path, cited)]
    assert set(LATEST) <= set(used)
    assert not set(used) & set(HELD_OUT)


@pytest.mark.parametrize(
    "text", ["see pytorch/pytorch#12345", "https://github.com/PyTorch/pytorch/issues/12345", "(pytorch/PyTorch#12345)."]
)
def test_a_citation_is_found_in_each_of_its_forms(text):
    assert list(cited_threads(text)) == ["pytorch/pytorch#12345"]


def test_each_thread_is_there_once():
    threads = [case["thread"] for case in CASES]
    assert len(threads) == len(set(threads)) >= 60


def find_defects(case: dict) -> Iterator[str]:
    """Yield what is wrong with the judgement of one log; a pattern or range that cannot be read raises."""
    if set(case) != {"thread", "kind", "cause", "at_fault", "says", "remedy", "log"}:
        yield f"its keys are {sorted(case)}"
        return
    if not _THREAD.fullmatch(case["thread"]):
        yield "its thread is not owner/name#number"
    if case["kind"] not in KINDS:
        yield f"its kind is {case['kind']}"
    if not case["cause"] or not case["log"].strip():
        yield "its cause or log is empty"
    if not bool(case["at_fault"]) == bool(case["remedy"]) == bool(case["says"]) == (case["kind"] != "healthy"):
        yield "it needs at_fault, remedy and says, or is healthy and has none"
    for pattern in case["says"]:
        re.compile(pattern)
    for remedy in case["remedy"]:
        if "words" in remedy:
            re.compile(remedy["words"])
        else:
            for specifier in remedy.values():
                SpecifierSet(specifier)


def test_each_judgement_is_whole():
    defects = [f"{case.get('thread')}: {defect}" for case in CASES for defect in find_defects(case)]
    assert not defects, "\n".join(defects)
