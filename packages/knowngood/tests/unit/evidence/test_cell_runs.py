"""The runs that are read say what their files say, whatever comes, goes or breaks in between."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import shutil
import time
from pathlib import Path

import pytest
from test_evidence import SUITE, run

from knowngood.core import local_files
from knowngood.evidence import cell_runs, observed_run, run_evidence, sealed_files
from knowngood.evidence.cell_standing import CellStanding
from knowngood.evidence.run_evidence import RunPlace, Tier
from samples import FA4

REAL = local_files.data_folder() / "evidence"
OTHER = FA4.replace("tf5.17.0", "tf5.16.0")


def real(*where, **changes):
    """A run whose report has all that is shown."""
    made = run(*where, **changes)
    for check in made.report["checks"]:
        check |= {"topic": "training"}
    made.report["environment"] = {"gpu": "NVIDIA H200"}
    return made


def standings(place):
    return {cell: item.standing for cell, item in cell_runs.read_cell_runs(place).items()}


def stored_cache() -> Path:
    (path,) = (local_files.cache_folder() / "runs").glob("*.json")
    return path


def test_it_says_what_the_files_of_this_project_say():
    read = cell_runs.read_cell_runs(REAL)
    found = {name: item.standing for name, item in read.items()}
    assert set(found) == {path.name for path in REAL.glob("sm*")}
    for name, how in found.items():
        files, left_out = run_evidence.load_cell_evidence(REAL, name)
        assert (left_out, how.left_out, how.count) == ([], (), len(files))
        for locked in (True, False):
            assert how.tier(locked=locked) is run_evidence.proven_tier(files, locked=locked)
        best = run_evidence.most_telling_run(files)
        assert how.attention == (best.outcomes if best else {})
        assert [(it.when, it.ok, it.image, it.outcomes) for it in read[name].runs] == [
            (it.when, it.ok, it.image, it.outcomes) for it in sorted(files, key=lambda it: it.when)
        ]
    assert any(how.figures for how in found.values())
    assert any(item.message for how in found.values() for item in how.settings.values())


def test_what_is_new_is_read_and_nothing_else(tmp_path, monkeypatch):
    first = run_evidence.store_evidence(real(), tmp_path)
    assert standings(tmp_path)[FA4].proven is Tier.TRAINS_ON_CPU
    read = []
    monkeypatch.setattr(
        cell_runs,
        "load_run_details",
        lambda path, load=observed_run.load_run_details: read.append(path) or load(path),
    )
    assert standings(tmp_path)[FA4].best == f"{FA4}/{first.name}"
    assert read == []
    second = run_evidence.store_evidence(real(RunPlace.CONTAINER_GPU), tmp_path)
    assert standings(tmp_path)[FA4].proven is Tier.TRAINS_ON_GPU
    assert read == [second]


def test_what_goes_is_forgotten(tmp_path):
    gpu = run_evidence.store_evidence(real(RunPlace.CONTAINER_GPU), tmp_path)
    run_evidence.store_evidence(real(), tmp_path)
    run_evidence.store_evidence(real(cell=OTHER), tmp_path)
    assert set(standings(tmp_path)) == {FA4, OTHER}
    gpu.unlink()
    shutil.rmtree(tmp_path / OTHER)
    assert {name: (how.proven, how.count) for name, how in standings(tmp_path).items()} == {
        FA4: (Tier.TRAINS_ON_CPU, 1)
    }


def test_the_run_that_says_most_is_the_one_whose_reasons_are_shown(tmp_path):
    failed = real(checks=[("eager", "fail")], when="2026-11-21T12:00:00+00:00")
    failed.report["checks"][0]["message"] = "no kernel image"
    newer = run_evidence.store_evidence(failed, tmp_path)
    run_evidence.store_evidence(real(), tmp_path)
    assert standings(tmp_path)[FA4].settings["eager"].message == "no kernel image"
    newer.unlink()
    assert standings(tmp_path)[FA4].settings["eager"].message == ""


def test_a_run_that_is_changed_in_place_is_left_out(tmp_path):
    path = run_evidence.store_evidence(real(), tmp_path)
    assert standings(tmp_path)[FA4].count == 1
    path.write_text(path.read_text().replace("all well", "all good!"))
    changed = standings(tmp_path)[FA4]
    assert changed.count == 0
    assert any("forged or damaged" in why for why in changed.left_out)


def test_the_ledger_of_old_names_counts(tmp_path):
    path = run_evidence.store_evidence(real(), tmp_path)
    path.rename(path.with_name(f"20261121T100000Z-{SUITE[:12]}.json"))
    (why,) = standings(tmp_path)[FA4].left_out
    assert "neither its name nor SHA256SUMS holds its digest" in why
    renamed = next((tmp_path / FA4).iterdir())
    digest = path.stem[-sealed_files.DIGITS :]
    line = f"{hashlib.sha256(renamed.read_bytes()).hexdigest()}  {FA4}/{renamed.name}\n"
    assert line.startswith(digest)
    (tmp_path / sealed_files.LEDGER).write_text(line)
    assert standings(tmp_path)[FA4].count == 1


@pytest.mark.parametrize("harm", ["garbage", "half", "other program", "other content"])
def test_a_damaged_cache_is_made_anew(tmp_path, harm):
    for number in range(50):
        run_evidence.store_evidence(real(when=f"2026-11-21T10:00:{number:02}+00:00"), tmp_path)
    whole = cell_runs.read_cell_runs(tmp_path)
    place = stored_cache()
    data = place.read_bytes()
    harmed = {
        "garbage": b"garbage" * 1000,
        "half": data[: len(data) // 2],
        "other program": b"0" * 64 + data[64:].replace(b"all well", b"all bad"),
        "other content": b'{"origin": []}',
    }
    place.write_bytes(harmed[harm])
    assert cell_runs.read_cell_runs(tmp_path) == whole
    assert cell_runs.read_cell_runs(tmp_path) == whole


def test_without_a_cache_it_answers_all_the_same(tmp_path, monkeypatch):
    run_evidence.store_evidence(real(), tmp_path)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KNOWNGOOD_CACHE", str(tmp_path / "file" / "cache"))
    assert standings(tmp_path)[FA4].count == 1


def test_no_evidence_at_all(tmp_path):
    assert standings(tmp_path / "evidence") == {}
    assert CellStanding().tier(locked=True) is Tier.RESOLVED
    assert CellStanding().tier(locked=True, recorded=True) is Tier.BUILT
    assert CellStanding(proven=Tier.TRAINS_EMULATED).tier(locked=True, recorded=True) is Tier.TRAINS_EMULATED


def test_names_that_are_no_text_break_nothing(tmp_path):
    run_evidence.store_evidence(real(), tmp_path)
    Path(os.fsdecode(os.fsencode(tmp_path / FA4) + b"/\xff.json")).write_text("{}")
    found = standings(tmp_path)[FA4]
    assert found.count == 1
    assert "\\udcff.json: not readable" in found.left_out[0]
    json.dumps(found.left_out).encode()


def _write(place, writer, count):
    for number in range(count):
        run_evidence.store_evidence(real(cell=(FA4, OTHER)[writer % 2], node={"name": f"{writer}-{number}"}), place)


def _count(place, until, least):
    seen = 0
    while seen < until and time.monotonic() < least + 60:
        now = sum(how.count for how in standings(place).values())
        assert now >= seen  # nothing that was there is lost again
        seen = now


def test_what_many_write_while_others_ask_is_all_found(tmp_path):
    context = multiprocessing.get_context("fork")
    work = [context.Process(target=_write, args=(tmp_path, writer, 20)) for writer in range(10)]
    work += [context.Process(target=_count, args=(tmp_path, 200, time.monotonic())) for _ in range(3)]
    for process in work:
        process.start()
    for process in work:
        process.join(70)
    assert [process.exitcode for process in work] == [0] * 13
    assert {name: (how.count, how.left_out) for name, how in standings(tmp_path).items()} == {
        FA4: (100, ()),
        OTHER: (100, ()),
    }
