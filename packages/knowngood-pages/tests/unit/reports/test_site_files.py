"""The site: what it says is what the program says; nothing hostile acts; nothing half is left behind."""

import base64
import gzip
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from markupsafe import Markup

from knowngood.core import local_files
from knowngood.core.errors import UsageError
from knowngood.engine import container_engine
from knowngood.evidence import observed_run, run_evidence, sealed_files
from knowngood.project import checkout
from knowngood.project.checkout import Project
from knowngood.reports import git_history
from knowngood_facts.cli import next_commands
from knowngood_facts.compat import knowledge
from knowngood_facts.compat.pick_answer import pick_cells
from knowngood_facts.compat.query import Query
from knowngood_pages import (
    catalog,
    catalog_collection,
    readme_parts,
    site_build,
    site_cards,
    site_files,
    site_pages,
    site_questions,
    site_verdicts,
)

ROOT = local_files.data_folder()
CELL = "sm90-cu130-torch2.11.0-tf5.17.0-fa4.0.0b33-triton3.6.0-py311"
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>]]>\u2028'\"`{{ 7*7 }}"
SUITE = "ab" * 32


def run_file(**changes):
    check = {
        "id": "sdpa/bf16",
        "topic": "training",
        "setting": "sdpa",
        "outcome": "pass",
        "reason": "",
        "message": None,
    }
    report = {
        "suite_hash": SUITE,
        "verdict": {"ok": True, "domain": "none", "text": "1 pass"},
        "checks": [check],
        "environment": {"gpu": "NVIDIA H200", "distributions": {}},
    }
    stored = {
        "schema": run_evidence.EVIDENCE_SCHEMA,
        "cell": CELL,
        "where": "container-gpu",
        "image": "sha256:" + "0" * 64,
        "node": {},
        "when": "2026-11-20T01:02:03+00:00",
        "command": [],
        "report": report,
    }
    return stored | changes


def put(place, stored):
    text = stored if isinstance(stored, str) else json.dumps(stored)
    return sealed_files.write_sealed_json(place / CELL, f"20261120T010203Z-{SUITE[:12]}", text)


def made(cells, **changes):
    whole = {
        "schema": catalog.CATALOG_SCHEMA,
        "cells": cells,
        "layers": [],
        "incidents": [],
        "compatibility": [],
        "left_out": [],
    }
    return catalog.Catalog.model_validate(whole | changes)


def cell(**changes):
    run = {
        "file": "x.json",
        "when": "2026-11-20T01:02:03+00:00",
        "where": "container-gpu",
        "image": None,
        "suite": SUITE,
    }
    run |= {"gpu": "H200", "ok": True, "quick": False, "verdict": "fine", "outcomes": {"sdpa": "pass"}}
    whole = {"id": CELL, "axes": {"gpu": "sm_90"}, "aliases": ["default"], "in_matrix": True, "tier": "trains-on-gpu"}
    whole |= {"driver_minimum": "580", "reference": f"knowngood:{CELL}", "image": None, "evidence": "x.json"}
    seen = {"outcome": "pass", "state": "seen-on-gpu", "trains": True}
    return whole | {"attention": {"sdpa": seen}, "runs": [run]} | changes


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        (json.dumps(run_file())[:-40], "not readable"),
        ("[" * 100_000, "not readable"),
        ("null", "not readable"),
        (run_file(schema="knowngood/evidence/9"), "this program reads knowngood/evidence/1"),
        (run_file(when="yesterday"), "not readable"),
        (run_file(when="2026-11-21T01:02:03+00:00"), "its name states"),
        (run_file(report=run_file()["report"] | {"suite_hash": "cd" * 32}), "its name states"),
        (run_file(report=run_file()["report"] | {"environment": None}), "not readable"),
        (run_file(image="<script>"), "is not a digest"),
        (run_file(cell="another"), "not of the cell that its folder names"),
    ],
)
def test_evidence_that_cannot_be_trusted_is_left_out_with_a_reason(tmp_path, stored, said):
    why = observed_run.load_run_details(put(tmp_path, stored))
    assert said in why
    assert str(tmp_path) not in why


