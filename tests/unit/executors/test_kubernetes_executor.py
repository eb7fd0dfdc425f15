"""The whole conversation of the Kubernetes executor, through the official client, with a fake API server."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from kubernetes import client
from kubernetes_server import Cluster, serving

from knowngood.core.errors import KnowngoodError, MissingError
from knowngood.executors import kubernetes_pod, kubernetes_status
from knowngood.executors.fleet_config import KubernetesSection
from knowngood.executors.job import FailureCause, JobNeeds, JobState, JobSubject, SuiteJob
from knowngood.executors.job_run import FleetState, JobRun
from knowngood.executors.job_verdict import VerdictKind
from knowngood.executors.kubernetes_api import KubernetesApi
from knowngood.executors.kubernetes_executor import KubernetesExecutor, read_pod_script
from knowngood.executors.kubernetes_manifest import KEYS, PULL_SECONDS, QUEUE_SECONDS, job_manifest, pack_suite
from knowngood.executors.kubernetes_pod_status import INDEX, PATIENCE_SECONDS
from knowngood.executors.kubernetes_report import REPORT_BEGIN, REPORT_END
from knowngood.smoke.suite_files import read_suite_files

H100 = JobNeeds(gpu="sm_90", gpus=1, driver="580.65.06", seconds=600)
SUITE = Path(__file__).parents[3] / "smoke_tests"
SETTINGS = KubernetesSection(engine="kubernetes", images="registry.test/knowngood", namespace="lab")
QUEUED, RUNNING, ENDED, FAILED, REFUSED = (
    JobState.QUEUED,
    JobState.RUNNING,
    JobState.ENDED,
    JobState.FAILED,
    JobState.REFUSED,
)


def job(cell="sm90-a", *, image="a", needs=H100, **more):
    digest = f"sha256:{image * 64}"
    subject = JobSubject(image=f"registry.test/knowngood@{digest}", content=digest)
    return SuiteJob(
        cell=cell,
        subject=subject,
        suite="5" * 64,
        suite_folder=SUITE,
        command=("-q",),
        predictions={},
        needs=needs,
        **more,
    )


def report(ok=True):
    verdict = {"ok": ok, "text": "é" * 9000, "domain": "none" if ok else "image"}
    return {"suite_hash": "5" * 64, "finished": "2026-11-21T00:00:00+00:00", "verdict": verdict, "checks": []}


def printed(key, document):
    """What the pod's program prints and says, by that program."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        digest = kubernetes_pod.deliver_report(json.dumps(document).encode(), key, REPORT_BEGIN, REPORT_END)
    node = {"kernel": "6.1", "cpus": 8}
    return out.getvalue(), json.dumps({"key": key, "sha256": digest, "exit": 0, "node": node})


@pytest.fixture
def cluster():
    made = Cluster(clock=datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1))
    made.gpu_node("n1", gpus=1)
    made.gpu_node("n2", gpus=1)
    return made


@pytest.fixture
def address(cluster):
    with serving(cluster) as url:
        yield url


@pytest.fixture
def connect(address):
    def made(settings=SETTINGS):
        configuration = client.Configuration()
        configuration.host = address
        configuration.retries = False
        return KubernetesExecutor("lab", settings, KubernetesApi("lab", settings, client.ApiClient(configuration)))

    return made


@pytest.fixture
def lab(connect):
    return connect()


def complete(cluster, key, document=None, extra=""):
    cluster.start(key)
    cluster.pass_time(90)
    log, message = printed(key, document or report())
    cluster.finish(key, log=f"3 passed\n{log}{extra}", message=message)


def test_from_submission_to_report_by_the_clusters_clock(cluster, lab):
    one = job()
    assert lab.submit([one])[one.key].state is QUEUED
    cluster.pass_time(30)
    cluster.start(one.key, log="collecting\n")
    cluster.pass_time(20)
    running = lab.poll([one.key])[one.key]
    assert (running.state, running.node, running.queued, running.ran) == (RUNNING, "n1", 30, 20)
    log, message = printed(one.key, report())
    cluster.pass_time(70)
    cluster.finish(one.key, log=f"3 passed in 90 s\n{log}", message=message)
    ended = lab.poll([one.key])[one.key]
    assert (ended.state, ended.queued, ended.ran) == (ENDED, 30, 90)
    outcome = lab.result(one.key)
    assert outcome.report == report()
    assert outcome.gpu
    assert outcome.node["kernel"] == "6.1"
    assert "n1" not in json.dumps(outcome.node)
    assert datetime.fromisoformat(outcome.when) == cluster.clock


