"""Replay the nights of past days: what `knowngood nightly` would have said of each day's releases, on that day.

    python replay_nights.py nights OUT.jsonl [--until DAY] [--days 60] [--root FOLDER]
    python replay_nights.py imports OUT.jsonl [--count 15] [--venvs FOLDER]
    python replay_nights.py table OUT.jsonl PAGE.md

`nights` needs facts that reach to DAY (of the checkout, or of FOLDER) and adds a line of JSON for each day that OUT has
not yet. Facts and metadata are cut at the day by the index's own upload times; a name that no release up to that day
had counts as unknown, not as gone. Each new release of a package of the atlas is judged with the newest releases of
that day; of those that are axes or trainers of the matrix, `pick` makes cells, and uv resolves them with the releases
up to that day. Three things are of today: rules and incidents, matrix.yaml (but for its cells, which are one old cell,
so that `pick` makes new ones), and which releases were withdrawn.

`imports` installs a foretold break as uv resolves it up to that day, the pair's two releases forced, and imports a
module that is foretold to fail, and the name that it uses; then the same with the release before the new one.
`table` writes both into the page, between two comments.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from functools import cache, partial
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from uv import find_uv_bin

from knowngood.core import local_files
from knowngood.core.local_files import FACTS_FOLDER, INCIDENTS_FOLDER, RULES_FOLDER
from knowngood.lock.resolver import uv_config_options, uv_environment
from knowngood.project.checkout import find_project
from knowngood.project.core_facts import CORE_FACTS_FILE, load_matrix_facts
from knowngood_facts.compat import knowledge
from knowngood_facts.facts.atlas_file import AtlasFile
from knowngood_facts.facts.atlas_lookup import list_atlas_packages
from knowngood_facts.facts.broken_use_table import BrokenUseTable, read_broken_uses
from knowngood_facts.facts.core_facts_file import compute_core_facts
from knowngood_facts.facts.metadata_harvest import render_package_metadata
from knowngood_facts.facts.package_metadata import list_metadata_packages, read_package_metadata
from knowngood_facts.reports import index_changes
from knowngood_facts.reports.index_changes import UpstreamRelease
from knowngood_facts.reports.new_breaks import find_new_breaks

GPUS = ("sm_90", "sm_80")
TORCH = "2.11.0"
OLD_CELL = "cells:\n  - {gpu: sm_90, torch: 2.11.0, transformers: 4.57.6, base: debian12}\n"
HEADS = "| week from | releases | breaks | undeclared | functions | cells | lock | do not | s a night |"
START, END = "<!-- The replay, written by replay_nights.py -->", "<!-- The end of the replay -->"


@cache
def upload_days(package: str, root: Path) -> Mapping[str, str]:
    """Return release -> the day on which the index got its first file, as in `2026-11-20`."""
    known = read_package_metadata(package, root / FACTS_FOLDER / "metadata")
    return {version: release.uploaded for version, release in known.releases.items()} if known else {}


def atlas_releases(package: str, root: Path, day: str) -> list[str]:
    """Return the releases in the atlas that were there on a day, oldest first."""
    days = upload_days(package, root)
    releases = AtlasFile(root / FACTS_FOLDER / "atlas" / f"{package}.atlas").releases
    return [version for version in releases if "" < days.get(version, "") <= day]


def read_table_of_day(package: str, root: Path, day: str) -> BrokenUseTable | None:
    """Return a caller's table without what only later releases of the callee show to be missing before."""
    table = read_broken_uses(package, root / FACTS_FOLDER / "atlas")
    if table is None:
        return None
    uses = {}
    for callee, releases in table.callees.items():
        days = upload_days(callee, root)
        there = sum(1 << place for place, version in enumerate(releases) if "" < days.get(version, "") <= day)
        uses[callee] = [use for use in table.uses[callee] if there & ~use.callees]
    return replace(table, uses=uses)


def cut_project(root: Path, day: str, target: Path) -> None:
    """Write a project with the facts up to a day into an empty folder."""
    facts, cut = root / FACTS_FOLDER, target / FACTS_FOLDER
    (cut / "metadata").mkdir(parents=True)
    for item in facts.iterdir():
        if item.suffix == ".json":
            document = json.loads(item.read_text())
            days = upload_days(item.stem, root)
            kept = {name: entry for name, entry in document["releases"].items() if days.get(name, "") <= day}
            document["releases"] = kept
            (cut / item.name).write_text(json.dumps(document))
        elif item.name != "metadata":
            (cut / item.name).symlink_to(item)
    for name in list_metadata_packages(facts / "metadata"):
        path = cut / "metadata" / f"{name}.txt"
        if max(upload_days(name, root).values(), default="") <= day:
            path.symlink_to(facts / "metadata" / path.name)
        else:
            known = read_package_metadata(name, facts / "metadata")
            there = [release for release in known.releases.values() if release.uploaded <= day] if known else []
            path.write_text(render_package_metadata(name, there))
    (cut / "metadata/snapshot").write_text(f"{day}\n")
    for name in (RULES_FOLDER, INCIDENTS_FOLDER, "templates"):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).symlink_to(local_files.data_folder() / name)
    text = (find_project().root / "matrix.yaml").read_text()
    text = re.sub(r"(?ms)^cells:\n.*?^(?=publish:)", OLD_CELL, text)
    (target / "matrix.yaml").write_text(re.sub(r"(?m)^ *#.*\n", "", text))
    (target / "docker").mkdir()
    (target / CORE_FACTS_FILE).write_text(compute_core_facts(cut).render())


