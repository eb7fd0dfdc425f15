"""The search for the change that turns a lock bad: found, proven, and cheap."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet

from knowngood.nightly.bisect import Outcome, bisect
from knowngood.nightly.moves import Move, moves, steps


class Machine:
    """Bad when all of some moves are in a lock; locks that break a requirement, or are told to, cannot be tried."""

    def __init__(self, bad, *, cannot=(), requires=None):
        self.bad, self.cannot, self.requires = bad, cannot, requires or {}
        self.asked = []

    def outcome(self, versions):
        self.asked.append(dict(versions))
        if any(versions.get(name) == version for name, version in self.cannot) or not self.fits(versions):
            return Outcome.UNRESOLVED
        return Outcome.BAD if all(versions.get(name) == version for name, version in self.bad) else Outcome.GOOD

    def fits(self, versions):
        return all(
            name in versions and spec.contains(versions[name])
            for pin in versions.items()
            for name, spec in self.requires.get(pin, {}).items()
        )


def locks(count):
    return ({f"p{number:02}": side for number in range(count)} for side in ("1", "2"))


@given(st.integers(1, 40).flatmap(lambda count: st.tuples(st.just(count), st.integers(0, count - 1))))
def test_one_bad_pin_among_forty_costs_at_most_seven_environments(case):
    count, planted = case
    good, bad = locks(count)
    machine = Machine([(f"p{planted:02}", "2")])
    found = bisect(good, bad, {}, machine)
    assert found.culprits == (Move(name=f"p{planted:02}", old="1", new="2"),)
    assert (found.proven, found.along, found.note) == (True, (), "")
    assert len(machine.asked) == found.environments <= 7
    assert len({tuple(item.items()) for item in machine.asked}) == len(machine.asked)


@given(st.sets(st.integers(0, 39), min_size=1, max_size=4))
def test_several_that_do_it_only_together_are_all_named(planted):
    good, bad = locks(40)
    found = bisect(good, bad, {}, Machine([(f"p{number:02}", "2") for number in planted]))
    assert [move.name for move in found.culprits] == [f"p{number:02}" for number in sorted(planted)]
    assert found.proven
    assert found.environments <= 7 * len(planted) + 1  # and one that sees the bad lock bad


pairs = st.tuples(st.integers(0, 19), st.integers(0, 19)).filter(lambda pair: pair[0] != pair[1])


@given(st.lists(pairs, max_size=12), st.integers(0, 19))
def test_releases_that_pin_one_another_are_never_torn_apart(pinned, planted):
    good, bad = locks(20)
    requires = {}
    for one, other in pinned:
        requires.setdefault((f"p{one:02}", "2"), {})[f"p{other:02}"] = SpecifierSet("==2")
        requires.setdefault((f"p{one:02}", "1"), {})[f"p{other:02}"] = SpecifierSet("<2")
    machine = Machine([(f"p{planted:02}", "2")], requires=requires)
    found = bisect(good, bad, requires, machine)
    assert all(machine.fits(versions) for versions in machine.asked)
    assert f"p{planted:02}" in {move.name for move in found.culprits}
    assert found.proven
    assert found.environments <= 7


def test_what_is_needed_comes_first_and_a_ring_is_one_step():
    changed = moves({"a": "1", "b": "1", "c": "1", "d": "1"}, {"a": "2", "b": "2", "c": "2", "e": "1"})
    two = SpecifierSet(">=2")
    found = steps(changed, {("a", "2"): {"b": two}, ("b", "2"): {"c": two}, ("c", "2"): {"b": two}})
    names = [[move.name for move in step.moves] for step in found]
    assert names == [["d"], ["e"], ["b", "c"], ["a"]]
    assert [step.needs for step in found] == [frozenset(), frozenset(), frozenset(), {2}]
    assert [str(move) for move in changed[-2:]] == ["d 1 -> absent", "e absent -> 1"]


def test_a_package_that_is_needed_is_named_as_coming_along():
    requires = {("a", "2"): {"b": SpecifierSet(">=2")}}
    found = bisect({"a": "1", "b": "1"}, {"a": "2", "b": "2"}, requires, Machine([("a", "2")]))
    assert [move.name for move in found.culprits] == ["a"]
    assert [move.name for move in found.along] == ["b"]


def test_a_package_that_came_in_or_went():
    found = bisect({"a": "1"}, {"a": "1", "b": "3"}, {}, Machine([("b", "3")]))
    assert found.culprits == (Move(name="b", old=None, new="3"),)


def test_mixes_that_cannot_be_made_are_gone_around():
    good, bad = locks(9)
    both = {("p04", "2"): {"p05": SpecifierSet("==2")}}  # known to the machine, not to the search
    found = bisect(good, bad, {}, Machine([("p07", "2")], requires=both))
    assert [move.name for move in found.culprits] == ["p07"]
    assert found.proven


def test_what_cannot_be_told_apart_is_said():
    good, bad = locks(4)
    ring = {(f"p{n:02}", "2"): {f"p{(n + 1) % 4:02}": SpecifierSet("==2")} for n in range(4)}
    found = bisect(good, bad, {}, Machine([("p02", "2")], requires=ring))
    assert (len(found.culprits), found.proven) == (4, False)
    assert "not told apart" in found.note


@pytest.mark.parametrize(
    ("bad", "cannot", "note"),
    [
        ([("p00", "9")], [], "the bad lock passes here"),
        ([], [], "the good lock fails as well"),
        ([("p03", "2")], [("p00", "2"), ("p00", "1")], "the bad lock cannot be tried here"),
    ],
)
def test_what_is_not_the_packages_fault_is_said(bad, cannot, note):
    found = bisect(*locks(8), {}, Machine(bad, cannot=cannot))
    assert (found.culprits, found.proven) == ((), False)
    assert note in found.note


def test_the_same_lock_is_not_bisected():
    found = bisect({"a": "1"}, {"a": "1"}, {}, Machine([]))
    assert (found.environments, found.changed) == (0, 0)
    assert "the locks are the same" in found.note


def test_the_number_of_environments_has_a_limit():
    found = bisect(*locks(40), {}, Machine([("p30", "2")]), most=3)
    assert (found.environments, found.proven) == (3, False)
    assert "p30" in {move.name for move in found.culprits}
    assert len(found.culprits) <= 5


class Moody:
    def __init__(self):
        self.asked = 0

    def outcome(self, _versions):
        self.asked += 1
        return Outcome.BAD if self.asked == 1 else Outcome.GOOD


def test_a_command_that_changes_its_mind_ends_the_search():
    found = bisect(*locks(40), {}, Moody())
    assert not found.proven