def test_a_killed_program_finds_its_jobs_and_submits_none_twice(cluster, connect):
    jobs = [job(image=image) for image in "abc"]
    connect().submit(jobs[:2])
    complete(cluster, jobs[0].key)
    again = connect()
    states = again.submit(jobs)
    assert [states[one.key].state for one in jobs] == [ENDED, QUEUED, QUEUED]
    assert len(cluster.jobs) == 3
    assert again.result(jobs[0].key).report == report()


def test_two_programs_that_submit_the_same_at_once_create_one_job(cluster, lab, monkeypatch):
    one = job()
    lab.submit([one])
    monkeypatch.setattr(lab._api, "list_jobs", lambda: ([], cluster.clock))  # as the other saw it, a moment before
    assert lab.submit([one])[one.key].state is QUEUED
    assert len(cluster.jobs) == 1


def test_jobs_of_one_image_share_a_job_and_each_has_its_own_end(cluster, lab):
    jobs = [job(cell) for cell in ("sm90-a", "sm90-b")]
    lab.submit(jobs)
    assert [made["spec"]["completions"] for made in cluster.jobs.values()] == [2]
    complete(cluster, jobs[0].key)
    cluster.start(jobs[1].key)
    cluster.finish(jobs[1].key, 3, message="ImportError: libcuda.so.1\n")
    polled = lab.poll(one.key for one in jobs)
    assert polled[jobs[0].key].state is ENDED
    assert (polled[jobs[1].key].state, polled[jobs[1].key].cause) == (FAILED, FailureCause.CRASH)
    assert "libcuda.so.1" in polled[jobs[1].key].text


def test_a_suite_that_is_too_large_for_a_pod_is_refused_with_the_reason(lab, tmp_path):
    large = tmp_path / "smoke_tests"
    large.mkdir()
    (large / "test_large.py").write_text(os.urandom(200_000).hex())
    one, other = job(), replace(job(cell="sm90-b"), suite="6" * 64, suite_folder=large)
    statuses = lab.submit([one, other])
    assert statuses[one.key].state is JobState.QUEUED
    assert statuses[other.key].state is JobState.REFUSED
    assert "bytes as an annotation of a pod, which has room for 110,000" in statuses[other.key].text
    with pytest.raises(KnowngoodError, match=r"sm90-b: its suite has .* bytes as an annotation"):
        lab.rehearse([one, other])


@pytest.mark.parametrize(
    ("how", "cause", "words"),
    [
        ({"code": 137, "reason": "OOMKilled"}, FailureCause.MEMORY, "memory"),
        ({"code": 124}, FailureCause.TIME_LIMIT, "within its time"),
        ({"code": 137, "pod_reason": "DeadlineExceeded"}, FailureCause.TIME_LIMIT, "within its time"),
        ({"code": 3}, FailureCause.CRASH, "left no report"),
        ({"code": 139}, FailureCause.CRASH, "signal 11"),
        (
            {"code": 128, "reason": "StartError", "message": "nvidia-container-cli: no device"},
            FailureCause.NODE,
            "no device",
        ),
        ({"code": 128, "reason": "StartError", "message": 'exec: "python"'}, FailureCause.CRASH, "python"),
        ({"code": 137, "reason": "ContainerStatusUnknown"}, FailureCause.NODE, "n1"),
        (
            {"code": 137, "pod_reason": "Evicted", "message": 'EmptyDir "shm" exceeds its limit'},
            FailureCause.MEMORY,
            "shm",
        ),
    ],
)
def test_why_a_suite_did_not_end(cluster, lab, how, cause, words):
    one = job()
    lab.submit([one])
    cluster.start(one.key)
    cluster.finish(one.key, **how)
    status = lab.poll([one.key])[one.key]
    assert (status.state, status.cause, status.node) == (FAILED, cause, "n1")
    assert words in status.text