def test_forged_evidence_is_listed_and_not_shown(tmp_path, known):
    good, bad = (put(tmp_path, run_file(node={"n": number})) for number in range(2))
    bad.write_text(bad.read_text().replace("1 pass", "2 pass"))
    incident = sealed_files.write_sealed_json(tmp_path / "incidents" / "gone", "20261120T010203Z-abababababab", "{}")
    incident.write_text("{ }")
    shown, left_out = catalog_collection.collect_catalog_cells(checkout.Project(ROOT), tmp_path, known)
    assert [run.file for one in shown for run in one.runs] == [f"{CELL}/{good.name}"]
    assert [why.partition(":")[0] for why in left_out] == [
        f"incidents/gone/{incident.name}",
        f"{CELL}/{bad.name}",
    ]
    assert "forged or damaged" in left_out[1]
    assert "forged or damaged" in left_out[0]


def test_of_many_runs_the_newest_are_listed_and_all_are_counted(tmp_path, known):
    for number in range(30):
        run = run_file(when=f"2026-11-20T01:02:{number:02}+00:00")
        sealed_files.write_sealed_json(tmp_path / CELL, f"20261120T0102{number:02}Z-{SUITE[:12]}", json.dumps(run))
    shown, left_out = catalog_collection.collect_catalog_cells(checkout.Project(ROOT), tmp_path, known)
    (one,) = [item for item in shown if item.id == CELL]
    assert ([run.when[17:19] for run in one.runs], one.runs_seen) == ([str(it) for it in range(10, 30)], 30)
    assert left_out == []
    text = site_pages.render_site(made([one.model_dump()]), ROOT / "templates" / "site", {})[f"cells/{CELL}.html"]
    assert "the newest 20 of 30 runs" in text


class Elements(HTMLParser):
    def __init__(self):
        super().__init__()
        self.scripts, self.handlers = [], []

    def handle_starttag(self, tag, attrs):
        if tag == "script":
            self.scripts.append(dict(attrs).get("src"))
        self.handlers += [name for name, _ in attrs if name.startswith("on")]


def test_hostile_strings_are_inert_on_every_page():
    attention = {"sdpa": {"outcome": "fail", "reason": HOSTILE}}
    run = cell()["runs"][0] | {"verdict": HOSTILE, "gpu": HOSTILE, "file": HOSTILE, "suite": HOSTILE}
    incident = {"id": "bad", "title": HOSTILE, "kind": HOSTILE, "severity": "failure", "component": HOSTILE}
    incident |= {
        "signatures": [HOSTILE],
        "affected": [],
        "because": HOSTILE,
        "fix": [],
        "source": [],
        "confidence": "x",
    }
    table = {"title": HOSTILE, "text": HOSTILE, "head": [HOSTILE], "rows": [[HOSTILE]]}
    found = made(
        [cell(aliases=[HOSTILE], attention=attention, runs=[run], axes={"gpu": HOSTILE}, evidence=HOSTILE)],
        incidents=[incident],
        compatibility=[table],
        left_out=[HOSTILE],
        layers=[{"name": HOSTILE, "digest": HOSTILE, "size": 5, "cells": [CELL]}],
    )
    files = site_pages.render_site(found, ROOT / "templates" / "site", {"bad": "text"})
    shown = 0
    for name, text in files.items():
        if name.endswith(".html"):
            elements = Elements()
            elements.feed(text)
            assert all(elements.scripts), name  # only scripts of our own, none inline
            assert not elements.handlers, name
            assert "<img" not in text, name
            shown += "&lt;img" in text
    assert shown >= 5


