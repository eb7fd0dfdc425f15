"""The form of incident files, and the messages for their defects."""

from __future__ import annotations

import pytest

from knowngood.core.errors import InputError
from knowngood_facts.compat import incident_file
from knowngood_facts.compat.incident import IncidentUse
from knowngood_facts.compat.rule_files import load_incidents
from knowngood_pages.incident_pages import load_known_releases

GOOD = """
title: A thing that was taken away
kind: api-removed
component: thing
signatures:
  - "ImportError: cannot import name 'thing' from 'package.module'"
affected:
  - {thing: ">=2", other: "*"}
because: It was taken away.
fix:
  - {change: {thing: "<2"}, note: the last that has it, cost: a pin}
source: owner/name#1
confidence: reported
"""


def test_a_good_file():
    made = incident_file.parse_incident(GOOD, "incidents/thing-taken-away.yaml")
    assert made.id == "thing-taken-away"
    assert made.severity == "failure"
    assert made.source == ("owner/name#1",)
    assert made.fix[0].change == {"thing": "<2"}
    assert str(made.affected[0]["thing"]) == ">=2"


def test_a_signature_may_need_another_text_in_the_log():
    more = "  - {text: \"TypeError: __init__() got 'thing'\", beside: [package/module.py, other/module.py]}\n"
    made = incident_file.parse_incident(GOOD.replace("affected:", more + "affected:"), "incidents/thing.yaml")
    first, second = made.signatures
    assert not first.beside
    assert [item.text for item in second.beside] == ["package/module.py", "other/module.py"]
    assert made.marks == (first, second, *second.beside)
    assert made.line([7, None, None, None], traceback=True) == 7
    assert made.line([None, 9, None, None], traceback=True) is None
    assert made.line([None, 9, None, 2], traceback=True) == 9
    assert made.line([12, 9, None, 2], traceback=True) == 9


def test_frames_must_be_in_the_traceback_if_there_is_one():
    made = incident_file.parse_incident(
        GOOD.replace("affected:", "frames: [package/module.py]\naffected:"), "incidents/thing.yaml"
    )
    assert made.line([7, None], traceback=False) == 7
    assert made.line([7, None], traceback=True) is None
    assert made.line([7, 3], traceback=True) == 7


@pytest.mark.parametrize(
    ("old", "new", "said", "line"),
    [
        ("kind: api-removed", "kind: api-remove", "kind is one of", 3),
        ("kind: api-removed", "knd: api-removed", "unknown key 'knd'", 3),
        ('{thing: ">=2"', '{thing: ">=>2"', "is not a range of versions", 8),
        ("because: It was taken away.\n", "", "the key 'because' is missing", 2),
        ("because: It was taken away.", "because: ''", "the key 'because' is missing or empty", 2),
        ("confidence: reported", "confidence: sure", "confidence is one of", 13),
        ("note: the last that has it", "note: the last, price: 1", "a fix is a text, or {note:", 11),
        ("note: the last that has it", "nota: the last", "a fix is a text, or {note:", 11),
        (
            "  - \"ImportError: cannot import name 'thing' from 'package.module'\"",
            '  - "(a+)+$ and more"',
            "regular",
            6,
        ),
        (
            "  - \"ImportError: cannot import name 'thing' from 'package.module'\"",
            '  - "Error: thing"',
            "characters of",
            6,
        ),
        ("from 'package.module'\"", "from 'package.module'\"\n  - {text: a failure's words}", "or of {text: ...", 7),
        ("signatures:\n", "signatures: &all\n", "anchors and aliases", 5),
        ("source: owner/name#1", "source: {a: b}", "source must be a list of texts", 12),
        ("because: It", "run_reasons: {a: b}\nbecause: It", "run_reasons must be a list of texts", 9),
    ],
)
def test_a_defect_has_its_line(old, new, said, line):
    with pytest.raises(InputError, match=said.replace("{", r"\{").replace("'", "'")) as raised:
        incident_file.parse_incident(GOOD.replace(old, new, 1), "incidents/thing.yaml")
    assert raised.value.problems[0].line == line
    assert raised.value.exit_code == 2


NAMES = incident_file.IncidentReferences(rules=frozenset({"torch-runs-on-gpu"}), reproductions=frozenset({"thing"}))


