"""The search for the change that turns a lock bad: what it finds and proves, and how many environments it needs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet

from knowngood.reports.lock_bisect import EndProblem, EnvironmentOutcome, bisect_locks
from knowngood.reports.package_changes import PackageChange, list_package_changes, mix_locks, order_changes


class Machine:
    """Bad when a lock has all of some pins; a lock that breaks a requirement, or has a listed pin, cannot be tried."""

    def __init__(self, bad, *, cannot=(), requires=None):
        self.bad, self.cannot, self.requires = bad, cannot, requires or {}
        self.tested = []

    def outcome(self, versions):
        self.tested.append(dict(versions))
        if any(versions.get(name) == version for name, version in self.cannot) or not self.fits(versions):
            return EnvironmentOutcome.UNRESOLVED
        return (
            EnvironmentOutcome.BAD
            if all(versions.get(name) == version for name, version in self.bad)
            else EnvironmentOutcome.GOOD
        )

    def fits(self, versions):
        return all(
            name in versions and spec.contains(versions[name])
            for pin in versions.items()
            for name, spec in self.requires.get(pin, {}).items()
        )


def locks(count):
    return ({f"p{number:02}": side for number in range(count)} for side in ("1", "2"))


@given(st.integers(1, 40).flatmap(lambda count: st.tuples(st.just(count), st.integers(0, count - 1))))
def test_one_bad_pin_among_forty_costs_at_most_nine_environments(case):
    count, planted = case
    good, bad = locks(count)
    machine = Machine([(f"p{planted:02}", "2")])
    found = bisect_locks(good, bad, {}, machine)
    assert found.culprits == (PackageChange(name=f"p{planted:02}", old="1", new="2"),)
    assert (found.proven, found.along, found.note) == (True, (), "")
    assert len(machine.tested) == found.environments <= 9
    assert len({tuple(item.items()) for item in machine.tested}) == len(machine.tested)


@given(st.sets(st.integers(0, 39), min_size=1, max_size=4))
def test_several_that_do_it_only_together_are_all_named(planted):
    good, bad = locks(40)
    found = bisect_locks(good, bad, {}, Machine([(f"p{number:02}", "2") for number in planted]))
    assert [move.name for move in found.culprits] == [f"p{number:02}" for number in sorted(planted)]
    assert found.proven
    assert found.environments <= 2 + 8 * len(planted)  # the ends; finding each and trying it alone


pairs = st.tuples(st.integers(0, 19), st.integers(0, 19)).filter(lambda pair: pair[0] != pair[1])


@given(st.lists(pairs, max_size=12), st.integers(0, 19))
def test_releases_that_pin_one_another_change_together(pinned, planted):
    good, bad = locks(20)
    requires = {}
    for one, other in pinned:
        requires.setdefault((f"p{one:02}", "2"), {})[f"p{other:02}"] = SpecifierSet("==2")
        requires.setdefault((f"p{one:02}", "1"), {})[f"p{other:02}"] = SpecifierSet("<2")
    machine = Machine([(f"p{planted:02}", "2")], requires=requires)
    found = bisect_locks(good, bad, requires, machine)
    assert all(machine.fits(versions) for versions in machine.tested)
    assert f"p{planted:02}" in {move.name for move in found.culprits}
    assert found.proven
    assert found.environments <= 9


def test_what_is_needed_comes_first_and_a_cycle_is_one_step():
    changed = list_package_changes({"a": "1", "b": "1", "c": "1", "d": "1"}, {"a": "2", "b": "2", "c": "2", "e": "1"})
    two = SpecifierSet(">=2")
    found = order_changes(changed, {("a", "2"): {"b": two}, ("b", "2"): {"c": two}, ("c", "2"): {"b": two}})
    names = [[change.name for change in step.changes] for step in found]
    assert names == [["d"], ["e"], ["b", "c"], ["a"]]
    assert [step.needs for step in found] == [frozenset(), frozenset(), frozenset(), {2}]
    assert [str(move) for move in changed[-2:]] == ["d 1 -> absent", "e absent -> 1"]


def test_a_requirement_that_the_old_release_never_met_is_no_reason_to_move_a_package():
    changed = list_package_changes({"a": "1", "b": "1"}, {"a": "2", "b": "2"})
    for accepted, needs in (("<2", [frozenset(), frozenset({0})]), ("<1", [frozenset(), frozenset()])):
        found = order_changes(changed, {("b", "1"): {"a": SpecifierSet(accepted)}})
        assert [step.needs for step in found] == needs


def test_a_package_whose_old_release_the_new_one_accepts_need_not_move_with_it():
    changed = list_package_changes({"a": "1", "b": "1"}, {"a": "2", "b": "2"})
    found = order_changes(changed, {("a", "2"): {"b": SpecifierSet(">=1")}})
    assert [step.needs for step in found] == [frozenset(), frozenset()]


def test_a_package_that_the_bad_lock_lacks_is_removed_from_the_mix():
    good = {"a": "1", "b": "1"}
    found = list_package_changes(good, {"a": "1"})
    assert mix_locks(good, found) == {"a": "1"}
    assert mix_locks(good, []) == good


def test_a_package_that_is_needed_is_named_as_coming_along():
    requires = {("a", "2"): {"b": SpecifierSet(">=2")}}
    found = bisect_locks({"a": "1", "b": "1"}, {"a": "2", "b": "2"}, requires, Machine([("a", "2")]))
    assert [move.name for move in found.culprits] == ["a"]
    assert [move.name for move in found.along] == ["b"]


def test_a_package_that_came_in_or_went():
    found = bisect_locks({"a": "1"}, {"a": "1", "b": "3"}, {}, Machine([("b", "3")]))
    assert found.culprits == (PackageChange(name="b", old=None, new="3"),)


def test_mixes_that_cannot_be_installed_are_avoided():
    good, bad = locks(9)
    both = {("p04", "2"): {"p05": SpecifierSet("==2")}}  # known to the machine, not to the search
    found = bisect_locks(good, bad, {}, Machine([("p07", "2")], requires=both))
    assert [move.name for move in found.culprits] == ["p07"]
    assert found.proven


def test_changes_that_cannot_be_told_apart_are_named_together():
    good, bad = locks(4)
    ring = {(f"p{n:02}", "2"): {f"p{(n + 1) % 4:02}": SpecifierSet("==2")} for n in range(4)}
    found = bisect_locks(good, bad, {}, Machine([("p02", "2")], requires=ring))
    assert (len(found.culprits), found.proven) == (4, False)
    assert "not told apart" in found.note


def test_changes_that_cannot_be_told_apart_are_reported_beside_a_culprit_that_can():
    good, bad = locks(8)
    ring = {(f"p0{one}", "2"): {f"p0{other}": SpecifierSet("==2")} for one, other in ((5, 6), (6, 7), (7, 5))}
    found = bisect_locks(good, bad, {}, Machine([("p01", "2"), ("p06", "2")], requires=ring))
    assert [move.name for move in found.culprits] == ["p01", "p05", "p06", "p07"]
    assert not found.proven
    assert "not told apart" in found.note


@pytest.mark.parametrize(
    ("bad", "cannot", "note"),
    [
        ([("p00", "9")], [], "the bad lock passes here"),
        ([], [], "the good lock fails as well"),
        ([("p03", "2")], [("p00", "2"), ("p00", "1")], "the bad lock cannot be tried here"),
    ],
)
def test_a_failure_without_a_package_as_cause_is_explained(bad, cannot, note):
    found = bisect_locks(*locks(8), {}, Machine(bad, cannot=cannot))
    assert (found.culprits, found.proven) == ((), False)
    assert note in found.note


def test_the_same_lock_is_not_bisected():
    found = bisect_locks({"a": "1"}, {"a": "1"}, {}, Machine([]))
    assert (found.environments, found.changed) == (0, 0)
    assert "the locks are the same" in found.note


def test_the_number_of_environments_has_a_limit():
    found = bisect_locks(*locks(40), {}, Machine([("p30", "2")]), most=5)
    assert (found.environments, found.proven) == (5, False)
    assert found.note == "stopped after 5 environments: it is among these"
    assert "p30" in {move.name for move in found.culprits}
    assert len(found.culprits) <= 5


class UnstableCommand:
    def __init__(self):
        self.tested = 0

    def outcome(self, _versions):
        self.tested += 1
        return EnvironmentOutcome.BAD if self.tested == 1 else EnvironmentOutcome.GOOD


def test_an_unstable_command_ends_the_search():
    found = bisect_locks(*locks(40), {}, UnstableCommand())
    assert not found.proven


class FixedEnds:
    """A command whose answers for the two ends are given; every other environment is a mistake."""

    def __init__(self, good, bad):
        self.ends = [EnvironmentOutcome(good), EnvironmentOutcome(bad)]

    def outcome(self, _versions):
        return self.ends.pop(0)


@pytest.mark.parametrize(
    ("good", "bad", "problem", "note"),
    [
        ("bad", "good", "swapped", "the ends are swapped: the good lock fails and the bad lock passes"),
        ("bad", "bad", "good-fails", "the good lock fails as well"),
        ("good", "good", "bad-passes", "the bad lock passes here"),
        ("unresolved", "bad", "untested", "the good lock cannot be tried here, so nothing was searched"),
        ("good", "unresolved", "untested", "the bad lock cannot be tried here, so nothing was searched"),
        ("bad", "unresolved", "good-fails", "the good lock fails and the bad lock cannot be tried here"),
        ("unresolved", "good", "bad-passes", "the good lock cannot be tried here and the bad lock passes here"),
    ],
)
def test_ends_that_are_not_as_claimed_are_named_and_nothing_is_searched(good, bad, problem, note):
    tester = FixedEnds(good, bad)
    found = bisect_locks(*locks(40), {}, tester)
    assert tester.ends == []
    assert (found.problem, found.good_end, found.bad_end) == (problem, good, bad)
    assert (found.culprits, found.proven, found.environments) == ((), False, 2)
    assert note in found.note


@given(st.integers(1, 20), st.data())
def test_swapped_ends_blame_no_package(count, data):
    planted = data.draw(st.integers(0, count - 1))
    good, bad = locks(count)
    found = bisect_locks(bad, good, {}, Machine([(f"p{planted:02}", "2")]))
    assert (found.problem, found.culprits) == (EndProblem.SWAPPED, ())


def test_two_packages_that_can_only_change_together_are_named_with_the_requirements():
    requires = {
        ("torch", "2"): {"triton": SpecifierSet("==2")},
        ("torch", "1"): {"triton": SpecifierSet("==1")},
        ("other", "2"): {"numpy": SpecifierSet(">=1")},
    }
    good, bad = (dict.fromkeys(("numpy", "other", "torch", "triton"), side) for side in "12")
    found = bisect_locks(good, bad, requires, Machine([("triton", "2")], requires=requires))
    assert [move.name for move in found.culprits] == ["torch", "triton"]
    assert found.proven
    assert found.ties == ("torch 2 requires triton==2", "torch 1 requires triton==1")
    assert found.note == (
        "torch, triton can only change together: torch 2 requires triton==2, torch 1 requires triton==1"
    )


def test_several_culprits_are_explained_by_each_of_them_passing_alone():
    machine = Machine([("p03", "2"), ("p07", "2")])
    found = bisect_locks(*locks(10), {}, machine)
    assert found.note == "only together do they make it fail: each of them alone passes"
    tried = [{name for name, version in versions.items() if version == "2"} for versions in machine.tested]
    assert {"p03"} in tried
    assert {"p07"} in tried


def test_a_culprit_that_cannot_be_tried_alone_is_named():
    good, bad = locks(10)
    both = {("p07", "2"): {"p00": SpecifierSet("==2")}}  # known to the machine, not to the search
    found = bisect_locks(good, bad, {}, Machine([("p07", "2")], requires=both))
    assert [move.name for move in found.culprits] == ["p00", "p07"]
    assert found.note.endswith("without the others this could not be tried: p07")


class MaskedCommand:
    """Bad with p2; p5 hides that, and p8 brings it back."""

    def outcome(self, versions):
        has = {name for name, version in versions.items() if version == "2"}
        bad = "p02" in has and ("p05" not in has or "p08" in has)
        return EnvironmentOutcome.BAD if bad else EnvironmentOutcome.GOOD


def test_a_package_that_is_bad_alone_is_the_only_culprit_although_another_one_hides_it():
    found = bisect_locks(*locks(10), {}, MaskedCommand())
    assert [move.name for move in found.culprits] == ["p02"]
    assert (found.proven, found.note) == (True, "")
