"""The cards of the pages: their words follow from the evidence, and their commands are right for each origin."""

import json
import re
import shlex
from collections import Counter

import pytest

from knowngood.cli.main import main
from knowngood.core import local_files
from knowngood.core.attention import ATTENTION
from knowngood.project import checkout
from knowngood_facts.compat import knowledge
from knowngood_pages import catalog, catalog_collection, site_incidents, site_pages
from knowngood_pages.run_commands import ImageOrigin, list_run_commands, run_command_templates
from knowngood_pages.site_cards import MARK_MEANINGS, SETTING_NAMES, CardTable, CellCard

CELL = "sm89-cu130-torch2.11.0-tf5.17.0-fa0-triton3.6.0-py311"
AXES = {
    "gpu": "sm_89",
    "cuda": "13.0",
    "torch": "2.11.0",
    "transformers": "5.17.0",
    "triton": "3.6.0",
    "python": "3.11",
}
ROOT = local_files.data_folder()


def run(**changes):
    whole = {"file": "x/y.json", "when": "2026-11-21T01:02:03+00:00", "where": "container-gpu", "image": "sha256:0"}
    whole |= {"suite": "ab", "gpu": "NVIDIA H100 80GB HBM3", "sm": "sm_90", "ok": True, "quick": False, "verdict": ""}
    return whole | {"outcomes": {}} | changes


def cell(state="seen-on-gpu", *, trains=True, setting="sdpa", tier="trains-on-gpu", proof=None, **changes):
    item = {"outcome": "pass", "state": state, "trains": trains, "text": state} | changes.pop("item", {})
    whole = {"id": CELL, "axes": AXES, "aliases": [], "in_matrix": True, "tier": tier, "driver_minimum": "580"}
    whole |= {
        "reference": f"knowngood:{CELL}",
        "image": None,
        "evidence": "x/y.json",
        "runs": [],
        "proof": proof or run(),
    }
    return catalog.CatalogCell.model_validate(whole | {"attention": {setting: item}} | changes)


CPU = run(gpu=None, sm=None, where="container-cpu")


@pytest.mark.parametrize(
    ("one", "mark", "badge"),
    [
        (cell(), "seen-on-gpu", "seen training on an H100 on 21 November 2026"),
        (cell(proof=run(gpu="Tesla T4")), "seen-on-gpu", "seen training on a T4 on 21 November 2026"),
        (
            cell(proof=run(gpu="NVIDIA GeForce RTX 4090")),
            "seen-on-gpu",
            "seen training on an RTX 4090 on 21 November 2026",
        ),
        (cell(proof=run(gpu="NVIDIA A100-SXM4-80GB")), "seen-on-gpu", "seen training on an A100 on 21 November 2026"),
        (
            cell(proof=run(image=None), tier="none"),
            "seen-on-gpu",
            "seen training on an H100 on 21 November 2026, outside an image",
        ),
        (
            cell("seen-on-cpu", tier="trains-on-cpu", proof=CPU),
            "seen-on-cpu",
            "predicted; seen on a CPU only, on 21 November 2026",
        ),
        (
            cell("predicted", tier="trains-on-cpu", proof=CPU),
            "predicted",
            "predicted; its image ran on a CPU only, on 21 November 2026",
        ),
        (cell("predicted", tier="resolved"), "unbuilt", "predicted by rules; not built yet"),
        (cell("refused", trains=False), "refused", "refused on an H100 on 21 November 2026"),
        (cell("predicted", trains=False), "predicted-refusal", "predicted to be refused; never run"),
    ],
)
def test_a_badge_states_the_evidence_and_no_more(one, mark, badge):
    assert CellCard(cell=one, gpu="L4").describe_setting("sdpa") == (mark, badge)


