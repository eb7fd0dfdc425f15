"""The table of pairs: compressed, read back, as ranges, against an incident."""

from __future__ import annotations

import pytest
from packaging.specifiers import SpecifierSet

from knowngood.compat import incident_file
from knowngood.facts import contract_table
from knowngood.facts.contract_table import PairOutcome, PairVerdict
from knowngood.failures import contract_texts

CALLERS = ("0.1.18", "0.1.23", "0.2.0rc0")
CALLEES = ("4.42.4", "4.43.0", "4.44.2", "4.45.0", "4.48.0")
GONE = PairVerdict(outcome=PairOutcome.BREAKS, text="AttributeError: 'Attention' object has no attribute '_forward'")
STRANGE = PairVerdict(
    outcome=PairOutcome.BREAKS, text="TypeError: forward() got an unexpected keyword argument 'seq_len'"
)
LEFT = PairVerdict(outcome=PairOutcome.NOT_CALLED, text="silently: nothing is replaced")
INCIDENT = """\
title: A method that is gone
kind: api-removed
component: caller
signatures: ["AttributeError: 'Attention' object has no attribute '_forward'"]
affected:
  - {caller: "<0.2.0rc0", callee: ">=4.43,<4.45"}
because: It was removed.
fix: [{note: pin}]
source: [read]
confidence: artefact
contract: small
range_from: artefacts
"""


def verdict(caller, callee):
    if caller == "0.2.0rc0":
        return PairVerdict(outcome=PairOutcome.NOT_CALLED, text="this release has no such use")
    return {"4.42.4": PairVerdict(outcome=PairOutcome.WORKS), "4.45.0": STRANGE, "4.48.0": LEFT}.get(callee, GONE)


@pytest.fixture
def table():
    rows = contract_table.compress_verdicts(CALLERS, CALLEES, verdict)
    document = {
        "contract": "small",
        "caller": {"package": "caller", "releases": {name: {"yanked": False} for name in CALLERS}},
        "callee": {"package": "callee", "releases": {name: {"yanked": name == "4.43.0"} for name in CALLEES}},
        "pairs": [
            {"caller": [first, last], "callee": [[a, b, str(v.outcome), v.text] for a, b, v in row]}
            for first, last, row in rows
        ],
    }
    return contract_table.table_from_document(document)


def incident(text=INCIDENT):
    return incident_file.parse_incident(text.replace("range_from: artefacts\n", ""), "incidents/gone.yaml")


def test_no_pair_is_lost(table):
    pairs = {(caller, callee): found for caller, callee, found in table.pairs()}
    assert len(pairs) == len(CALLERS) * len(CALLEES)
    assert all(pairs[caller, callee] == verdict(caller, callee) for caller, callee in pairs)
    assert table.verdict("0.1.23", "4.44.2") == GONE
    with pytest.raises(KeyError):
        table.verdict("0.1.23", "9.9")


def test_ranges_end_before_the_next_known_release(table):
    pairs = table.affected(lambda found: found == GONE)
    assert contract_table.find_ranges(table, pairs, ["caller", "callee"]) == [
        {"caller": "<0.2.0rc0", "callee": ">=4.43,<4.45"}
    ]
    assert contract_table.find_ranges(table, pairs, ["callee"]) == [{"callee": ">=4.43,<4.45"}]
    assert contract_table.specifiers_of_runs(CALLEES, {"4.48.0"}) == [">=4.48"]
    assert contract_table.specifiers_of_runs(CALLEES, set(CALLEES)) == ["*"]
    assert contract_table.specifiers_of_runs(CALLEES, {"4.42.4", "4.44.2"}) == ["<4.43", ">=4.44.2,<4.45"]


def test_only_a_pair_that_is_silently_not_called_is_silent():
    assert LEFT.silent
    assert not PairVerdict(outcome=PairOutcome.BREAKS, text=LEFT.text).silent
    assert not PairVerdict(outcome=PairOutcome.NOT_CALLED, text="it is not called with this version").silent


