"""What NCCL says of a rank that ended gives way to that rank's own error, in whatever order the log has them."""

from __future__ import annotations

import io
import json

import pytest

from knowngood.cli.main import main

LOST = (
    "[rank0]: torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/ProcessGroupNCCL.cpp:1970,"
    " remote process exited or there was a network error, NCCL version 2.20.5\n"
)
TIMEOUT = "[rank0]:[E1119 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL\n"
KEY = (
    "[rank1]: Traceback (most recent call last):\n"
    '[rank1]:   File "/home/u/train.py", line 20, in <module>\n'
    '[rank1]:     x = row["labels"]\n'
    "[rank1]: KeyError: 'labels'\n"
)


def find_first_component(log, tmp_path, monkeypatch):
    path = tmp_path / "train.log"
    path.write_text(log)
    output = io.StringIO()
    monkeypatch.setattr("sys.stdout", output)
    main(["diagnose", "--json", str(path)])
    return json.loads(output.getvalue())["matches"][0]["component"]


@pytest.mark.parametrize("log", [LOST + KEY, KEY + LOST, KEY + TIMEOUT, TIMEOUT + KEY])
def test_the_error_of_another_rank_comes_first(log, tmp_path, monkeypatch):
    assert find_first_component(log, tmp_path, monkeypatch) == "your-code"


@pytest.mark.parametrize("log", [LOST, TIMEOUT])
def test_alone_it_is_nccl(log, tmp_path, monkeypatch):
    assert find_first_component(log, tmp_path, monkeypatch) == "nccl"