def many(gpus, torches, each):
    """Cells of so many GPUs and torches."""
    return [
        cell(id=f"{gpu}-{torch}-{number}", axes={"gpu": f"sm_{gpu}", "torch": f"2.{torch}.0"}, runs=[], aliases=[])
        for gpu in range(gpus)
        for torch in range(torches)
        for number in range(each)
    ]


def test_a_matrix_that_is_too_large_for_a_page_is_in_parts():
    assert site_pages.split_matrix(made(many(4, 1, 50)).cells) == []
    parts = site_pages.split_matrix(made([*many(4, 1, 51), *many(1, 3, 250)]).cells)
    assert [(part.name, len(part.cells)) for part in parts] == [
        ("sm_0-torch2.0.0-1", 200),
        ("sm_0-torch2.0.0-2", 101),
        ("sm_0-torch2.1.0-1", 200),
        ("sm_0-torch2.1.0-2", 50),
        ("sm_0-torch2.2.0-1", 200),
        ("sm_0-torch2.2.0-2", 50),
        ("sm_1", 51),
        ("sm_2", 51),
        ("sm_3", 51),
    ]


def test_a_part_that_is_just_full_is_not_divided():
    parts = site_pages.split_matrix(made([*many(1, 2, 100), *many(2, 1, 100)[100:]]).cells)
    assert [(part.name, part.title, len(part.cells)) for part in parts] == [
        ("sm_0", "sm_0", 200),
        ("sm_1", "sm_1", 100),
    ]
    assert site_pages.split_matrix(made(many(1, 2, 100)).cells) == []


def test_every_cell_is_on_one_part_and_every_part_is_linked():
    found = made(many(8, 1, 30), left_out=["a/b.json: forged"])
    files = site_pages.render_site(found, ROOT / "templates" / "site", {})
    parts = [text for name, text in files.items() if name.startswith("matrix/")]
    assert len(parts) == 8
    for one in found.cells:
        assert sum(f'"../cells/{one.id}.html"' in text for text in parts) == 1
    links = re.findall(r'class="part" href="([^"]+)"', files["matrix.html"])
    assert sorted(links) == sorted(name for name in files if name.startswith("matrix/"))
    assert "30 of 30" in files["matrix.html"]
    assert "forged" in files["matrix.html"]
    assert "forged" not in parts[0]


def test_a_hostile_string_does_not_end_a_script():
    text = site_build.render_page_script("x", {"it": [HOSTILE]})
    assert not re.search("[<>&\u2028\u2029]", text)
    if shutil.which("node"):
        ask = f"{text} console.log(JSON.stringify(globalThis.knowngood.x));"
        said = subprocess.run(["node", "-e", ask], capture_output=True, text=True, check=True).stdout
        assert json.loads(said) == {"it": [HOSTILE]}


def test_the_templates_escape_by_themselves():
    text = Path(site_pages.__file__).read_text()
    assert "autoescape=True" in text
    templates = (ROOT / "templates/site").glob("*.j2")
    assert not [path.name for path in templates if re.search(r"\|\s*safe|autoescape false", path.read_text())]


def test_the_picture_is_well_formed_and_inert():
    axes = {"gpu": HOSTILE, "torch": "2.11.0", "transformers": "5.17.0", "framework": HOSTILE}
    trained = {"outcome": "pass", "state": "seen-on-gpu", "step_ms": 20.0, "peak_bytes": 10}
    seen = {"sdpa": trained, "fa2": {"outcome": "refused", "state": "refused"}}
    shown = made([cell(axes=axes, attention=seen), cell(in_matrix=False, attention=seen, axes=cell_axes())]).cells
    text = readme_parts.render_matrix_picture(shown, ROOT / "templates" / "site")
    found = [item.tag.rpartition("}")[2] for item in ET.fromstring(text).iter()]  # noqa: S314 - made here
    assert set(found) == {"svg", "title", "desc", "style", "rect", "text", "path"}
    assert (
        text.count('class="seen-on-gpu" x=') == 1 + 2 * 3
    )  # the legend; of each row its tier, its square and its mark
    assert "prefers-color-scheme: dark" in text