def test_references_and_conditions_are_read():
    text = (
        GOOD
        + 'uses: {caller: app, target: "thing:other", detail: fast}\nrule: torch-runs-on-gpu\nreproduction: thing\n'
    )
    text += 'when: {context-parallel: ">1", thing.varlen: "false"}\n'
    made = incident_file.parse_incident(text, "incidents/thing.yaml", NAMES)
    assert (made.rule, made.reproduction) == ("torch-runs-on-gpu", "thing")
    assert made.uses == IncidentUse(caller="app", target="thing:other", detail="fast")
    assert made.when == {"context-parallel": ">1", "thing.varlen": "false"}
    assert made.range_from is None
    assert incident_file.parse_incident(GOOD + "range_from: thread\n", "incidents/thing.yaml").range_from == "thread"
    assert incident_file.parse_incident(GOOD + "rule: requires:xtuner:torch\n", "incidents/thing.yaml", NAMES).rule


@pytest.mark.parametrize(
    ("line", "said", "column"),
    [
        ("uses: {caller: app}", "uses is {caller: PACKAGE, target: 'module:name'}", 7),
        ("uses: [a]", "uses is {caller: PACKAGE, target: 'module:name'}", 7),
        ("rule: torch-runs-on-gpus", "there is no rule torch-runs-on-gpus in rules/", 7),
        ("reproduction: none", "there is no reproductions/none/", 15),
        ("range_from: memory", "range_from is one of artefacts, thread, environment", 13),
        ("when: [a]", "when must be a mapping", 7),
        ('when: {a: ">>1"}', "'>>1' is not a range", 11),
        ('when: {a: "==>1"}', "'==>1' is not a range", 11),
        ('when: {a: "~>1"}', "'~>1' is not a range", 11),
    ],
)
def test_a_reference_to_nothing_is_refused_with_line_and_column(line, said, column):
    with pytest.raises(InputError, match=said.replace("?", r"\?")) as raised:
        incident_file.parse_incident(GOOD + line + "\n", "incidents/thing.yaml", NAMES)
    assert (raised.value.problems[0].line, raised.value.problems[0].column) == (14, column)


def test_range_from_beside_uses_or_a_rule_is_refused():
    with pytest.raises(InputError, match="neither uses nor a rule"):
        incident_file.parse_incident(
            GOOD + "rule: torch-runs-on-gpu\nrange_from: thread\n", "incidents/thing.yaml", NAMES
        )


SIGNATURES = GOOD[GOOD.index("signatures:") : GOOD.index("affected:")]


@pytest.mark.parametrize("severity", ["silent", "slow"])
def test_what_is_silent_or_slow_may_have_no_signature(severity):
    text = GOOD.replace(SIGNATURES, f"severity: {severity}\nwhen: {{packing: 'true'}}\n")
    assert incident_file.parse_incident(text, "incidents/thing.yaml").signatures == ()
    of_two = GOOD.replace(SIGNATURES, f"severity: {severity}\n")
    assert incident_file.parse_incident(of_two, "incidents/thing.yaml").signatures == ()
    with pytest.raises(InputError, match="needs `affected` of two packages, or `when`"):
        incident_file.parse_incident(of_two.replace(', other: "*"', ""), "incidents/thing.yaml")
    with pytest.raises(InputError, match="needs `affected`, for `check`"):
        incident_file.parse_incident(
            text.replace('affected:\n  - {thing: ">=2", other: "*"}\n', ""), "incidents/thing.yaml"
        )
    with pytest.raises(InputError, match="only what is silent or slow may show in no log"):
        incident_file.parse_incident(GOOD.replace(SIGNATURES, ""), "incidents/thing.yaml")


@pytest.mark.parametrize("text", ["", "- a", "a: b: c", "title: x", "title: [1, 2]\nfix: {a: b}\n", "\t"])
def test_a_file_that_is_not_an_incident_is_refused(text):
    with pytest.raises(InputError):
        incident_file.parse_incident(text, "incidents/thing.yaml")


def test_the_defects_of_all_files_are_reported_at_once():
    with pytest.raises(InputError) as raised:
        incident_file.parse_incidents(
            {"a.yaml": "- a", "b.yaml": GOOD, "c.yaml": GOOD.replace("kind: api-removed", "kind: x")}
        )
    assert {problem.file for problem in raised.value.problems} == {"a.yaml", "c.yaml"}


