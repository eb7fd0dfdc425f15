"""The Kubernetes Job of a batch: one Indexed Job for all jobs with the same image, node and limits. Pure.

The Job contains everything that it needs: the program is the container's command; the suite, and the jobs' commands and
predictions, are annotations, which the pod sees as files. So one request creates it whole or not at all, and nothing
else has to be removed later.

Manifests are plain dictionaries, as the API and kubectl take them; tests hold them against the API's schema and the
client's models. Decision 0802 says why the client's models do not build them.

Nodes are chosen by node affinity over the labels of NVIDIA's GPU feature discovery, as its sources write them
(k8s-device-plugin, internal/lm/nvml.go): the compute capability as `nvidia.com/gpu.compute.major` and `.minor`, the
driver's version divided at its dots, under two names. `Gt` and `Lt` compare whole numbers, and read `02` as 2; an empty
label (of a driver without a third number) is not a number and matches neither.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml

from knowngood.core.errors import UsageError
from knowngood.executors.fleet_config import KubernetesSection
from knowngood.executors.job import GRACE_SECONDS, JobNeeds, SuiteJob, batch_jobs
from knowngood.executors.kubernetes_report import NO_REPORT, REPORT_BEGIN, REPORT_END, TIMED_OUT

MANAGED = {"app.kubernetes.io/managed-by": "knowngood"}
"""The label of everything that the executor creates."""
KEYS = "io.knowngood/keys"
"""Annotation of a Job: the keys of its jobs, by completion index."""
GIVEN_UP = "io.knowngood/given-up"
"""Annotation of a Job: the status of jobs that an executor ended (JSON, by key)."""
PAYLOAD = "io.knowngood/jobs"
"""Annotation of a pod: the jobs of its batch, which `kubernetes_pod` reads."""
SUITE = "io.knowngood/suite"
"""Annotation of a pod: the files of the suite, as `pack_suite` writes and `kubernetes_pod` reads them."""
CONTAINER = "suite"
MAX_INDEXES = 50
MAX_PAYLOAD_BYTES = 150_000
"""Of the 256 KiB of annotations that an object may have."""
MAX_SUITE_BYTES = 110_000
"""Of those too, packed; that of a cell without a trainer needs about 60 kB."""
RETRIES = 2
"""Of an index whose pod failed before its container started: not admitted, never started."""
PULL_SECONDS = 600
"""How long a node may take to pull an image."""
QUEUE_SECONDS = 86_400
"""How long a job may wait for a node that fits but is busy."""
KEEP_SECONDS = 21_600
"""How long a finished Job and its log stay, so that a program that was killed can still collect the result."""
GPU = "nvidia.com/gpu"
COMPUTE_LABELS = ("nvidia.com/gpu.compute.major", "nvidia.com/gpu.compute.minor")
DRIVER_LABELS = (
    (
        "nvidia.com/cuda.driver-version.major",
        "nvidia.com/cuda.driver-version.minor",
        "nvidia.com/cuda.driver-version.revision",
    ),
    ("nvidia.com/cuda.driver.major", "nvidia.com/cuda.driver.minor", "nvidia.com/cuda.driver.rev"),
)
"""The current names, and the deprecated ones, which are all that older releases write."""
_USER = 65532
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "HOME": "/tmp",  # noqa: S108  # an emptyDir
    "LOGNAME": "knowngood",  # the user has no entry in the image's passwd, and torch asks for its name
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUNBUFFERED": "1",
    "USER": "knowngood",
}

Expression = Mapping[str, Any]
"""A requirement of node affinity: key, operator, values."""


def kubernetes_batches(jobs: Iterable[SuiteJob]) -> list[list[SuiteJob]]:
    """Divide jobs into Indexed Jobs. A Job has one pod template, and so one image, suite and set of needs."""

    def shape(job: SuiteJob) -> str:
        return json.dumps([job.subject.image, job.suite, repr(job.needs), sorted(job.avoid)])

    def fits(batch: Sequence[SuiteJob]) -> bool:
        return len(batch) <= MAX_INDEXES and len(_payload(batch)) <= MAX_PAYLOAD_BYTES

    return batch_jobs(jobs, shape, fits)


def kubernetes_job_name(batch: Sequence[SuiteJob], generation: int = 0) -> str:
    """Return the Job's name. Equal work has an equal name, unless `generation` counts Jobs for it that were ended."""
    text = "\n".join([*sorted(job.key for job in batch), str(generation)])
    return f"knowngood-{hashlib.sha256(text.encode()).hexdigest()[:20]}"