def test_a_container_that_a_site_adds_to_the_pod_does_not_count(cluster, lab):
    one = job()
    lab.submit([one])
    cluster.start(one.key)
    cluster.finish(one.key, 3)
    statuses = cluster.pod(one.key)["status"]["containerStatuses"]
    statuses.insert(0, {"name": "proxy", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}})
    assert "the suite ended and left no report" in lab.poll([one.key])[one.key].text


def test_a_pod_of_a_lost_node_is_replaced_and_the_image_is_not_blamed(cluster, lab):
    one = job()
    lab.submit([one])
    cluster.start(one.key)
    del cluster.nodes["n1"]
    cluster.finish(one.key, 137, condition="DisruptionTarget", pod_reason="NodeLost")
    assert lab.poll([one.key])[one.key].state is QUEUED
    complete(cluster, one.key)
    ended = lab.poll([one.key])[one.key]
    assert (ended.state, ended.node) == (ENDED, "n2")


def test_a_pod_that_no_node_admits_is_tried_three_times_and_then_the_node_is_blamed(cluster, lab):
    one = job()
    lab.submit([one])
    for _ in range(2):
        cluster.finish(one.key, None, pod_reason="UnexpectedAdmissionError", message="no healthy devices present")
        assert lab.poll([one.key])[one.key].state is QUEUED
    cluster.finish(one.key, None, pod_reason="UnexpectedAdmissionError", message="no healthy devices present")
    status = lab.poll([one.key])[one.key]
    assert (status.state, status.cause) == (FAILED, FailureCause.NODE)
    assert "no healthy devices" in status.text


def test_a_pod_past_its_deadline_during_the_pull_is_tried_again(cluster, lab):
    one = job()
    lab.submit([one])
    for _ in range(3):
        assert lab.poll([one.key])[one.key].state is QUEUED
        cluster.finish(one.key, None, pod_reason="DeadlineExceeded", message="Pod was active on the node longer")
    assert lab.poll([one.key])[one.key].cause is FailureCause.TIME_LIMIT


def test_a_node_that_does_not_answer_is_given_up_by_the_clusters_clock(cluster, lab):
    one = job()
    lab.submit([one])
    cluster.start(one.key)
    cluster.pod(one.key)["metadata"]["deletionTimestamp"] = cluster.time()
    cluster.pass_time(PATIENCE_SECONDS)
    assert lab.poll([one.key])[one.key].state is RUNNING
    cluster.pass_time(1)
    status = lab.poll([one.key])[one.key]
    assert (status.state, status.cause, status.node) == (FAILED, FailureCause.NODE, "n1")


def test_a_pod_belongs_to_its_controller_and_the_latest_of_two_jobs_counts():
    created = "2026-11-21T10:00:00Z"
    one = {"metadata": {"name": "j", "uid": "u", "creationTimestamp": created, "annotations": {KEYS: "k"}}}
    owners = [{"uid": "other", "controller": False}, {"uid": "u", "controller": True}]
    metadata = {"name": "p", "labels": {INDEX: "0"}, "ownerReferences": owners, "creationTimestamp": created}
    pod = {"metadata": metadata, "spec": {"nodeName": "n1"}, "status": {"phase": "Running"}}
    snapshot = kubernetes_status.ClusterSnapshot(now=datetime(2026, 11, 21, 10, 1, tzinfo=UTC), jobs=[one], pods=[pod])
    assert kubernetes_status.find_cluster_jobs(snapshot)["k"].pods == [pod]
    older = {"metadata": {**one["metadata"], "name": "older", "uid": "v", "creationTimestamp": "2026-11-21T09:00:00Z"}}
    for jobs in ([older, one], [one, older]):
        assert kubernetes_status.find_cluster_jobs(replace(snapshot, jobs=jobs))["k"].name == "j"


def test_a_job_without_a_fitting_node_is_refused_and_ended_after_five_minutes(cluster, connect):
    lab, none, busy = connect(), job(needs=replace(H100, gpu="sm_100")), [job(image=image) for image in "bcd"]
    lab.submit([none, *busy])
    cluster.pass_time(299)
    assert lab.poll([none.key])[none.key].state is QUEUED
    cluster.pass_time(2)
    polled = lab.poll([none.key, *(one.key for one in busy)])
    assert (polled[none.key].state, polled[none.key].cause) == (REFUSED, FailureCause.NO_NODE)
    assert "2 node(s) didn't match" in polled[none.key].text
    assert {polled[one.key].state for one in busy} == {QUEUED}  # the third waits for a GPU, and may
    cluster.pass_time(1)
    ended = next(
        made for made in cluster.jobs.values() if none.key in made["metadata"]["annotations"]["io.knowngood/keys"]
    )
    assert ended["status"]["conditions"][0]["type"] == "Failed"
    assert connect().poll([none.key])[none.key] == polled[none.key]


