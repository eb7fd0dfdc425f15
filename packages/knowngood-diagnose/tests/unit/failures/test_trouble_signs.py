"""Which logs without an error are healthy, and which only tell of trouble in words of their own."""

from __future__ import annotations

import json

import pytest

from knowngood.cli.main import main

STEP = "{'loss': 1.92, 'grad_norm': 0.7, 'epoch': 0.1}\n"
FAILED = [
    "deepspeed_py_aio_handle.cpp:223: Assertion `buffer.nbytes() == num_file_bytes' failed.",
    "make: *** No targets specified and no makefile found.  Stop.",
    "host1: the store of the parameters is unreachable",
    "loader: connection refused by node2",
]
HEALTHY = [
    "eval: word error rate 0.12, mean squared error 0.5",
    "0 failed, 12 done",
    "could not read the cached file; retrying",
    "Failed to import it, falling back to sdpa",
    "- fix: could not load checkpoints of older releases (#12)",
    "failed: 0",
]


def diagnosed(tmp_path, capsys, text):
    log = tmp_path / "log"
    log.write_text(STEP + text + "\n")
    code = main(["diagnose", "--json", str(log)])
    answer = json.loads(capsys.readouterr().out)
    assert code == {"no-failure": 1, "unknown": 3}[answer["outcome"]]
    return answer


@pytest.mark.parametrize("line", FAILED)
def test_a_line_that_tells_of_trouble_keeps_a_log_from_being_called_healthy(tmp_path, capsys, line):
    answer = diagnosed(tmp_path, capsys, line)
    assert (answer["outcome"], answer["trouble"]) == ("unknown", {"text": line, "line": 2})


@pytest.mark.parametrize("line", HEALTHY)
def test_measures_and_what_a_program_dealt_with_are_no_trouble(tmp_path, capsys, line):
    answer = diagnosed(tmp_path, capsys, line)
    assert (answer["outcome"], answer["trouble"]) == ("no-failure", None)


def test_only_the_end_of_a_long_log_is_looked_at(tmp_path, capsys):
    assert diagnosed(tmp_path, capsys, FAILED[1] + "\n" + STEP * 2000)["outcome"] == "no-failure"
    answer = diagnosed(tmp_path, capsys, STEP * 20000 + FAILED[1])
    assert (answer["outcome"], answer["trouble"]["line"]) == ("unknown", 20002)


def test_no_token_of_such_a_line_is_shown(tmp_path, capsys):
    answer = diagnosed(tmp_path, capsys, "fatal: could not read from https://me:hf_abcdefghijklmnop@host/x.git")
    assert "hf_abc" not in json.dumps(answer)
