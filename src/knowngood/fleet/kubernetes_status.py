"""How jobs stand, out of what the cluster says of its Jobs, pods and events. Pure; every time is the cluster's own."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from knowngood.fleet.job import Cause, State, Status
from knowngood.fleet.kubernetes_failure import failed, waiting
from knowngood.fleet.kubernetes_manifest import GIVEN_UP, KEYS, Settings
from knowngood.fleet.kubernetes_report import said

INDEX = "batch.kubernetes.io/job-completion-index"
OWNER = "batch.kubernetes.io/controller-uid"

_RECORDED = ("state", "cause", "text", "node")

Object = Mapping[str, Any]
"""Of the API, as JSON."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """What it said, at one time."""

    now: datetime
    """By the clock of the API server."""
    jobs: Sequence[Object]
    pods: Sequence[Object]
    events: Sequence[Object] = ()


@dataclass(frozen=True, kw_only=True)
class Standing:
    """A job at the cluster."""

    status: Status
    job: str
    """The Job's name."""
    pods: Sequence[Object]
    """Of its index, oldest first."""
    given_up: bool = False
    """The cluster would go on trying; the Job is to be ended."""
    recorded: bool = False
    """It was ended from outside before."""

    @property
    def pod(self) -> Object | None:
        """The one that speaks for the job: that which succeeded, else the last."""
        return _done(self.pods) or (self.pods[-1] if self.pods else None)


def standings(cluster: Cluster, settings: Settings) -> dict[str, Standing]:
    """Every job that the cluster knows, by key; of several Jobs with the same key the latest."""
    pods: dict[tuple[str, int], list[Object]] = {}
    for pod in sorted(cluster.pods, key=_created):
        if (index := _index(pod)) is not None:
            pods.setdefault((_owner(pod), index), []).append(pod)
    found = {}
    for job in sorted(cluster.jobs, key=_created):
        for index, key in enumerate(keys(job)):
            own = pods.get((job["metadata"].get("uid", ""), index), [])
            recorded = given_up(job).get(key)
            status, hopeless = (recorded, False) if recorded else _standing(job, index, own, cluster, settings)
            done = _done(own)
            if done:
                status, hopeless, recorded = _ended(done, own, cluster.now), False, None
            found[key] = Standing(
                status=status,
                job=job["metadata"]["name"],
                pods=own,
                given_up=hopeless,
                recorded=recorded is not None,
            )
    return found


def keys(job: Object) -> list[str]:
    """A Job's keys by index; none where it is not ours."""
    return str(job["metadata"].get("annotations", {}).get(KEYS, "")).split()


