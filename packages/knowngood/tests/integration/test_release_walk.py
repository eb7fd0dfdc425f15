"""docs/publishing.md's first release from a fork: the rendered workflow's steps, one by one, from a clean clone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import small
import yaml

from conftest import ROOT
from knowngood.evidence import run_evidence
from knowngood.evidence.run_evidence import Evidence, RunPlace
from knowngood.project.checkout import Project

pytestmark = pytest.mark.integration

LEFT_OUT = {
    "knowngood, at the versions of requirements.lock": "this environment has them",
    "room, and an engine that keeps manifests, on a hosted runner": "no hosted runner",
}


def call(folder: Path, *words: str) -> str:
    """Run a program in a folder, and return what it printed."""
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


def knowngood(folder: Path, *words: str) -> str:
    return call(folder, sys.executable, "-m", "knowngood", *words)


def commit(folder: Path, message: str) -> None:
    call(folder, "git", "add", "--all")
    call(folder, "git", "-c", "user.name=t", "-c", "user.email=t@t.example", "commit", "--quiet", "-m", message)


class StepError(Exception):
    """A step of a workflow ended with an error."""


class Workflow:
    """A rendered workflow whose steps run here, with what GitHub gives them."""

    def __init__(self, checkout: Path, temporary: Path, context: dict, environment: dict[str, str]) -> None:
        self.jobs = yaml.safe_load((checkout / ".github/workflows/release.yml").read_text())["jobs"]
        self.checkout, self.temporary, self.context, self.environment = checkout, temporary, context, environment
        self.seen: list[str] = []
        temporary.mkdir()

    def value(self, expression: str) -> str:
        """The value of `a.b || 'text'`, the only form that steps use."""
        for part in expression.split(" || "):
            if part.startswith("'"):
                return part.strip("'")
            value: object = self.context
            for name in part.split("."):
                value = value.get(name, "") if isinstance(value, dict) else ""
            if value:
                return str(value)
        return ""

    def run(self, job: str, **matrix: object) -> dict[str, str]:
        """Run the steps of a job, each with its own shell as GitHub does; return the outputs."""
        self.context["matrix"] = matrix
        outputs = self.temporary / f"{job}.out"
        outputs.touch()
        for step in self.jobs[job]["steps"]:
            if "run" not in step or step["name"] in LEFT_OUT:
                continue
            assert "${{" not in step["run"]
            values = {
                name: re.sub(r"\$\{\{ (.*?) \}\}", lambda match: self.value(match[1]), str(text))
                for name, text in step.get("env", {}).items()
            }
            given = {"GITHUB_OUTPUT": str(outputs), "RUNNER_TEMP": str(self.temporary)}
            done = subprocess.run(
                ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
                cwd=self.checkout,
                env={**self.environment, **values, **given},
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise StepError(f"{job}, {step['name']}: {done.stdout}{done.stderr}")
            self.seen.append(f"{job}: {step['name']}")
        return dict(line.split("=", 1) for line in outputs.read_text().splitlines())


@pytest.fixture
def fork(engine, tmp_path):
    """A clone with a small cell of its own and a key, whose image is built, recorded, and said to have passed."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is no clone")
    root = tmp_path / "fork"
    call(tmp_path, "git", "clone", "--quiet", "--shared", str(ROOT), str(root))
    here = small.project(root, small.TRANSFORMERS[1])
    (cell,) = here.matrix.cells
    key = tmp_path / "release.key"
    knowngood(root, "keys", "make", str(key), "--no-passphrase")
    (root / "keys").mkdir()
    (root / "keys/release.pub").write_bytes(key.with_suffix(".pub").read_bytes())
    with (root / "matrix.yaml").open("a") as matrix:
        matrix.write(f"aliases: {{default: {cell}}}\npublish: {{tier: built, key: keys/release.pub}}\n")
    knowngood(root, "render")
    knowngood(root, "build", "--record", "default")
    # The one thing that is made up: this image has no torch, so its suite cannot run.
    record = Project(root).tree.load_record(cell)
    run = Evidence(
        cell=str(cell),
        where=RunPlace.CONTAINER_CPU,
        image=record.manifest.digest,
        when="2026-11-28T10:00:00+00:00",
        node={},
        command=("test",),
        report={"verdict": {"ok": True, "domain": "none", "text": ""}, "suite_hash": "5" * 64, "checks": []},
    )
    run_evidence.store_evidence(run, root / "evidence")
    knowngood(root, "keys", "seal", "--key", str(key))
    commit(root, "A cell of our own")
    yield SimpleNamespace(root=root, cell=str(cell), key=key, digest=record.manifest.digest)
    subprocess.run([*engine.docker, "rmi", "--force", f"knowngood:{cell}"], env=engine.environment(), check=False)


def test_a_fork_releases_its_image(fork, server, engine, tmp_path):
    checkout = tmp_path / "checkout"
    call(tmp_path, "git", "clone", "--quiet", str(fork.root), str(checkout))
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, words in {"knowngood": [sys.executable, "-m", "knowngood"], "docker": engine.docker}.items():
        (programs / name).write_text(f'#!/bin/sh\nexec {" ".join(map(str, words))} "$@"\n')
        (programs / name).chmod(0o755)
    repository = f"http://{server.address}/team/knowngood"
    context = {
        "vars": {"KNOWNGOOD_REPOSITORY": repository},
        "inputs": {"select": "default"},
        "secrets": {"KNOWNGOOD_SIGNING_KEY": fork.key.read_text()},
        "github": {"actor": "somebody", "token": "token"},
    }
    environment = {**os.environ, **engine.environment(), "PATH": f"{programs}:{os.environ['PATH']}"}
    workflow = Workflow(checkout, tmp_path / "runner", context, environment)

    plan = workflow.run("plan")
    assert json.loads(plan["wheels"])["include"] == []
    (image,) = json.loads(plan["images"])["include"]
    assert image["cells"] == fork.cell
    key = context["secrets"].pop("KNOWNGOOD_SIGNING_KEY")
    with pytest.raises(StepError, match="there is no private key to sign with"):
        workflow.run("publish", **image)
    context["secrets"]["KNOWNGOOD_SIGNING_KEY"] = key
    workflow.seen.remove("publish: build")
    workflow.run("publish", **image)
    workflow.run("promote")
    assert workflow.seen == [
        "plan: plan",
        "publish: build",
        "publish: push, by digest and then by its own tag",
        "promote: move the aliases to the digests that are published",
    ]
    assert call(checkout, "git", "status", "--porcelain") == ""

    verified = json.loads(knowngood(checkout, "publish", "--verify", f"{repository}:default", "--json"))
    assert verified["problems"] == []
    pulled = json.loads(knowngood(checkout, "pull", "default", "--from", repository, "--json"))["images"][0]
    assert pulled["digest"] == fork.digest
    assert pulled["signature"]["signed"]
