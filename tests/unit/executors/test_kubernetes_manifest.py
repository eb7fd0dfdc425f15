"""The manifests of Jobs: golden files, and the API's own schema of several releases.

`KNOWNGOOD_GOLDEN=write pytest tests/unit/executors/test_kubernetes_manifest.py` writes the files anew; read the diff.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from jsonschema import ValidationError
from kubernetes.client import ApiClient, V1Job
from kubernetes_server import schema

from knowngood.core.errors import UsageError
from knowngood.executors import executor_choice, fleet_config
from knowngood.executors.job import JobNeeds, JobSubject, SuiteJob
from knowngood.executors.kubernetes_executor import read_pod_script
from knowngood.executors.kubernetes_manifest import (
    MANAGED,
    MAX_INDEXES,
    MAX_PAYLOAD_BYTES,
    MAX_SUITE_BYTES,
    PAYLOAD,
    job_manifest,
    kubernetes_batches,
    kubernetes_job_name,
    node_affinity,
    pack_suite,
    render_manifest,
)
from knowngood.project.checkout import Project, find_project
from knowngood.smoke.suite_files import read_suite_files
from knowngood.smoke.trainer_suite import find_cell_suite

GOLDEN = Path(__file__).parents[1] / "golden"
RELEASES = ("1.29", "1.31", "1.33", "1.35", "1.37")
SCRIPT = "import sys\n\nsys.exit()\n"
PACKED = pack_suite(read_suite_files(Path(__file__).parents[3] / "smoke_tests"))
PLAIN = fleet_config.KubernetesSection(engine="kubernetes", images="registry.example/team/knowngood")
DOCUMENT = Path(__file__).resolve().parents[3] / "docs/kubernetes.md"
EXAMPLES = re.findall(r"^```yaml\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)


def executor(name):
    """As the document's fleet.yaml has it."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / fleet_config.FLEET_FILE).write_text(EXAMPLES[2])
        return executor_choice.find_executor(name, Project(Path(folder)), print)[0]


B200 = executor("b200")


def job(cell="sm90-a", *, image="a", needs=None, **more):
    content = f"sha256:{image * 64}"
    return SuiteJob(
        cell=cell,
        subject=JobSubject(image=f"registry.example/team/knowngood@{content}", content=content),
        suite="5" * 64,
        suite_folder=Path(__file__).parents[3] / "smoke_tests",
        command=more.pop("command", ("-q", "--quick")),
        predictions=more.pop("predictions", {"fa2/*": {"outcome": "refused", "because": "no GPU"}}),
        needs=needs or JobNeeds(),
        **more,
    )


HOPPER = JobNeeds(gpu="sm_90", gpus=2, driver="580.65.06", cpus=8, memory=64 << 30, seconds=900)
CASES = {
    "cpu": ([job()], PLAIN),
    "gpu": (
        [job(needs=HOPPER, avoid=frozenset(["n7", "n2"])), job("sm90-b", needs=HOPPER, avoid=frozenset(["n2", "n7"]))],
        B200.section,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_manifests_are_equal_to_the_golden_files(case):
    jobs, settings = CASES[case]
    (batch,) = kubernetes_batches(jobs)
    path, made = GOLDEN / f"kubernetes-{case}.yaml", render_manifest(job_manifest(batch, settings, SCRIPT, "c3VpdGU="))
    if os.environ.get("KNOWNGOOD_GOLDEN") == "write":
        path.write_text(made)
    assert made == path.read_text()


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("case", CASES)
def test_the_schema_of_the_api_accepts_manifests(case, release):
    jobs, settings = CASES[case]
    made = job_manifest(jobs, settings, read_pod_script(), PACKED)
    schema(release).validate(made)
    made["spec"]["template"]["spec"]["containers"][0]["imagePolicy"] = "Never"
    with pytest.raises(ValidationError):
        schema(release).validate(made)


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_lost_in_the_clients_own_model(case):
    jobs, settings = CASES[case]
    made = job_manifest(jobs, settings, read_pod_script(), PACKED)
    read = ApiClient().deserialize(json.dumps(made), "V1Job", "application/json")
    assert isinstance(read, V1Job)
    assert ApiClient().sanitize_for_serialization(read) == made


def test_the_printed_manifest_is_the_same():
    jobs, settings = CASES["gpu"]
    (text,) = B200.rehearse(jobs)
    assert yaml.safe_load(text) == job_manifest(jobs, settings, read_pod_script(), PACKED)
    assert "&id" not in text
    assert '- |\n          """The program in the pod' in text


def test_the_largest_suite_and_the_largest_batch_fit_into_the_annotations_of_one_object():
    assert MAX_SUITE_BYTES + MAX_PAYLOAD_BYTES < 256 << 10
    assert len(PACKED) < MAX_SUITE_BYTES


def test_every_cell_of_the_matrix_has_a_suite_that_fits():
    project = find_project()
    for folder in {find_cell_suite(project, cell) for cell in project.matrix.cells}:
        assert len(pack_suite(read_suite_files(folder))) <= MAX_SUITE_BYTES


def test_kubernetes_expands_nothing_in_the_program():
    assert "$(" not in read_pod_script()
    assert "$$" not in read_pod_script()


def test_a_batch_has_one_image_one_suite_one_set_of_needs_and_a_bound():
    jobs = [job(image="a"), job(image="b"), job(needs=HOPPER), job("sm90-b"), job(avoid=frozenset(["n1"]))]
    jobs.append(replace(job(), suite="6" * 64))
    assert sorted(map(len, kubernetes_batches(jobs))) == [1, 1, 1, 1, 2]
    many = [job(attempt=number) for number in range(MAX_INDEXES + 1)]
    assert [len(batch) for batch in kubernetes_batches(many)] == [MAX_INDEXES, 1]
    large = [job(predictions={str(number): "x" * (MAX_PAYLOAD_BYTES // 3)}, attempt=number) for number in range(4)]
    assert [len(batch) for batch in kubernetes_batches(large)] == [2, 2]


def test_equal_predictions_are_in_a_manifest_once():
    made = job_manifest([job(attempt=number) for number in range(3)], PLAIN, SCRIPT, PACKED)
    payload = json.loads(made["spec"]["template"]["metadata"]["annotations"][PAYLOAD])
    assert len(payload["predictions"]) == 1
    assert [one["predictions"] for one in payload["jobs"]] == [0, 0, 0]


def test_equal_work_has_an_equal_name():
    one, other = job(), job("sm90-b")
    assert kubernetes_job_name([one, other]) == kubernetes_job_name([other, one])
    assert (
        len(
            {
                kubernetes_job_name([one]),
                kubernetes_job_name([other]),
                kubernetes_job_name([one, other]),
                kubernetes_job_name([one], 1),
            }
        )
        == 4
    )


@pytest.mark.parametrize("needs", [JobNeeds(gpu="hopper"), JobNeeds(gpu="sm_90", driver="R580")])
def test_malformed_needs_are_refused(needs):
    with pytest.raises(UsageError, match="is not a "):
        node_affinity(needs, ())


def test_the_manifests_in_the_docs_are_valid():
    role, policy = map(yaml.safe_load, EXAMPLES[:2])
    schema("1.33", "role-rbac-v1").validate(role)
    schema("1.33", "networkpolicy-networking-v1").validate(policy)
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= MANAGED.items()