def cell_axes():
    return {"gpu": "sm_90", "torch": "2.11.0", "transformers": "5.17.0", "flash-attn": "4.0.0b33"}


def test_a_row_of_the_picture_has_a_short_label():
    (one,) = made([cell(axes=cell_axes())]).cells
    rest = "torch 2.11.0, tf 5.17.0, fa 4.0.0b33"
    assert readme_parts.shorten_cell(one, {}) == f"sm_90, {rest}"
    assert readme_parts.shorten_cell(one, {("sm_90", "x86-64"): "H100, H200"}) == f"H100, H200, {rest}"


@pytest.mark.parametrize(
    ("tier", "text"),
    [
        ("trains-on-cpu", "Unseen on a GPU: the suite trained a small model in this image on a CPU only."),
        ("trains-on-gpu", "The suite trained a small model in this image on a GPU."),
    ],
)
def test_the_page_of_a_cell_says_what_its_tier_means(tier, text):
    page = site_pages.render_site(made([cell(tier=tier)]), ROOT / "templates" / "site", {})[f"cells/{CELL}.html"]
    assert text in page


@pytest.mark.parametrize(
    ("successor", "text"), [(CELL, f'href="../cells/{CELL}.html"'), (None, "It has no successor.")]
)
def test_the_page_of_a_retired_cell_names_its_successor(successor, text):
    retired = made([cell(retired={"on": "2026-11-01", "for": successor})])
    page = site_pages.render_site(retired, ROOT / "templates" / "site", {})[f"cells/{CELL}.html"]
    assert "Retired on 2026-11-01" in page
    assert text in page
    assert json.loads(retired.render_json())["cells"][0]["retired"] == {"on": "2026-11-01", "for": successor}


def test_a_retired_cell_is_marked_in_the_matrix_and_apart_in_the_picture():
    old = {"id": CELL.replace("py311", "py312"), "retired": {"on": "2026-11-01", "for": None}}
    both = [cell(axes=cell_axes()), cell(axes=cell_axes(), **old)]
    page = site_pages.render_site(made(both), ROOT / "templates" / "site", {})["matrix.html"]
    assert [", retired</td>" in row for row in page.split("<tr")[1:] if 'class="tier' in row] == [False, True]
    picture = readme_parts.render_matrix_picture(made(both).cells, ROOT / "templates" / "site")
    assert picture.count(">retired<") == 1
    assert ">retired<" not in readme_parts.render_matrix_picture(made(both[:1]).cells, ROOT / "templates" / "site")


def test_the_lock_and_the_runs_that_a_page_names_are_files_beside_it():
    here = Project(ROOT)
    [name] = [target for alias, target in here.matrix.aliases.items() if alias == "default"]
    run = next((ROOT / "evidence" / name).glob("*.json")).relative_to(ROOT / "evidence").as_posix()
    site = made([cell(id=name, axes=cell_axes(), evidence=run, runs=[])])
    files = site_build._read_proofs(here, ROOT / "evidence", site)
    assert files[f"evidence/{run}"] == (ROOT / "evidence" / run).read_bytes()
    assert "torch==2.11.0 --hash=sha256:" in files[f"cells/{name}.txt"]
    assert (
        f'href="../evidence/{run}"' in site_pages.render_site(site, ROOT / "templates/site", {})[f"cells/{name}.html"]
    )


