from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet

from knowngood.core.errors import InputError, UsageError
from knowngood_facts.compat import knowledge
from knowngood_facts.compat import rule as rules
from knowngood_facts.compat.factbook import Factbook
from knowngood_facts.compat.query import query_from_document
from knowngood_facts.compat.rule_boxes import ValueSpace, compile_rules
from knowngood_facts.compat.rule_relations import condition_holds
from knowngood_facts.compat.value_domain import ValueDomain, iterate_bits

VERSIONS = ["1.0", "1.1rc1", "1.1", "1.1.post1", "1.1.1", "1.2.0", "1.10", "2.0b1", "2.0", "2.0.1", "3.0.dev1"]


@given(
    st.lists(
        st.tuples(st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), st.sampled_from(VERSIONS)),
        min_size=1,
        max_size=3,
    )
)
def test_a_set_of_versions_is_what_pep_440_says(clauses: list[tuple[str, str]]):
    text = ",".join(operator + version for operator, version in clauses)
    domain = ValueDomain("it", VERSIONS)
    expected = set(SpecifierSet(text).filter(VERSIONS, prereleases=True))
    assert set(domain.texts(domain.mask(text))) == expected


@pytest.mark.parametrize("text", ["==1.1.*", "!=1.1.*", "~=1.1", "~=1.1.0", "==2.*", "~=2.0.0"])
def test_prefixes_are_what_pep_440_says(text: str):
    domain = ValueDomain("it", VERSIONS)
    assert set(domain.texts(domain.mask(text))) == set(SpecifierSet(text).filter(VERSIONS, prereleases=True))


@pytest.mark.parametrize("text", [">", "2.x", ">=x", "latest"])
def test_a_malformed_condition(text: str):
    with pytest.raises(UsageError):
        ValueDomain("it", VERSIONS).mask(text)


def test_a_build_of_a_release_is_that_release_unless_the_condition_names_a_build():
    builds = ["2.6.0", "2.6.0+cpu", "2.6.0+cu124", "2.6.1+cu124", "2.7.0"]
    domain = ValueDomain("torch", builds)
    for text in ("==2.6.0", "!=2.6.0", "==2.6.0+cu124", "<=2.6.0", ">2.6.0", "==2.6.1", ">=2.6.1"):
        expected = set(SpecifierSet(text).filter(builds, prereleases=True))
        assert set(domain.texts(domain.mask(text))) == expected, text


def test_the_epoch_of_a_version_counts():
    versions = ["1.0", "1.1", "1!1.0"]
    domain = ValueDomain("it", versions)
    for text in ("==1.*", "==1!1.*", "~=1.0", "<1!1.0", ">=1.1"):
        assert set(domain.texts(domain.mask(text))) == set(SpecifierSet(text).filter(versions, prereleases=True)), text


def test_all_versions_between_the_lowest_and_the_highest_anchor_are_equally_near():
    domain = ValueDomain("it", ["1", "2", "3", "4", "5"])
    found = domain.nearest_places(domain.some, domain.mask(">=2,<=4"))
    assert [domain.text(place) for place in found] == ["4", "3", "2", "5", "1"]


def test_nearest_places_go_outwards_and_absence_is_last():
    domain = ValueDomain("it", ["1", "2", "3", "4"], optional=True)
    assert [domain.text(place) for place in domain.nearest_places(domain.all, domain.mask("==2"))] == [
        "2",
        "3",
        "1",
        "4",
        "none",
    ]


TABLES = {
    "torch": {
        "2.0": {"facts": {"sass": ["70", "80"], "triton": "2.0"}, "unknown": {}, "artefact": "torch.whl", "read": "d"},
        "2.1": {"facts": {"sass": ["80"]}, "unknown": {"triton": "gone"}, "artefact": "torch.whl", "read": "d"},
        "2.2": {"facts": {"sass": ["80"]}, "unknown": {}, "artefact": "torch.whl", "read": "d"},
    }
}


def world() -> ValueSpace:
    return ValueSpace(
        book=Factbook(tables=TABLES),
        domains={
            "torch": ValueDomain("torch", ["2.0", "2.1", "2.2"], optional=True),
            "triton": ValueDomain("triton", ["2.0", "3.0"], optional=True),
            "gpu": ValueDomain("gpu", ["sm_70", "sm_80"], key=lambda text: text.removeprefix("sm_")),
        },
    )


def rule(text: str) -> rules.Rule:
    return rules.parse_rules("rules:\n" + text, "r.yaml")[0]


