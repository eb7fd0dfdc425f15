"""`check` on lists of packages that have metadata and no facts about GPUs; the metadata is invented."""

from __future__ import annotations

from typing import Any

import pytest

from knowngood_facts.compat import knowledge
from knowngood_facts.compat.check_answer import CheckAnswer, check_query
from knowngood_facts.compat.query import Query, parse_requirement
from metadata_samples import CHAIN, Release, with_metadata

KNOWN = knowledge.load_knowledge()
INDEX = {
    **CHAIN,
    "kernel": {"1": Release(wheels=("cp311-cp311-manylinux_2_17_x86_64",)), "2": Release(requires_python=">=3.12")},
    "built": {"1": Release(wheels=(), has_sdist=True, source="none")},
}
UNIVERSE = with_metadata(KNOWN.universe, INDEX)


def ask(*requirements: str, **axes: Any) -> CheckAnswer:
    gpu = axes.pop("gpu", None)
    packages = tuple(item for text in requirements if (item := parse_requirement(text)))
    return check_query(UNIVERSE, Query(packages=packages, axes=axes, gpu=gpu), KNOWN.published)


def because(answer: CheckAnswer) -> dict[str, str]:
    return {finding.id: finding.because for finding in answer.findings if finding.severity == "error"}


def test_a_contradiction_is_told_as_a_chain():
    answer = ask("trl==0.9.6", "tokenizers==0.14", "kernel==1")
    assert answer.verdict == "broken"
    assert because(answer) == {
        "resolution:trl+tokenizers": (
            "trl 0.9.6 needs tokenizers 0.19 to 0.22 through transformers 4.43 to 5.0, you have 0.14"
        )
    }
    assert answer.findings[0].packages == {"trl": "0.9.6", "tokenizers": "0.14"}


def test_a_direct_contradiction_has_the_id_of_the_requirement():
    assert because(ask("transformers==4.43", "tokenizers==0.21")) == {
        "requires:transformers:tokenizers": "transformers 4.43 needs tokenizers>=0.19,<0.20, you have 0.21"
    }


def reason(index: dict[str, dict[str, Release]], *requirements: str) -> str:
    """The one reason for which a list of invented packages cannot be resolved."""
    packages = tuple(item for text in requirements if (item := parse_requirement(text)))
    universe = with_metadata(KNOWN.universe, index)
    answer = check_query(universe, Query(packages=packages, axes={"python": "3.11"}), KNOWN.published)
    (text,) = because(answer).values()
    return text


def test_two_packages_that_need_other_releases_of_a_third():
    index = {
        "left": {"1": Release(requirements=("base<2",))},
        "right": {"1": Release(requirements=("base!=1.5,!=2.5,>=2",))},
        "base": {text: Release() for text in ("1", "1.5", "2", "2.5")},
    }
    assert reason(index, "left==1", "right==1") == "left 1 needs base<2, but right 1 needs base>=2"


def test_a_single_release_that_is_excluded_is_named_where_the_conflict_needs_it():
    index = {
        "left": {"1": Release(requirements=("base==1.5",))},
        "right": {"1": Release(requirements=("base!=1.5,>=1",))},
        "base": {text: Release() for text in ("1", "1.5", "2")},
    }
    assert reason(index, "left==1", "right==1") == "left 1 needs base==1.5, but right 1 needs base!=1.5,>=1"


def test_a_chain_goes_through_one_package_where_that_suffices():
    # The newer of middle are excluded by hub too, which the search may meet first.
    index = {
        "top": {"1": Release(requirements=("middle",))},
        "middle": {
            "1": Release(requirements=("leaf>=2", "hub<2")),
            "2": Release(requirements=("hub>=2", "leaf>=3")),
            "3": Release(requirements=("hub>=2", "leaf>=3")),
        },
        "leaf": {"1": Release(requirements=("hub<2",)), "2": Release(), "3": Release()},
        "hub": {"1": Release(), "2": Release()},
    }
    assert reason(index, "leaf==1", "top==1") == "top 1 needs leaf 2 to 3 through middle 1 to 3, you have 1"


def test_each_requirement_names_the_releases_that_have_it():
    index = {
        "top": {"1": Release(requirements=("middle",))},
        "middle": {
            "1": Release(requirements=("one>=2",)),
            "2": Release(requirements=("one>=2",)),
            "3": Release(requirements=("two>=2",)),
        },
        "one": {"1": Release(), "2": Release()},
        "two": {"1": Release(), "2": Release()},
    }
    text = reason(index, "one==1", "top==1", "two==1")
    assert set(text.split("; ")) == {
        "top 1 needs middle",
        "middle 1 to 2 needs one>=2",
        "middle 3 needs two>=2",
        "you have one 1",
        "you have two 1",
    }


