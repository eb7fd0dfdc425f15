"""Resolving lists against a small index of invented packages, and against trying every combination."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.version import Version

from knowngood_facts.compat.dependency_markers import ResolutionTarget
from knowngood_facts.compat.query import PackageSpec, parse_requirement
from knowngood_facts.compat.requirement_graph import RequirementResolution, RequirementSearches, resolve_packages
from knowngood_facts.compat.value_domain import ReleaseDomain, version_matches
from metadata_samples import CHAIN, Index, Release, store_of

if TYPE_CHECKING:
    from collections.abc import Mapping

TARGET = ResolutionTarget(python="3.11")


def resolve(index: Index, *requirements: str, target: ResolutionTarget = TARGET) -> RequirementResolution:
    packages: list[PackageSpec] = [item for text in requirements if (item := parse_requirement(text))]
    return resolve_packages(packages, target, RequirementSearches(store=store_of(index)))


@pytest.mark.parametrize("part", ["a1", "b2", "rc1", ".dev3", "alpha", "-beta.2", "c1", ".pre1", ".post1.dev2"])
def test_a_pre_release_is_known_by_its_text(part: str):
    assert Version(f"1.0{part}").is_prerelease
    assert ReleaseDomain("x", ["0.1", f"1.0{part}"]).final == 0b01


@pytest.mark.parametrize("text", ["1.0", "1.0.post1", "2!1.0", "1.0+cu121", "2.0.1+abc"])
def test_a_final_release_is_known_by_its_text(text: str):
    assert ReleaseDomain("x", ["0.1", text]).final == 0b11


def conflict(index: Index, *requirements: str, target: ResolutionTarget = TARGET) -> list[str]:
    """The names of the packages that cannot go together."""
    answer = resolve(index, *requirements, target=target).conflict
    return [package.name for package in answer.packages] if answer else []


def test_the_newest_releases_that_go_together_are_chosen():
    assert resolve(CHAIN, "trl==0.9.6").versions == {"trl": "0.9.6", "transformers": "5.0", "tokenizers": "0.22"}
    versions = resolve(CHAIN, "trl", "tokenizers<0.20").versions
    assert versions == {"trl": "0.9.6", "tokenizers": "0.19", "transformers": "4.43"}


def test_a_direct_and_a_deep_contradiction_are_the_packages_that_make_it():
    assert conflict(CHAIN, "transformers==4.43", "torch==2.0", "tokenizers==0.21") == ["transformers", "tokenizers"]
    assert conflict(CHAIN, "torch==2.0", "trl==0.9.6", "tokenizers==0.14") == ["trl", "tokenizers"]
    assert conflict(CHAIN, "trl==0.9.6", "tokenizers==0.19") == []


def test_an_extra_counts_only_when_it_is_asked_for():
    assert conflict(CHAIN, "transformers==5.0", "torch==1.9") == []
    assert conflict(CHAIN, "transformers[torch]==5.0", "torch==1.9") == ["transformers", "torch"]


def test_extras_can_name_other_extras_and_are_asked_for_by_requirements():
    index = {
        "app": {"1": Release(requirements=("lib[all]",))},
        "lib": {"1": Release(requirements=("lib[fast]; extra == 'all'", "core<2; extra == 'fast'"))},
        "core": {"1": Release(), "2": Release()},
    }
    assert resolve(index, "app").versions == {"app": "1", "lib": "1", "core": "1"}
    assert conflict(index, "app", "core==2") == ["app", "core"]


def test_a_prerelease_is_taken_only_when_the_list_names_one_or_no_other_release_will_do():
    assert resolve(CHAIN, "tokenizers").versions == {"tokenizers": "0.22"}
    assert resolve(CHAIN, "tokenizers>=0.23rc1").versions == {"tokenizers": "0.23rc1"}
    assert resolve(CHAIN, "tokenizers>0.22").versions == {"tokenizers": "0.23rc1"}
    # uv 0.13 takes it also when what excludes the others is a requirement of theirs.
    index = {
        "app": {"1": Release(requirements=("lib==2",)), "2rc1": Release(requirements=("lib==1",))},
        "lib": {"1": Release(), "2": Release()},
    }
    assert resolve(index, "app", "lib==1").versions == {"app": "2rc1", "lib": "1"}
    only = {"flash": {"4.0b1": Release(), "4.0b2": Release()}}
    assert resolve(only, "flash").versions == {"flash": "4.0b2"}


def test_a_withdrawn_release_is_taken_only_when_it_is_pinned():
    assert resolve(CHAIN, "torch").versions == {"torch": "2.0"}
    assert resolve(CHAIN, "torch==2.1").versions == {"torch": "2.1"}


def test_a_release_needs_a_wheel_for_the_target_or_an_sdist():
    index = {
        "kernel": {
            "1": Release(wheels=("cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64",)),
            "2": Release(wheels=("cp312-cp312-manylinux_2_28_x86_64", "cp311-cp311-win_amd64")),
            "3": Release(wheels=("cp312-cp312-manylinux_2_28_x86_64",), has_sdist=True, source="none"),
        },
    }
    assert conflict(index, "kernel==2") == ["kernel"]
    assert conflict(index, "kernel==1", target=ResolutionTarget(python="3.11", machine="aarch64")) == ["kernel"]
    assert resolve(index, "kernel==2", target=ResolutionTarget(python="3.12")).versions == {"kernel": "2"}
    assert conflict(index, "kernel==2", target=ResolutionTarget(python="3.12", glibc="2.17")) == ["kernel"]
    assert resolve(index, "kernel==3").undeclared == {"kernel": "3"}


def test_requires_python_excludes_releases():
    index = {"lib": {"1": Release(requires_python=">=3.8"), "2": Release(requires_python=">=3.12")}}
    assert resolve(index, "lib").versions == {"lib": "1"}
    assert conflict(index, "lib==2") == ["lib"]


def test_markers_are_those_of_the_target():
    index = {
        "app": {"1": Release(requirements=("lib<2; platform_machine == 'x86_64' and python_version < '3.12'",))},
        "lib": {"1": Release(), "2": Release()},
    }
    assert conflict(index, "app", "lib==2") == ["app", "lib"]
    assert conflict(index, "app", "lib==2", target=ResolutionTarget(python="3.12")) == []
    assert conflict(index, "app", "lib==2", target=ResolutionTarget(python="3.11", machine="aarch64")) == []


def test_what_is_not_known_is_named_and_the_rest_resolved():
    index = {**CHAIN, "app": {"1": Release(requirements=("secret>=1", "tokenizers<0.20", "other @ file.whl"))}}
    answer = resolve(index, "app", "mine==1", "trl==7", "tokenizers")
    assert answer.without_metadata == ("mine",)
    assert [package.name for package in answer.without_release] == ["trl"]
    assert answer.unread == ("secret", "other")
    assert answer.versions == {"app": "1", "tokenizers": "0.19"}


NAMES = ("a", "b", "c", "d")
VERSIONS = ("1", "2", "3")
specifiers = st.sampled_from(["", "==1", "==2", "==3", ">=2", "<3", "<2", "!=2"])
requirements = st.lists(st.tuples(st.sampled_from(NAMES), specifiers).map("".join), max_size=2).map(tuple)
indexes = st.fixed_dictionaries(
    {
        name: st.fixed_dictionaries(
            {version: requirements.map(lambda lines: Release(requirements=lines)) for version in VERSIONS}
        )
        for name in NAMES
    }
)


def is_fulfilled(index: Index, wishes: list[str], chosen: Mapping[str, str]) -> bool:
    lines = [*wishes, *(line for name, version in chosen.items() for line in index[name][version].requirements)]
    return all(line[0] in chosen and version_matches(line[1:], chosen[line[0]]) for line in lines)


def can_be_fulfilled(index: Index, wishes: list[str]) -> bool:
    combinations = itertools.product(*([(name, version) for version in VERSIONS] + [None] for name in NAMES))
    return any(is_fulfilled(index, wishes, dict(item for item in chosen if item)) for chosen in combinations)


@settings(max_examples=300, deadline=None)
@given(indexes, st.dictionaries(st.sampled_from(NAMES), specifiers, min_size=1))
def test_the_search_finds_what_trying_everything_finds(index: Index, wanted: dict[str, str]):
    wishes = [name + specifier for name, specifier in wanted.items()]
    answer = resolve(index, *wishes)
    assert (answer.conflict is None) is can_be_fulfilled(index, wishes)
    if answer.conflict is None:
        assert is_fulfilled(index, wishes, answer.versions)
    else:
        left = [package.text for package in answer.conflict.packages]
        assert not can_be_fulfilled(index, left)
        assert all(can_be_fulfilled(index, [item for item in left if item != one]) for one in left)


def test_a_release_whose_requirements_are_not_stated_is_left_for_one_whose_are():
    index = {
        "app": {"1": Release(requirements=("built",))},
        "built": {"1": Release(), "2": Release(wheels=(), has_sdist=True, source="none")},
    }
    assert (resolve(index, "app").versions["built"], resolve(index, "app").undeclared) == ("1", {})
    assert resolve(index, "app", "built==2").undeclared == {"built": "2"}
