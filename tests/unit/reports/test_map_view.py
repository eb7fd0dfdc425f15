"""The map for people: the text of `cells --map`, its JSON document, and its page on the site."""

from __future__ import annotations

import json
import re

import pytest
from samples import ROOT

from knowngood.cli import main
from knowngood.compat import knowledge
from knowngood.compat.matrix_map import build_matrix_map
from knowngood.reports import catalog, map_view, site_pages


@pytest.fixture(scope="module")
def matrix_map():
    known = knowledge.load_knowledge()
    return build_matrix_map(known.universe, known.published.cells, known.published.standings)


def test_the_text_has_every_number_once_and_no_single_points(matrix_map):
    text = map_view.render_map_text(matrix_map)
    assert text.startswith(f"{len(matrix_map.states):,} points: {len(matrix_map.values['gpu'])} gpu x ")
    for state, meaning in map_view.STATE_MEANINGS.items():
        assert re.search(rf"^ *{matrix_map.counts[state]:,}  \S  {re.escape(meaning)}$", text, re.MULTILINE)
    for rule, count, alone in matrix_map.rules:
        assert re.search(rf"^{rule} +{count:,} +{alone:,}$", text, re.MULTILINE)
    assert f"{len(matrix_map.cover):,} points would cover all {matrix_map.pairs:,} possible pairs" in text
    assert "greedily" in text
    assert text.count("\n") < 60


def test_the_grid_sums_up_the_points_of_a_gpu_and_a_setting(matrix_map):
    grid = map_view.map_page_data(matrix_map)["grid"]
    settings = list(matrix_map.values["attn"])
    possible = [point for point in matrix_map.possible if (point[0], point[3]) == ("sm_90", "fa4")]
    assert grid["sm_90"][settings.index("fa4")] == f"{len(possible)} g"
    assert grid["sm_70"][settings.index("fa4")] == "-"


def test_the_command_prints_one_document_or_a_text(capsys):
    assert main.main(["cells", "--map", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {"axes", "points", "counts", "rules", "states", "excluded_by", "reasons", "cover", "contradictions"} <= set(
        document
    )
    assert document["cover"]["method"] == "greedy"
    assert main.main(["cells", "--map"]) == 0
    assert f"{document['points']:,} points" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["default"], ["--catalog", "x"]])
def test_the_map_is_of_everything(words, capsys):
    assert main.main(["cells", "--map", *words]) == 2
    assert "does nothing with --map, which shows all" in capsys.readouterr().err


def test_the_page_has_every_point_and_is_in_the_navigation(matrix_map):
    empty = catalog.Catalog(
        schema=catalog.CATALOG_SCHEMA, cells=[], layers=[], incidents=[], compatibility=[], left_out=[]
    )
    page = site_pages.render_map_page(empty, ROOT / "templates" / "site", map_view.map_page_data(matrix_map))
    assert page.count("<details>") == len(matrix_map.values["gpu"])
    torch, row = matrix_map.values["torch"][-1], matrix_map.state_grids()["sm_90"]["fa4"][-1]
    assert f"{torch.ljust(8)}{row}\n" in page
    assert '<a href="map.html" aria-current="page">The map</a>' in page
    assert all(f"<code>{rule}</code>" in page for rule, _, _ in matrix_map.rules)
