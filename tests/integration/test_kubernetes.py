"""What a Kubernetes Job of ours would run, run by the engine here: its image, command, user, limits and mounts.

There is no Kubernetes in this test (see docs/decisions/0802-kubernetes.md), and no fake of one: the container gets what
the kubelet would give it, and its log and termination message are read as the executor reads a pod's.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from conftest import ROOT

from knowngood.core.cell import parse_cell
from knowngood.executors.fleet_config import KubernetesSection
from knowngood.executors.job import JobNeeds, JobSubject, SuiteJob
from knowngood.executors.kubernetes_executor import read_pod_script
from knowngood.executors.kubernetes_manifest import PAYLOAD, SUITE, job_manifest, pack_suite
from knowngood.executors.kubernetes_report import parse_termination_message, report_from_log
from knowngood.images import pipeline
from knowngood.project.checkout import Project
from knowngood.smoke import predictions, suite_command
from knowngood.smoke.suite_files import read_suite_files

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def image(engine):
    """The default cell's, built by `.ci/run`'s first command or here."""
    here = Project(ROOT)
    line = pipeline.Pipeline(here, pipeline.PipelineOptions(wheelhouse=Path("/nonexistent"), locked=True), engine)
    locked, _ = line.lock(parse_cell(here.matrix.aliases["default"]), print)
    return line.image(line.plan(locked, print), print), locked


def pod(engine, template, index, folder):
    """Run the pod's container as the kubelet would; exit code, log, and what it wrote as its last words."""
    spec = template["spec"]
    (container,) = spec["containers"]
    files = {"jobs.json": PAYLOAD, "suite": SUITE}
    for name, annotation in files.items():
        (folder / name).write_text(template["metadata"]["annotations"][annotation])
    last = folder / "termination-log"
    last.touch()
    last.chmod(0o666)
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert volumes.keys() == mounted.keys()
    memory = {mounted["tmp"]: "mode=1777,exec", mounted["shm"]: "mode=1777,size=1g"}
    security, whole = container["securityContext"], spec["securityContext"]
    with closing(engine.client()) as client:
        made = client.containers.create(
            container["image"],
            container["command"],
            entrypoint="",
            environment={item["name"]: item["value"] for item in container["env"]}
            | {"JOB_COMPLETION_INDEX": str(index)},
            working_dir=container["workingDir"],
            user=f"{whole['runAsUser']}:{whole['runAsGroup']}",
            read_only=security["readOnlyRootFilesystem"],
            cap_drop=security["capabilities"]["drop"],
            security_opt=["no-new-privileges"],
            mem_limit=int(container["resources"]["limits"]["memory"]),
            network_mode="none",
            tmpfs=memory,
            volumes={
                **{str(folder / name): {"bind": f"{mounted['jobs']}/{name}", "mode": "ro"} for name in files},
                str(last): {"bind": "/dev/termination-log", "mode": "rw"},
            },
        )
        try:
            made.start()
            code = made.wait(timeout=120)["StatusCode"]
            return code, made.logs().decode(errors="replace"), last.read_text()
        finally:
            made.remove(force=True, v=True)


def test_the_pods_command_line_delivers_the_suites_report(engine, image, tmp_path):
    found, locked = image
    options = suite_command.SuiteOptions(quick=True, seconds=100)
    told = predictions.predictions_for_cell(predictions.load_predictions(ROOT), locked.cell, gpu=False)
    job = SuiteJob(
        cell=str(locked.cell),
        subject=JobSubject(image=found.tag, content=found.digest),
        suite="5" * 64,
        suite_folder=ROOT / "smoke_tests",
        command=("-q", "-p", "no:cacheprovider", "--quick", "-k", "eager and fp32 and dense"),
        predictions=told,
        needs=JobNeeds(seconds=options.seconds, memory=12 << 30),
    )
    other = SuiteJob(
        cell=str(locked.cell),
        subject=job.subject,
        suite="",
        suite_folder=job.suite_folder,
        command=("--help",),
        predictions={},
        needs=job.needs,
    )
    section = KubernetesSection(engine="kubernetes", images="registry.test/knowngood")
    template = job_manifest(
        [other, job], section, read_pod_script(), pack_suite(read_suite_files(ROOT / "smoke_tests"))
    )["spec"]["template"]
    code, log, last = pod(engine, template, 1, tmp_path)
    assert code == 0, log[-3000:]
    message = parse_termination_message(last)
    assert message.key == job.key
    report = report_from_log(log, job.key, message.sha256)
    assert report["verdict"]["ok"], report["verdict"]["text"]
    passed = {check["id"] for check in report["checks"] if check["outcome"] == "pass"}
    assert "eager/fp32/dense/full" in passed
    assert report["environment"]["torch"].startswith(locked.cell.torch)
    assert "attention settings" in log
