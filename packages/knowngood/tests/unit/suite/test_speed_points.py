from __future__ import annotations

import pytest

from speed_tests import card, points


def test_every_plan_has_points_that_are_what_their_ids_say() -> None:
    for plan in points.PLANS:
        for point, text in zip(points.choose_points([plan], []), points.PLANS[plan], strict=True):
            assert str(point) == text
            assert points.parse_point(str(point)) == point


def test_the_words_of_a_point_have_one_order_and_are_refused_by_name() -> None:
    point = points.parse_point("tiny/fa2/128x4/chunked/compiled/packed")
    assert str(point) == "tiny/fa2/128x4/packed/compiled/chunked"
    with pytest.raises(ValueError, match="'quick' is none of"):
        points.parse_point("tiny/fa2/128x4/quick")
    with pytest.raises(ValueError, match="is not SHAPE/SETTING/LENGTHxROWS"):
        points.parse_point("tiny/fa2/128")


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H200", 989),
        ("NVIDIA H20", 148),
        ("T4", None),
    ],
)
def test_a_card_has_the_limit_that_its_maker_states(name: str, limit: float | None) -> None:
    assert card.find_limit(name) == limit


@pytest.mark.parametrize(
    ("watched", "fault"),
    [
        ({"sm_mhz": 1980, "sm_mhz_most": 1980, "reasons": 0, "processes": 1}, None),
        ({"sm_mhz": 1300, "sm_mhz_most": 1980, "reasons": card.POWER_LIMIT, "processes": 1}, None),
        ({"sm_mhz": 1300, "sm_mhz_most": 1980, "reasons": 0, "processes": 1}, "clocks are held at 1300 of 1980 MHz"),
        ({"sm_mhz": 1980, "sm_mhz_most": 1980, "reasons": 64, "processes": 1}, "clocks fell: thermal slowdown"),
        ({"sm_mhz": 1980, "sm_mhz_most": 1980, "reasons": 0, "processes": 2}, "another process ran on the card"),
        ({}, None),
    ],
)
def test_a_point_is_not_compared_when_clocks_fell_or_another_process_ran(
    watched: dict[str, float], fault: str | None
) -> None:
    faults = card.find_faults(watched)
    assert not faults if fault is None else any(fault in text for text in faults)
