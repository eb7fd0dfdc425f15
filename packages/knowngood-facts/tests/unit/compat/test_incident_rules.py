"""Incidents as findings of `check`: an error, a warning or nothing, depending on the stated conditions of use."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from knowngood.core.attention import parse_attention
from knowngood.core.errors import InputError
from knowngood.core.local_files import data_folder
from knowngood_facts.compat import knowledge, rule, rule_files
from knowngood_facts.compat.check_answer import CheckAnswer, check_query
from knowngood_facts.compat.query import Query, parse_requirement
from knowngood_facts.compat.rule_files import load_incidents
from knowngood_pages.incident_pages import load_known_releases, render_check_command

KNOWN = knowledge.load_knowledge()
INCIDENTS = {incident.id: incident for incident in load_incidents()}


def ask(*requirements: str, gpu: str | None = None, attn: str | None = None, **used: Any) -> CheckAnswer:
    request = Query(
        gpu=gpu,
        attn=None if attn is None else parse_attention(attn),
        conditions={key.replace("__", "."): str(value).lower() for key, value in used.items()},
        packages=tuple(wanted for text in requirements if (wanted := parse_requirement(text))),
    )
    return check_query(KNOWN.for_query(request), request, KNOWN.published)


def told(result: CheckAnswer, name: str) -> str | None:
    """The severity of a finding."""
    return next((finding.severity for finding in result.findings if finding.id == name), None)


XTUNER = ("xtuner==0.1.23", "transformers==4.44.2", "flash-attn==2.6.3", "torch==2.4.0")
CALL = "xtuner-qwen2-flash-attention-forward"
SOFTCAP = "transformer-engine-softcap-backward"
PADDING = "qwen2-padding-right-use-cache"
RIGHT = {"padding": "right", "use_cache": "true"}


@pytest.mark.parametrize(
    ("requirements", "more", "name", "severity"),
    [
        (XTUNER, {"gpu": "A100", "xtuner__use_varlen_attn": False}, CALL, "error"),
        (XTUNER, {"gpu": "A100", "xtuner__use_varlen_attn": False, "model": "qwen2", "attn": "fa2"}, CALL, "error"),
        (XTUNER, {"gpu": "A100"}, CALL, "warning"),
        (XTUNER, {"gpu": "A100", "xtuner__use_varlen_attn": True}, CALL, None),
        (XTUNER, {"gpu": "A100", "xtuner__use_varlen_attn": False, "attn": "sdpa"}, CALL, None),
        (XTUNER, {"gpu": "A100", "xtuner__use_varlen_attn": False, "model": "llama"}, CALL, None),
        (("xtuner==0.1.23", "transformers==4.42.4"), {"xtuner__use_varlen_attn": False}, CALL, None),
        (("transformer-engine==1.12.0", "flash-attn==2.6.3"), {"context-parallel": 2}, SOFTCAP, "error"),
        (("transformer-engine==1.12.0", "flash-attn==2.6.3"), {}, SOFTCAP, "warning"),
        (("transformer-engine==1.12.0", "flash-attn==2.6.3"), {"context-parallel": 1}, SOFTCAP, None),
        (("transformer-engine==1.12.0", "flash-attn==2.5.8"), {"context-parallel": 2}, SOFTCAP, None),
        (("transformer-engine==2.1.0", "flash-attn==2.6.3"), {"context-parallel": 2}, SOFTCAP, None),
        (("transformers==4.41.2", "flash-attn==2.5.8"), {"attn": "fa2", **RIGHT}, PADDING, "error"),
        (("transformers==4.41.2", "flash-attn==2.5.8"), {"attn": "fa2", "padding": "right"}, PADDING, "warning"),
        (("transformers==4.41.2",), {"attn": "sdpa", **RIGHT}, PADDING, None),
        (("transformers==4.41.2",), {"attn": "fa2", "padding": "left"}, PADDING, None),
        (("transformers==4.42.0",), {"attn": "fa2", **RIGHT}, PADDING, None),
        (("transformers==4.52.4",), {"attn": "fa2", **RIGHT}, PADDING, "error"),
        (("transformers==4.53.0",), {"attn": "fa2", **RIGHT}, PADDING, None),
    ],
)
def test_the_first_reported_failures_are_errors(
    requirements: tuple[str, ...], more: dict[str, Any], name: str, severity: str | None
):
    result = ask(*requirements, **more)
    assert told(result, name) == severity
    assert (result.verdict == "broken") == (severity == "error")


PACKED = {"packing": "true"}
FLEX = {"attn": "flex"}
ACCUMULATED = {"gradient-accumulation": "4"}
MISTRAL = {"model": "mistral", "attn": "fa2"}
QWEN2 = {"model": "qwen2", "attn": "fa2"}
WIDE, WIDE_OPTIONAL = (f"flash-attn-2-{kind}window-one-token-too-wide" for kind in ("", "optional-"))


@pytest.mark.parametrize(
    ("version", "more", "name", "severity"),
    [
        ("4.53.0", {**PACKED, "attn": "sdpa"}, "packed-rows-leak", "error"),
        ("4.53.0", PACKED, "packed-rows-leak", "error"),
        ("4.53.1", PACKED, "packed-rows-leak", None),
        ("4.53.0", {**PACKED, "attn": "fa2"}, "packed-rows-leak", None),
        ("4.53.0", {"packing": "false"}, "packed-rows-leak", None),
        ("4.53.0", {}, "packed-rows-leak", "warning"),
        ("4.53.1", {**PACKED, "use_cache": "true"}, "packed-rows-leak-with-cache", "error"),
        ("4.53.1", PACKED, "packed-rows-leak-with-cache", "warning"),
        ("4.53.1", {**PACKED, "use_cache": "false"}, "packed-rows-leak-with-cache", None),
        ("4.43.4", {**PACKED, "attn": "fa2"}, "packed-rows-leak-in-fa2", "error"),
        ("4.44.0", {**PACKED, "attn": "fa2"}, "packed-rows-leak-in-fa2", None),
        ("4.43.0", {"packing": "unpad-patch"}, "packing-patch-without-effect", "error"),
        ("4.42.4", {"packing": "unpad-patch"}, "packing-patch-without-effect", None),
        ("4.49.0", FLEX, "flex-attention-uncompiled", "error"),
        ("4.50.0", FLEX, "flex-attention-uncompiled", None),
        ("4.52.4", {**FLEX, "dropout": "0.1"}, "flex-attention-drops-dropout", "error"),
        ("4.52.4", {**FLEX, "dropout": "0"}, "flex-attention-drops-dropout", None),
        ("4.53.0", {**FLEX, "dropout": "0.1"}, "flex-attention-refuses-dropout", "error"),
        ("4.45.2", {"sliding-window": "true", "attn": "sdpa"}, "qwen2-sdpa-ignores-sliding-window", "error"),
        ("4.46.0", {"sliding-window": "true", "attn": "sdpa"}, "qwen2-sdpa-ignores-sliding-window", None),
        ("4.48.3", {"sliding-window": "true"}, "qwen2-sdpa-ignores-sliding-window", "error"),
        ("4.48.3", {"attn": "fa2", "weights": "fp32"}, "transformers-4-48-flash-attention-autocast", "error"),
        ("4.48.3", {"attn": "fa2"}, "transformers-4-48-flash-attention-autocast", "warning"),
        ("4.49.0", {"attn": "fa2", "weights": "fp32"}, "transformers-4-48-flash-attention-autocast", None),
        ("4.55.4", MISTRAL, WIDE, "error"),
        ("4.44.2", {**MISTRAL, "model": "gemma2"}, WIDE, "error"),
        ("4.56.0", MISTRAL, WIDE, None),
        ("4.34.1", MISTRAL, WIDE, None),
        ("4.55.4", {**MISTRAL, "attn": "sdpa"}, WIDE, None),
        ("4.55.4", {**MISTRAL, "sliding-window": "false"}, WIDE, None),
        ("4.55.4", {**MISTRAL, "model": "llama"}, WIDE, None),
        ("4.55.4", {**QWEN2, "sliding-window": "true"}, WIDE_OPTIONAL, "error"),
        ("4.55.4", QWEN2, WIDE_OPTIONAL, "warning"),
        ("4.55.4", {**QWEN2, "sliding-window": "false"}, WIDE_OPTIONAL, None),
        ("4.56.0", {**QWEN2, "sliding-window": "true"}, WIDE_OPTIONAL, None),
        ("4.47.0", ACCUMULATED, "trainer-accumulation-not-divided", "error"),
        ("4.47.1", ACCUMULATED, "trainer-accumulation-not-divided", None),
        ("4.48.0", {"gradient-accumulation": "1"}, "trainer-accumulation-not-divided", None),
        ("4.48.0", {**ACCUMULATED, "deepspeed": "true"}, "trainer-accumulation-not-divided", None),
        ("4.48.0", {**ACCUMULATED, "trainer": "own"}, "trainer-accumulation-not-divided", None),
        ("4.48.3", {**ACCUMULATED, "deepspeed": "true"}, "trainer-accumulation-deepspeed-divides-twice", "error"),
        ("4.49.0", {**ACCUMULATED, "deepspeed": "true"}, "trainer-accumulation-deepspeed-divides-twice", None),
        ("4.45.2", {**ACCUMULATED, "lengths": "varied"}, "trainer-accumulation-mean-of-means", "error"),
        ("4.45.2", ACCUMULATED, "trainer-accumulation-mean-of-means", "warning"),
        ("4.46.0", {**ACCUMULATED, "lengths": "varied"}, "trainer-accumulation-mean-of-means", None),
        ("4.47.1", {**ACCUMULATED, "loss-kwargs": "false"}, "trainer-accumulation-not-divided-plain-models", "error"),
        ("4.48.0", {**ACCUMULATED, "loss-kwargs": "false"}, "trainer-accumulation-not-divided-plain-models", None),
    ],
)
def test_silent_faults_are_reported_by_versions_and_use(
    version: str, more: dict[str, Any], name: str, severity: str | None
):
    result = ask(f"transformers=={version}", **more)
    assert told(result, name) == severity
    if severity == "error":
        assert result.verdict == "broken"


def watched() -> Iterator[tuple[str, str, str, str]]:
    """What runs on a GPU saw of packed rows: transformers, setting, mode, outcome (`leaks` or `pass`)."""
    for path in sorted((data_folder() / "evidence").glob("sm*/*.json")):
        run = json.loads(path.read_text(encoding="utf-8"))
        version = re.search(r"-tf([^-]+)-", run["cell"])
        for item in run["report"]["checks"]:
            leaks = str(item["reason"]).startswith("leaks-across-seams")
            if item["layout"] == "packed" and item["mode"] and version and (leaks or item["outcome"] == "pass"):
                yield version[1], item["setting"], item["mode"], "leaks" if leaks else "pass"


def test_leaks_are_reported_exactly_where_they_were_observed():
    seen = sorted(set(watched()))
    assert {outcome for _, _, _, outcome in seen} == {"leaks", "pass"}
    for version, setting, mode, outcome in seen:
        if mode in ("full", "use-cache"):
            result = ask(
                f"transformers=={version}", attn=setting, packing="true", use_cache=str(mode == "use-cache").lower()
            )
            found = {finding.id for finding in result.findings if finding.severity == "error"}
            leaks = {name for name in found if name.startswith("packed-rows-leak")}
            assert bool(leaks) == (outcome == "leaks"), (version, setting, mode, outcome)


def test_a_silent_fault_has_a_suggestion():
    assert ask("transformers==4.53.0", "torch==2.6.0", attn="sdpa", **PACKED).changes == {"transformers": "4.53.1"}


def test_a_suggestion_does_not_lead_to_another_failure():
    assert ask(*XTUNER, gpu="A100", xtuner__use_varlen_attn=False).changes == {"transformers": "4.42.4"}
    changes = ask("transformer-engine==1.12.0", "flash-attn==2.6.3", **{"context-parallel": "2"}).changes
    assert changes == {"transformer-engine": "2.1.0"}  # 2.7 of flash-attn would be left alone


def test_findings_for_a_v100_name_their_pages():
    result = ask("flash-attn==2.5.7", "torch==2.2.0", "transformers==4.37.2", gpu="V100", dtype="bf16")
    found = {finding.id: finding for finding in result.findings}
    assert "flash-attn-2-needs-ampere" in found["flash-attn-2-gpu"].incidents
    assert found["flash-attn-2-gpu"].document()["incidents"] == ["flash-attn-2-needs-ampere"]
    assert "packages/knowngood-diagnose/incidents/ptxas-bf16-needs-sm80.yaml" in found["bf16-in-hardware"].pages
    assert "ptxas-bf16-needs-sm80" not in found


def test_an_incident_that_a_rule_covers_is_not_reported_twice():
    fed = {rule.id for rule in KNOWN.universe.written_rules if rule.kind == "incident"}
    assert fed
    assert not fed & {incident.id for incident in INCIDENTS.values() if incident.rule}
    assert {name for names in KNOWN.universe.incidents.values() for name in names} == {
        incident.id for incident in INCIDENTS.values() if incident.rule
    }


def test_an_incident_of_one_package_alone_is_not_reported():
    result = ask("transformers==5.17.0", "torch==2.11.0")
    assert result.verdict != "broken"
    assert told(result, "trainer-tokenizer-argument") is None


def test_every_condition_is_documented():
    page = (data_folder() / "docs" / "check.md").read_text(encoding="utf-8")
    assert [key for key in KNOWN.universe.conditions if f"`{key}`" not in page] == []


def test_a_document_carries_the_condition_and_the_page():
    [finding] = [item for item in ask(*XTUNER, gpu="A100").findings if item.id == CALL]
    document = finding.document()
    assert document["kind"] == "incident"
    assert document["when"] == {"xtuner.use_varlen_attn": "false"}
    assert document["packages"] == {"xtuner": "0.1.23", "transformers": "4.44.2"}
    assert {"change": {"transformers": ">=4.39,<4.43"}}.items() <= document["fix"][0].items()
    assert finding.pages == (f"packages/knowngood-diagnose/incidents/{CALL}.yaml",)


def test_versions_of_packages_without_facts_count():
    made = rule.rule_from_incident_data(
        "thing",
        {
            "title": "A thing",
            "because": "It is so.",
            "affected": [{"trl": "<0.8", "transformers": ">=4.39"}],
            "source": "owner/name#1",
            "confidence": "reported",
            "fix": [{"note": "another"}],
        },
    )
    assert made is not None
    universe = KNOWN.universe
    from knowngood_facts.compat import universe as universes

    book = universe.space.book
    with_it = universes.build_universe(book, universe.gpus, [*universe.written_rules, made])

    def asked(*requirements: str) -> CheckAnswer:
        request = Query(
            packages=tuple(item for text in requirements if (item := parse_requirement(text, explicit=False)))
        )
        return check_query(with_it, request, KNOWN.published)

    broken = asked("trl==0.7.9", "transformers==4.44.2")
    assert told(broken, "thing") == "error"
    assert next(item for item in broken.findings if item.id == "thing").packages == {
        "trl": "0.7.9",
        "transformers": "4.44.2",
    }
    assert broken.changes == {"transformers": "4.38.2"}
    assert told(asked("trl==0.8.1", "transformers==4.44.2"), "thing") is None
    assert told(asked("trl==0.7.9", "transformers==4.38.2"), "thing") is None
    assert told(asked("trl>=0.7", "transformers==4.44.2"), "thing") is None, "a range is no version"


def test_a_malformed_incident_is_refused_with_its_line(tmp_path):
    shutil.copy(data_folder() / "packages/knowngood-diagnose/incidents" / f"{SOFTCAP}.yaml", tmp_path)
    bad = (tmp_path / f"{SOFTCAP}.yaml").read_text(encoding="utf-8").replace("affected:", "affected: none\nx:")
    (tmp_path / "bad.yaml").write_text(bad, encoding="utf-8")
    with pytest.raises(InputError, match=r"incidents/bad\.yaml:\d+:\d+"):
        rule_files.load_incident_rules(tmp_path)


def test_a_condition_of_an_incident_that_is_no_text_is_refused(tmp_path):
    good = (data_folder() / "packages/knowngood-diagnose/incidents" / "transformers-fa-without-sinks.yaml").read_text(
        encoding="utf-8"
    )
    (tmp_path / "bad.yaml").write_text(good.replace('"fa2|fa3|fa4"', "[fa2, fa3, fa4]"), encoding="utf-8")
    with pytest.raises(InputError, match=r"incidents/bad\.yaml:\d+:\d+: when must be a mapping"):
        rule_files.load_incident_rules(tmp_path)


@pytest.mark.parametrize("key", ["affected", "unless", "when", "rule"])
def test_a_misspelled_key_of_an_incident_is_refused_by_check_too(tmp_path, key):
    (path,) = [
        path
        for path in sorted((data_folder() / "packages/knowngood-diagnose/incidents").glob("*.yaml"))
        if re.search(rf"^{key}:", path.read_text(encoding="utf-8"), re.MULTILINE)
    ][:1]
    text = re.sub(rf"^{key}:", f"{key}x:", path.read_text(encoding="utf-8"), count=1, flags=re.MULTILINE)
    (tmp_path / "bad.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=rf"incidents/bad\.yaml:\d+:1: unknown key '{key}x'"):
        rule_files.load_incident_rules(tmp_path)


QUESTIONS = {
    name: asked for name, one in INCIDENTS.items() if (asked := render_check_command(one, load_known_releases))
}


def ask_question(question: str) -> CheckAnswer:
    """Return what `check` answers to a command line that a page shows."""
    words = question.split()[2:]
    used, packages, more = {}, [], {}
    while words:
        word = words.pop(0)
        if word == "--with":
            key, _, value = words.pop(0).partition("=")
            used[key] = value
        elif word.startswith("--"):
            more[word.removeprefix("--")] = words.pop(0)
        else:
            packages.append(parse_requirement(word, explicit=False))
    attn = more.pop("attn", None)
    request = Query(
        axes=more,
        conditions=used,
        attn=attn and parse_attention(attn),
        packages=tuple(item for item in packages if item),
    )
    return check_query(KNOWN.for_query(request), request, KNOWN.published)


def test_the_example_on_each_page_gives_its_incident():
    assert QUESTIONS
    breaches = []
    for name, question in QUESTIONS.items():
        incident = INCIDENTS[name]
        warns = incident.severity == "slow" or (incident.severity == "silent" and not incident.when)
        expected = "warning" if warns else "error"
        severity = told(ask_question(question), name)
        if severity != expected:
            breaches.append(f"{name}: `{question}` gives {severity}, not {expected}")
    assert not breaches, "\n".join(breaches)


def test_each_range_of_an_incident_says_where_it_comes_from_and_nothing_else_does():
    without = [name for name, one in INCIDENTS.items() if one.affected and not (one.uses or one.rule or one.range_from)]
    idle = [name for name, one in INCIDENTS.items() if one.range_from and not one.affected]
    assert not without, "\n".join(without)
    assert not idle, "\n".join(idle)