def test_a_rule_that_the_metadata_states_too_is_told_with_what_the_list_has():
    packages = tuple(filter(None, map(parse_requirement, ("torch==2.14.0", "triton==3.7.0"))))
    answer = check_query(KNOWN.universe, Query(packages=packages), KNOWN.published)
    assert because(answer) == {"requires:torch:triton": "torch 2.14.0 needs triton~=3.8.0, you have 3.7.0"}


def test_a_list_that_resolves_is_compatible_and_says_what_was_looked_at():
    answer = ask("trl==0.9.6", "tokenizers==0.19")
    assert answer.verdict == "compatible"
    assert answer.uncovered == {}
    assert answer.covered == {"trl": "0.9.6", "tokenizers": "0.19"}
    assert answer.coverage.parts == ()
    [part] = ask("kernel==1", "tokenizers==0.19").coverage.parts
    assert (part.package, part.kind, part.matters) == ("kernel", "gpu-code", False)


def test_what_nobody_heard_of_is_named_and_the_rest_is_answered():
    answer = ask("trl==0.9.6", "tokenizers==0.19", "secret==1")
    assert (answer.verdict, answer.covered_verdict) == ("unknown", "compatible")
    assert answer.uncovered == {"secret": "1"}
    assert ask("trl==0.9.6", "tokenizers==0.14", "secret==1").verdict == "broken"


def test_requirements_that_no_artefact_states_are_not_claimed():
    answer = ask("built==1", "tokenizers==0.19")
    assert answer.verdict == "unknown"
    [part] = [part for part in answer.coverage.parts if part.matters]
    assert (part.package, part.release, part.kind) == ("built", "1", "requirements")


@pytest.mark.parametrize(
    ("axes", "verdict"), [({}, "compatible"), ({"python": "3.12"}, "compatible"), ({"python": "3.11"}, "broken")]
)
def test_without_a_stated_python_another_one_may_help(axes, verdict):
    answer = ask("kernel==2", **axes)
    assert answer.verdict == verdict
    if verdict == "broken":
        assert because(answer) == {"requires:kernel:python": "kernel 2 needs Python >=3.12, you have 3.11"}
    elif not axes:
        assert answer.notes[0] == "it resolves with Python 3.12, and not with 3.11"


def test_conflicts_that_have_no_package_in_common_are_all_reported():
    answer = ask("trl==0.9.6", "tokenizers==0.14", "kernel==2", python="3.11")
    assert set(because(answer)) == {"resolution:trl+tokenizers", "requires:kernel:python"}


def test_the_smallest_change_resolves_the_whole_list():
    assert ask("trl==0.9.6", "tokenizers==0.14").changes == {"tokenizers": "0.19"}


def test_two_pins_change_where_one_is_not_enough():
    index = {
        "one": {"1": Release(requirements=("core==1",)), "2": Release(requirements=("core==2",))},
        "two": {"1": Release(requirements=("core==1",)), "2": Release(requirements=("core==2",))},
        "core": {"1": Release(), "2": Release(), "3": Release()},
    }
    universe = with_metadata(KNOWN.universe, index)
    packages = tuple(item for text in ("one==1", "two==2", "core==3") if (item := parse_requirement(text)))
    changes = check_query(universe, Query(packages=packages), KNOWN.published).changes
    assert changes == {"one": "2", "core": "2"}


def test_a_release_that_does_not_exist_is_named_with_the_nearest():
    answer = ask("tokenizers==0.20.7", "trl==0.9.6")
    assert (answer.verdict, answer.uncovered) == ("unknown", {"tokenizers": "0.20.7"})
    [missing] = [finding for finding in answer.findings if finding.id == "unknown:tokenizers"]
    assert missing.because == (
        "no release of tokenizers that is known is ==0.20.7; the nearest are 0.19 and 0.21, the newest is 0.22"
    )


def test_an_unknown_name_is_answered_with_the_nearest_of_the_field():
    assert "did you mean tokenizers?" in ask("tokenizer==1").findings[0].because
    assert "did you mean" not in ask("secret==1").findings[0].because