def test_a_title_is_what_people_look_for():
    assert CellCard(cell=cell(), gpu="L4, RTX 4090").title == "L4, RTX 4090 · torch 2.11 · SDPA"
    framework = cell(axes=AXES | {"framework": "xtuner0.2.0", "flash-attn": "2.8.3.post2"}, setting="fa2")
    assert CellCard(cell=framework, gpu="H100").title == "H100 · torch 2.11 · FlashAttention 2 · xtuner 0.2.0"
    assert ("flash-attn", "2.8.3.post2") in CellCard(cell=framework, gpu="H100").contents


def test_a_cell_is_introduced_by_a_setting_that_it_offers():
    axes = AXES | {"flash-attn": "2.8.3.post2"}
    refused = {"outcome": "refused", "state": "refused", "trains": False}
    trained = {"outcome": "pass", "state": "seen-on-gpu", "trains": True}
    one = cell(axes=axes, attention={"fa2": refused, "sdpa": trained})
    assert CellCard(cell=one, gpu="H100").lead == "sdpa"


def test_no_two_cells_of_the_matrix_have_one_title(known):
    """A host of Arm, another trainer or another flash attention is seen in the name."""
    project = checkout.Project(ROOT)
    cells, _ = catalog_collection.collect_catalog_cells(project, project.evidence, known)
    labels = {(item.sm, str(item.host)): item.label for item in known.universe.gpus.machines}
    titles = Counter(
        CellCard(cell=one, gpu=labels[one.axes["gpu"], one.axes.get("host", "x86-64")]).title
        for one in cells
        if one.in_matrix
    )
    assert titles["GH200 · torch 2.11 · FlashAttention 4"] == 1
    assert [title for title, count in titles.items() if count > 1] == []


@pytest.fixture(scope="module")
def known():
    return knowledge.load_knowledge()


def test_every_setting_and_every_state_has_words():
    assert list(SETTING_NAMES) == list(ATTENTION)
    assert {*site_pages.STATE_GLYPHS, "unbuilt"} == set(MARK_MEANINGS)
    assert set(site_pages.STATE_MEANINGS) == set(site_pages.STATE_GLYPHS)


@pytest.mark.parametrize("origin", list(ImageOrigin))
def test_the_commands_of_this_program_in_a_card_are_accepted(origin, capsys):
    """Each option exists: the parser takes the words, whether or not the cell is there."""
    lines = [line for command in list_run_commands(origin) for line in command.text.splitlines()]
    commands = [shlex.split(line) for line in lines if line.startswith("knowngood ")]
    assert origin is ImageOrigin.PUBLISHED or commands
    for words in commands:
        with pytest.raises(SystemExit, match="0"):
            main([words[1], "--help"])
        text = capsys.readouterr().out
        assert all(option in text for option in words if option.startswith("-") and option != "--"), words


def test_an_unpublished_image_is_built_before_it_is_run():
    for origin in (ImageOrigin.BUILT_HERE, ImageOrigin.COMPILED_HERE, ImageOrigin.UNLOCKED):
        docker = next(command for command in list_run_commands(origin) if command.tool == "docker")
        assert docker.text.splitlines()[0].startswith("knowngood build-matrix ")
        assert ("--compile" in docker.text) is (origin is ImageOrigin.COMPILED_HERE)
    here, published, *_ = list_run_commands(ImageOrigin.PUBLISHED)
    assert here.text == "knowngood run {id} -- python train.py"
    assert published.text.startswith("docker run ")
    tools = [command["tool"] for command in run_command_templates("")["built-here"]]
    assert tools == [
        "knowngood",
        "docker",
        "podman",
        "Compose",
        "VS Code",
        "Apptainer",
        "Slurm",
        "Kubernetes",
        "requirements",
    ]


@pytest.mark.parametrize(
    ("changes", "origin"),
    [
        ({}, "built-here"),
        ({"published": True}, "published"),
        ({"published": True, "tier": "resolved"}, "built-here"),
        ({"compiled": ["flash_attn-2.8.3.whl"]}, "compiled-here"),
        ({"tier": "none"}, "unlocked"),
        ({"in_matrix": False}, "absent"),
    ],
)
def test_where_an_image_comes_from(changes, origin):
    assert CellCard(cell=cell(**changes), gpu="").origin == origin


