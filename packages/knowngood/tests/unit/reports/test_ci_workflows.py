"""The rendered workflows: as the templates say, pinned, with few rights, naming commands and sessions that exist."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import check_jsonschema
import pytest
import yaml
from click.testing import CliRunner

import samples
from knowngood.cli import main
from knowngood.core.errors import UsageError
from knowngood.reports import ci_jobs

ROOT = samples.ROOT
FILES = ci_jobs.render_workflows(ROOT / "templates")
PARSED = {name: yaml.load(text, Loader=yaml.BaseLoader) for name, text in FILES.items()}  # noqa: S506  # plain strings
JOBS = [pytest.param(job, id=f"{name}:{key}") for name, flow in PARSED.items() for key, job in flow["jobs"].items()]
STEPS = [step for flow in PARSED.values() for job in flow["jobs"].values() for step in job["steps"]]
SCRIPTS = [step["run"] for step in STEPS if "run" in step]


def test_the_committed_workflows_are_the_rendered_ones():
    assert {path.name: path.read_text() for path in (ROOT / ci_jobs.WORKFLOW_FOLDER).glob("*.yml")} == FILES


def test_every_action_is_pinned_by_a_commit_of_the_list():
    listed = set(ci_jobs.read_pinned_actions(ROOT / "templates").values())
    used = set(re.findall(r"uses: (.+)", "".join(FILES.values())))
    assert used == listed
    assert all(re.fullmatch(r"[a-z]+/[a-z-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", text) for text in used)


def test_an_action_by_its_tag_is_refused(tmp_path):
    (tmp_path / "ci").mkdir()
    (tmp_path / "ci/actions.yaml").write_text("checkout: {uses: actions/checkout, tag: v7, commit: v7}\n")
    with pytest.raises(UsageError, match="checkout is pinned by 'v7'"):
        ci_jobs.read_pinned_actions(tmp_path)


@pytest.mark.parametrize("job", JOBS)
def test_a_job_ends_and_has_no_more_rights_than_it_uses(job):
    assert int(job["timeout-minutes"]) <= 350
    rights = job["permissions"] or {}
    writes = {name for name, level in rights.items() if level == "write"}
    scripts = " ".join(step.get("run", "") for step in job["steps"])
    if writes & {"contents", "pull-requests"}:  # runs nothing that was built from what it proposes
        assert "knowngood" not in scripts
        assert "nox" not in scripts
    assert "packages" not in writes or "knowngood publish" in scripts
    for step in job["steps"]:
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] == "false"


def test_no_script_contains_an_expression():
    assert not [text for text in SCRIPTS if "${{" in text]


@pytest.mark.parametrize("name", PARSED)
def test_a_workflow_begins_with_no_rights_and_never_runs_twice_at_once(name):
    assert PARSED[name]["permissions"] == {}
    assert PARSED[name]["concurrency"]["group"].startswith(name.removesuffix(".yml"))
    assert "pull_request_target" not in PARSED[name]["on"]


def test_pull_requests_run_on_hosted_runners_only():
    jobs = PARSED["pull-request.yml"]["jobs"]
    assert "vars." not in FILES["pull-request.yml"]
    plan = next(step["run"] for step in jobs["plan"]["steps"] if step.get("id") == "plan")
    assert "--gpus" not in plan
    assert "--runner" not in plan
    assert {job["runs-on"] for job in jobs.values()} == {"ubuntu-24.04", "${{ matrix.runner }}"}


def test_no_workflow_names_a_cell_so_a_new_one_touches_matrix_yaml_only():
    from knowngood.project.checkout import Project

    matrix = Project(ROOT).matrix
    words = {str(cell) for cell in matrix.cells} | {cell.torch for cell in matrix.cells}
    words |= set(matrix.aliases) - {"default"}
    text = "".join(FILES.values())
    assert not [word for word in words if re.search(rf"(?<![\w.]){re.escape(word)}(?![\w.])", text)]


@pytest.mark.whole
def test_every_command_parses():
    lines = [line for script in SCRIPTS for line in script.splitlines() if re.search(r"\bknowngood [a-z]", line)]
    assert len(lines) >= 12
    for line in lines:
        text = re.search(r"\bknowngood ([a-z][^;]*)", line)[1]
        # Only a plan that was made with --gpus has options for proofs; that of a release is made without.
        text = text.replace("$OPTIONS", "" if text.startswith("build ") else "--gpus --no-quick")
        text = re.sub(r"\"?\$(CELLS|SELECT|GPUS|RUNNER|BASE|RUNNER_TEMP)\b", '"default', text).replace('"$1"', "images")
        words = shlex.split(re.sub(r'"default(?=[\s"]|$)"?', "default", text))
        main.build_parser(words[0]).parse_args(words)


def test_every_session_exists():
    tree = ast.parse((ROOT / "noxfile.py").read_text()).body
    sessions = {node.name.replace("_", "-") for node in tree if isinstance(node, ast.FunctionDef)}
    named = set(re.findall(r"nox -s ([a-z-]+)", "\n".join(SCRIPTS))) | set(
        PARSED["pull-request.yml"]["jobs"]["check"]["strategy"]["matrix"]["session"]
    )
    assert named == {"lint", "tests", "site", "fuzz"}
    assert named <= sessions


def test_scripts_pass_shellcheck(tmp_path):
    """All that a step runs, as the runner has it run; what is no step's is checked by its own first line."""
    paths = [ROOT / ".github/propose"]
    for number, script in enumerate(dict.fromkeys(SCRIPTS)):
        paths.append(tmp_path / f"{number}.sh")
        paths[-1].write_text(f"#!/usr/bin/env bash\nset -e\n{script}")
    command = [Path(sys.executable).with_name("shellcheck"), "--severity", "style", *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    paths[-1].write_text("#!/bin/bash\nrm $1\n")
    assert subprocess.run(command, capture_output=True, check=False).returncode == 1


def test_the_example_in_the_documents_is_the_actual_output(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    text = (ROOT / "docs/ci.md").read_text()
    examples = re.findall(r"```sh\n(knowngood cells --jobs [^\n]+)\n```\n\n```json\n(.+?)\n```", text, re.DOTALL)
    assert examples
    for command, shown in examples:
        assert main.main(shlex.split(command)[1:]) == 0
        assert json.loads(capsys.readouterr().out) == json.loads(shown)


def run_zizmor(path):
    argv = [Path(sys.executable).with_name("zizmor"), "--offline", "--quiet", path]
    return subprocess.run(argv, capture_output=True, check=False).returncode


def run_check_jsonschema(path):
    arguments = ["--builtin-schema", "vendor.github-workflows", str(path)]
    return CliRunner().invoke(check_jsonschema.main, arguments).exit_code


LINTERS = {
    "zizmor": (run_zizmor, ('echo "wheels=$wheels"', "echo ${{ inputs.select }}")),
    "check-jsonschema": (run_check_jsonschema, ("timeout-minutes: 15", "minutes: 15")),
}


@pytest.mark.parametrize("name", LINTERS)
def test_the_linters_of_nox_lint_pass_and_fail_on_a_spoiled_file(name, tmp_path):
    run_linter, spoiled = LINTERS[name]
    path = tmp_path / ".github/workflows/release.yml"
    path.parent.mkdir(parents=True)

    def passes(text):
        path.write_text(text)
        return run_linter(path) == 0

    good = FILES["release.yml"]
    assert spoiled[0] in good
    assert passes(good)
    assert not passes(good.replace(*spoiled))


@pytest.fixture
def remote(tmp_path):
    """A repository with a remote, and a `gh` that says which pull requests are open and notes how it is called."""

    def git(*words, cwd):
        settings = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
        return subprocess.run(["git", *settings, *words], cwd=cwd, check=True, capture_output=True, text=True).stdout

    bare, work, bin_ = tmp_path / "bare.git", tmp_path / "work", tmp_path / "bin"
    for folder in (work, bin_):
        folder.mkdir()
    git("init", "--quiet", "--bare", str(bare), cwd=tmp_path)
    git("init", "--quiet", "--initial-branch", "main", cwd=work)
    (work / "facts").write_text("old\n")
    git("add", "--all", cwd=work)
    git("commit", "--quiet", "--message", "one", cwd=work)
    git("remote", "add", "origin", str(bare), cwd=work)
    (work / "facts").write_text("new\n")
    (tmp_path / "change.patch").write_text(git("diff", cwd=work))
    git("checkout", "--quiet", "--", "facts", cwd=work)
    gh = bin_ / "gh"
    gh.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\nif [ "$1 $2" = "pr list" ]; then cat {tmp_path}/open; fi\n'
    )
    gh.chmod(0o755)

    def propose(opened):
        (tmp_path / "open").write_text(f"{opened}\n")
        (tmp_path / "calls").unlink(missing_ok=True)
        environment = {**os.environ, "PATH": f"{bin_}:{os.environ['PATH']}"}
        argv = [ROOT / ".github/propose", "refresh", "New facts", tmp_path / "change.patch"]
        git("switch", "--quiet", "main", cwd=work)
        subprocess.run(argv, cwd=work, check=True, env=environment, capture_output=True)
        calls = (tmp_path / "calls").read_text().splitlines()
        return calls, git("show", "refresh:facts", cwd=bare), git("log", "--format=%s", "refresh", cwd=bare)

    return propose


def test_a_change_is_proposed_once_and_then_updated(remote):
    calls, facts, log = remote(0)
    assert [call.split(" --")[0] for call in calls] == ["auth setup-git", "pr list", "pr create"]
    assert (facts, log) == ("new\n", "New facts\none\n")
    calls, facts, log = remote(1)
    assert [call.split(" --")[0] for call in calls] == ["auth setup-git", "pr list"]
    assert (facts, log) == ("new\n", "New facts\none\n")