@pytest.fixture(scope="module")
def known():
    return load_incidents(check_references=True)


def test_there_are_at_least_sixty_incidents(known):
    assert len(known) >= 60


def test_each_has_a_thread_or_an_artefact_as_source(known):
    for incident in known:
        assert any("#" in source for source in incident.source) or incident.confidence in ("artefact", "measured"), (
            incident.id
        )
        assert not any("://" in source for source in incident.source), incident.id


def test_incidents_are_of_many_kinds(known):
    kinds = {incident.kind for incident in known}
    assert len(kinds) >= 15


def test_the_first_five_incidents_say_where_the_report_erred(known):
    wanted = {
        "xtuner-qwen2-flash-attention-forward",
        "transformer-engine-softcap-backward",
        "triton-launcher-does-not-compile",
        "qwen-rms-norm-not-imported",
        "qwen2-padding-right-use-cache",
    }
    assert wanted <= {incident.id for incident in known if incident.report_erred}


def test_every_range_and_remedy_contains_a_release(known):
    for incident in known:
        combinations = [*incident.affected, *(fix.ranges for fix in incident.fix)]
        for name, specifier in ((name, item) for one in combinations for name, item in one.items()):
            releases = load_known_releases(name) and [
                "1.0.9",
                "4.35.0",
                *load_known_releases(name),
            ]  # two below the floors
            assert not releases or any(map(specifier.contains, releases)), f"{incident.id}: {name}{specifier}"


def test_silent_faults_name_their_versions(known):
    for incident in known:
        assert incident.fix, incident.id
        assert incident.because, incident.id


VARIANT = (
    "variants: [{words: ['code 79'], title: It fell off, because: Heat., fix: [{note: Cool it}], component: driver}]\n"
)


def test_the_first_variant_whose_words_are_in_the_log_takes_the_place_of_the_general_words():
    made = incident_file.parse_incident(GOOD + VARIANT, "incidents/thing.yaml")
    chosen = made.choose_variant({"driver": "the driver says CODE 79, and stops"})
    assert (chosen.id, chosen.title, chosen.component) == ("thing", "It fell off", "driver")
    assert [fix.note for fix in chosen.fix] == ["Cool it"]
    assert made.choose_variant({}, "code 7") is made


SHOWN = "variants: [{shows: ['cannot lend {word} to {word2}: {text}'], title: '{word2} wants', fix: ['give {word}']}]\n"


def test_a_variant_is_shown_by_a_signature_whose_slots_fill_its_texts():
    made = incident_file.parse_incident(GOOD + SHOWN, "incidents/thing.yaml")
    (text,) = made.variants[0].shows
    chosen = made.choose_variant({text: "rank 3: cannot  lend gpu0 to job7: it is held."})
    assert (chosen.title, chosen.fix[0].note) == ("job7 wants", "give gpu0")
    assert made.choose_variant({text: "a line that was wrapped"}).title == "WORD2 wants"


def test_a_variant_that_is_told_by_its_name_fills_its_fields_and_keeps_what_it_does_not_say():
    told = "variants: [{name: late, title: 'Rank {rank} is late', because: '{because} Wait.', kind: driver}]\n"
    made = incident_file.parse_incident(GOOD + told, "incidents/thing.yaml")
    late = made.tell("late", rank="{3}")
    assert (late.title, late.because, late.kind) == ("Rank {3} is late", f"{made.because} Wait.", "driver")
    assert (late.fix, late.component) == (made.fix, made.component)
    assert made.choose_variant({}, "late") is made
    with pytest.raises(KeyError, match="rank"):
        made.tell("late")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("variants: [{title: y}]\n", "a variant has words"),
        ("variants: [{name: x, words: [x], title: y}]\n", "a variant has words"),
        ("variants: [{name: x, title: y, kind: nosuch}]\n", "'nosuch' is no kind"),
        ("variants: [{words: [x], title: y, because: z, fix: [{change: {}}]}]\n", "a fix is a text"),
        ("traits: [nosuch]\n", "a trait is one of"),
    ],
)
def test_a_defect_of_variants_and_traits_is_reported(line, said):
    with pytest.raises(InputError, match=said):
        incident_file.parse_incident(GOOD + line, "incidents/thing.yaml")
