"""How jobs stand, by the Jobs, pods and events of a cluster. Pure; every time is the cluster's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import TypeAdapter, ValidationError

from knowngood.executors.job import FailureCause, JobState, JobStatus
from knowngood.executors.kubernetes_manifest import GIVEN_UP, KEYS, QUEUE_SECONDS
from knowngood.executors.kubernetes_pod_status import (
    ApiObject,
    add_pod_times,
    creation_time,
    find_succeeded_pod,
    find_true_condition,
    is_patience_over,
    pod_index,
    pod_owner,
    pod_status,
)

_RECORDS = TypeAdapter(dict[str, JobStatus])


@dataclass(frozen=True, kw_only=True)
class ClusterSnapshot:
    """The state of a namespace at one time."""

    now: datetime
    """By the clock of the API server."""
    jobs: Sequence[ApiObject]
    pods: Sequence[ApiObject]
    events: Sequence[ApiObject] = ()


@dataclass(frozen=True, kw_only=True)
class ClusterJob:
    """A job as the cluster has it: one completion index of a Job."""

    status: JobStatus
    name: str
    """The Job's name."""
    pods: Sequence[ApiObject]
    """The pods of its index, oldest first."""
    hopeless: bool = False
    """The cluster would keep trying; the executor must end the Job."""
    recorded: bool = False
    """An executor has ended it before, and recorded its status in the Job."""

    @property
    def pod(self) -> ApiObject | None:
        """The pod that counts: the one that succeeded, else the last."""
        return find_succeeded_pod(self.pods) or (self.pods[-1] if self.pods else None)


def find_cluster_jobs(cluster: ClusterSnapshot) -> dict[str, ClusterJob]:
    """Return key -> job for every job in the cluster; for a key in several Jobs, the latest one."""
    pods_of_index: dict[tuple[str, int], list[ApiObject]] = {}
    for pod in sorted(cluster.pods, key=creation_time):
        if (index := pod_index(pod)) is not None:
            pods_of_index.setdefault((pod_owner(pod), index), []).append(pod)
    jobs = {}
    for job in sorted(cluster.jobs, key=creation_time):
        records = parse_given_up(job)
        for index, key in enumerate(job_keys(job)):
            pods = pods_of_index.get((job["metadata"].get("uid", ""), index), [])
            record, hopeless = records.get(key), False
            if succeeded := find_succeeded_pod(pods):
                status = add_pod_times(JobStatus(state=JobState.ENDED), pods, succeeded, cluster.now)
                record = None
            elif record:
                status = record
            else:
                status, hopeless = _status_of_index(job, index, pods, cluster)
            jobs[key] = ClusterJob(
                status=status,
                name=job["metadata"]["name"],
                pods=pods,
                hopeless=hopeless,
                recorded=record is not None,
            )
    return jobs


def job_keys(job: ApiObject) -> list[str]:
    """Return the keys of a Job's jobs by index; none for a Job of another program."""
    return str(job["metadata"].get("annotations", {}).get(KEYS, "")).split()


def parse_given_up(job: ApiObject) -> dict[str, JobStatus]:
    """Return key -> status for the jobs that an executor ended, as `ending_patch` recorded them."""
    try:
        return _RECORDS.validate_json(job["metadata"].get("annotations", {}).get(GIVEN_UP, "{}"))
    except ValidationError:
        return {}


def ending_patch(job: ApiObject, ended: Mapping[str, JobStatus]) -> dict[str, Any]:
    """Return the patch of a Job that records the end of these jobs; when that is all of them, it ends the Job too."""
    records = {**parse_given_up(job), **ended}
    text = _RECORDS.dump_json(records, exclude={"__all__": {"queued", "ran"}}).decode()
    patch: dict[str, Any] = {"metadata": {"annotations": {GIVEN_UP: text}}}
    status = job.get("status", {})
    finished = parse_indexes(status.get("completedIndexes")) | parse_indexes(status.get("failedIndexes"))
    if all(key in records or index in finished for index, key in enumerate(job_keys(job))):
        patch["spec"] = {"activeDeadlineSeconds": 1}
    return patch


def parse_indexes(text: str | None) -> set[int]:
    """Read indexes as the API writes them: `0,3-5`."""
    indexes: set[int] = set()
    for part in filter(None, (text or "").split(",")):
        first, _, last = part.partition("-")
        indexes |= set(range(int(first), int(last or first) + 1))
    return indexes


def _status_of_index(
    job: ApiObject, index: int, pods: Sequence[ApiObject], cluster: ClusterSnapshot
) -> tuple[JobStatus, bool]:
    """Return the status of a job without a pod that succeeded, and whether it is hopeless."""
    status = job.get("status", {})
    if index in parse_indexes(status.get("completedIndexes")):
        return JobStatus(state=JobState.LOST, text="it ended, but its pod is gone, and the report with it"), False
    failure = find_true_condition(job, "Failed")
    if pods and (not failure or pods[-1]["status"].get("phase") == "Failed"):
        final = bool(failure) or index in parse_indexes(status.get("failedIndexes"))
        by_pod, hopeless = pod_status(pods[-1], cluster.now, final=final)
        return add_pod_times(by_pod, pods, pods[-1], cluster.now), hopeless
    return (_status_after_failure(failure), False) if failure else _status_without_pod(job, cluster)


def _status_after_failure(failure: ApiObject) -> JobStatus:
    """Return the status of a job whose Job has failed, without a pod that says why."""
    words = f"{failure.get('reason')}: {failure.get('message', '')}".rstrip(": ")
    if failure.get("reason") == "DeadlineExceeded":
        text = f"no node had room for it within {QUEUE_SECONDS} s ({words})"
        return JobStatus(state=JobState.REFUSED, cause=FailureCause.NO_NODE, text=text)
    text = f"the Job failed and its pod is gone ({words})"
    return JobStatus(state=JobState.FAILED, cause=FailureCause.ENGINE, text=text)


def _status_without_pod(job: ApiObject, cluster: ClusterSnapshot) -> tuple[JobStatus, bool]:
    """A pod appears after a moment, unless the controller is not allowed to create it."""
    name, uid = job["metadata"]["name"], job["metadata"].get("uid")
    for event in cluster.events:
        about = event.get("involvedObject", {})
        if event.get("reason") != "FailedCreate" or (about.get("uid") or about.get("name")) not in (uid, name):
            continue
        words = str(event.get("message", ""))
        if not is_patience_over(creation_time(job), cluster.now):
            return JobStatus(state=JobState.QUEUED, text=f"no pod yet: {words}"), False
        cause = FailureCause.QUOTA if "exceeded quota" in words else FailureCause.ENGINE
        text = f"the cluster creates no pod for it: {words}"
        return JobStatus(state=JobState.REFUSED, cause=cause, text=text), True
    return JobStatus(state=JobState.QUEUED, text="no pod yet"), False
