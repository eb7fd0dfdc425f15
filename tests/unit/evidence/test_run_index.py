"""The index of runs says what their files say, whatever comes, goes or breaks in between."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import shutil
import sqlite3
import time
from pathlib import Path

import pytest
from samples import FA4
from test_evidence import SUITE, run

from knowngood.core import local_files
from knowngood.evidence import observed_run, run_evidence, run_index, sealed_files
from knowngood.evidence.cell_standing import CellStanding, standing_from_runs
from knowngood.evidence.run_evidence import RunPlace, SettingObservation, Tier
from knowngood.evidence.run_index import RunIndex

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
    return run_index.query_index(place, RunIndex.standings)


def both(place):
    return run_index.query_index(place, lambda it: (it.standings(), {name: it.runs(name) for name in it.standings()}))


def database() -> Path:
    (found,) = (local_files.cache_folder() / "runs").glob("*.sqlite")
    return found


def old(place):
    """As if nothing had changed for a while: then the folders' times are trusted."""
    for folder in place.iterdir():
        os.utime(folder, (1_000_000_000, 1_000_000_000))


def test_it_says_what_the_files_of_this_project_say():
    found, runs = both(REAL)
    assert set(found) == {path.name for path in REAL.glob("sm*")}
    for name, how in found.items():
        files, left_out = run_evidence.load_cell_evidence(REAL, name)
        assert (left_out, how.left_out, how.count) == ([], (), len(files))
        for locked in (True, False):
            assert how.tier(locked=locked) is run_evidence.proven_tier(files, locked=locked)
        assert how.attention == run_evidence.attention_outcomes(files)
        assert [(it.when, it.ok, it.image, it.outcomes) for it in runs[name]] == [
            (it.when, it.ok, it.image, it.outcomes) for it in sorted(files, key=lambda it: it.when)
        ]
    assert any(how.figures for how in found.values())
    assert any(item.message for how in found.values() for item in how.settings.values())


def test_what_is_new_is_read_and_nothing_else(tmp_path, monkeypatch):
    first = run_evidence.store_evidence(real(), tmp_path)
    assert standings(tmp_path)[FA4].proven is Tier.TRAINS_ON_CPU
    read = []
    monkeypatch.setattr(
        run_index,
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


def test_without_a_run_nothing_of_earlier_runs_remains():
    before = CellStanding(settings={"eager": SettingObservation(outcome="refused", message="no kernel image")})
    standing = standing_from_runs([], (), before, lambda _: "never called")
    assert (standing.best, standing.settings, standing.figures) == (None, {}, {})


@pytest.mark.parametrize("few", [True, False])
def test_a_run_that_is_changed_in_place(tmp_path, monkeypatch, few):
    path = run_evidence.store_evidence(real(), tmp_path)
    old(tmp_path)
    assert standings(tmp_path)[FA4].count == 1
    path.write_text(path.read_text().replace("all well", "all good!"))
    old(tmp_path)
    monkeypatch.setattr(run_index, "RUNS_CHECKED_ONE_BY_ONE", 20_000 if few else 0)
    found = standings(tmp_path)[FA4]
    assert found.count == (0 if few else 1)  # of very many, not every one is looked at
    assert any("forged or damaged" in why for why in found.left_out) is few


def test_a_folder_that_has_just_changed_is_looked_at_again(tmp_path, monkeypatch):
    monkeypatch.setattr(run_index, "RUNS_CHECKED_ONE_BY_ONE", 0)
    run_evidence.store_evidence(real(), tmp_path)
    before = (tmp_path / FA4).stat()
    standings(tmp_path)
    run_evidence.store_evidence(real(when="2026-11-22T10:00:00+00:00"), tmp_path)
    os.utime(tmp_path / FA4, ns=(before.st_atime_ns, before.st_mtime_ns))  # within the same tick of the clock
    assert standings(tmp_path)[FA4].count == 2


def test_with_many_only_folders_that_changed_are_listed(tmp_path, monkeypatch):
    monkeypatch.setattr(run_index, "RUNS_CHECKED_ONE_BY_ONE", 0)
    for cell in (FA4, OTHER):
        run_evidence.store_evidence(real(cell=cell), tmp_path)
    old(tmp_path)
    standings(tmp_path)
    listed = []
    monkeypatch.setattr(
        run_index, "compare_folder", lambda *of, look=run_index.compare_folder: listed.append(of[0]) or look(*of)
    )
    run_evidence.store_evidence(real(cell=OTHER, when="2026-11-22T10:00:00+00:00"), tmp_path)
    assert {name: how.count for name, how in standings(tmp_path).items()} == {FA4: 1, OTHER: 2}
    assert listed == [OTHER.encode()]


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


@pytest.mark.parametrize("harm", ["garbage", "half", "other program"])
def test_a_damaged_index_is_made_anew(tmp_path, harm):
    for number in range(50):
        run_evidence.store_evidence(real(when=f"2026-11-21T10:00:{number:02}+00:00"), tmp_path)
    whole = both(tmp_path)
    place = database()
    if harm == "other program":
        with sqlite3.connect(place) as other:
            other.execute("UPDATE origin SET digest = 'x'")
            other.execute("UPDATE cells SET standing = '{}'")
        other.close()
    else:
        data = place.read_bytes()
        place.write_bytes(b"garbage" * 1000 if harm == "garbage" else data[: len(data) // 2])
    assert both(tmp_path) == whole
    assert both(tmp_path) == whole


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


def test_what_many_write_while_others_ask_is_all_found(tmp_path, monkeypatch):
    monkeypatch.setattr(run_index, "RUNS_CHECKED_ONE_BY_ONE", 0)
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
