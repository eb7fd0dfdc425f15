"""Why a pod failed, or does not begin. Pure.

The words are the cluster's: of the kubelet (reasons of containers and of pods), the scheduler (the message of
`PodScheduled`), the Job controller. What is not known by name is a crash of what ran, with those words in the text.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from knowngood.fleet.job import Cause, State, Status

NO_REPORT, TIMED_OUT = 3, 124
"""Exit codes of the pod's program: the suite left no report; it was stopped after its time."""
Object = Mapping[str, Any]
NODE_REASONS = (
    "NodeLost",
    "NodeShutdown",
    "Terminated",
    "NodeAffinity",
    "UnexpectedAdmissionError",
    "Preempting",
    "Shutdown",
    "ContainerStatusUnknown",
)
"""Of a pod or container: it is the node's doing. `Evicted` and `OutOfcpu` and their like are looked at on their own."""
PULL_REASONS = (
    "ErrImagePull",
    "ImagePullBackOff",
    "ImageInspectError",
    "RegistryUnavailable",
    "SignatureValidationFailed",
)
NEVER_PULLED = ("InvalidImageName", "ErrImageNeverPull")
_SIGKILL = 137


def failed(pod: Object) -> tuple[Status, bool]:  # noqa: PLR0911 - one a kind of failure
    """How a pod in the phase Failed stands, and whether the Job makes another in its place."""
    status = pod["status"]
    reason, message = str(status.get("reason", "")), str(status.get("message", ""))
    container = _container(pod)
    ended: Object = container.get("state", {}).get("terminated") or {}
    code = ended.get("exitCode")
    node = pod["spec"].get("nodeName")
    words = ": ".join(filter(None, [reason or str(ended.get("reason", "")), message or _last(ended.get("message"))]))

    def made(cause: Cause, text: str) -> Status:
        return Status(state=State.FAILED, cause=cause, text=f"{text} ({words})" if words else text)

    if reason == "DeadlineExceeded":
        return made(Cause.TIME_LIMIT, "it did not end within its time"), code is None  # its image was still on the way
    disrupted = _true(pod, "DisruptionTarget")
    if disrupted:
        words = ": ".join(filter(None, [disrupted.get("reason"), disrupted.get("message")]))
        return made(Cause.NODE, f"it was taken off its node {node}"), True
    if ended.get("reason") == "OOMKilled":
        return made(Cause.MEMORY, "it was killed at its limit of memory; --memory gives more"), False
    if reason == "Evicted" and "exceeds" in message:
        return made(Cause.MEMORY, "it used more memory or disk than it may have"), code is None
    if reason in (*NODE_REASONS, "Evicted") or reason.startswith("OutOf") or ended.get("reason") in NODE_REASONS:
        return made(Cause.NODE, f"its node {node} failed it"), code is None
    if ended.get("reason") in ("StartError", "ContainerCannotRun"):
        # The GPU's own hook speaks for the node; anything else (no python in it) for the image.
        cause = Cause.NODE if "nvidia" in str(ended.get("message")) else Cause.CRASH
        return made(cause, f"its container did not start on {node}"), False
    if code == TIMED_OUT:
        return made(Cause.TIME_LIMIT, "the suite did not end within its time"), False
    if code is None:
        return made(Cause.NODE, f"its pod failed on {node} before the container began"), True
    return made(Cause.CRASH, _crashed(code)), False


def _crashed(code: int) -> str:
    if code == NO_REPORT:
        return "the suite ended and left no report"
    killed = f" (signal {code - 128}{', perhaps for memory' if code == _SIGKILL else ''})" if code > 128 else ""
    return f"it ended with exit code {code}{killed} and left no report"


def waiting(pod: Object, now: datetime, patience: timedelta) -> tuple[Status, bool]:
    """How a pending pod stands, and whether it is given up (the cluster itself would wait for ever)."""
    scheduled = _condition(pod, "PodScheduled")
    if scheduled and scheduled["status"] == "False":
        since = datetime.fromisoformat(scheduled["lastTransitionTime"])
        words = str(scheduled.get("message") or scheduled.get("reason"))
        if scheduled.get("reason") == "Unschedulable" and not busy(words) and now - since > patience:
            text = f"no node of the cluster fits: {words}"
            return Status(state=State.REFUSED, cause=Cause.NO_NODE, text=text), True
        return Status(state=State.QUEUED, text=f"waits for a node: {words}"), False
    said: Object = _container(pod).get("state", {}).get("waiting") or {}
    reason, message = str(said.get("reason", "")), str(said.get("message", ""))
    words = ": ".join(filter(None, [reason, message]))
    began = pod["status"].get("startTime")
    long = bool(began) and now - datetime.fromisoformat(began) > patience
    if reason in NEVER_PULLED or (reason in PULL_REASONS and long):
        text = f"node {pod['spec'].get('nodeName')} cannot pull the image: {words}"
        return Status(state=State.FAILED, cause=Cause.IMAGE_PULL, text=text), True
    if reason.startswith(("CreateContainer", "RunContainer")) and long:
        text = f"node {pod['spec'].get('nodeName')} does not start the container: {words}"
        return Status(state=State.FAILED, cause=Cause.NODE, text=text), True
    return Status(state=State.QUEUED, text=words or "its pod is about to start"), False


def busy(words: str) -> bool:
    """Whether the scheduler speaks of nodes that would fit, had they room, or of none yet to be judged."""
    return any(word in words for word in ("Insufficient", "Too many pods")) or "available:" not in words


def _condition(pod: Object, kind: str) -> Object | None:
    return next((one for one in pod["status"].get("conditions") or [] if one["type"] == kind), None)


def _true(pod: Object, kind: str) -> Object | None:
    found = _condition(pod, kind)
    return found if found and found["status"] == "True" else None


def _container(pod: Object) -> Object:
    return next(iter(pod["status"].get("containerStatuses") or []), {})


def _last(text: Any) -> str:
    lines = [line for line in str(text or "").splitlines() if line.strip()]
    return lines[-1] if lines else ""
