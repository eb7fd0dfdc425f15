from __future__ import annotations

import dataclasses
import itertools
import xml.etree.ElementTree as ET

import pytest

from knowngood.evidence.run_evidence import Evidence, RunPlace
from knowngood_pages import attention_page

FA2 = "sm90-cu130-torch2.11.0-tf{}-fa2.8.3.post2-triton3.6.0-py312"
FA4 = "sm90-cu130-torch2.11.0-tf{}-fa4.0.0b36-triton3.6.0-py312"


def check(name, outcome, **more):
    setting, dtype, layout, mode = name.split("/")
    fields = {"setting": setting, "dtype": dtype, "layout": layout, "mode": mode, "topic": "training"}
    return {"id": name, **fields, "outcome": outcome, "reason": "", "exception": None, "message": None, **more}


def speed(setting, lengths):
    figures = {"lengths": {str(length): {"step_ms": ms, "peak_bytes": 2e9} for length, ms in lengths.items()}}
    base = check(f"{setting}/bf16//", "pass")
    return {**base, "id": f"speed/{setting}/bf16", "topic": "speed", "figures": figures}


def run(cell, when, *checks, sm="sm_90"):
    report = {
        "checks": list(checks),
        "suite_hash": "ab" * 32,
        "seconds": 1.0,
        "environment": {"gpu": "NVIDIA H200", "sm": sm},
        "verdict": {"domain": "none", "ok": True, "text": ""},
    }
    return Evidence(cell=cell, where=RunPlace.BARE, image=None, when=when, node={}, command=(), report=report)


OLD = run(FA2.format("4.44.2"), "2026-01-01T00:00:00+00:00", check("eager/bf16/dense/full", "pass"))
NEW = run(
    FA2.format("5.17.0"),
    "2026-01-02T00:00:00+00:00",
    check("eager/bf16/dense/full", "pass"),
    check("eager/fp16/dense/full", "pass"),
    check("fa2/bf16/dense/full", "refused"),
    check("fa4/bf16/dense/full", "not-run"),
    check("eager/bf16/packed/full", "fail", reason="leaks-across-seams: it does not stop; the loss is off"),
    speed("eager", {512: 20.0, 8192: 129.4}),
)
FOUR = run(
    FA4.format("5.17.0"),
    "2026-01-01T12:00:00+00:00",
    check("fa4/bf16/dense/full", "pass"),
    check("fa2/bf16/dense/full", "not-run"),
)


@pytest.mark.parametrize("runs", list(itertools.permutations([OLD, NEW, FOUR])))
def test_a_check_that_ran_is_not_hidden_by_an_environment_that_lacks_it(runs):
    found = attention_page.attention_table_from_runs(runs)
    assert found["5.17.0", "fa4 4.0.0b36", "bf16/dense/full"].check["outcome"] == "pass"
    assert found["5.17.0", "fa2 2.8.3.post2", "bf16/dense/full"].check["outcome"] == "refused"


def test_a_check_that_a_short_run_skipped_is_not_shown_as_impossible():
    longer = run(NEW.cell, NEW.when, check("fa4/bf16/dense/full", "not-run"), check("fa4/bf16/packed/full", "not-run"))
    assert "| fa4 4.0.0b36 | bf16 | `✓---` |" in attention_page.render_attention_page([longer, FOUR], {})
    assert "| fa4 | bf16 | `·--·` |" in attention_page.render_attention_page([longer], {})


def test_a_later_run_of_the_same_check_counts():
    again = run(NEW.cell, "2026-01-03T00:00:00+00:00", check("fa2/bf16/dense/full", "fail"))
    found = attention_page.attention_table_from_runs([again, NEW])
    assert found["5.17.0", "fa2 2.8.3.post2", "bf16/dense/full"].check["outcome"] == "fail"


def test_a_release_of_the_kernels_that_no_cell_of_a_transformers_holds_was_not_tried():
    other = run(FA4.format("5.17.0").replace("b36", "b33"), FOUR.when, check("fa4/bf16/dense/full", "fail"))
    absent = check("fa4/bf16/dense/full", "not-run", reason="the kernels' package is not installed")
    newest = run(FA2.format("5.23.0"), NEW.when, absent)
    unknown = run(
        OLD.cell,
        OLD.when,
        check("fa4/bf16/dense/full", "not-run", reason="this transformers does not know the setting"),
    )
    text = attention_page.render_attention_page([FOUR, other, newest, unknown], {})
    assert "| fa4 4.0.0b36 | bf16 | `·---` | `✓---` |" in text
    assert "| fa4 4.0.0b33 | bf16 | `·---` | `✗---` |" in text


def test_a_full_run_counts_before_a_later_quick_one():
    quick = dataclasses.replace(FOUR, when="2026-02-01T00:00:00+00:00", command=("pytest", "--quick"))
    assert {seen.run.when for seen in attention_page.attention_table_from_runs([quick, FOUR]).values()} == {FOUR.when}


def test_runs_without_a_gpu_are_left_out():
    assert (
        attention_page.attention_table_from_runs(
            [run(NEW.cell, NEW.when, check("eager/bf16/dense/full", "pass"), sm=None)]
        )
        == {}
    )


def test_the_page_has_versions_in_order_signs_faults_figures_and_sources():
    text = attention_page.render_attention_page([NEW, FOUR, OLD], {"Time": "attention/time.svg"})
    assert "| setting | dtype | 4.44.2 | 5.17.0 |" in text
    assert "| eager | bf16 | `✓---` | `✓--✗` |" in text
    assert "| eager | fp16 | `----` | `✓---` |" in text
    assert "| fa4 4.0.0b36 | bf16 | `----` | `✓---` |" in text
    assert "- **leaks-across-seams: it does not stop**\n  - transformers 5.17.0: eager packed\n" in text
    assert "| eager | 20.0 ms, 2.0 GB | 129.4 ms, 2.0 GB |" in text
    assert "![Time](attention/time.svg)" in text
    assert all(seen.cell in text for seen in (OLD, NEW, FOUR))


def test_dtypes_that_look_alike_share_a_row():
    alike = run(NEW.cell, NEW.when, *(check(f"eager/{dtype}/dense/full", "pass") for dtype in ("fp32", "bf16", "fp16")))
    assert "| eager | all | `✓---` |" in attention_page.render_attention_page([alike], {})
    assert "| eager | bf16, fp16 | `✓---` |" in attention_page.render_attention_page([alike, _one_differs()], {})


def _one_differs():
    others = [check(f"eager/{dtype}/dense/full", "pass") for dtype in ("bf16", "fp16")]
    return run(NEW.cell, "2026-01-05T00:00:00+00:00", check("eager/fp32/dense/full", "refused"), *others, *_of_sdpa())


def _of_sdpa():
    return [check(f"sdpa/{dtype}/dense/full", "pass") for dtype in ("fp32", "bf16", "fp16")]


def test_a_chart_is_well_formed_and_its_bars_are_to_scale():
    svg = attention_page.render_bar_chart(
        "T <&>", "ms", {"eager": [50.0, 100.0], "sdpa": [25.0, None]}, ["512", "8192"]
    )
    bars = [element for element in ET.fromstring(svg).iter() if element.get("height") == str(attention_page._BAR - 2)]  # noqa: S314
    widths = [float(bar.get("width", "0")) for bar in bars]
    assert len(widths) == 4
    assert widths[0] == pytest.approx(widths[1] / 2, abs=0.1)
    assert widths[2] == pytest.approx(widths[1] / 4, abs=0.1)
    assert widths[3] == 0.0
    assert "out of memory" in svg