def given_up(job: Object) -> dict[str, Status]:
    """The jobs that were ended from outside, as `record` wrote them."""
    try:
        told = json.loads(job["metadata"].get("annotations", {}).get(GIVEN_UP, "{}"))
        return {
            key: Status(
                state=State(item["state"]),
                cause=Cause(item["cause"]) if item["cause"] else None,
                text=item["text"],
                node=item["node"],
            )
            for key, item in told.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def record(job: Object, ended: Mapping[str, Status]) -> dict[str, Any]:
    """The change of a Job that ends these of its jobs; where that is all of them, the Job ends as well."""
    told = {**given_up(job), **ended}
    text = json.dumps({key: {name: asdict(item)[name] for name in _RECORDED} for key, item in told.items()})
    change: dict[str, Any] = {"metadata": {"annotations": {GIVEN_UP: text}}}
    status = job.get("status", {})
    done = numbers(status.get("completedIndexes")) | numbers(status.get("failedIndexes"))
    if all(key in told or index in done for index, key in enumerate(keys(job))):
        change["spec"] = {"activeDeadlineSeconds": 1}
    return change


def numbers(text: str | None) -> set[int]:
    """`0,3-5` as the API writes indexes."""
    found: set[int] = set()
    for part in filter(None, (text or "").split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def started(pod: Object) -> tuple[datetime | None, datetime | None]:
    """When the suite began and ended."""
    for status in pod["status"].get("containerStatuses") or []:
        state = status.get("state", {})
        ended = state.get("terminated") or {}
        running = state.get("running") or {}
        return _time(ended.get("startedAt") or running.get("startedAt")), _time(ended.get("finishedAt"))
    return None, None


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _true(item: Object, kind: str) -> Object | None:
    """A condition that is true."""
    found = item.get("status", {}).get("conditions") or []
    return next((one for one in found if one["type"] == kind and one["status"] == "True"), None)


def _standing(
    job: Object, index: int, pods: Sequence[Object], cluster: Cluster, settings: Settings
) -> tuple[Status, bool]:
    """How a job stands that has no pod which succeeded, and whether it is hopeless though the cluster goes on."""
    if index in numbers(job.get("status", {}).get("completedIndexes")):
        return Status(state=State.LOST, text="it ended, but its pod is gone and the report with it"), False
    over = _true(job, "Failed")
    if pods and (not over or pods[-1]["status"].get("phase") == "Failed"):
        final = bool(over) or index in numbers(job.get("status", {}).get("failedIndexes"))
        return _pod(pods, cluster.now, settings, final=final)
    return (_over(over, settings), False) if over else _podless(job, cluster, settings)


def _done(pods: Sequence[Object]) -> Object | None:
    """The pod that succeeded; the first, should there be two (a node that was thought lost came back)."""
    return next((pod for pod in pods if pod["status"].get("phase") == "Succeeded"), None)


def _ended(pod: Object, pods: Sequence[Object], now: datetime) -> Status:
    terminated = _terminated(pod)
    message = said(terminated.get("message"))
    return _timed(Status(state=State.ENDED, exit_code=message.exit if message else None), pods, pod, now)


def _pod(pods: Sequence[Object], now: datetime, settings: Settings, *, final: bool) -> tuple[Status, bool]:
    pod = pods[-1]
    phase = pod["status"].get("phase")
    node = pod["spec"].get("nodeName")
    if phase == "Failed":
        status, retried = failed(pod)
        if retried and not final:
            return _timed(
                Status(state=State.QUEUED, text=f"{status.text}; another pod takes over"), pods, pod, now
            ), False
        return _timed(status, pods, pod, now), False
    leaving = _time(pod["metadata"].get("deletionTimestamp"))
    if leaving and now - leaving > timedelta(seconds=settings.patience):
        text = f"its node {node} does not answer: the pod {pod['metadata']['name']} does not end"
        return _timed(Status(state=State.FAILED, cause=Cause.NODE, text=text), pods, pod, now), True
    if phase == "Pending":
        status, given_up = waiting(pod, now, timedelta(seconds=settings.patience))
        return _timed(status, pods, pod, now), given_up
    return _timed(Status(state=State.RUNNING, text=f"on {node}"), pods, pod, now), False


def _over(failure: Object, settings: Settings) -> Status:
    """The Job is over, and there is no pod to say why."""
    words = f"{failure.get('reason')}: {failure.get('message', '')}".rstrip(": ")
    if failure.get("reason") == "DeadlineExceeded":
        text = f"no node had room for it within {settings.queue} s ({words})"
        return Status(state=State.REFUSED, cause=Cause.NO_NODE, text=text)
    return Status(state=State.FAILED, cause=Cause.ENGINE, text=f"the Job failed and its pod is gone ({words})")


def _podless(job: Object, cluster: Cluster, settings: Settings) -> tuple[Status, bool]:
    """No pod yet: that takes a moment, unless the controller may not make one."""
    name, uid = job["metadata"]["name"], job["metadata"].get("uid")
    for event in cluster.events:
        about = event.get("involvedObject", {})
        if event.get("reason") != "FailedCreate" or (about.get("uid") or about.get("name")) not in (uid, name):
            continue
        words = str(event.get("message", ""))
        cause = Cause.QUOTA if "exceeded quota" in words else Cause.ENGINE
        if cluster.now - _created(job) > timedelta(seconds=settings.patience):
            return Status(state=State.REFUSED, cause=cause, text=f"the cluster makes no pod for it: {words}"), True
        return Status(state=State.QUEUED, text=f"no pod yet: {words}"), False
    return Status(state=State.QUEUED, text="no pod yet"), False


def _timed(status: Status, pods: Sequence[Object], pod: Object, now: datetime) -> Status:
    began, ended = started(pod)
    waited = (began - _created(pods[0])).total_seconds() if began else None
    ran = ((ended or now) - began).total_seconds() if began else None
    known = {"node": pod["spec"].get("nodeName"), "queued": waited, "ran": ran}
    code = _terminated(pod).get("exitCode") if status.exit_code is None else status.exit_code
    return Status(state=status.state, cause=status.cause, text=status.text, exit_code=code, **known)


def _terminated(pod: Object) -> Object:
    statuses: Iterable[Object] = pod["status"].get("containerStatuses") or []
    return next((one["state"]["terminated"] for one in statuses if one.get("state", {}).get("terminated")), {})


def _created(item: Object) -> datetime:
    return datetime.fromisoformat(item["metadata"]["creationTimestamp"])


def _index(pod: Object) -> int | None:
    metadata = pod["metadata"]
    text = (metadata.get("labels") or {}).get(INDEX) or (metadata.get("annotations") or {}).get(INDEX)
    return int(text) if text is not None and str(text).isdigit() else None


def _owner(pod: Object) -> str:
    owners: Iterable[Object] = pod["metadata"].get("ownerReferences") or []
    return next((str(owner["uid"]) for owner in owners if owner.get("controller")), "")