def test_the_page_of_nights_shows_the_newest_report_first(tmp_path):
    (tmp_path / "nights").mkdir()
    report = json.loads((ROOT / "evidence/nights/2026-11-21.json").read_text())
    for date in ("2026-11-21", "2026-11-22"):
        (tmp_path / f"nights/{date}.json").write_text(json.dumps(report | {"date": date}))
    page = site_pages.render_nights_page(made([]), ROOT / "templates/site", site_build._render_nights(tmp_path))
    assert 0 < page.index("2026-11-22: ") < page.index("2026-11-21: ")
    assert "<td>files</td>" in page
    empty = site_pages.render_nights_page(made([]), ROOT / "templates/site", Markup())
    assert "No report of a night" in empty


@pytest.mark.parametrize(
    ("remote", "address"),
    {
        "https://forge.example/team/knowngood.git": "https://forge.example/team/knowngood",
        "https://ann:secret@forge.example/team/knowngood": "https://forge.example/team/knowngood",
        "git@forge.example:team/knowngood.git": "https://forge.example/team/knowngood",
        "/srv/knowngood": "",
        "javascript:alert(1)": "",
    }.items(),
)
def test_the_source_is_linked_by_the_remote(tmp_path, remote, address):
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    subprocess.run(["git", "-C", tmp_path, "remote", "add", "origin", remote], check=True)
    assert git_history.find_source_address(tmp_path) == address


def test_a_cell_that_is_not_an_answer_has_its_rules(known):
    machine = known.universe.gpus.find_machines("sm_90")[0]
    published = site_questions.GpuCells(cells=known.published.cells, machine=machine, known_standings={})
    table = site_verdicts.GpuAnswerTable(universe=known.universe, published=published).document(
        ["sdpa", "fa4"], ["5.17"], [""]
    )
    other = next(item for item in table["others"] if "-fa2." in item["id"] and "-cu130-" in item["id"])
    assert [table["texts"][number] for number in other["attn"]["fa4"]]
    assert "sdpa" not in other["attn"]
    assert any("580" in table["texts"][number] for number in other["driver"]["525.60.13"])
    assert "580" not in other["driver"]


def test_the_history_states_what_changed():
    first, second = (cell()["runs"][0] | {"when": f"2026-11-2{day}T00:00:00+00:00"} for day in (0, 1))
    second |= {"ok": False, "image": "sha256:" + "1" * 64}
    found = site_pages.run_history(made([cell(runs=[first, second])]).cells[0])
    assert [item["changed"] for item in found] == [["turned red", "another image"], []]


def test_only_changed_files_are_written_and_others_removed(tmp_path):
    site = tmp_path / "site"
    assert site_files.write_site(site, {"catalog.json": "1", "a/b.html": "x", "old.html": ""}) != []
    before = (site / "a/b.html").stat()
    assert site_files.write_site(site, {"catalog.json": "2", "a/b.html": "x"}) == ["catalog.json"]
    after = (site / "a/b.html").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert not (site / "old.html").exists()
    assert site_files.write_site(site, {"catalog.json": "2", "a/b.html": "x"}) == []
    assert [path.name for path in tmp_path.iterdir()] == ["site"]


