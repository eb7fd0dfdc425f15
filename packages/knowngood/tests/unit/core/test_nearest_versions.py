from __future__ import annotations

import pytest

from knowngood.core.nearest_names import find_nearest_versions

TORCH = ["2.0.0", "2.5.1", "2.6.0", "2.7.0", "2.7.1", "2.10.0", "2.14.0", "2.15.0"]


@pytest.mark.parametrize(
    ("wanted", "nearest"),
    [
        ("2.16.0", "2.15.0"),
        ("2.99", "2.15.0"),
        ("1.13.1", "2.0.0"),
        ("2.6.5", "2.6.0"),
        ("2.7.3", "2.7.1"),
        ("2.9.0", "2.7.1"),
        ("3.0.0", "2.15.0"),
        (">=2.99,<3", "2.15.0"),
        ("latest", "2.15.0"),
    ],
)
def test_the_nearest_release_is_near_in_order(wanted: str, nearest: str):
    assert find_nearest_versions(wanted, TORCH) == [nearest]


def test_several_are_returned_the_nearest_first():
    assert find_nearest_versions("2.11.0", TORCH, 3) == ["2.10.0", "2.14.0", "2.7.1"]
    assert find_nearest_versions("2.11.0", [], 3) == []


def test_a_pre_release_is_near_only_to_a_pre_release():
    known = ["4.0.0", "5.0.0rc3", "5.1.0"]
    assert find_nearest_versions("5.0.0", known) == ["5.1.0"]
    assert find_nearest_versions("5.0.0rc2", known) == ["5.0.0rc3"]
    assert find_nearest_versions("4.0.0b37", ["4.0.0b35", "4.0.0b36"]) == ["4.0.0b36"]
