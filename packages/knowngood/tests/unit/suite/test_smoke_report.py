from __future__ import annotations

import json
from pathlib import Path

import pytest

from smoke_tests import catalogue, outcomes, report, table
from smoke_tests.catalogue import Check

ROOT = Path(__file__).resolve().parents[5]

CHECK = Check("training", "sdpa-math", "fp32", "dense", "full")
SCHEMA = json.loads((ROOT / "smoke_tests/smoke_tests" / "report.schema.json").read_text())
JSON_TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}


def problems(value, schema, where="$"):
    """A validator for the part of JSON Schema that report.schema.json uses."""
    schema = SCHEMA["$defs"][schema["$ref"].rsplit("/", 1)[1]] if "$ref" in schema else schema
    if "const" in schema and value != schema["const"]:
        yield f"{where}: {value!r} is not {schema['const']!r}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{where}: {value!r} is none of {schema['enum']}"
    names = schema.get("type", [])
    if names and not any(is_a(value, name) for name in ([names] if isinstance(names, str) else names)):
        yield f"{where}: {value!r} is not of type {names}"
    if isinstance(value, dict):
        known = schema.get("properties", {})
        yield from (f"{where}.{name}: missing" for name in schema.get("required", []) if name not in value)
        if schema.get("additionalProperties") is False:
            yield from (f"{where}.{name}: unknown" for name in value if name not in known)
        for name, inner in value.items():
            yield from problems(inner, known.get(name, {}), f"{where}.{name}")
    if isinstance(value, list):
        for number, inner in enumerate(value):
            yield from problems(inner, schema.get("items", {}), f"{where}[{number}]")


def is_a(value, name):
    if name in ("number", "integer"):
        return isinstance(value, int if name == "integer" else (int, float)) and not isinstance(value, bool)
    return isinstance(value, JSON_TYPES[name])


def entry(outcome, predicted=None, **more):
    predictions = {CHECK.id: {"outcome": predicted, "because": "x"}} if predicted else {}
    return report.entry(CHECK, {"outcome": outcome, "reason": "", **more}, predictions)


def test_an_entry_is_what_the_schema_says():
    made = entry("pass", "pass", losses=[5.4, 0.1], errors={"loss": 1e-9}, kernels=["k"], seconds=1.0)
    assert list(problems(made, SCHEMA["$defs"]["check"])) == []
    assert list(problems({**made, "outcome": "maybe"}, SCHEMA["$defs"]["check"])) != []


@pytest.mark.parametrize(
    ("outcome", "predicted", "red"),
    [
        ("pass", None, False),
        ("refused", None, False),
        ("not-run", None, False),
        ("fail", None, True),
        ("fail", "fail", False),
        ("fail", "pass", True),
        ("pass", "refused", True),
        ("refused", "refused", False),
        ("not-run", "pass", True),
    ],
)
def test_red_is_a_failure_nobody_predicted_or_a_wrong_prediction(outcome, predicted, red):
    assert report.is_red(entry(outcome, predicted)) is red


def test_the_most_specific_prediction_counts():
    predictions = {
        "*": {"outcome": "pass"},
        "sdpa-*/fp32/*": {"outcome": "refused"},
        "sdpa-math/fp32/dense/full": {"outcome": "fail"},
    }
    assert report.predicted("sdpa-math/fp32/dense/full", predictions) == {"outcome": "fail"}
    assert report.predicted("sdpa-flash/fp32/dense/full", predictions) == {"outcome": "refused"}
    assert report.predicted("eager/fp32/dense/full", predictions) == {"outcome": "pass"}
    assert report.predicted("eager/fp32/dense/full", {}) is None


@pytest.mark.parametrize(
    ("entries", "host", "finished", "domain"),
    [
        ([entry("pass"), entry("refused")], [], True, "none"),
        ([entry("pass"), entry("fail")], [], True, "image"),
        ([entry("pass"), entry("pass", "refused")], [], True, "suite"),
        ([entry("pass"), entry("fail", "pass"), entry("pass", "refused")], [], True, "image"),
        ([entry("pass"), entry("fail")], ["no GPU"], True, "host"),
        ([entry("pass")], [], False, "suite"),
        ([entry("refused"), entry("not-run")], [], True, "image"),
        ([], [], True, "image"),
    ],
)
def test_the_verdict_names_whose_fault_it_is(entries, host, finished, domain):
    verdict = report.verdict(entries, host, finished=finished)
    assert verdict["domain"] == domain
    assert verdict["ok"] is (domain == "none")