def test_a_rule_takes_its_numbers_from_facts():
    made = rule('- {id: x, require: {triton: "=={torch.triton}"}, because: b, source: s}')
    boxes = list(compile_rules(world(), [made]))
    known = [box for box in boxes if not box.unknown]
    assert len(known) == 1
    # torch 2.0 with triton 3.0 or without triton; of 2.1 it is not known, 2.2 has no such pin.
    assert known[0].masks == {"torch": 0b001, "triton": 0b110}
    assert [(box.masks["torch"], "gone" in str(box.unknown)) for box in boxes if box.unknown] == [(0b010, True)]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{triton: ">={torch.triton}x"}', "r.yaml: x: .*'>=2.0x' is not .*; its values are from facts/torch.json"),
        ('{triton: "?2.0"}', "r.yaml: x: '\\?2.0' .* is not a condition on triton; write for example >=2.6$"),
        ('{gpu: {major-from: "{torch.triton}"}}', "r.yaml: x: the condition 'major-from' with .* does not fit 'sm_70'"),
    ],
)
def test_a_condition_that_cannot_be_judged_is_told_with_its_place(text: str, sentence: str):
    made = rule(f"- {{id: x, when: {{torch: '2.0'}}, require: {text}, because: b, source: s}}")
    with pytest.raises(UsageError, match=sentence):
        list(compile_rules(world(), [made]))


def test_releases_with_the_same_facts_share_a_box():
    made = rule('- {id: x, require: {gpu: {runs: "{torch.sass}"}}, because: b, source: s}')
    boxes = list(compile_rules(world(), [made]))
    assert [dict(box.masks) for box in boxes] == [{"torch": 0b110, "gpu": 0b01}]


def test_a_table_is_looked_up_by_another_fact():
    tables = {
        "torch": {
            version: {"facts": {"cuda": cuda} if cuda else {}, "unknown": {} if cuda else {"cuda": "gone"}}
            for version, cuda in (("2.0", "11.8"), ("2.1", "12.1"), ("2.2", "12.1"), ("2.3", "13.0"), ("2.4", None))
        },
        "bits": {
            "1.0": {"facts": {"code": {"11.8": ["80"], "12.1": ["80"]}}, "unknown": {}},
            "1.1": {"facts": {"code": {"11.8": ["70", "80"], "12.1": ["80"]}}, "unknown": {}},
            "1.2": {"facts": {}, "unknown": {}},
        },
    }
    space = ValueSpace(
        book=Factbook(tables=tables),
        domains={
            **{name: ValueDomain(name, table, optional=True) for name, table in tables.items()},
            "gpu": ValueDomain("gpu", ["sm_70", "sm_80"], key=lambda text: text.removeprefix("sm_")),
        },
    )
    made = rule('- {id: x, require: {gpu: {runs: "{bits.code[torch.cuda]}"}}, because: b, source: s}')
    boxes = [dict(box.masks) for box in compile_rules(space, [made]) if not box.unknown]
    broken = {
        (bits, torch)
        for box in boxes
        for bits, torch in itertools.product(iterate_bits(box["bits"]), iterate_bits(box["torch"]))
    }
    # Nothing is said of CUDA 13.0, which no release of bits has a table for, nor of bits 1.2.
    assert broken == {(0, 0), (0, 1), (0, 2), (1, 1), (1, 2)}
    assert all(box["gpu"] == 0b01 for box in boxes)
    unknown = [box.masks for box in compile_rules(space, [made]) if box.unknown]
    assert unknown == [{"bits": 0b011, "torch": 0b10000, "gpu": 0b11}]


def test_a_rule_about_a_package_without_facts_gives_no_box():
    made = rule('- {id: x, when: {nothing: "*"}, require: {gpu: ">=80"}, because: b, source: s}')
    assert list(compile_rules(world(), [made])) == []


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("- {id: x, require: {gpu: '>1'}, because: b}", 2, "'source' is missing"),
        ("- {id: x, requires: {gpu: '>1'}, because: b, source: s}", 2, "unknown key 'requires'"),
        ("- {id: x, require: {gpu: {flies: '1'}}, because: b, source: s}", 2, "one of runs"),
        ("- {id: x, require: {gpu: '>1'}, because: b, source: s, severity: bad}", 2, "severity is one of"),
        ("- x", 2, "a rule is a mapping"),
    ],
)
def test_a_defect_has_its_line(text: str, line: int, said: str):
    with pytest.raises(InputError, match=said) as caught:
        rules.parse_rules("rules:\n" + text, "r.yaml")
    assert caught.value.problems[0].line == line