def job_manifest(
    batch: Sequence[SuiteJob], section: KubernetesSection, script: str, suite: str, generation: int = 0
) -> dict[str, Any]:
    """Return the Job of a batch, as the API takes it.

    `script` is the text of `kubernetes_pod.py`, `suite` what `pack_suite` returns.
    """
    needs = batch[0].needs
    labels = {**section.labels, **MANAGED}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": kubernetes_job_name(batch, generation),
            "namespace": section.namespace,
            "labels": labels,
            "annotations": {KEYS: " ".join(job.key for job in batch)},
        },
        "spec": {
            "completionMode": "Indexed",
            "completions": len(batch),
            "parallelism": len(batch),
            "backoffLimitPerIndex": RETRIES,
            "activeDeadlineSeconds": QUEUE_SECONDS + PULL_SECONDS + needs.seconds + GRACE_SECONDS,
            "ttlSecondsAfterFinished": KEEP_SECONDS,
            "podFailurePolicy": {
                "rules": [
                    # Evicted, preempted, or its node is gone: another pod takes over, and the image did not fail.
                    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                    # The program has ended: another run would end in the same way.
                    {
                        "action": "FailIndex",
                        "onExitCodes": {"containerName": CONTAINER, "operator": "NotIn", "values": [0]},
                    },
                ]
            },
            "template": {
                "metadata": {"labels": labels, "annotations": {PAYLOAD: _payload(batch), SUITE: suite}},
                "spec": _pod(batch[0], section, script),
            },
        },
    }


def pack_suite(files: Mapping[str, bytes]) -> str:
    """Return the files of a suite as one word: JSON of path and text, compressed, in base64."""
    text = json.dumps({name: data.decode() for name, data in files.items()})
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def render_manifest(document: Mapping[str, Any]) -> str:
    """Return a manifest as YAML for people: without anchors, and with texts of several lines as blocks."""
    return "---\n" + yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=1000)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)


def _payload(batch: Sequence[SuiteJob]) -> str:
    predictions = [*{json.dumps(job.predictions, sort_keys=True): job.predictions for job in batch}.values()]
    jobs = [
        {
            "cell": job.cell,
            "key": job.key,
            "command": list(job.command),
            "predictions": predictions.index(job.predictions),
        }
        for job in batch
    ]
    payload = {
        "seconds": batch[0].needs.seconds,
        "begin": REPORT_BEGIN,
        "end": REPORT_END,
        "no-report": NO_REPORT,
        "timed-out": TIMED_OUT,
        "jobs": jobs,
        "predictions": predictions,
    }
    return json.dumps(payload)


def _pod(job: SuiteJob, section: KubernetesSection, script: str) -> dict[str, Any]:
    needs = job.needs
    spec = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": PULL_SECONDS + needs.seconds + GRACE_SECONDS,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "shareProcessNamespace": True,  # its first process reaps the processes that the suite's workers leave
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "nodeSelector": {"kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux", **section.select},
        "affinity": node_affinity(needs, job.avoid),
        "tolerations": [
            *([{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}] if needs.gpu else []),
            *map(dict, section.tolerations),
        ],
        "imagePullSecrets": [{"name": secret} for secret in section.pull_secrets],
        "runtimeClassName": section.runtime_class,
        "priorityClassName": section.priority_class,
        "containers": [_container(job, script)],
        "volumes": [
            {"name": "tmp", "emptyDir": {}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
            {
                "name": "jobs",
                "downwardAPI": {
                    "items": [
                        {"path": path, "fieldRef": {"fieldPath": f"metadata.annotations['{annotation}']"}}
                        for path, annotation in (("jobs.json", PAYLOAD), ("suite", SUITE))
                    ]
                },
            },
        ],
    }
    return {key: value for key, value in spec.items() if value not in (None, [])}


