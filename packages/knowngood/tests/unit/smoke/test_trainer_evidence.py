"""Each fault that committed runs put into a trainer was noticed for its own reason, and not because of another one."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from knowngood.core.cell import parse_cell
from knowngood.project.checkout import Project
from knowngood.smoke.suite_files import find_cell_suite, has_trainer_checks, hash_suite
from samples import ROOT

FIRST_STEP, STAYED = "first-step-off", "stayed as it was in the optimizer's step"
REASONS = {
    "adapter-frozen": (STAYED,),
    "weight-frozen": (STAYED,),
    "first-batch-lost": (FIRST_STEP, STAYED),
    "base-trained": ("only adapters should be (1 such weights)",),
    "steps-skipped": ("after the checkpoint",),
    "moments-lost": ("after the checkpoint",),
    "labels-shifted-later": ("later-step-off",),
    "decay-unasked": ("update-off",),
    "layer-saved-stale": ("saved-elsewhere",),
    "adapter-saved-halved": ("saved-elsewhere",),
    "weights-not-sent": ("weights-not-sent",),
    "padding-ignored": (FIRST_STEP, "kernel-swapped"),  # SDPA may take another kernel where there is no mask
}


def noticed_faults(folder) -> Iterator[tuple[str, str]]:
    """Yield each fault and the words with which a run of the present suite noticed it."""
    suite = hash_suite(find_cell_suite(Project(ROOT), parse_cell(folder.name)))
    for path in folder.glob(f"*-{suite[:12]}-*.json"):
        for check in json.loads(path.read_text())["report"]["checks"]:
            words = (check.get("figures") or {}).get("noticed")
            if check["topic"] == "trainer" and words:
                yield check["id"].split("/")[2], words


CELLS = [
    path
    for path in sorted((ROOT / "evidence").glob("sm*"))
    if (ROOT / "docker/cells" / path.name).is_dir() and has_trainer_checks(Project(ROOT), parse_cell(path.name))
]


@pytest.mark.parametrize("folder", CELLS, ids=lambda path: path.name.rpartition("-py3")[2])
def test_a_fault_was_noticed_for_its_own_reason(folder):
    foreign = [
        (fault, words)
        for fault, words in noticed_faults(folder)
        if not any(reason in words for reason in REASONS.get(fault, (FIRST_STEP,)))
    ]
    assert foreign == []


def test_runs_of_the_present_suites_are_among_them():
    assert any(True for folder in CELLS for _ in noticed_faults(folder))