def test_without_permission_to_end_jobs_verdicts_are_reported_and_cancelling_fails(cluster, lab):
    one, other = job(needs=replace(H100, gpu="sm_100")), job(image="b")
    lab.submit([one, other])
    for name in cluster.jobs:
        cluster.refuse["PATCH", f"/jobs/{name}"] = (403, "Forbidden", 'User "ci" cannot patch resource "jobs"')
    cluster.pass_time(301)
    assert lab.poll([one.key])[one.key].cause is FailureCause.NO_NODE
    with pytest.raises(KnowngoodError, match="cannot patch"):
        lab.cancel([other.key])


def test_a_refused_job_is_created_again_by_the_next_run(cluster, connect):
    one = job(needs=replace(H100, gpu="sm_100"))
    connect().submit([one])
    cluster.pass_time(301)
    assert connect().poll([one.key])[one.key].state is REFUSED
    cluster.gpu_node("b200", sm="100")
    assert connect().submit([one])[one.key].state is QUEUED
    complete(cluster, one.key)
    assert connect().poll([one.key])[one.key].state is ENDED


def test_a_job_that_waited_its_whole_time_for_a_busy_node_is_refused(cluster, connect):
    lab = connect()
    jobs = [job(image=image) for image in "abc"]
    lab.submit(jobs)
    cluster.pass_time(QUEUE_SECONDS + PULL_SECONDS + 600 + 120)
    states = lab.poll([one.key for one in jobs])
    assert {(item.state, item.cause) for item in states.values()} == {(REFUSED, FailureCause.NO_NODE)}


def test_an_image_that_cannot_be_pulled(cluster, lab):
    one = job()
    lab.submit([one])
    waiting = {"reason": "ImagePullBackOff", "message": "401 Unauthorized"}
    cluster.container(one.key, waiting=waiting)
    cluster.pass_time(10)
    assert lab.poll([one.key])[one.key].state is QUEUED
    cluster.pass_time(300)
    status = lab.poll([one.key])[one.key]
    assert (status.state, status.cause) == (FAILED, FailureCause.IMAGE_PULL)
    assert "401 Unauthorized" in status.text
    cluster.pass_time(1)
    assert not cluster.pods
    assert lab.poll([one.key])[one.key] == replace(status, queued=None, ran=None)


def test_an_invalid_image_name_fails_at_once(cluster, lab):
    one = job()
    lab.submit([one])
    cluster.container(one.key, waiting={"reason": "InvalidImageName"})
    assert lab.poll([one.key])[one.key].cause is FailureCause.IMAGE_PULL


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ('pods "x" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=1', FailureCause.QUOTA),
        ('pods "x" is forbidden: violates PodSecurity "restricted:latest"', FailureCause.ENGINE),
    ],
)
def test_a_quota_that_allows_no_pod(cluster, lab, words, cause):
    one = job()
    cluster.no_pods = words
    assert lab.submit([one])[one.key].state is QUEUED
    assert words in lab.poll([one.key])[one.key].text
    cluster.pass_time(301)
    status = lab.poll([one.key])[one.key]
    assert (status.state, status.cause) == (REFUSED, cause)
    assert words in status.text


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        ((403, "Forbidden", 'jobs.batch "x" is forbidden: exceeded quota: jobs'), FailureCause.QUOTA),
        ((403, "Forbidden", 'jobs.batch is forbidden: User "ci" cannot create resource "jobs"'), FailureCause.ENGINE),
        ((404, "NotFound", 'namespaces "lab" not found'), FailureCause.ENGINE),
        ((422, "Invalid", 'Job.batch "x" is invalid: spec.template'), FailureCause.ENGINE),
    ],
)
def test_a_refusal_of_the_cluster_is_quoted(cluster, lab, answer, cause):
    cluster.refuse["POST", "/jobs"] = answer
    one = job()
    status = lab.submit([one])[one.key]
    assert (status.state, status.cause) == (REFUSED, cause)
    assert answer[2] in status.text