def _container(job: SuiteJob, script: str) -> dict[str, Any]:
    environment = _ENVIRONMENT if job.needs.gpu else {**_ENVIRONMENT, "NVIDIA_VISIBLE_DEVICES": "void"}
    memory = str(job.needs.memory)
    return {
        "name": CONTAINER,
        "image": job.subject.image,
        "imagePullPolicy": "IfNotPresent",
        "terminationMessagePolicy": "FallbackToLogsOnError",  # the last log lines, if the program writes none
        "command": ["python", "-c", script],
        "workingDir": "/tmp",  # noqa: S108
        "env": [{"name": key, "value": value} for key, value in sorted(environment.items())],
        "resources": {
            "requests": {"cpu": str(job.needs.cpus), "memory": memory},
            "limits": {"memory": memory, **({GPU: str(max(job.needs.gpus, 1))} if job.needs.gpu else {})},
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108
            {"name": "jobs", "mountPath": "/knowngood", "readOnly": True},
        ],
    }


def node_affinity(needs: JobNeeds, avoid: Iterable[str]) -> dict[str, Any] | None:
    """Return the pod's `affinity`; `None` when any node will do. Raises `UsageError` for malformed needs."""
    capability = _capability(needs.gpu) if needs.gpu else []
    fields = [_expression("metadata.name", "NotIn", node) for node in sorted(avoid)]
    alternatives = _driver_alternatives(needs.driver) if needs.gpu and needs.driver else [[]]
    terms = [{"matchExpressions": [*capability, *driver], "matchFields": fields} for driver in alternatives]
    terms = [{key: value for key, value in term.items() if value} for term in terms]
    if not any(terms):
        return None
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def _capability(gpu: str) -> list[Expression]:
    match = re.fullmatch(r"sm_(\d{1,2})(\d)", gpu)
    if not match:
        raise UsageError(f"{gpu!r} is not a compute architecture such as sm_90")
    return [_expression(label, "In", number) for label, number in zip(COMPUTE_LABELS, match.groups(), strict=True)]


def _driver_alternatives(minimum: str) -> list[list[Expression]]:
    """Return the ways to have at least this driver, for both names of the labels.

    For 580.65.06: a later major number; the same and a later minor number; the same two and at least this revision.
    """
    if not re.fullmatch(r"\d+(\.\d+){0,2}", minimum):
        raise UsageError(f"{minimum!r} is not a driver version such as 580.65.06")
    numbers = [int(part) for part in minimum.split(".")]
    while len(numbers) > 1 and not numbers[-1]:  # x.0 is every x, also where the label is empty
        numbers.pop()
    alternatives = []
    for labels in DRIVER_LABELS:
        parts = list(zip(labels, numbers, strict=False))
        for place, (label, number) in enumerate(parts):
            is_last = place == len(parts) - 1
            same = [item for before, value in parts[:place] for item in _equal(before, value)]
            alternatives.append([*same, _expression(label, "Gt", str(number - is_last))])
    return alternatives


def _equal(label: str, number: int) -> list[Expression]:
    """Compare as numbers, since a label may be `02`. Nothing is below 0, since no label has the value `-1`."""
    above = [_expression(label, "Gt", str(number - 1))] if number else []
    return [*above, _expression(label, "Lt", str(number + 1))]


def _expression(key: str, operator: str, value: str) -> Expression:
    return {"key": key, "operator": operator, "values": [value]}
