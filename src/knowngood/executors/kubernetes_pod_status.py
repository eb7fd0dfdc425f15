"""How a job stands by its pod: why the pod waits or failed, and when it ran. Pure; every time is the cluster's own.

Reasons and messages are the cluster's words: those of the kubelet (reasons of containers and pods) and of the scheduler
(the message of `PodScheduled`). An unknown failure counts as a crash, with these words.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from knowngood.executors.job import FailureCause, JobState, JobStatus
from knowngood.executors.kubernetes_manifest import CONTAINER
from knowngood.executors.kubernetes_report import NO_REPORT, TIMED_OUT

PATIENCE_SECONDS = 300
"""How long a pod may be without a node that fits, an image that can be pulled, or a quota that allows it."""
INDEX = "batch.kubernetes.io/job-completion-index"
_NODE_REASONS = (
    "NodeLost",
    "NodeShutdown",
    "Terminated",
    "NodeAffinity",
    "UnexpectedAdmissionError",
    "Preempting",
    "Shutdown",
    "ContainerStatusUnknown",
)
"""Reasons of a pod or container that mean a failure of the node; so do some of `Evicted`, and all like `OutOfcpu`."""
_PULL_REASONS = (
    "ErrImagePull",
    "ImagePullBackOff",
    "ImageInspectError",
    "RegistryUnavailable",
    "SignatureValidationFailed",
)
_NEVER_PULLED_REASONS = ("InvalidImageName", "ErrImageNeverPull")
_SIGKILL = 137

ApiObject = Mapping[str, Any]
"""An object of the Kubernetes API, as JSON."""


def pod_status(pod: ApiObject, now: datetime, *, final: bool) -> tuple[JobStatus, bool]:
    """Return the status by the last pod, which did not succeed, and whether the job is hopeless."""
    phase, node = pod["status"].get("phase"), pod["spec"].get("nodeName")
    if phase == "Failed":
        status, is_replaced = failed_pod_status(pod)
        if is_replaced and not final:
            status = JobStatus(state=JobState.QUEUED, text=f"{status.text}; another pod takes over")
        return status, False
    leaving = _time(pod["metadata"].get("deletionTimestamp"))
    if leaving and is_patience_over(leaving, now):
        text = f"its node {node} does not answer: the pod {pod['metadata']['name']} does not end"
        return JobStatus(state=JobState.FAILED, cause=FailureCause.NODE, text=text), True
    if phase == "Pending":
        return pending_pod_status(pod, now)
    return JobStatus(state=JobState.RUNNING, text=f"on {node}"), False


def failed_pod_status(pod: ApiObject) -> tuple[JobStatus, bool]:
    """Return the status by a pod in the phase Failed, and whether the Job creates another pod in its place."""
    status, terminated = pod["status"], _terminated(pod)
    reason, message = str(status.get("reason", "")), str(status.get("message", ""))
    words = [reason or str(terminated.get("reason", "")), message or _last_line(terminated.get("message"))]
    disruption = find_true_condition(pod, "DisruptionTarget")
    if disruption and reason != "DeadlineExceeded":
        text, cause, is_replaced = f"it was taken off its node {pod['spec'].get('nodeName')}", FailureCause.NODE, True
        words = [disruption.get("reason", ""), disruption.get("message", "")]
    else:
        text, cause, is_replaced = _failure(pod, reason, message)
    quoted = ": ".join(filter(None, words))
    text = f"{text} ({quoted})" if quoted else text
    return JobStatus(state=JobState.FAILED, cause=cause, text=text), is_replaced


def _failure(pod: ApiObject, reason: str, message: str) -> tuple[str, FailureCause, bool]:  # noqa: PLR0911 - one per kind
    """Return what happened to a failed pod, the cause, and whether another pod is created."""
    terminated, node = _terminated(pod), pod["spec"].get("nodeName")
    code, own_reason = terminated.get("exitCode"), str(terminated.get("reason", ""))
    if reason == "DeadlineExceeded":  # without a container, the image was still being pulled
        return "it did not end within its time", FailureCause.TIME_LIMIT, code is None
    if own_reason == "OOMKilled":
        return "it was killed at its limit of memory; --memory gives more", FailureCause.MEMORY, False
    if reason == "Evicted" and "exceeds" in message:
        return "it used more memory or disk than it may have", FailureCause.MEMORY, code is None
    if reason in (*_NODE_REASONS, "Evicted") or reason.startswith("OutOf") or own_reason in _NODE_REASONS:
        return f"its node {node} failed", FailureCause.NODE, code is None
    if own_reason in ("StartError", "ContainerCannotRun"):
        # A message of the GPU's hook is about the node; any other (no python in the image) is about the image.
        cause = FailureCause.NODE if "nvidia" in str(terminated.get("message")) else FailureCause.CRASH
        return f"its container did not start on {node}", cause, False
    if code is None:
        return f"its pod failed on {node} before the container started", FailureCause.NODE, True
    if code == TIMED_OUT:
        return "the suite did not end within its time", FailureCause.TIME_LIMIT, False
    if code == NO_REPORT:
        return "the suite ended and left no report", FailureCause.CRASH, False
    signal = f" (signal {code - 128}{', perhaps for memory' if code == _SIGKILL else ''})" if code > 128 else ""
    return f"it ended with exit code {code}{signal} and left no report", FailureCause.CRASH, False


def pending_pod_status(pod: ApiObject, now: datetime) -> tuple[JobStatus, bool]:
    """Return the status by a pending pod, and whether it is hopeless: the cluster itself would wait for ever."""
    scheduled = _condition(pod, "PodScheduled")
    if scheduled and scheduled["status"] == "False":
        words = str(scheduled.get("message") or scheduled.get("reason"))
        is_late = is_patience_over(datetime.fromisoformat(scheduled["lastTransitionTime"]), now)
        if scheduled.get("reason") == "Unschedulable" and not names_busy_nodes(words) and is_late:
            text = f"no node of the cluster fits: {words}"
            return JobStatus(state=JobState.REFUSED, cause=FailureCause.NO_NODE, text=text), True
        return JobStatus(state=JobState.QUEUED, text=f"waits for a node: {words}"), False
    waiting = _container_status(pod).get("state", {}).get("waiting") or {}
    reason, node = str(waiting.get("reason", "")), pod["spec"].get("nodeName")
    words = ": ".join(filter(None, [reason, str(waiting.get("message", ""))]))
    started = _time(pod["status"].get("startTime"))
    is_late = started is not None and is_patience_over(started, now)
    if reason in _NEVER_PULLED_REASONS or (reason in _PULL_REASONS and is_late):
        text = f"node {node} cannot pull the image: {words}"
        return JobStatus(state=JobState.FAILED, cause=FailureCause.IMAGE_PULL, text=text), True
    if reason.startswith(("CreateContainer", "RunContainer")) and is_late:
        text = f"node {node} does not start the container: {words}"
        return JobStatus(state=JobState.FAILED, cause=FailureCause.NODE, text=text), True
    return JobStatus(state=JobState.QUEUED, text=words or "its pod is about to start"), False


def names_busy_nodes(words: str) -> bool:
    """Return whether the scheduler speaks of nodes that fit but are busy, or has not judged any node yet."""
    return any(word in words for word in ("Insufficient", "Too many pods")) or "available:" not in words


def add_pod_times(status: JobStatus, pods: Sequence[ApiObject], pod: ApiObject, now: datetime) -> JobStatus:
    """Add the pod's node, and how long the job waited and ran."""
    started, ended = suite_times(pod)
    return replace(
        status,
        node=pod["spec"].get("nodeName"),
        queued=(started - creation_time(pods[0])).total_seconds() if started else None,
        ran=((ended or now) - started).total_seconds() if started else None,
    )