def test_an_upper_bound_on_python_is_a_note_as_uv_installs_the_release():
    universe = with_metadata(KNOWN.universe, {"lib": {"1": Release(requires_python="<3.13,>=3.9")}})

    def notes(python: str) -> tuple[str, ...]:
        packages = (parse_requirement("lib==1"),)
        answer = check_query(universe, Query(packages=packages, axes={"python": python}), KNOWN.published)
        assert answer.verdict == ("broken" if python == "3.8" else "compatible")
        return answer.notes

    assert "pip refuses it" in notes("3.13")[0]
    assert not any("pip" in note for note in (*notes("3.12"), *notes("3.8")))


def test_a_package_that_the_index_does_not_have_excludes_what_requires_it():
    index = {"tune": {"1": Release(requirements=("ghost",))}, "ghost": {}}
    universe = with_metadata(KNOWN.universe, index)
    answer = check_query(universe, Query(packages=(parse_requirement("tune==1"),)), KNOWN.published)
    assert because(answer) == {"resolution:tune": "tune 1 needs ghost, of which the index has no release"}
    answer = check_query(universe, Query(packages=(parse_requirement("ghost==1"),)), KNOWN.published)
    assert (answer.verdict, answer.findings[0].because) == ("unknown", "the index has no release of ghost")


def test_a_requirement_that_no_release_fulfils_excludes_what_has_it():
    index = {"app": {"1": Release(requirements=("lib==1.5",))}, "lib": {"1": Release(), "2": Release()}}
    universe = with_metadata(KNOWN.universe, index)
    answer = check_query(universe, Query(packages=(parse_requirement("app==1"),)), KNOWN.published)
    assert because(answer) == {"resolution:app": "app 1 needs lib==1.5, which no release is"}


OPEN_INDEX = {
    "app": {
        "1": Release(requirements=("helper>=3", "other")),
        "2": Release(requirements=("native>3",)),
        "3": Release(requirements=("helper>=3", "helper<2.5")),
    },
    "other": {"1": Release(requirements=("helper>=1",))},
    "helper": {"1": Release(), "2": Release()},
    "native": {"1": Release(), "3": Release(wheels=("cp311-cp311-manylinux_2_17_x86_64",))},
}


def ask_open(*requirements: str) -> CheckAnswer:
    packages = tuple(item for text in requirements if (item := parse_requirement(text)))
    return check_query(with_metadata(KNOWN.universe, OPEN_INDEX), Query(packages=packages), KNOWN.published)


def test_a_bound_above_the_newest_release_is_unread_and_not_impossible():
    answer = ask_open("app==1")
    assert answer.verdict == "compatible"
    [part] = answer.coverage.parts
    assert (part.package, part.release, part.kind, part.matters) == ("helper", ">=3", "metadata", False)
    assert part.because == "app needs it, and the newest release that was read is 2"
    assert answer.coverage.names_to_read == ("helper",)


def test_a_newer_release_of_compiled_code_that_nobody_read_makes_the_answer_unknown():
    answer = ask_open("app==2")
    assert (answer.verdict, answer.coverage.parts[0].matters) == ("unknown", True)


def test_what_no_newer_release_could_meet_stays_broken():
    assert ask_open("app==3").verdict == "broken"
    answer = ask_open("app==1", "helper==2")
    assert because(answer) == {"requires:app:helper": "app 1 needs helper>=3, you have 2"}
    assert answer.changes is None or "helper" not in answer.changes  # a release that nobody read is not suggested


def test_the_pin_of_a_package_that_nobody_read_meets_what_others_require_of_it():
    index = {"app": {"1": Release(requirements=("private>=2",))}}
    universe = with_metadata(KNOWN.universe, index)

    def verdict(pin: str) -> CheckAnswer:
        packages = tuple(filter(None, map(parse_requirement, ("app==1", pin))))
        return check_query(universe, Query(packages=packages), KNOWN.published)

    assert because(verdict("private==1")) == {"requires:app:private": "app 1 needs private>=2, you have 1"}
    assert verdict("private==2").verdict == "unknown"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("datasets==2.14.4", "pyarrow==21.0.0"),  # the import fails: PyExtensionType is gone from pyarrow
        ("transformers==4.36.2", "accelerate==1.1.0"),  # every Trainer fails: dispatch_batches is gone from Accelerator
    ],
)
def test_names_that_nobody_read_make_the_answer_unknown_where_one_package_is_much_younger(old, new):
    packages = tuple(item for text in (old, new) if (item := parse_requirement(text)))
    answer = check_query(KNOWN.universe, Query(packages=packages), KNOWN.published)
    assert answer.verdict.exit_code == 3
    [part] = [part for part in answer.coverage.parts if part.matters]
    assert (part.package, part.kind) == (old.partition("=")[0], "names")
