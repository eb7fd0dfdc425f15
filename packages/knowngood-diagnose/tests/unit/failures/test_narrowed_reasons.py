"""Failures of which a signature knows only the kind: the words, the numbers and the line of code say the reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from knowngood_diagnose.failures import reason_readers
from knowngood_facts.compat.rule_files import load_incidents

BEGIN = "Traceback (most recent call last):\n"
OWN = '  File "/home/u/run/train.py", line 44, in main\n'
TORCH = '  File "/x/site-packages/torch/nn/modules/module.py", line 1518, in _call_impl\n'
LOAD = (
    OWN
    + "    model.load_state_dict(weights)\nRuntimeError: Error(s) in loading state_dict for M:\n\tsize mismatch for "
)
SHAPES = (
    "copying a param with shape torch.Size([{}]) from checkpoint, the shape in current model is torch.Size([{}]).\n"
)
CASES = {
    "file-empty": (
        LOAD + "proj.weight: " + SHAPES.format("0", "4096, 4096"),
        ("deepspeed", "sure", "empty", "zero_to_fp32"),
    ),
    "shapes-open": (
        OWN + "    y = a + b\nRuntimeError: The size of tensor a (3) must match the size of tensor b (4) at "
        "non-singleton dimension 1\n",
        ("your-code", "likely", "shapes", "configuration"),
    ),
    "other-release": (
        OWN + "TypeError: causal_conv1d_fwd(): incompatible function arguments. The following argument types are "
        "supported:\n    1. (arg0: torch.Tensor, arg1: bool) -> torch.Tensor\n\nInvoked with: tensor([1.])\n",
        ("a compiled extension", "likely", "other arguments", "release"),
    ),
    "pre-release": (
        "torch                     2.1.0a0+b5021ba\n"
        + BEGIN
        + '  File "/x/site-packages/accelerate/accelerator.py", line 295, in __init__\n    raise ValueError(\n'
        "ValueError: FSDP requires PyTorch >= 2.1.0\n",
        ("torch", "likely", "2.1.0a0", "container"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_reason_is_read_from_the_words_and_the_code(name, first_match):
    log, (component, certainty, title, remedy) = CASES[name]
    match = first_match(BEGIN + log)
    assert (match["component"], match["certainty"]) == (component, certainty)
    assert title in match["title"]
    assert any(remedy in f"{fix.get('note', '')} {fix.get('install', '')}" for fix in match["fix"])


def test_each_reader_is_named_by_an_incident_and_the_other_way_round():
    assert {item.narrowed_by for item in load_incidents() if item.narrowed_by} == set(reason_readers.READERS)


def test_no_module_names_a_known_failure():
    """What `diagnose` must know of an incident stands in the incident's file."""
    source = Path(reason_readers.__file__).parent
    ids = {item.id for item in load_incidents() if item.signatures}
    texts = [path.read_text(encoding="utf-8") for path in source.rglob("*.py")]
    words = {word for text in texts for word in re.findall(r'"([a-z0-9]+(?:-[a-z0-9]+)+)"', text)}
    assert ids & words - {"command-not-on-path"} == set()  # which the traceback's own explainer gives its answer
