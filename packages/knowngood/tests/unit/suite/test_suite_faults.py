"""Faults of the smoke suite: they reach a library from outside, and count for their own reason only."""

from __future__ import annotations

import importlib
import re
import sys

import pytest

from smoke_tests import library_faults
from smoke_tests.outcomes import Failed, demand_noticed

FAULT = library_faults.LibraryFault("tripled", "victim", "Optimizer.step", lambda step: lambda it: 3 * step(it), "x")


@pytest.fixture
def victim(tmp_path, monkeypatch):
    (tmp_path / "victim.py").write_text("class Optimizer:\n    def step(self):\n        return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("victim", None)


@pytest.mark.usefixtures("victim")
@pytest.mark.parametrize("imported", [True, False])
def test_a_fault_is_in_its_library_while_it_is_put_there(imported):
    if imported:
        importlib.import_module("victim")
    with library_faults.put(FAULT):
        assert importlib.import_module("victim").Optimizer().step() == 3
    assert importlib.import_module("victim").Optimizer().step() == 1
    assert not any(isinstance(finder, library_faults._Hook) for finder in sys.meta_path)


def fail(reason):
    raise Failed(reason)


def test_a_fault_is_noticed_for_its_own_reason_only():
    own = "^wrong-step: step 2: the weight "
    said = "wrong-step: step 2: the weight of lm_head is off"
    assert demand_noticed(lambda: fail(said), own) == said
    with pytest.raises(Failed, match="another reason than its own"):
        demand_noticed(lambda: fail("kernel-swapped: eager resolved"), own)
    with pytest.raises(Failed, match="went unnoticed"):
        demand_noticed(lambda: None, own)


def test_a_crash_is_no_notice():
    with pytest.raises(ZeroDivisionError):
        demand_noticed(lambda: 1 // 0, ".")


def test_the_registry_has_each_fault_once_with_a_reason_that_a_pass_does_not_have():
    faults = [*library_faults.ATTENTION, *library_faults.OPTIMIZER]
    assert len({fault.name for fault in faults}) == len(faults)
    assert len(library_faults.ATTENTION) >= 20
    assert not any(re.search(fault.reason, "") for fault in faults)
