"""What an assertion demands, losses that are nan between others, source folders, and platforms without a library."""

from __future__ import annotations

import pytest

from knowngood_diagnose.failures.logs.log_scan import LogBlock
from knowngood_diagnose.failures.logs.trouble_signs import NanLossReader

BEGIN = "Traceback (most recent call last):\n"
STEP = "{'loss': %s, 'lr': 0.0002, 'epoch': 0.09}\n"
CASES = {
    "losses that are nan now and then": (
        "".join(STEP % loss for loss in ("5.6", "nan", "5.1", "nan", "5.8", "nan", "5.4")),
        ("your-code", "not a number", "bf16"),
    ),
    "an evaluation that is nan": (
        "***** eval metrics *****\n  epoch       =   5.0\n  eval_loss               =        nan\n",
        ("your-code", "not a number", "bf16"),
    ),
    "a bitsandbytes without Windows": (
        (
            "CUDA SETUP: Loading binary h:\\envs\\a\\lib\\site-packages\\bitsandbytes\\libbitsandbytes_cuda118.so...\n"
            "CUDA SETUP: Problem: The main issue seems to be that the main CUDA runtime library was not detected.\n"
        ),
        ("bitsandbytes", "no library for Windows", "libraries for Windows"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_reason_is_named_with_what_ends_it(first_match, name: str):
    log, (component, words, remedy) = CASES[name]
    match = first_match(log)
    assert (match["component"], words in match["title"]) == (component, True), match["title"]
    assert remedy in match["fix"][0]["note"]


@pytest.mark.parametrize("losses", [("5.6", "nan", "5.1"), ("5.6", "nan", "5.1", "nan", "5.0")])
def test_a_loss_that_is_nan_once_or_twice_is_no_failure(losses: tuple[str, ...]):
    reader = NanLossReader()
    raw = "".join(STEP % loss for loss in losses).encode()
    reader.feed(LogBlock(raw=raw, fresh=len(raw)), frozenset())
    assert reader.line == 0