def propose_cells(root: Path, day: str, releases: list[UpstreamRelease]) -> list[dict[str, Any]]:
    """Return the cells that `pick` makes of these releases with what was known on a day, and whether they lock."""
    made = []
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder)
        cut_project(root, day, target)
        os.chdir(target)
        known, facts = knowledge.load_knowledge(target), load_matrix_facts(target)
        text = Path("matrix.yaml").read_text()
        for release in releases:
            start = time.monotonic()
            proposals = index_changes.propose_cells(known, release, GPUS)
            picking = (time.monotonic() - start) / len(GPUS)
            for gpu, proposal in proposals.items():
                start = time.monotonic()
                locked = index_changes.lock_proposal(proposal, text, facts, day)
                own = {"release": str(release), "gpu": gpu, "cell": str(locked.cell) if locked.cell else None}
                seconds = {"pick_seconds": picking, "lock_seconds": time.monotonic() - start}
                made.append(vars(locked) | own | {name: round(value, 1) for name, value in seconds.items()})
        os.chdir("/")
    return made


def replay_day(root: Path, day: str, followed: list[str]) -> dict[str, Any]:
    """Return what the night after a day would have said."""
    start = time.monotonic()
    packages = list_atlas_packages(root / FACTS_FOLDER / "atlas")
    there = {name: atlas_releases(name, root, day) for name in packages}
    newest = {name: releases[-1] for name, releases in there.items() if releases}
    read = partial(read_table_of_day, root=root, day=day)
    new: list[UpstreamRelease] = []
    breaks: list[dict[str, Any]] = []
    for name, releases in there.items():
        for place, version in enumerate(releases):
            if upload_days(name, root)[version] == day:
                release = UpstreamRelease(package=name, version=version)
                before = releases[place - 1] if place else None
                new.append(release)
                for item in find_new_breaks(release, before, newest, read, root / FACTS_FOLDER / "metadata"):
                    uses = [(use.module, use.target) for use in item.imports]
                    own = {"release": str(release), "before": before, "text": str(item)}
                    breaks.append(vars(item) | own | {"imports": uses})
    chosen = [release for release in new if release.package in followed]
    made = propose_cells(root, day, chosen) if chosen else []
    return {
        "day": day,
        "releases": [str(release) for release in new],
        "breaks": breaks,
        "proposals": made,
        "seconds": round(time.monotonic() - start, 1),
        "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
    }


def replay_nights(out: Path, root: Path, until: date, days: int) -> None:
    """Add the days to `out` that it does not have, oldest first."""
    done = {item["day"] for item in read_lines(out)}
    followed = index_changes.list_axis_packages(find_project().matrix.maintained_cells)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=15) as pool:  # it holds memory
        for place in range(days - 1, -1, -1):
            day = f"{until - timedelta(days=place)}"
            if day not in done:
                found = pool.submit(replay_day, root, day, followed).result()
                with out.open("a") as file:
                    file.write(json.dumps(found) + "\n")
                print(day, f"{len(found['releases'])} releases, {len(found['breaks'])} breaks, {found['seconds']} s")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the documents in a file with one on each line; none without the file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def import_pairs(out: Path, count: int, venvs: Path) -> None:
    """Import what foretold breaks name, beside the release that breaks it and the one before; add what came of it."""
    results = out.with_suffix(".imports.jsonl")
    done = [item["text"] for item in read_lines(results)]
    nights = read_lines(out)
    foretold = [item | {"day": night["day"]} for night in nights for item in night["breaks"] if item["imports"]]
    for item in sorted(foretold, key=lambda item: item["declared"])[:count]:
        if item["text"] not in done:
            name, version = item["release"].split(" ")
            for which, other in (("with", version), ("before", item["before"])):
                item[which] = import_pair({**item["pair"], name: other}, item["imports"], item["day"], venvs)
            with results.open("a") as file:
                file.write(json.dumps(item) + "\n")
            print(item["text"], item["with"], item["before"], sep="\n  ", flush=True)