def test_the_other_jobs_are_submitted_when_one_is_refused(lab):
    folder = SuiteJob(
        cell="sm90-e",
        subject=JobSubject(environment="/envs/e", content="sha256:e"),
        suite="5" * 64,
        suite_folder=SUITE,
        command=(),
        predictions={},
        needs=H100,
    )
    states = lab.submit([folder, one := job()])
    assert (states[folder.key].state, states[folder.key].cause) == (REFUSED, FailureCause.ENGINE)
    assert states[one.key].state is QUEUED


def test_a_cluster_that_does_not_answer_or_shows_nothing(cluster, lab):
    cluster.refuse["GET", "/jobs"] = (403, "Forbidden", 'User "ci" cannot list resource "jobs"')
    with pytest.raises(MissingError, match=r"namespace 'lab'.*cannot list.*docs/kubernetes.md"):
        lab.poll(["0"])
    cluster.refuse["GET", "/jobs"] = (503, "ServiceUnavailable", "etcd is away")
    with pytest.raises(MissingError, match="etcd is away"):
        lab.poll(["0"])
    configuration = client.Configuration()
    configuration.host = "http://127.0.0.1:9"
    configuration.retries = False
    nobody = KubernetesExecutor("lab", SETTINGS, KubernetesApi("lab", SETTINGS, client.ApiClient(configuration)))
    with pytest.raises(MissingError, match="does not answer"):
        nobody.submit([job()])


def test_cancelled_jobs_end_and_what_has_ended_stays(cluster, connect):
    lab = connect()
    jobs = [job(cell) for cell in ("sm90-a", "sm90-b")]
    lab.submit(jobs)
    complete(cluster, jobs[0].key)
    cluster.start(jobs[1].key)
    lab.cancel([one.key for one in jobs])
    assert [connect().poll([one.key])[one.key].state for one in jobs] == [ENDED, JobState.CANCELLED]
    cluster.pass_time(1)
    assert [pod["status"]["phase"] for pod in cluster.pods.values()] == ["Succeeded"]
    assert connect().submit(jobs[1:])[jobs[1].key].state is QUEUED  # asked for again, it runs again


def test_one_of_a_job_is_cancelled_and_the_other_goes_on(cluster, lab):
    jobs = [job(cell) for cell in ("sm90-a", "sm90-b")]
    lab.submit(jobs)
    for one in jobs:
        cluster.start(one.key)
    lab.cancel([jobs[0].key])
    polled = lab.poll(one.key for one in jobs)
    assert (polled[jobs[0].key].state, polled[jobs[1].key].state) == (JobState.CANCELLED, RUNNING)
    assert cluster.pod(jobs[0].key)["status"]["phase"] == "Failed"
    complete(cluster, jobs[1].key)
    assert lab.poll([jobs[1].key])[jobs[1].key].state is ENDED


