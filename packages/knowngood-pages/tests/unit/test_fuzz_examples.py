"""Inputs that fuzzing found and that were answered wrongly once (`tests/fuzz/examples/`) are answered rightly."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).resolve().parents[3] / "knowngood/tests/fuzz"
EXAMPLES = sorted((FUZZ / "examples").glob("*--*"))


@pytest.fixture(scope="module")
def targets():
    """The targets of the fuzzing; their modules are no package."""
    sys.path.insert(0, str(FUZZ))
    try:
        return importlib.import_module("targets")
    finally:
        sys.path.remove(str(FUZZ))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_a_kept_example_is_answered_rightly(targets, path, monkeypatch):
    monkeypatch.setenv("KNOWNGOOD_CACHE", os.environ["KNOWNGOOD_CACHE"])  # the target sets its own
    targets.check_target(targets.list_targets()[path.name.rpartition("--")[0]], path.read_bytes())


def test_a_wrong_answer_is_a_failure(targets):
    for answer in (
        targets.FuzzAnswer(code=7, message="x"),
        targets.FuzzAnswer(code=2, message="damaged, somewhere"),
        targets.FuzzAnswer(code=1, message="Traceback (most recent call last):"),
        targets.FuzzAnswer(code=1, message=""),
    ):
        target = targets.FuzzTarget(name="x", examples=None, answer=lambda _, it=answer: it, file="x.json")
        with pytest.raises(AssertionError):
            targets.check_target(target, b"")


def test_the_fuzzing_keeps_what_fails_and_prints_the_seed(targets, tmp_path, monkeypatch, capsys):
    spec = importlib.util.spec_from_file_location("fuzz_main", FUZZ / "__main__.py")
    monkeypatch.setitem(sys.modules, "targets", targets)
    main = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(main)

    def answer(data: bytes):
        if b"9" in data:
            raise RecursionError
        return targets.FuzzAnswer(code=0, message="")

    from hypothesis import strategies as st

    target = targets.FuzzTarget(name="made-up", examples=st.binary, answer=answer)
    monkeypatch.setattr(targets, "list_targets", lambda: {"made-up": target})
    monkeypatch.setattr(main, "EXAMPLES", tmp_path / "examples")
    monkeypatch.setattr(main, "_EXAMPLES_OF_A_ROUND", 2_000)
    monkeypatch.setattr(sys, "argv", ["fuzz", "--seed", "5", "--seconds", "60"])
    assert main.main() == 1
    out = capsys.readouterr().out
    assert "seed 5: `nox -s fuzz -- --seed 5` repeats this" in out
    assert "RecursionError" in out
    (kept,) = (tmp_path / "examples").iterdir()
    assert kept.read_bytes() == b"9"  # made as small as possible
    # The next run begins with it, and one that is answered rightly is good.
    monkeypatch.setattr(sys, "argv", ["fuzz", "--seconds", "0"])
    assert main.main() == 1
    assert "the kept example of made-up fails" in capsys.readouterr().out
