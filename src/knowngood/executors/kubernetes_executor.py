"""The executor for a Kubernetes cluster: Indexed Jobs, found again by their keys; hopeless ones are ended."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from knowngood.core.errors import KnowngoodError, MissingError
from knowngood.executors import kubernetes_manifest, kubernetes_pod, kubernetes_report, kubernetes_status
from knowngood.executors.fleet_config import KubernetesSection
from knowngood.executors.job import FailureCause, JobOutcome, JobState, JobStatus, SuiteJob
from knowngood.executors.kubernetes_api import ClusterRefusedError, KubernetesApi
from knowngood.executors.kubernetes_pod_status import suite_times, termination_message
from knowngood.executors.kubernetes_status import ClusterJob, ClusterSnapshot
from knowngood.smoke import suite_files, suite_run


def read_pod_script() -> str:
    """Return the program that runs in the pods."""
    return inspect.getsource(kubernetes_pod)


class KubernetesExecutor:
    """Runs jobs as pods of Indexed Jobs; see `job.Executor`."""

    longest_pause = 5.0

    def __init__(self, name: str, section: KubernetesSection, api: KubernetesApi | None = None) -> None:
        self.name, self.section = name, section
        self._given_api = api
        self._jobs: dict[str, ClusterJob] = {}
        self._suites: dict[str, str] = {}

    @cached_property
    def _api(self) -> KubernetesApi:
        try:
            return self._given_api or KubernetesApi(self.name, self.section)
        except ModuleNotFoundError:
            raise MissingError(
                f"{self.name}: the Kubernetes client is not installed; pip install 'knowngood[kubernetes]'"
            ) from None

    def submit(self, jobs: Sequence[SuiteJob]) -> dict[str, JobStatus]:
        """Create one Job for all jobs with the same image and needs, except for jobs that the cluster has already.

        Jobs that were cancelled or refused before have been ended in the cluster, and are created again.
        """
        text = "Kubernetes runs images, and this job is for a folder with an environment"
        unfit = JobStatus(state=JobState.REFUSED, cause=FailureCause.ENGINE, text=text)
        statuses = {job.key: unfit for job in jobs if job.subject.image is None}
        for job in jobs:
            if text := self._describe_unfit_suite(job):
                statuses[job.key] = JobStatus(state=JobState.REFUSED, cause=FailureCause.ENGINE, text=text)
        cluster = self._read_cluster()
        for job in jobs:
            known = self._jobs.get(job.key)
            if known and not (known.recorded and known.status.state in (JobState.CANCELLED, JobState.REFUSED)):
                statuses[job.key] = known.status
        ended = [set(kubernetes_status.parse_given_up(job)) for job in cluster.jobs]
        for batch in kubernetes_manifest.kubernetes_batches(job for job in jobs if job.key not in statuses):
            keys = {job.key for job in batch}
            generation = sum(bool(keys & earlier) for earlier in ended)
            statuses |= dict.fromkeys(keys, self._create(batch, generation))
        return statuses

    def _create(self, batch: Sequence[SuiteJob], generation: int) -> JobStatus:
        try:
            self._api.create_job(self._manifest(batch, generation))
        except ClusterRefusedError as error:
            if error.reason == "AlreadyExists":
                return JobStatus(state=JobState.QUEUED, text="another run has just submitted it")
            cause = FailureCause.QUOTA if "exceeded quota" in error.words else FailureCause.ENGINE
            return JobStatus(state=JobState.REFUSED, cause=cause, text=str(error))
        return JobStatus(state=JobState.QUEUED)

    def rehearse(self, jobs: Sequence[SuiteJob]) -> list[str]:
        """Return the Jobs as YAML that `kubectl create -f -` takes."""
        for job in jobs:
            if text := self._describe_unfit_suite(job):
                raise KnowngoodError(f"{job.cell}: {text}")
        batches = kubernetes_manifest.kubernetes_batches(job for job in jobs if job.subject.image)
        return [kubernetes_manifest.render_manifest(self._manifest(batch)) for batch in batches]

    def _manifest(self, batch: Sequence[SuiteJob], generation: int = 0) -> dict[str, Any]:
        suite = self._packed_suite(batch[0])
        return kubernetes_manifest.job_manifest(batch, self.section, read_pod_script(), suite, generation)

    def _packed_suite(self, job: SuiteJob) -> str:
        if job.suite not in self._suites:
            self._suites[job.suite] = kubernetes_manifest.pack_suite(suite_files.read_suite_files(job.suite_folder))
        return self._suites[job.suite]

    def _describe_unfit_suite(self, job: SuiteJob) -> str:
        """Return why a job's suite cannot be sent to a cluster, empty where it can."""
        size, limit = len(self._packed_suite(job)), kubernetes_manifest.MAX_SUITE_BYTES
        if size <= limit:
            return ""
        return (
            f"its suite has {size:,} bytes as an annotation of a pod, which has room for {limit:,} (an object may have "
            "256 KiB of annotations, and the jobs are among them); run it on an executor of another engine, or make "
            "the trainer's checks smaller"
        )

    def poll(self, keys: Iterable[str]) -> dict[str, JobStatus]:
        """Return how the jobs stand, with two requests for any number; hopeless jobs are ended in the cluster too."""
        wanted = set(keys)
        cluster = self._read_cluster()
        hopeless = {key: job.status for key, job in self._jobs.items() if job.hopeless and key in wanted}
        with contextlib.suppress(ClusterRefusedError):  # the status holds, even if we are not allowed to end the job
            self._end(hopeless, cluster)
        lost = JobStatus(state=JobState.LOST, text=f"{self.name} has no record of it")
        return {key: self._jobs[key].status if key in self._jobs else lost for key in wanted}

    def cancel(self, keys: Iterable[str]) -> None:
        """End the jobs, and record in their Jobs that they were cancelled, for other runs of this program."""
        cluster = self._read_cluster()
        cancelled = JobStatus(state=JobState.CANCELLED, text="cancelled")
        unfinished = [key for key in keys if key in self._jobs and not self._jobs[key].status.state.is_final]
        self._end(dict.fromkeys(unfinished, cancelled), cluster)

    def result(self, key: str) -> JobOutcome:
        """Return the report in the log, after comparing it with the digest in the pod's termination message."""
        job = self._find_job(key)
        pod = job.pod
        if pod is None:
            raise KnowngoodError(f"job {key}: {job.status.text or 'it has no pod'}; there is no report")
        message = kubernetes_report.parse_termination_message(termination_message(pod))
        report = kubernetes_report.report_from_log(
            self._api.read_log(pod["metadata"]["name"]), key, message.sha256 if message else None
        )
        _, ended = suite_times(pod)
        limits = pod["spec"]["containers"][0].get("resources", {}).get("limits", {})
        return JobOutcome(
            report=report,
            node=suite_run.machine_fingerprint(str(pod["spec"].get("nodeName")), message.node if message else {}),
            when=ended.isoformat(timespec="seconds") if ended else report["finished"],
            gpu=kubernetes_manifest.GPU in limits,
        )

    def _read_cluster(self) -> ClusterSnapshot:
        """Ask for Jobs and pods, and for events only if an unfinished job has no pod."""
        jobs, now = self._api.list_jobs()
        cluster = ClusterSnapshot(now=now, jobs=jobs, pods=self._api.list_pods() if jobs else ())
        self._jobs = kubernetes_status.find_cluster_jobs(cluster)
        if any(not job.status.state.is_final and not job.pods for job in self._jobs.values()):
            cluster = ClusterSnapshot(now=now, jobs=jobs, pods=cluster.pods, events=self._api.list_events())
            self._jobs = kubernetes_status.find_cluster_jobs(cluster)
        return cluster

    def _find_job(self, key: str) -> ClusterJob:
        if key not in self._jobs:
            self._read_cluster()
        if key not in self._jobs:
            raise KnowngoodError(f"job {key}: {self.name} has no record of it (any more)")
        return self._jobs[key]

    def _end(self, statuses: Mapping[str, JobStatus], cluster: ClusterSnapshot) -> None:
        """End jobs in the cluster, and record these statuses."""
        for job in cluster.jobs:
            name = job["metadata"]["name"]
            keys = [key for key in kubernetes_status.job_keys(job) if key in statuses and self._jobs[key].name == name]
            if not keys:
                continue
            patch = kubernetes_status.ending_patch(job, {key: statuses[key] for key in keys})
            self._api.patch_job(name, patch)
            if "spec" not in patch:  # other jobs of this Job continue: only these pods end
                for pod in filter(None, (self._jobs[key].pod for key in keys)):
                    self._api.end_pod(pod["metadata"]["name"])