def test_no_name_in_braces_is_left_in_a_command():
    for changes in ({}, {"published": True}, {"in_matrix": False}):
        for command in CellCard(cell=cell(**changes), gpu="").commands:
            assert not re.search(r"\{(id|image|tag|python|major|minor|pulled)\}", command.text)
            assert "{name" not in command.note


def test_the_job_of_kubernetes_is_a_job_for_that_architecture():
    import yaml

    command = next(item for item in CellCard(cell=cell(), gpu="").commands if item.tool == "Kubernetes")
    job = yaml.safe_load(command.text.partition("<<'END'\n")[2].removesuffix("END"))
    pod = job["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"nvidia.com/gpu.compute.major": "8", "nvidia.com/gpu.compute.minor": "9"}
    assert pod["containers"][0]["image"].endswith(f":{CELL}")


def test_known_failures_have_their_checks_and_incident():
    defect = {"check": "sdpa/bf16/packed/use-cache", "because": "it leaks", "incident": "packed-rows-leak-with-cache"}
    one = cell(item={"defects": [defect, {"check": "sdpa/fp16", "because": "odd", "incident": None}]})
    assert CellCard(cell=one, gpu="").defects == {
        "packed-rows-leak-with-cache": ["sdpa/bf16/packed/use-cache"],
        "odd": ["sdpa/fp16"],
    }
    incident = {"id": "packed-rows-leak-with-cache", "title": "Rows leak", "kind": "x", "severity": "failure"}
    incident |= {"component": "c", "signatures": [], "affected": [], "because": "b", "fix": [], "source": []}
    whole = {"schema": catalog.CATALOG_SCHEMA, "cells": [json.loads(one.model_dump_json())], "layers": []}
    whole |= {"incidents": [incident | {"confidence": "x"}], "compatibility": [], "left_out": []}
    files = site_pages.render_site(catalog.Catalog.model_validate(whole), ROOT / "templates/site", {})
    page = files[f"cells/{CELL}.html"]
    assert 'href="../incidents/packed-rows-leak-with-cache.html">Rows leak</a>' in page
    assert "<code>sdpa/bf16/packed/use-cache</code>" in page


def test_the_script_has_the_same_words_as_the_page():
    one = cell("seen-on-cpu", tier="trains-on-cpu", proof=CPU, item={"reason": "why"})
    table = CardTable().document([one], [CELL, CELL.replace("sm89", "sm86")])
    mark, words, reason, defects = table["cells"][CELL]["settings"]["sdpa"]
    card = CellCard(cell=one, gpu="")
    assert (mark, table["words"][words], table["words"][reason], defects) == (card.mark, card.badge, "why", [])
    assert table["cells"][CELL.replace("sm89", "sm86")]["origin"] == "absent"


def test_figures_are_compared_by_setting():
    one = cell(item={"step_ms": 30.0, "peak_bytes": 2_000_000_000})
    time, memory = site_pages.compare_figures([one, cell("refused", trains=False)])
    assert (time.settings, [values for _, values in time.rows], time.most) == (["sdpa"], [{"sdpa": 30.0}], 90.0)
    assert [values for _, values in memory.rows] == [{"sdpa": 2.0}]
    assert site_pages.compare_figures([cell()]) == []


def test_threads_among_the_sources_of_an_incident_are_links():
    text = "see a/b#1\n\n## How we know\n\n- huggingface/trl#2909\n- facts/torch.json (sass)\n"
    linked = site_incidents.link_sources(text)
    assert "[huggingface/trl#2909](https://github.com/huggingface/trl/issues/2909)" in linked
    assert linked.startswith("see a/b#1\n")
    assert "- facts/torch.json (sass)" in linked
