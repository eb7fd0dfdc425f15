"""The Jobs as Kubernetes is told of them: golden files, and the API's own schema of several releases.

`KNOWNGOOD_GOLDEN=write pytest tests/unit/test_kubernetes_manifest.py` writes the files anew; read the diff.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from pathlib import Path

import pytest
import yaml
from jsonschema import ValidationError
from kubernetes.client import ApiClient, V1Job
from kubernetes_server import schema

from knowngood.errors import UsageError
from knowngood.fleet import config, engines
from knowngood.fleet.job import Job, Needs, Subject
from knowngood.fleet.kubernetes import program
from knowngood.fleet.kubernetes_manifest import (
    MANAGED,
    MOST_BYTES,
    MOST_INDEXES,
    PAYLOAD,
    Program,
    Settings,
    batches,
    manifest,
    name,
    written,
)
from knowngood.fleet.kubernetes_nodes import affinity
from knowngood.project import Project

GOLDEN = Path(__file__).parent / "golden"
RELEASES = ("1.29", "1.31", "1.33", "1.35", "1.37")
PROGRAM = Program(script="import sys\n\nsys.exit()\n", suite="/opt/knowngood/smoke_tests")
DOCUMENT = Path(__file__).resolve().parents[2] / "docs/kubernetes.md"
EXAMPLES = re.findall(r"^```yaml\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)


def executor(name):
    """As the document's fleet.yaml has it."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / config.FILE).write_text(EXAMPLES[2])
        return engines.find(name, Project(Path(folder)), print).executor


B200 = executor("b200")


def job(cell="sm90-a", *, image="a", needs=None, **more):
    content = f"sha256:{image * 64}"
    return Job(
        cell=cell,
        subject=Subject(image=f"registry.example/team/knowngood@{content}", content=content),
        suite="5" * 64,
        command=more.pop("command", ("-q", "--quick")),
        predictions=more.pop("predictions", {"fa2/*": {"outcome": "refused", "because": "no GPU"}}),
        needs=needs or Needs(),
        **more,
    )


HOPPER = Needs(gpu="sm_90", gpus=2, driver="580.65.06", cpus=8, memory=64 << 30, seconds=900)
CASES = {
    "cpu": ([job()], Settings()),
    "gpu": (
        [job(needs=HOPPER, avoid=frozenset(["n7", "n2"])), job("sm90-b", needs=HOPPER, avoid=frozenset(["n2", "n7"]))],
        B200.settings,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_manifests_are_as_they_were(case):
    jobs, settings = CASES[case]
    (batch,) = batches(jobs)
    path, made = GOLDEN / f"kubernetes-{case}.yaml", written(manifest(batch, settings, PROGRAM))
    if os.environ.get("KNOWNGOOD_GOLDEN") == "write":
        path.write_text(made)
    assert made == path.read_text()


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("case", CASES)
def test_the_schema_of_the_api_takes_them(case, release):
    jobs, settings = CASES[case]
    made = manifest(jobs, settings, program())
    schema(release).validate(made)
    made["spec"]["template"]["spec"]["containers"][0]["imagePolicy"] = "Never"
    with pytest.raises(ValidationError):
        schema(release).validate(made)


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_lost_in_the_clients_own_model(case):
    jobs, settings = CASES[case]
    made = manifest(jobs, settings, program())
    read = ApiClient().deserialize(json.dumps(made), "V1Job", "application/json")
    assert isinstance(read, V1Job)
    assert ApiClient().sanitize_for_serialization(read) == made


def test_what_is_printed_is_the_same_manifest():
    jobs, settings = CASES["gpu"]
    (text,) = B200.rehearse(jobs)
    assert yaml.safe_load(text) == manifest(jobs, settings, program())
    assert "&id" not in text
    assert '- |\n          """What runs in the pod' in text


def test_kubernetes_expands_nothing_in_the_program():
    assert "$(" not in program().script
    assert "$$" not in program().script


def test_a_batch_has_one_image_one_set_of_needs_and_a_bound():
    jobs = [job(image="a"), job(image="b"), job(needs=HOPPER), job("sm90-b"), job(avoid=frozenset(["n1"]))]
    assert sorted(map(len, batches(jobs))) == [1, 1, 1, 2]
    many = [job(attempt=number) for number in range(MOST_INDEXES + 1)]
    assert [len(batch) for batch in batches(many)] == [MOST_INDEXES, 1]
    large = [job(predictions={str(number): "x" * (MOST_BYTES // 3)}, attempt=number) for number in range(4)]
    assert [len(batch) for batch in batches(large)] == [2, 2]


def test_predictions_of_a_cell_are_carried_once():
    made = manifest([job(attempt=number) for number in range(3)], Settings(), PROGRAM)
    payload = json.loads(made["spec"]["template"]["metadata"]["annotations"][PAYLOAD])
    assert len(payload["predictions"]) == 1
    assert [one["predictions"] for one in payload["jobs"]] == [0, 0, 0]


def test_the_name_is_of_the_work():
    one, other = job(), job("sm90-b")
    assert name([one, other]) == name([other, one])
    assert len({name([one]), name([other]), name([one, other]), name([one], 1)}) == 4


@pytest.mark.parametrize("needs", [Needs(gpu="hopper"), Needs(gpu="sm_90", driver="R580")])
def test_needs_that_cannot_be_read(needs):
    with pytest.raises(UsageError, match="one is written like"):
        affinity(needs, ())


def test_the_manifests_of_the_document_are_such():
    role, policy = map(yaml.safe_load, EXAMPLES[:2])
    schema("1.33", "role-rbac-v1").validate(role)
    schema("1.33", "networkpolicy-networking-v1").validate(policy)
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= MANAGED.items()