def test_an_incomplete_foreign_or_missing_report_is_not_a_result(cluster, lab):
    one = job()
    lab.submit([one])
    log, message = printed(one.key, report())
    cluster.start(one.key)
    cluster.finish(one.key, log=log, message=message)
    name = cluster.pod(one.key)["metadata"]["name"]
    for text, problem in (
        (log[: len(log) // 2], "cut off"),
        (log.replace(log.splitlines()[2][:9], "A" * 9), "damaged"),
        (printed("0" * 24, report())[0], "belongs to job 000000"),
        (printed(one.key, report(ok=False))[0], "damaged"),
        ("", "left no report"),
    ):
        cluster.logs[name] = text.encode()
        with pytest.raises(KnowngoodError, match=problem):
            lab.result(one.key)
    cluster.logs[name] = log.encode()
    assert lab.result(one.key).report == report()


def test_the_same_result_delivered_twice_is_one(cluster, lab):
    one = job()
    lab.submit([one])
    again, _ = printed(one.key, report())
    complete(cluster, one.key, extra=again)
    late = json.loads(json.dumps(cluster.pod(one.key)))  # a node that was thought lost came back
    late["metadata"]["name"] += "-late"
    late["metadata"]["creationTimestamp"] = cluster.time()
    cluster.pods["late"] = late
    assert lab.poll([one.key])[one.key].state is ENDED
    assert lab.result(one.key).report == report()


def test_a_removed_job_is_lost(cluster, connect):
    lab = connect()
    one = job()
    assert lab.poll(["0" * 24])["0" * 24].state is JobState.LOST
    lab.submit([one])
    complete(cluster, one.key)
    cluster.pods.clear()
    assert "pod is gone" in lab.poll([one.key])[one.key].text
    cluster.jobs.clear()
    assert lab.poll([one.key])[one.key].state is JobState.LOST
    with pytest.raises(KnowngoodError, match="has no record of it"):
        connect().result(one.key)


def test_a_poll_is_two_requests_for_any_number_of_jobs(cluster, lab):
    jobs = [job(avoid=frozenset([f"x{number}"])) for number in range(50)]
    cluster.strict = False  # the schema takes its time
    lab.submit(jobs)
    assert len(cluster.jobs) == 50
    cluster.requests.clear()
    assert len(lab.poll(one.key for one in jobs)) == 50
    assert [path.rsplit("/", 1)[1] for _, path in cluster.requests] == ["jobs", "pods"]


def test_the_pages_of_a_long_list_are_joined(lab, monkeypatch):
    monkeypatch.setattr("knowngood.executors.kubernetes_api.PAGE_SIZE", 2)
    jobs = [job(image=image) for image in "abcde"]
    lab.submit(jobs)
    assert {status.state for status in lab.poll(one.key for one in jobs).values()} == {QUEUED}


def test_the_role_in_the_docs_has_exactly_the_permissions_used(cluster, lab):
    document = Path(__file__).resolve().parents[3] / "docs/kubernetes.md"
    role = yaml.safe_load(re.findall(r"^```yaml\n(.*?)^```", document.read_text(), re.MULTILINE | re.DOTALL)[0])
    granted = {(resource, verb) for rule in role["rules"] for resource in rule["resources"] for verb in rule["verbs"]}
    cluster.no_pods = "exceeded quota"
    lab.submit([quota := job(image="b")])
    lab.poll([quota.key])
    cluster.no_pods = ""
    jobs = [job(cell) for cell in ("sm90-a", "sm90-b")]
    lab.submit(jobs)
    for one in jobs:
        cluster.start(one.key)
    with pytest.raises(KnowngoodError, match="left no report"):
        lab.result(jobs[0].key)
    lab.cancel([jobs[0].key])
    lab.cancel([jobs[1].key])
    verbs = {"POST": "create", "GET": "list", "PATCH": "patch"}
    used = set()
    for method, path in cluster.requests:
        log = path.endswith("/log")
        kind = re.search(r"/namespaces/lab/(\w+)", path)[1]
        used.add(("pods/log", "get") if log else (kind, verbs[method]))
    assert used == granted


@pytest.mark.parametrize(
    ("driver", "fits"),
    [
        ("580.65.06", True),
        ("580.65.07", True),
        ("580.82", True),
        ("590.10.01", True),
        ("1000.0.0", True),
        ("580.65.05", False),
        ("580.64.99", False),
        ("580.65", False),
        ("575.99.99", False),
    ],
)
@pytest.mark.parametrize("old", [True, False])
def test_drivers_by_both_names_of_the_labels(driver, fits, old):
    cluster = Cluster()
    cluster.gpu_node("n", driver=driver, old=old)
    assert scheduled(cluster, H100) is fits


@pytest.mark.parametrize(
    ("least", "driver", "fits"),
    [("580", "580.1", True), ("580", "579.99.9", False), ("580.00", "580.0", True), ("580.65.00", "580.65", True)],
)
def test_short_driver_versions(least, driver, fits):
    cluster = Cluster()
    cluster.gpu_node("n", driver=driver)
    assert scheduled(cluster, replace(H100, driver=least)) is fits


def test_nodes_by_architecture_count_of_gpus_and_what_is_avoided():
    cluster = Cluster()
    cluster.gpu_node("a100", sm="80", gpus=8)
    cluster.gpu_node("b200", sm="100", gpus=8)
    cluster.node("plain")
    assert not scheduled(cluster, H100)
    assert scheduled(cluster, replace(H100, gpu="sm_80"))
    assert scheduled(cluster, replace(H100, gpu="sm_100", gpus=8))
    assert not scheduled(cluster, replace(H100, gpu="sm_100", gpus=9))
    assert not scheduled(cluster, replace(H100, gpu="sm_100"), avoid=frozenset(["b200", "a100"]))
    assert scheduled(cluster, JobNeeds(), avoid=frozenset(["b200", "a100"]))
    assert not scheduled(cluster, JobNeeds(), avoid=frozenset(["b200", "a100", "plain"]))


def scheduled(cluster, needs, **more):
    wanted = job_manifest([job(needs=needs, **more)], SETTINGS, read_pod_script(), pack_suite(read_suite_files(SUITE)))
    cluster.jobs.clear()
    cluster.pods.clear()
    cluster.create("lab", wanted)
    return bool(next(iter(cluster.pods.values()))["spec"].get("nodeName"))


def test_a_whole_run_over_nodes_one_of_which_is_bad(cluster, connect, tmp_path):
    """The run of `smoke --on`: four images, and a node that fails them; it stops waiting half way, and goes on."""
    jobs = [job(f"sm90-{image}", image=image) for image in "abcd"]
    stored, began = [], cluster.clock

    def clock():
        return (cluster.clock - began).total_seconds()

    def kubelet(_seconds):
        cluster.pass_time(60)
        for pod in [pod for pod in cluster.pods.values() if pod["spec"].get("nodeName")]:
            key = cluster.key(pod)
            if pod["status"]["phase"] == "Running":
                ok = pod["spec"]["nodeName"] != "n1"
                log, message = printed(key, report(ok=ok))
                cluster.finish(key, log=log, message=message)
            elif pod["status"]["phase"] == "Pending":
                cluster.start(key)

    def run(jobs, wait):
        made = JobRun(
            executor=connect(),
            state=FleetState(tmp_path),
            store=lambda run: stored.append(run) or run.cell,
            notify=print,
            wait=wait,
            clock=clock,
            sleep=kubelet,
        )
        return made.run_jobs(jobs)

    half = run(jobs, 100)
    done = [line for line in half if line.verdict.kind is not VerdictKind.WAITING]
    lines = [*done, *run([line.job for line in half if line not in done], 10_000)]
    assert len(done) < len(jobs)
    assert {line.verdict.kind for line in lines} == {VerdictKind.GOOD}
    elsewhere = [line for line in lines if len(line.tries) > 1]
    assert elsewhere
    assert all([one.node for one in line.tries] == ["n1", "n2"] for line in elsewhere)
    assert len(cluster.jobs) == len(stored) == len(jobs) + len(elsewhere)  # each try was made once and kept once


@pytest.fixture
def kubeconfig(address, tmp_path, monkeypatch):
    path = tmp_path / "kubeconfig"
    clusters = {"lab": address, "away": "http://127.0.0.1:9"}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "away",
        "clusters": [{"name": name, "cluster": {"server": server}} for name, server in clusters.items()],
        "users": [{"name": "me", "user": {"token": "secret"}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": "me"}} for name in clusters],
    }
    path.write_text(yaml.safe_dump(document))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(path))
    return path


def test_the_cluster_of_the_context_is_used(cluster, kubeconfig):  # noqa: ARG001
    one = job()
    lab = KubernetesExecutor("lab", SETTINGS.model_copy(update={"context": "lab"}))
    assert lab.submit([one])[one.key].state is QUEUED
    assert cluster.jobs
    with pytest.raises(MissingError, match="does not answer"):
        KubernetesExecutor("lab", SETTINGS).submit([one])
    with pytest.raises(MissingError, match=r"cannot find the cluster.*context"):
        KubernetesExecutor("lab", SETTINGS.model_copy(update={"context": "nowhere"})).submit([one])


def test_without_a_kubeconfig_or_in_a_pod_without_an_account(kubeconfig, monkeypatch):
    kubeconfig.unlink()
    with pytest.raises(MissingError, match="set KUBECONFIG"):
        KubernetesExecutor("lab", SETTINGS).poll(["0"])
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "9")
    with pytest.raises(MissingError, match="cannot find the cluster"):
        KubernetesExecutor("lab", SETTINGS).poll(["0"])


def test_without_the_client_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(MissingError, match=r"knowngood\[kubernetes\]"):
        KubernetesExecutor("lab", SETTINGS).poll(["0"])