@pytest.mark.parametrize(
    ("wanted", "stated", "holds"),
    [
        (">1", "2", True),
        (">1", "1", False),
        (">1", "many", False),
        ("bf16", "BF16", True),
        ("fp32|float32", "float32", True),
        ("!=2", "3", True),
        ("!=2", "2", False),
        ("!right", "left", True),
        ("!right", "right", False),
        ("true", "True", True),
    ],
)
def test_conditions_of_use(wanted: str, stated: str, holds: bool):
    assert condition_holds(wanted, stated) is holds


def test_bits_and_masks_agree():
    for places in itertools.combinations(range(6), 3):
        assert tuple(iterate_bits(sum(1 << place for place in places))) == places


def test_every_shipped_rule_gives_a_box():
    """Each has an id of its own, speaks of facts that exist, and excludes something (or is about a wheel)."""
    known = knowledge.load_knowledge()
    side = known.for_query(query_from_document({"packages": dict.fromkeys(knowledge.SIDE_PACKAGES, ">0")}))
    universe = known.universe
    ids = [made.id for made in universe.rules]
    assert len(ids) == len(set(ids))
    alive = {box.rule.id for box in [*universe.index.boxes, *side.index.boxes]}
    about_wheels = {made.id for made in universe.wheel_rules}
    # True of everything harvested so far, and stated for what may come.
    idle = {"ptxas-13-without-volta", "sdpa-efficient-gpu", "transformer-engine-flash-attn-below-maximum"}
    # Of these packages only the metadata is known, so these are asked where a list or a log names them.
    idle |= {"accelerator-dispatch-batches", "adamw-without-train", "xformers-cuda-12-on-13"}
    idle |= {"yunchang-window-size", "axolotl-accumulation-mean-of-means", "axolotl-packing-trains-seams"}
    idle |= {"llamafactory-fa2-without-flash-attn", "llamafactory-packing-leaks"}
    idle |= {"llamafactory-neat-packing-half-mask", "llamafactory-neat-packing-trains-seams"}
    idle |= {"mmengine-adafactor-twice", "unsloth-full-finetuning-stays", "cutlass-dsl-libraries-overwritten"}
    idle |= {"vllm-import-turns-cudnn-attention-off"}
    idle |= {"deepspeed-clips-by-default", "megatron-core-accumulation-mean-of-means", "torchtitan-torch-too-old"}
    assert {made.id for made in universe.written_rules} - alive - about_wheels <= idle
    assert all(made.source and made.because for made in universe.rules)


def test_missing_facts_make_answers_unknown_not_wrong():
    from knowngood_facts.compat import universe
    from knowngood_facts.compat.check_answer import check_query
    from knowngood_facts.compat.matrix_cells import PublishedCells

    known = knowledge.load_knowledge()
    book = known.universe.space.book
    for package in (*book.packages, "drivers"):
        fewer = Factbook(tables={name: table for name, table in book.tables.items() if name != package})
        less = universe.build_universe(fewer, known.universe.gpus, known.universe.written_rules)
        query = query_from_document(
            {"gpu": "H100", "driver": "580", "packages": {"torch": "2.11.0", "flash-attn": "2.8.3"}}
        )
        verdict = check_query(less, query, PublishedCells()).verdict
        assert verdict == ("unknown" if package in ("torch", "flash-attn", "drivers") else "compatible"), package


def test_a_wheel_of_the_stable_abi_is_for_newer_pythons_too():
    wheels = {"1.0": "x-1.0-cp39-abi3-linux_x86_64.whl", "2.0": "x-2.0-cp39-cp39-linux_x86_64.whl"}
    facts = {version: {"facts": {"pythons": ["3.9"]}, "artefact": name} for version, name in wheels.items()}
    book = Factbook(tables={"x": facts, "y": {"1": {"facts": {"pythons": ["3.8", "3.13"]}}}})
    assert book.fact("x", "1.0", "pythons") == ["3.9", "3.13"]
    assert book.fact("x", "2.0", "pythons") == ["3.9"]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("rulez: []\nrules: []\n", "r.yaml:1:"),
        ("rules:\n  - {id: a, require: {torch: '*'}, because: b, source: c, fix: [{chance: {}}]}\n", "r.yaml:2:"),
        ("rules:\n  - {id: a, require: {torch: '*'}, because: b, source: c, fixx: []}\n", "r.yaml:2:"),
        ("rules:\n  - {id: a, require: {torch: {hasnt: x}}, because: b, source: c}\n", "r.yaml:2:"),
    ],
)
def test_an_unknown_key_at_any_depth_is_named(text, place):
    with pytest.raises(InputError) as caught:
        rules.parse_rules(text, "r.yaml")
    assert str(caught.value).startswith(place)
