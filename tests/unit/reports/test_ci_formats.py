"""`knowngood plan --format`: the plan for every CI system, compared with golden files and the systems' own schemas.

`KNOWNGOOD_GOLDEN=write pytest tests/unit/reports/test_ci_formats.py` writes the files again; read the diff.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path

import check_jsonschema
import pytest
import samples
import yaml
from click.testing import CliRunner

from knowngood.cli import main

GOLDEN = Path(__file__).parents[1] / "golden"
ROOT = Path(__file__).resolve().parents[3]
SCHEMAS = {"gitlab": "vendor.gitlab-ci", "buildkite": "vendor.buildkite"}


@pytest.fixture(autouse=True)
def locked(home, lock_of):
    for identity in (samples.FA4, samples.FA2, samples.FA0):
        lock_of(identity)
    folder = home.tree.folder / "bases" / "debian12"
    folder.mkdir(parents=True)
    (folder / "packages.lock").write_bytes((ROOT / "docker/bases/debian12/packages.lock").read_bytes())
    return home


def plan(capsys, *words):
    code = main.main(["plan", *words])
    out, err = capsys.readouterr()
    assert code == 0, err
    return out


CASES = {
    "github.json": ["github", "--gpus", "sm_90"],
    "github-wheels.json": ["github", "--stage", "wheels", "--runner", "self-hosted,build"],
    "gitlab.yml": ["gitlab", "--gpus", "sm_90,sm_80"],
    "buildkite.yml": ["buildkite"],
    "plan.json": ["json", "--gpus", "sm_100"],
}


@pytest.mark.parametrize("name", CASES)
def test_the_plan_equals_its_golden_file(name, capsys):
    found = plan(capsys, "--format", *CASES[name])
    if name == "plan.json":  # what else is in it follows from layers, and `plan --json` has it too
        found = json.dumps(json.loads(found)["jobs"], indent=1) + "\n"
    if os.environ.get("KNOWNGOOD_GOLDEN") == "write":
        (GOLDEN / name).write_text(found)
    assert found == (GOLDEN / name).read_text()


@pytest.mark.parametrize("kind", SCHEMAS)
@pytest.mark.parametrize("select", [[], ["torch<2"]], ids=["all", "none"])
def test_the_plan_is_valid_by_the_systems_schema(kind, select, capsys, tmp_path, monkeypatch):
    if select:  # nothing changed is nothing to do
        monkeypatch.setattr("knowngood.cli.plan._changed", lambda *_: [])
    words = ["--changed-since", "HEAD"] if select else []
    path = tmp_path / f"{kind}.yml"
    path.write_text(plan(capsys, "--format", kind, *words))
    result = CliRunner().invoke(check_jsonschema.main, ["--builtin-schema", SCHEMAS[kind], str(path)])
    assert result.exit_code == 0, result.output


def test_wheels_come_before_what_needs_them_and_promotion_is_last(capsys):
    jobs = json.loads(plan(capsys, "--format", "json"))["jobs"]
    names = [job["name"] for job in jobs]
    assert [job["stage"] for job in jobs] == ["wheels", "images", "images", "images", "promotion"]
    of = {job["name"]: job for job in jobs}
    assert of[samples.FA2]["needs"] == [names[0]]
    assert of[samples.FA0]["needs"] == of[samples.FA4]["needs"] == []
    assert set(jobs[-1]["cells"]) == {samples.FA2, samples.FA0, samples.FA4}


def test_every_command_of_a_plan_parses(capsys):
    jobs = json.loads(plan(capsys, "--format", "json", "--gpus", "sm_90"))["jobs"]
    lines = [line for job in jobs for line in job["commands"]]
    found = [match for line in lines for match in re.findall(r"knowngood ([^;]+)", line)]
    assert len(found) == 1 + 3 * 2 + 1
    for text in found:
        words = shlex.split(text)
        main.build_parser(words[0]).parse_args(words)


def test_a_github_matrix_is_one_line_and_knows_its_runners(capsys):
    text = plan(capsys, "--format", "github", "--gpus", "sm_90", samples.FA2)
    assert text.count("\n") == 1
    (item,) = json.loads(text)["include"]
    assert item["runner"] == ["self-hosted", "gpu", "sm_90"]
    assert item["options"] == "--gpus --no-quick --wheelhouse wheelhouse"
    (elsewhere,) = json.loads(plan(capsys, "--format", "github", "--gpus", "sm_100", samples.FA2))["include"]
    assert elsewhere["runner"] == ["ubuntu-24.04"]
    assert elsewhere["options"] == "--wheelhouse wheelhouse"


def test_a_dollar_in_a_buildkite_step_is_escaped_for_the_upload(capsys):
    steps = yaml.safe_load(plan(capsys, "--format", "buildkite", samples.FA0))["steps"]
    text = "\n".join(line for step in steps for line in step["command"])
    assert "$$KNOWNGOOD_REPOSITORY" in text
    assert not re.search(r"(?<!\$)\$(\$\$)*(?!\$)", text)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--stage", "wheels"], "belong to --format"),
        (["--gpus", "sm_90"], "belong to --format"),
        (["--format", "gitlab", "--stage", "wheels"], "--stage is for --format github"),
        (["--format", "github", "--gpus", "H100"], "'H100' is not a GPU architecture"),
        (["--format", "github", "--runner", "a b;c"], "does not name runners"),
        (["--format", "github", "--runner", "$(id)"], "does not name runners"),
    ],
)
def test_wrong_options_are_refused(words, said, capsys):
    assert main.main(["plan", *words]) == 2
    assert said in capsys.readouterr().err


def test_the_plan_for_people_counts_layers(capsys):
    assert "layers to build" in plan(capsys, "--offline")