def suite_times(pod: ApiObject) -> tuple[datetime | None, datetime | None]:
    """Return when the suite's container started and ended."""
    ended, running = _terminated(pod), _container_status(pod).get("state", {}).get("running") or {}
    return _time(ended.get("startedAt") or running.get("startedAt")), _time(ended.get("finishedAt"))


def termination_message(pod: ApiObject) -> str | None:
    """Return the termination message of the suite's container."""
    return _terminated(pod).get("message")


def find_succeeded_pod(pods: Sequence[ApiObject]) -> ApiObject | None:
    """Return the pod that succeeded; the first if there are two (a node that seemed lost came back)."""
    return next((pod for pod in pods if pod["status"].get("phase") == "Succeeded"), None)


def is_patience_over(since: datetime, now: datetime) -> bool:
    return now - since > timedelta(seconds=PATIENCE_SECONDS)


def _condition(item: ApiObject, kind: str) -> ApiObject | None:
    return next((one for one in item.get("status", {}).get("conditions") or [] if one["type"] == kind), None)


def find_true_condition(item: ApiObject, kind: str) -> ApiObject | None:
    condition = _condition(item, kind)
    return condition if condition and condition["status"] == "True" else None


def _container_status(pod: ApiObject) -> ApiObject:
    """Return the status of the suite's container, which may be one of several where a site adds its own."""
    statuses: Sequence[ApiObject] = pod["status"].get("containerStatuses") or [{}]
    return next((one for one in statuses if one.get("name") == CONTAINER), statuses[0])


def _terminated(pod: ApiObject) -> ApiObject:
    return _container_status(pod).get("state", {}).get("terminated") or {}


def _last_line(text: Any) -> str:
    return next((line for line in reversed(str(text or "").splitlines()) if line.strip()), "")


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def creation_time(item: ApiObject) -> datetime:
    return datetime.fromisoformat(item["metadata"]["creationTimestamp"])


def pod_index(pod: ApiObject) -> int | None:
    metadata = pod["metadata"]
    text = (metadata.get("labels") or {}).get(INDEX) or (metadata.get("annotations") or {}).get(INDEX)
    return int(text) if text is not None and str(text).isdigit() else None


def pod_owner(pod: ApiObject) -> str:
    owners: Iterable[ApiObject] = pod["metadata"].get("ownerReferences") or []
    return next((str(owner["uid"]) for owner in owners if owner.get("controller")), "")