def test_a_package_that_a_range_does_not_name_is_covered_in_every_release(table):
    affected = [
        {"caller": SpecifierSet("<0.1.20"), "callee": SpecifierSet("<4.43")},
        {"callee": SpecifierSet(">=4.48")},
    ]
    covered = contract_table.find_covered_releases(table, affected, ["caller", "callee"])
    assert covered == {("0.1.18", "4.42.4"), *((caller, "4.48.0") for caller in CALLERS)}


@pytest.mark.parametrize("version", ["4.43", "1.2.0.1", "4.43.0rc1", "4.43.0.post1", "4.43.1"])
def test_only_a_third_number_of_zero_is_left_out_of_a_version(version):
    assert contract_table.shorten_version(version) == version
    assert contract_table.shorten_version("4.43.0") == "4.43"


def test_an_incident_without_a_range_and_without_pairs_in_the_table_drifts(table):
    text = INCIDENT.replace('affected:\n  - {caller: "<0.2.0rc0", callee: ">=4.43,<4.45"}\n', "")
    drift = contract_texts.find_range_drift(incident(text.replace("'_forward'", "'_backward'")), table)
    assert (drift.missing, drift.surplus) == ((), ())


def test_of_each_kind_at_most_five_releases_are_listed():
    def lines(count):
        drift = contract_texts.RangeDrift(
            incident="i", contract="c", generated=(), missing=("m",) * count, surplus=("s",) * count
        )
        return str(drift).splitlines()[1:-1]

    assert lines(5) == ["- s"] * 5 + ["+ m"] * 5
    assert lines(6) == ["- s"] * 5 + ["- ..."] + ["+ m"] * 5 + ["+ ..."]


def test_an_incident_as_its_table_says_has_no_drift(table):
    assert contract_texts.find_range_drift(incident(), table) is None


@pytest.mark.parametrize(
    ("new", "missing", "surplus"),
    [
        ('{caller: "<0.2.0rc0", callee: ">=4.43"}', 0, 4),
        ('{caller: "<0.2.0rc0", callee: ">=4.44,<4.45"}', 2, 0),
        ('{callee: ">=4.43"}', 0, 2),
    ],
)
def test_drift_names_the_releases_and_what_follows(table, new, missing, surplus):
    text = INCIDENT.replace('{caller: "<0.2.0rc0", callee: ">=4.43,<4.45"}', new)
    found = contract_texts.find_range_drift(incident(text), table)
    assert (len(found.missing), len(found.surplus)) == (missing, surplus)
    mended = contract_texts.replace_affected(text, found.generated)
    assert contract_texts.find_range_drift(incident(mended), table) is None
    assert mended.splitlines()[0] == "title: A method that is gone"
    assert "because: It was removed." in mended


def test_an_incident_without_a_range_gets_both_packages(table):
    text = INCIDENT.replace('affected:\n  - {caller: "<0.2.0rc0", callee: ">=4.43,<4.45"}\n', "")
    found = contract_texts.find_range_drift(incident(text), table)
    mended = contract_texts.replace_affected(text, found.generated)
    assert '  - {caller: "<0.2.0rc0", callee: ">=4.43,<4.45"}\nbecause:' in mended


def test_a_silent_incident_covers_what_the_caller_does_not_find(table):
    text = INCIDENT.replace("kind:", "severity: silent\nkind:").replace("no attribute '_forward'", "other words here")
    assert contract_texts.generate_range(incident(text), table) == [{"caller": "<0.2.0rc0", "callee": ">=4.48"}]


def test_a_signature_that_no_pair_has_is_reported(table):
    found = contract_texts.find_range_drift(incident(INCIDENT.replace("'_forward'", "'_backward'")), table)
    assert "no pair of the table matches a signature of the incident" in str(found)


def test_the_page_names_every_run_and_what_is_yanked(table):
    text = contract_table.render_table_markdown(table)
    assert "| 0.1.18 to 0.1.23 | 4.48.0 | not called: silently: nothing is replaced |" in text
    assert "| 4.43.0 to 4.44.2 (yanked: 4.43.0) | breaks: `AttributeError: 'Attention'" in text
    assert "| 0.2.0rc0 | 4.42.4 to 4.48.0 (yanked: 4.43.0) | not called: this release has no such use |" in text
