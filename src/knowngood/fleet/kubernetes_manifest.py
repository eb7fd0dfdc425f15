"""Jobs as Kubernetes is told of them: one Indexed Job for all that want the same image, node and limits. Pure.

Everything a Job needs is in the Job: the program as the container's command, commands and predictions as an annotation
that the pod sees as a file. So one request makes it whole or not at all, and nothing else is to be cleaned up after it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import yaml

from knowngood.fleet.job import GRACE, Job, Needs
from knowngood.fleet.kubernetes_failure import NO_REPORT, TIMED_OUT
from knowngood.fleet.kubernetes_nodes import GPU, affinity
from knowngood.fleet.kubernetes_report import BEGIN, END

MANAGED = {"app.kubernetes.io/managed-by": "knowngood"}
"""The label of all that is ours."""
KEYS = "io.knowngood/keys"
"""Annotation of a Job: the keys of its jobs, by completion index."""
GIVEN_UP = "io.knowngood/given-up"
"""Annotation of a Job: how the jobs stand that were ended from outside (JSON, by key)."""
PAYLOAD = "io.knowngood/jobs"
CONTAINER = "suite"
MOST_INDEXES = 50
MOST_BYTES = 150_000
"""Of annotations an object may have 256 KiB."""
RETRIES = 2
"""Of an index whose pod failed without a word of its container: not admitted, never started."""
_USER = 65532
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "HOME": "/tmp",  # noqa: S108  # an emptyDir
    "LOGNAME": "knowngood",  # the user has no entry in the image's passwd, and torch asks for its name
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUNBUFFERED": "1",
    "USER": "knowngood",
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a site says of its cluster."""

    name: str = "kubernetes"
    context: str | None = None
    """Of the kubeconfig; `None`: its current one, or the service account where the program runs in a pod."""
    namespace: str = "default"
    pull_secrets: tuple[str, ...] = ()
    tolerations: tuple[Mapping[str, Any], ...] = ()
    """Beside that of `nvidia.com/gpu`."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Of the Jobs and their pods, for the site's quotas and queues."""
    select: Mapping[str, str] = field(default_factory=dict)
    """Labels that a node must have beside those that the needs ask for."""
    runtime_class: str | None = None
    priority_class: str | None = None
    patience: int = 300
    """Seconds that a pod may be without any node that fits, an image that can be pulled, or a quota that allows it."""
    pull: int = 600
    """Seconds that a node may take to pull an image."""
    queue: int = 86400
    """Seconds that a job may wait for a node that fits and is busy."""
    keep: int = 21600
    """Seconds that a Job which ended stays, with its log: so long a killed run can be taken up."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """What runs in the pod."""

    script: str
    """The text of `kubernetes_pod.py`."""
    suite: str
    """The suite's folder in the images."""


def batches(jobs: Iterable[Job]) -> list[list[Job]]:
    """Jobs that one Indexed Job can carry together: it has one pod template, and so one image and one set of needs."""

    def template(job: Job) -> str:
        return json.dumps([job.subject.image, repr(job.needs), sorted(job.avoid)])

    found: list[list[Job]] = []
    for _, alike in groupby(sorted(jobs, key=template), key=template):
        batch: list[Job] = []
        for job in alike:
            if batch and (len(batch) == MOST_INDEXES or len(_payload([*batch, job], "")) > MOST_BYTES):
                found.append(batch)
                batch = []
            batch.append(job)
        found.append(batch)
    return found


def name(batch: Sequence[Job], generation: int = 0) -> str:
    """The Job's name, the same for the same work; a later generation is for what was ended from outside before."""
    text = "\n".join([*sorted(job.key for job in batch), str(generation)])
    return f"knowngood-{hashlib.sha256(text.encode()).hexdigest()[:20]}"


def manifest(batch: Sequence[Job], settings: Settings, program: Program, generation: int = 0) -> dict[str, Any]:
    """The Job of a batch, as the API takes it."""
    needs = batch[0].needs
    labels = {**settings.labels, **MANAGED}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name(batch, generation),
            "namespace": settings.namespace,
            "labels": labels,
            "annotations": {KEYS: " ".join(job.key for job in batch)},
        },
        "spec": {
            "completionMode": "Indexed",
            "completions": len(batch),
            "parallelism": len(batch),
            "backoffLimitPerIndex": RETRIES,
            "activeDeadlineSeconds": settings.queue + settings.pull + needs.seconds + GRACE,
            "ttlSecondsAfterFinished": settings.keep,
            "podFailurePolicy": {
                "rules": [
                    # Evicted, preempted, its node gone: another pod takes over, and it is no failure of the image.
                    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                    # The suite has spoken: the same again would say the same.
                    {
                        "action": "FailIndex",
                        "onExitCodes": {"containerName": CONTAINER, "operator": "NotIn", "values": [0]},
                    },
                ]
            },
            "template": {
                "metadata": {"labels": labels, "annotations": {PAYLOAD: _payload(batch, program.suite)}},
                "spec": _pod(batch[0], settings, program),
            },
        },
    }


def written(document: Mapping[str, Any]) -> str:
    """A manifest as YAML for people: no anchors, and texts of several lines as they are."""
    return "---\n" + yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=1000)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)


def _payload(batch: Sequence[Job], suite: str) -> str:
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
    told = {
        "suite": suite,
        "seconds": batch[0].needs.seconds,
        "begin": BEGIN,
        "end": END,
        "no-report": NO_REPORT,
        "timed-out": TIMED_OUT,
        "jobs": jobs,
        "predictions": predictions,
    }
    return json.dumps(told)


def _pod(job: Job, settings: Settings, program: Program) -> dict[str, Any]:
    needs = job.needs
    spec = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": settings.pull + needs.seconds + GRACE,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "shareProcessNamespace": True,  # its first process reaps what the suite's workers leave behind
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "nodeSelector": {"kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux", **settings.select},
        "affinity": affinity(needs, job.avoid),
        "tolerations": [
            *([{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}] if needs.gpu else []),
            *map(dict, settings.tolerations),
        ],
        "imagePullSecrets": [{"name": secret} for secret in settings.pull_secrets],
        "runtimeClassName": settings.runtime_class,
        "priorityClassName": settings.priority_class,
        "containers": [_container(job, program)],
        "volumes": [
            {"name": "tmp", "emptyDir": {}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
            {
                "name": "jobs",
                "downwardAPI": {
                    "items": [{"path": "jobs.json", "fieldRef": {"fieldPath": f"metadata.annotations['{PAYLOAD}']"}}]
                },
            },
        ],
    }
    return {key: value for key, value in spec.items() if value not in (None, [])}


def _container(job: Job, program: Program) -> dict[str, Any]:
    environment = _ENVIRONMENT if job.needs.gpu else {**_ENVIRONMENT, "NVIDIA_VISIBLE_DEVICES": "void"}
    return {
        "name": CONTAINER,
        "image": job.subject.image,
        "imagePullPolicy": "IfNotPresent",
        "terminationMessagePolicy": "FallbackToLogsOnError",  # the last lines, where the suite could not speak
        "command": ["python", "-c", program.script],
        "workingDir": "/tmp",  # noqa: S108
        "env": [{"name": key, "value": value} for key, value in sorted(environment.items())],
        "resources": _resources(job.needs),
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


def _resources(needs: Needs) -> dict[str, Any]:
    memory = str(needs.memory)
    gpus = {GPU: str(max(needs.gpus, 1))} if needs.gpu else {}
    return {
        "requests": {"cpu": str(needs.cpus), "memory": memory},
        "limits": {"memory": memory, **gpus},
    }