def test_a_run_in_which_nothing_passed_is_not_ok():
    assert "nothing passed" in report.verdict([entry("refused")], [])["text"]


@pytest.mark.parametrize(
    ("environment", "others", "demand", "cell", "text"),
    [
        ({"torch": "2", "sm": None}, [], True, None, "torch sees none"),
        ({"torch": "2", "sm": "sm_80", "gpu": "A100"}, [], False, "sm_90", "this GPU is sm_80"),
        ({"torch": "2", "sm": "sm_90", "gpu": "H200"}, [17], False, "sm_90", "pid 17"),
    ],
)
def test_what_is_wrong_with_the_host(environment, others, demand, cell, text):
    found = report.host_problems(environment, others, demand_gpu=demand, cell_gpu=cell)
    assert len(found) == 1
    assert text in found[0]


def test_a_cpu_is_no_fault_where_no_gpu_was_demanded():
    assert report.host_problems({"torch": "2", "sm": None}, [], demand_gpu=False, cell_gpu="sm_90") == []


@pytest.mark.parametrize("text", ["[]", '{"*": {"outcome": "perhaps"}}', '{"*": "pass"}', "{"])
def test_malformed_predictions_are_refused(tmp_path, text):
    file = tmp_path / "predictions.json"
    file.write_text(text)
    with pytest.raises((TypeError, ValueError)):
        report.read_predictions(file)


def test_a_report_is_written_whole_or_not_at_all(tmp_path):
    file = tmp_path / "below" / "report.json"
    report.write(file, {"losses": [float("nan"), 1.0]})
    assert json.loads(file.read_text()) == {"losses": ["nan", 1.0]}
    with pytest.raises(TypeError):
        report.write(file, {"losses": object()})
    assert json.loads(file.read_text()) == {"losses": ["nan", 1.0]}
    assert [path.name for path in file.parent.iterdir()] == ["report.json"]


def test_the_catalogue_names_each_check_once():
    ids = [check.id for topic in catalogue.TOPICS.values() for check in topic()]
    assert len(ids) == len(set(ids))
    assert "sdpa-math/fp32/dense/full" in ids


def test_quick_is_a_part_of_the_whole_with_every_setting():
    whole, quick = (catalogue.select(catalogue.training(), quick=flag) for flag in (False, True))
    assert set(quick) < set(whole)
    assert {check.setting for check in quick} == {check.setting for check in whole}


def test_the_table_shows_outcomes_reasons_and_the_verdict():
    made = [entry("pass"), {**entry("fail", reason="too far"), "setting": "eager"}]
    shown = table.render({"checks": made, "verdict": report.verdict(made, [])})
    assert "FAIL" in shown
    assert "fail: too far: sdpa-math/fp32/dense/full" in shown
    assert "NOT OK, image" in shown


def test_the_table_says_where_a_stand_in_was():
    plain = {**entry("pass"), "id": "framework/xtuner/as-installed", "topic": "framework"}
    made = [plain, {**plain, "id": "framework/xtuner/padded", "stand_in": "flash_attn in plain torch"}]
    shown = table.render({"checks": made, "verdict": report.verdict(made, [])})
    assert "framework/xtuner/as-installed\n" in shown
    assert "framework/xtuner/padded (with a stand-in)\n" in shown


def test_what_another_process_came_to_is_what_the_check_came_to():
    ended = {"outcome": "refused", "reason": "no", "exception": "ValueError", "message": "text"}
    assert outcomes.from_exception(outcomes.Elsewhere(ended)) == ended


def test_an_explanation_says_what_was_predicted():
    made = entry("pass", "refused")
    assert "predicted refused, because x" in table.explain(made)
