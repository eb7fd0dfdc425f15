"""What a Kubernetes Job of ours would run, run by the engine here: its image, command, user, limits and mounts.

There is no Kubernetes in this test (see docs/decisions/0802-kubernetes.md), and no fake of one: the container gets what
the kubelet would give it, and its log and termination message are read as the executor reads a pod's.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from conftest import ROOT

from knowngood import predictions, smoke
from knowngood.building import pipeline
from knowngood.cell import parse
from knowngood.fleet.job import Job, Needs, Subject
from knowngood.fleet.kubernetes import program
from knowngood.fleet.kubernetes_manifest import PAYLOAD, Settings, manifest
from knowngood.fleet.kubernetes_report import read, said, without
from knowngood.project import Project

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def image(engine):
    """The default cell's, built by `.ci/run`'s first command or here."""
    here = Project(ROOT)
    line = pipeline.Pipeline(here, pipeline.Options(wheelhouse=Path("/nonexistent"), locked=True), engine)
    locked, _, _ = line.lock(parse(here.matrix.aliases["default"]), print)
    return line.image(line.plan(locked, print), locked, print), locked


def pod(engine, template, index, folder):
    """Run the pod's container as the kubelet would; exit code, log, and what it wrote as its last words."""
    spec = template["spec"]
    (container,) = spec["containers"]
    (folder / "jobs.json").write_text(template["metadata"]["annotations"][PAYLOAD])
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
                str(folder / "jobs.json"): {"bind": f"{mounted['jobs']}/jobs.json", "mode": "ro"},
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
    options = smoke.Options(quick=True, seconds=100)
    told = predictions.predict(Project(ROOT).predictions, locked.cell, gpu=False)
    job = Job(
        cell=str(locked.cell),
        subject=Subject(image=found.tag, content=found.digest),
        suite="of the image",
        command=("-q", "-p", "no:cacheprovider", "--quick", "-k", "eager and fp32 and dense"),
        predictions=told,
        needs=Needs(seconds=options.seconds, memory=12 << 30),
    )
    other = Job(
        cell=str(locked.cell), subject=job.subject, suite="", command=("--help",), predictions={}, needs=job.needs
    )
    template = manifest([other, job], Settings(), program())["spec"]["template"]
    code, log, last = pod(engine, template, 1, tmp_path)
    assert code == 0, log[-3000:]
    message = said(last)
    assert message.key == job.key
    report = read(log, job.key, message.sha256)
    assert report["verdict"]["ok"], report["verdict"]["text"]
    passed = {check["id"] for check in report["checks"] if check["outcome"] == "pass"}
    assert "eager/fp32/dense/full" in passed
    assert report["environment"]["torch"].startswith(locked.cell.torch)
    assert "attention settings" in without(log)