def import_pair(pins: Mapping[str, str], uses: list[list[str]], day: str, venvs: Path) -> dict[str, Any]:
    """Import a module that is foretold to fail, and the name that it uses, beside these two releases.

    uv resolves the rest up to the day; the two releases are forced, whatever metadata says, and so is a torch that was
    there long before.
    """
    module, target = uses[0]
    folder = venvs / "pair"  # always this, so that what was compiled of torch is of use for the next pair
    folder.mkdir()
    uv, python = find_uv_bin(), str(folder / "venv/bin/python")
    pinned = [f"{name}=={version}" for name, version in ({"torch": TORCH} | dict(pins)).items()]
    (folder / "overrides.txt").write_text("\n".join(pinned))
    install = [uv, "pip", "install", *uv_config_options(), "-q", "--python", python, "--exclude-newer", day]
    install += ["--overrides", str(folder / "overrides.txt"), *pinned]
    home, _, name = target.partition(":")
    statements = {"module": f"import {module}", "name": f"from {home} import {name.partition('.')[0]}"}
    environment = uv_environment() | {"PYTHONPYCACHEPREFIX": str(venvs / "bytecode")}
    found: dict[str, Any] = {}

    def run(command: list[str]) -> str:
        done = subprocess.run(
            command, env=environment, cwd=folder, capture_output=True, text=True, check=False, timeout=900
        )
        said = re.sub(r" \(/.*?\)", "", done.stderr.strip().rpartition("\n")[2])  # without the paths of files here
        return said[-200:] or "no words" if done.returncode else ""

    try:
        if said := run([uv, "venv", "-q", "--python", "3.11", str(folder / "venv")]) or run(install):
            return {"error": f"not installed: {said}"}
        found |= {what: run([python, "-c", statement]) or "imports" for what, statement in statements.items()}
    except subprocess.TimeoutExpired as error:
        found["error"] = f"no end after {error.timeout} s"
    finally:
        shutil.rmtree(folder)
    return found


def render_table(out: Path) -> str:
    """Return the replay as Markdown: a row for each week, then what importing showed."""
    nights = read_lines(out)
    rows = [HEADS, "| --- " * (HEADS.count("|") - 1) + "|"]
    for number, group in groupby(range(len(nights)), key=lambda place: place // 7):
        week = [nights[place] for place in group]
        rows.append(f"| {nights[number * 7]['day']} | {' | '.join(map(str, count_nights(week)))} |")
    rows.append(f"| **all** | {' | '.join(map(str, count_nights(nights)))} |")
    rows += ["", "| on | foretold | import of the module | of the name | before |", "| --- " * 5 + "|"]
    for item in read_lines(out.with_suffix(".imports.jsonl")):
        now, before = ({"module": run.get("error"), "name": ""} | run for run in (item["with"], item["before"]))
        cells = [now["module"], now["name"], f"{before['module']}; {before['name']}"]
        text = " | ".join(cell.replace("|", "/") for cell in [item["day"], item["text"], *cells])
        rows.append(f"| {text} |")
    return "\n".join(rows) + "\n"


def count_nights(nights: list[dict[str, Any]]) -> list[int]:
    """Return what a row of the table counts of some nights."""
    breaks = [item for night in nights for item in night["breaks"] if item["imports"]]
    cells = {(item["release"], item["cell"]): item["locks"] for night in nights for item in night["proposals"]}
    locks = [value for (_, cell), value in cells.items() if cell]
    seconds = [night["seconds"] for night in nights]
    return [
        sum(len(night["releases"]) for night in nights),
        len(breaks),
        sum(not item["declared"] for item in breaks),
        sum(item["functions"] for night in nights for item in night["breaks"]),
        len(locks),
        locks.count(True),
        locks.count(False),
        round(sum(seconds) / len(seconds)),
    ]


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("nights", "imports", "table"))
    parser.add_argument("out", type=Path)
    parser.add_argument("page", type=Path, nargs="?")
    parser.add_argument("--until", type=date.fromisoformat, default=datetime.now(UTC).date())
    parser.add_argument("--days", type=int, default=60)
    parser.add_argument("--root", type=Path, default=local_files.data_folder())
    parser.add_argument("--count", type=int, default=15)
    parser.add_argument("--venvs", type=Path, default=Path(tempfile.gettempdir()))
    given = parser.parse_args()
    if given.what == "nights":
        replay_nights(given.out.resolve(), given.root.resolve(), given.until, given.days)
    elif given.what == "imports":
        import_pairs(given.out, given.count, given.venvs)
    elif given.page:
        text, page = given.page.read_text(), render_table(given.out)
        given.page.write_text(f"{text[: text.index(START)]}{START}\n{page}{text[text.index(END) :]}")


if __name__ == "__main__":
    main()
