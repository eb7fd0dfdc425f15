"""The executor for a Kubernetes cluster: Indexed Jobs, found again by their keys; what would wait for ever is ended."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from knowngood import smoke
from knowngood.errors import KnowngoodError, MissingError
from knowngood.fleet import kubernetes_pod, kubernetes_report
from knowngood.fleet.executor import Outcome
from knowngood.fleet.job import Cause, Job, State, Status
from knowngood.fleet.kubernetes_api import Api, RefusedError
from knowngood.fleet.kubernetes_manifest import Program, Settings, batches, manifest, written
from knowngood.fleet.kubernetes_nodes import GPU
from knowngood.fleet.kubernetes_status import Cluster, Standing, given_up, keys, record, standings, started

_ENDED_FOR = (State.CANCELLED, State.REFUSED)


def program() -> Program:
    """What runs in the pods."""
    return Program(script=inspect.getsource(kubernetes_pod), suite=smoke.SUITE_IN_IMAGE)


class Kubernetes:
    """See `executor.Executor`."""

    def __init__(self, settings: Settings, api: Api | None = None) -> None:
        self.name = settings.name
        self.settings = settings
        self._given_api = api
        self._seen: dict[str, Standing] = {}

    @property
    def _api(self) -> Api:
        if self._given_api is None:
            try:
                self._given_api = Api(self.settings)
            except ModuleNotFoundError:
                raise MissingError(
                    f"{self.name}: the Kubernetes client is not installed; pip install 'knowngood[kubernetes]'"
                ) from None
        return self._given_api

    def submit(self, jobs: Sequence[Job]) -> dict[str, Status]:
        """One Job for all that want the same image and node; what the cluster has already is not made again.

        What was cancelled or refused before is no longer at the cluster, and is made again.
        """
        answers = {
            job.key: Status(state=State.REFUSED, cause=Cause.ENGINE, text="Kubernetes runs images; this is a folder")
            for job in jobs
            if job.subject.image is None
        }
        cluster = self._look()
        known = {
            key: standing.status
            for key, standing in self._seen.items()
            if not (standing.recorded and standing.status.state in _ENDED_FOR)
        }
        answers |= {job.key: known[job.key] for job in jobs if job.key in known}
        ended = [set(given_up(job)) for job in cluster.jobs]
        for batch in batches(job for job in jobs if job.key not in answers):
            own = {job.key for job in batch}
            status = self._make(batch, generation=sum(bool(own & before) for before in ended))
            answers |= dict.fromkeys(own, status)
        return answers

    def _make(self, batch: Sequence[Job], generation: int) -> Status:
        try:
            self._api.create(manifest(batch, self.settings, program(), generation))
        except RefusedError as error:
            if error.reason == "AlreadyExists":
                return Status(state=State.QUEUED, text="another run has submitted it just now")
            cause = Cause.QUOTA if "exceeded quota" in error.said else Cause.ENGINE
            return Status(state=State.REFUSED, cause=cause, text=str(error))
        return Status(state=State.QUEUED)

    def rehearse(self, jobs: Sequence[Job]) -> list[str]:
        """The Jobs, as YAML that `kubectl create -f -` takes."""
        found = batches(job for job in jobs if job.subject.image)
        return [written(manifest(batch, self.settings, program())) for batch in found]

    def poll(self, keys: Iterable[str]) -> dict[str, Status]:
        """Two lists, however many jobs; and the Jobs of what is given up are ended, for the cluster would not."""
        wanted = set(keys)
        cluster = self._look()
        hopeless = {key: item for key, item in self._seen.items() if item.given_up and key in wanted}
        with contextlib.suppress(RefusedError):  # the jobs' verdict stands, whether or not we may end them
            self._end({key: item.status for key, item in hopeless.items()}, cluster)
        lost = Status(state=State.LOST, text=f"{self.name} does not know it")
        return {key: self._seen[key].status if key in self._seen else lost for key in wanted}

    def cancel(self, keys: Iterable[str]) -> None:
        """End them; that they were cancelled is written to their Jobs, so that another run sees it too."""
        cluster = self._look()
        cancelled = Status(state=State.CANCELLED, text="cancelled")
        self._end(
            {key: cancelled for key in keys if key in self._seen and not self._seen[key].status.state.final}, cluster
        )

    def logs(self, key: str) -> str:
        """The log of the pod that speaks for the job, without the report at its end."""
        return kubernetes_report.without(self._log(self._standing(key)))

    def result(self, key: str) -> Outcome:
        """The report out of the log, held against the digest in the pod's termination message."""
        standing = self._standing(key)
        pod = standing.pod
        if pod is None:
            raise KnowngoodError(f"job {key}: {standing.status.text or 'it has no pod'}; there is no report")
        message = next((kubernetes_report.said(text) for text in _messages(pod)), None)
        report = kubernetes_report.read(self._log(standing), key, message.sha256 if message else None)
        _, ended = started(pod)
        limits = pod["spec"]["containers"][0].get("resources", {}).get("limits", {})
        return Outcome(
            report=report,
            node=smoke.fingerprint(str(pod["spec"].get("nodeName")), message.node if message else {}),
            when=ended.isoformat(timespec="seconds") if ended else report["finished"],
            gpu=GPU in limits,
        )

    def _look(self) -> Cluster:
        jobs, now = self._api.jobs()
        cluster = Cluster(now=now, jobs=jobs, pods=self._api.pods() if jobs else ())
        self._seen = standings(cluster, self.settings)
        if any(not item.status.state.final and not item.pods for item in self._seen.values()):
            cluster = Cluster(now=now, jobs=jobs, pods=cluster.pods, events=self._api.events())
            self._seen = standings(cluster, self.settings)
        return cluster

    def _standing(self, key: str) -> Standing:
        if key not in self._seen:
            self._look()
        if key not in self._seen:
            raise KnowngoodError(f"job {key}: {self.name} does not know it (any more)")
        return self._seen[key]

    def _log(self, standing: Standing) -> str:
        return self._api.log(standing.pod["metadata"]["name"]) if standing.pod else ""

    def _end(self, ended: Mapping[str, Status], cluster: Cluster) -> None:
        for job in cluster.jobs:
            own = {
                key: ended[key] for key in keys(job) if key in ended and self._seen[key].job == job["metadata"]["name"]
            }
            if not own:
                continue
            change = record(job, own)
            self._api.change(job["metadata"]["name"], change)
            if "spec" not in change:  # others of the Job go on: only these pods are to end
                for key in own:
                    if pod := self._seen[key].pod:
                        self._api.end(pod["metadata"]["name"])


def _messages(pod: Mapping[str, Any]) -> list[str | None]:
    statuses = pod["status"].get("containerStatuses") or []
    return [one.get("state", {}).get("terminated", {}).get("message") for one in statuses]
