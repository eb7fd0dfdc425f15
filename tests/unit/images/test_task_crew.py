"""How much memory there is for builds: what the kernel says, within the limit of the control group."""

from __future__ import annotations

import pytest

from knowngood.images import task_crew


@pytest.fixture
def group(tmp_path, monkeypatch):
    limit, used = tmp_path / "memory.max", tmp_path / "memory.current"
    monkeypatch.setattr(
        task_crew, "_CGROUPS", ((str(limit), str(used)), (str(tmp_path / "no"), str(tmp_path / "such")))
    )
    return limit, used


def test_the_limit_of_the_control_group_counts(group):
    limit, used = group
    limit.write_text("3000000\n")
    used.write_text("1000000\n")
    assert task_crew._free_memory() == 2_000_000
    used.write_text("4000000\n")
    assert task_crew._free_memory() == 0


def test_without_a_limit_the_machine_decides(group):
    limit, used = group
    machine = task_crew._free_memory()
    assert machine > 1_000_000
    limit.write_text("max\n")
    used.write_text("1000000\n")
    assert task_crew._free_memory() > 1_000_000