def test_a_failure_leaves_the_old_site(tmp_path, monkeypatch):
    site = tmp_path / "site"
    site_files.write_site(site, {"catalog.json": "1"})
    monkeypatch.setattr(Path, "write_bytes", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        site_files.write_site(site, {"catalog.json": "2"})
    assert (site / "catalog.json").read_text() == "1"
    assert [path.name for path in tmp_path.iterdir()] == ["site"]


def test_a_run_killed_between_the_renames_is_repaired(tmp_path):
    site = tmp_path / "site"
    site_files.write_site(site, {"catalog.json": "1", "same.html": "s"})
    site.rename(tmp_path / ".site.old")
    assert site_files.write_site(site, {"catalog.json": "2", "same.html": "s"}) == ["catalog.json"]
    assert [path.name for path in tmp_path.iterdir()] == ["site"]


def test_a_folder_that_is_not_a_site_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(UsageError, match="something other than a site"):
        site_files.write_site(tmp_path, {"catalog.json": "1"})
    assert (tmp_path / "thesis.tex").read_text() == "mine"


@pytest.fixture(scope="module")
def known():
    return knowledge.load_knowledge()


def spelled(table, answer):
    """An answer of the page's data in words."""
    cells = [
        (item["id"], item["extras"], [table["texts"][number] for number in item["findings"]])
        for item in answer.get("cells", [])
    ]
    clashes = [
        (item["demand"], [table["texts"][number] for number in item["rules"]], item["relax"])
        for item in answer.get("conflict", [])
    ]
    return cells, sorted(clashes, key=lambda clash: clash[0])


def said(picked):
    """The same of what `pick` said."""
    cells = [(str(it.cell), dict(it.extras), [finding.because for finding in it.findings]) for it in picked.choices]
    clashes = [(it.demand, [rule["because"] for rule in it.rules], it.relax) for it in picked.conflict]
    return cells, sorted(clashes, key=lambda clash: clash[0])


def with_facts(universe, published):
    """The frameworks of which there are facts, so that `pick` searches among all releases; and none."""
    pins = site_verdicts.list_frameworks(published)
    return [pin for pin in pins if not pin or pin.partition("==")[0] in universe.packages]


def cells_of_machine(published, machine):
    return site_questions.GpuCells(
        cells=published.cells,
        locked=published.locked,
        recorded=published.recorded,
        machine=machine,
        known_standings={cell: runs.standing for cell, runs in published.runs.items()},
    )


@pytest.mark.parametrize("gpu", ["sm_70", "sm_90", "GH200"])
def test_the_verdicts_are_those_of_pick(known, gpu):
    """Every driver that is told apart, settings that are alike and that are not, against asking `pick` itself."""
    universe, published = known.universe, known.published
    [machine] = universe.gpus.find_machines(gpu)
    table = site_verdicts.GpuAnswerTable(universe=universe, published=cells_of_machine(published, machine))
    settings, releases = ["sdpa", "sdpa-flash", "flex", "fa2", "fa4"], ["5.17", "4.57", "4.44"]
    pins = with_facts(universe, published)[:3]
    told = table.document(settings, releases, pins)
    compared = 0
    for pin in pins:
        for setting in ["", *settings]:
            for place, release in enumerate(["", *told["transformers"][pin]]):
                ladder = told["ladders"][told["rows"][pin][setting][place]]
                # What collides whatever the driver is told once.
                collides = "conflict" in told["answers"][ladder[0][1]]
                for driver in [""] if collides else ["", *site_verdicts.list_drivers(universe)]:
                    steps = [number for least, number in ladder if not driver or float(driver[:3]) >= float(least[:3])]
                    question = site_questions.SiteQuestion(setting, release, pin, driver)
                    if steps:
                        found = pick_cells(universe, question.request(machine.query), published)
                        assert spelled(told, told["answers"][steps[0]]) == said(found), question
                        compared += 1
    assert compared > 90


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no JavaScript here")
def test_the_page_answers_as_the_command_for_every_name_of_a_card(known, monkeypatch, tmp_path):
    """Every card, with each trainer and several drivers: what the page's own scripts show, and what `pick` answers."""
    universe, published = known.universe, known.published
    pins = site_verdicts.list_frameworks(published)
    names = [card for machine in universe.gpus.machines for card in machine.cards]
    names += [f"NVIDIA {card}" for cards in universe.gpus.name_table.further.values() for card in cards]
    names += ["NVIDIA GH200 480GB", "NVIDIA GB200", "GB300", "Hopper", "Volta", *universe.gpus.names]
    tables = {
        machine.name: site_verdicts.GpuAnswerTable(
            universe=universe, published=cells_of_machine(published, machine)
        ).document([], [], pins)
        for machine in universe.gpus.machines
    }
    asked = [(name, "", "") for name in names]
    asked += [
        (machine.cards[0], pin, driver)
        for machine in universe.gpus.machines
        for pin in pins
        for driver in ("", "555.42.02")
    ]
    shown, offered = ask_page(known, tables, asked), {}
    for (name, pin, driver), answer in zip(asked, shown, strict=True):
        machine = universe.gpus.find_machines(name)[0]
        assert answer["machine"] == machine.name
        own = [cell for cell in published.cells if cell.framework_pin == tuple(pin.split("=="))]
        of_matrix_only = pin not in with_facts(universe, published)
        if of_matrix_only and not [cell for cell in own if (cell.gpu, cell.host) == (machine.sm, machine.host)]:
            assert answer["cells"] == []  # the page says which command to ask
            continue
        question = site_questions.SiteQuestion("", "", pin, driver)
        found = pick_cells(universe, question.request(name), published)
        cells = [choice.cell for choice in found.choices if choice.cell in own or not of_matrix_only]
        assert [cell["id"] for cell in answer["cells"]] == [str(cell) for cell in cells], (name, pin, driver)
        offered |= {it.cell: it for it in found.choices if it.published and it.cell in cells}
    assert len({answer["machine"] for answer in shown}) == len(universe.gpus.machines)
    compare_commands(offered, known, monkeypatch, tmp_path)
    trainers = {pin for (_, pin, _), answer in zip(asked, shown, strict=True) if answer["cells"]}
    assert trainers == set(pins)


def compare_commands(offered, known, monkeypatch, folder):
    """The card of each cell has the command that `pick` prints, on a machine that has compiled nothing."""
    monkeypatch.setenv("KNOWNGOOD_WHEELHOUSE", str(folder))
    monkeypatch.setattr(container_engine, "find_running_engine", lambda **_: None)
    project, verdicts = Project(ROOT), next_commands.open_verdicts()
    cells, _ = catalog_collection.collect_catalog_cells(project, project.evidence, known)
    cards = {one.id: site_cards.CellCard(cell=one, gpu="") for one in cells}
    assert len(offered) > 20
    for one, choice in offered.items():
        command = next_commands.command_for_choice(choice, known.published, verdicts)
        assert cards[str(one)].commands[0].text.replace("\n", " && ") == command.command


def ask_page(known, tables, asked):
    """Return the machine and the cells that the page's scripts show for each (name of a GPU, framework, driver)."""
    static = ROOT / "templates/site/static"
    page = made([cell(axes={"gpu": "sm_90"})])
    script = site_build.render_page_script("find", site_build._find_page_data(known, page))
    script += "".join((static / name).read_text() for name in ("gpu_names.js", "question.js"))
    script += f"""
      const tables = {json.dumps(tables)};
      const {{ findGpu, look }} = knowngood.question;
      console.log(JSON.stringify({json.dumps(asked)}.map(([name, framework, driver]) => {{
        const machine = findGpu(name).name;
        const question = {{ gpu: name, attn: "", framework, transformers: "", driver }};
        return {{ machine, cells: look(tables[machine], question)?.cells || [] }};
      }})));
    """
    ended = subprocess.run(["node", "-"], input=script, capture_output=True, text=True, check=True, timeout=100)
    return json.loads(ended.stdout)


def test_the_page_can_ask_about_every_setting(known):
    assert set(site_verdicts.list_drivers(known.universe)) >= {"580"}
    assert site_verdicts.list_releases(known.published)[0].startswith("5.")
    assert site_questions.SiteQuestion().request("sm_90") == Query(gpu="sm_90")


def test_the_committed_schema_is_the_programs():
    assert (ROOT / "docs" / "catalog.schema.json").read_text() == catalog.render_catalog_schema()


def test_a_table_is_unpacked_to_what_it_was():
    table = {"gpu": "sm_90", "texts": [HOSTILE, "é"]}
    packed = site_build.compress_table(table)
    assert json.loads(gzip.decompress(base64.b64decode(packed))) == table
    assert site_build.compress_table(table) == packed
