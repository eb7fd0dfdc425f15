from __future__ import annotations

from typing import Any

from knowngood_diagnose.doctor.doctor_line import BAD, OK, UNKNOWN, WARN, DoctorLine
from knowngood_diagnose.doctor.judge_speed import judge_speed

KNOWN = {"product_tflops": (790.0, 3), "memory_gbs": (3000.0, 3), "to_card_gbs": (55.0, 3)}


def _lines(known: dict[str, tuple[float, int]], *faults: str, **parts: float) -> dict[str, DoctorLine]:
    report: dict[str, Any] = {
        "environment": {"gpu": "NVIDIA H200"},
        "parts": {"outcome": "pass", "faults": list(faults), **parts},
        "points": {},
    }
    return {line.id: line for line in judge_speed(report, known)}


def test_a_node_is_held_against_others_with_the_same_card() -> None:
    lines = _lines(KNOWN, product_tflops=766.3, memory_gbs=2950, to_card_gbs=13)
    assert lines["speed:product_tflops"].verdict is OK
    assert "97% of known good for NVIDIA H200, 790 (nodes: 3)" in lines["speed:product_tflops"].observation
    assert lines["speed:to_card_gbs"].verdict is BAD
    assert "fewer lanes" in lines["speed:to_card_gbs"].because
    assert lines["speed"].observation.startswith("24% of known good")


def test_a_part_that_is_a_little_slow_is_a_warning() -> None:
    assert _lines(KNOWN, product_tflops=640)["speed:product_tflops"].verdict is WARN


def test_without_another_node_there_is_no_range() -> None:
    line = _lines({}, product_tflops=766.3)["speed:product_tflops"]
    assert line.verdict is UNKNOWN
    assert "no known-good range yet" in line.because


def test_a_neighbour_on_the_card_is_told_and_what_was_measured_then_is_left_out() -> None:
    lines = _lines(KNOWN, "another process ran on the card", product_tflops=300)
    assert lines["speed:disturbed"].verdict is WARN
    assert list(lines) == ["speed:disturbed"]
