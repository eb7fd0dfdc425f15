"""A fake Kubernetes API server, with those parts of the Job controller and the scheduler that a smoke run uses.

It answers over real HTTP and checks created objects against the API's own schema. Its behaviour was written from the
documentation, not taken from Kubernetes, so tests with it are unit tests. The tests play the part of the kubelet.
"""

from __future__ import annotations

import json
import re
import threading
from contextlib import contextmanager
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from jsonschema import Draft202012Validator
from kubernetes_validate.utils import schema_contents
from referencing import Registry, Resource

VERSION = "1.33"
LABELS = {"kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux"}
INDEX = "batch.kubernetes.io/job-completion-index"


@cache
def schema(version, kind="job-batch-v1"):
    """Return the schema of an API kind in a release; it refuses unknown fields."""
    folder = f"kubernetes-json-schema/v{version}.0-local-strict"
    described, definitions = (
        Resource.from_contents(schema_contents(f"{folder}/{name}.json", version)) for name in (kind, "_definitions")
    )
    return Draft202012Validator(described.contents, registry=definitions @ (described @ Registry()))


class Cluster:
    """One namespace of a cluster. Its `clock` may differ from the real time."""

    def __init__(self, *, clock=None):
        self.clock = clock or datetime.now(UTC).replace(microsecond=0)
        self.nodes, self.jobs, self.pods, self.events, self.logs = {}, {}, {}, [], {}
        self.requests = []
        self.refuse = {}
        """Answers that replace the real ones: (method, ending of the path) -> (code, reason, message)."""
        self.no_pods = ""
        """The error that the Job controller gets when it creates a pod."""
        self.serial = 0
        self.strict = True
        """Whether created objects are checked against the API's schema, which takes time."""

    def node(self, name, *, gpus=0, **labels):
        self.nodes[name] = {"labels": {**LABELS, **{key: str(value) for key, value in labels.items()}}, "gpus": gpus}

    def gpu_node(self, name, sm="90", driver="580.65.06", gpus=1, old=False):
        names = ("driver.major", "driver.minor", "driver.rev")
        names = names if old else ("driver-version.major", "driver-version.minor", "driver-version.revision")
        parts = [*driver.split("."), ""][:3]
        labels = {f"nvidia.com/cuda.{key}": value for key, value in zip(names, parts, strict=True)}
        capability = {"nvidia.com/gpu.compute.major": sm[:-1], "nvidia.com/gpu.compute.minor": sm[-1]}
        self.node(name, gpus=gpus, **labels, **capability)

    def time(self):
        return self.clock.strftime("%Y-%m-%dT%H:%M:%SZ")

    def pass_time(self, seconds):
        self.clock += timedelta(seconds=seconds)
        self.reconcile()

    # The part of the kubelet. A pod is identified by the key of its Job's index.

    def pod(self, key):
        """Return the newest pod of a key."""
        return [pod for pod in self.pods.values() if self.key(pod) == key][-1]

    def key(self, pod):
        job = self.jobs[pod["metadata"]["ownerReferences"][0]["name"]]
        return job["metadata"]["annotations"]["io.knowngood/keys"].split()[int(pod["metadata"]["labels"][INDEX])]

    def container(self, key, **state):
        pod = self.pod(key)
        pod["status"].setdefault("startTime", self.time())
        pod["status"]["containerStatuses"] = [{"name": "suite", "state": state, "ready": False}]
        return pod

    def start(self, key, log=""):
        pod = self.container(key, running={"startedAt": self.time()})
        pod["status"]["phase"] = "Running"
        self.logs[pod["metadata"]["name"]] = log.encode()

    def finish(self, key, code=0, *, log=None, message="", reason=None, pod_reason="", condition=None):
        """End the container, or, with code None, let the pod fail without it."""
        pod = self.pod(key)
        if code is not None:
            began = pod["status"]["containerStatuses"][0]["state"]["running"]["startedAt"]
            ended = {"exitCode": code, "reason": reason or ("Error" if code else "Completed")}
            ended |= {"startedAt": began, "finishedAt": self.time(), "message": message}
            self.container(key, terminated=ended)
        if log is not None:
            self.logs[pod["metadata"]["name"]] = log if isinstance(log, bytes) else log.encode()
        pod["status"]["phase"] = "Failed" if code or code is None else "Succeeded"
        if pod_reason:
            pod["status"] |= {"reason": pod_reason, "message": message}
        if condition:
            pod["status"]["conditions"].append({"type": condition, "status": "True", "reason": "TheReason"})
        self.reconcile()

    # The Job controller.

    def reconcile(self):
        for job in self.jobs.values():
            self.control(job)
        for pod in self.pods.values():
            self.schedule(pod)

    def control(self, job):
        spec, status = job["spec"], job["status"]
        if status.get("conditions"):
            return
        if not status.get("startTime"):
            status["startTime"] = self.time()
        age = self.clock - datetime.fromisoformat(status["startTime"])
        if age.total_seconds() >= spec["activeDeadlineSeconds"]:
            self.over(job, "DeadlineExceeded", "Job was active longer than specified deadline")
            return
        completed, failed = set(), set()
        for index in range(spec["completions"]):
            pods = [pod for pod in self.of(job) if pod["metadata"]["labels"][INDEX] == str(index)]
            phases = [pod["status"]["phase"] for pod in pods]
            if "Succeeded" in phases:
                completed.add(index)
            elif any(self.verdict(job, pod) == "FailIndex" for pod in pods) or (
                sum(self.verdict(job, pod) == "Count" for pod in pods) > spec["backoffLimitPerIndex"]
            ):
                failed.add(index)
            elif not pods or phases[-1] == "Failed":
                self.make(job, index)
        status["completedIndexes"] = ",".join(map(str, sorted(completed)))
        status["failedIndexes"] = ",".join(map(str, sorted(failed)))
        if len(completed) == spec["completions"]:
            status["conditions"] = [{"type": "Complete", "status": "True", "lastTransitionTime": self.time()}]
        elif len(completed | failed) == spec["completions"]:
            self.over(job, "FailedIndexes", "Job has failed indexes")

    def over(self, job, reason, message):
        condition = {"type": "Failed", "status": "True", "reason": reason, "message": message}
        job["status"]["conditions"] = [{**condition, "lastTransitionTime": self.time()}]
        for pod in self.of(job):
            if pod["status"]["phase"] in ("Pending", "Running"):
                del self.pods[pod["metadata"]["name"]]

    def verdict(self, job, pod):
        """Return the action of the pod failure policy for a pod; `Count` if no rule applies."""
        if pod["status"]["phase"] != "Failed":
            return None
        for rule in job["spec"]["podFailurePolicy"]["rules"]:
            wanted = rule.get("onPodConditions", [])
            if any(item["type"] == one["type"] for item in wanted for one in pod["status"]["conditions"]):
                return rule["action"]
            codes = [one["state"]["terminated"]["exitCode"] for one in pod["status"].get("containerStatuses", [])]
            if "onExitCodes" in rule:
                assert rule["onExitCodes"]["operator"] == "NotIn"
                if any(code not in rule["onExitCodes"]["values"] for code in codes):
                    return rule["action"]
        return "Count"

    def of(self, job):
        own = job["metadata"]["uid"]
        return [pod for pod in self.pods.values() if pod["metadata"]["ownerReferences"][0]["uid"] == own]

    def make(self, job, index):
        metadata = job["metadata"]
        if self.no_pods:
            about = {"kind": "Job", "name": metadata["name"], "uid": metadata["uid"]}
            self.events.append({"reason": "FailedCreate", "message": self.no_pods, "involvedObject": about})
            return
        template = deepcopy(job["spec"]["template"])
        owner = {"kind": "Job", "name": metadata["name"], "uid": metadata["uid"], "controller": True}
        self.serial += 1
        pod = {
            "metadata": {
                **template["metadata"],
                "name": f"{metadata['name']}-{index}-{self.serial:05}",
                "labels": {**template["metadata"]["labels"], INDEX: str(index)},
                "ownerReferences": [owner],
                "creationTimestamp": self.time(),
            },
            "spec": template["spec"],
            "status": {"phase": "Pending", "conditions": []},
        }
        self.pods[pod["metadata"]["name"]] = pod

    # The scheduler.

    def schedule(self, pod):
        if pod["spec"].get("nodeName") or pod["status"]["phase"] != "Pending":
            return
        limits = pod["spec"]["containers"][0]["resources"]["limits"]
        gpus = int(limits.get("nvidia.com/gpu", 0))
        fitting = [name for name, node in self.nodes.items() if fits(pod["spec"], name, node["labels"])]
        free = [name for name in fitting if self.nodes[name]["gpus"] - self.taken(name) >= gpus]
        if free:
            pod["spec"]["nodeName"] = free[0]
            pod["status"]["conditions"] = [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": self.time()}
            ]
            return
        lacking = [f"{len(fitting)} Insufficient nvidia.com/gpu"] if fitting else []
        unfit = len(self.nodes) - len(fitting)
        lacking += [f"{unfit} node(s) didn't match Pod's node affinity/selector"] if unfit else []
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": f"0/{len(self.nodes)} nodes are available: {', '.join(lacking)}.",
        }
        if not pod["status"]["conditions"]:
            pod["status"]["conditions"] = [{**condition, "lastTransitionTime": self.time()}]
        pod["status"]["conditions"][0] |= condition

    def taken(self, node):
        return sum(
            int(pod["spec"]["containers"][0]["resources"]["limits"].get("nvidia.com/gpu", 0))
            for pod in self.pods.values()
            if pod["spec"].get("nodeName") == node and pod["status"]["phase"] in ("Pending", "Running")
        )

    # The API.

    def answer(self, method, path, query, body):
        refused = [answer for (verb, ending), answer in self.refuse.items() if verb == method and path.endswith(ending)]
        if refused:
            return status(*refused[0])
        match = re.fullmatch(r"/(?:api|apis/batch)/v1/namespaces/([^/]+)/(jobs|pods|events)(?:/([^/]+))?(/log)?", path)
        namespace, kind, name, log = match.groups()
        if method == "POST":
            return self.create(namespace, body)
        if name is None:
            return self.listed(kind, query)
        item = getattr(self, kind).get(name)
        if item is None:
            return status(404, "NotFound", f'{kind} "{name}" not found')
        if log:
            waiting = status(400, "BadRequest", f'container "suite" in pod "{name}" is waiting to start')
            return (200, self.logs[name]) if name in self.logs else waiting
        merge(item, body)
        if kind == "pods" and item["status"]["phase"] == "Running":  # the kubelet enforces the deadline
            self.finish(self.key(item), 137, pod_reason="DeadlineExceeded", message="Pod was active too long")
        self.reconcile()
        return 200, json.dumps(item).encode()

    def create(self, namespace, body):
        if self.strict:
            schema(VERSION).validate(body)
        assert body["metadata"]["namespace"] == namespace
        name = body["metadata"]["name"]
        if name in self.jobs:
            return status(409, "AlreadyExists", f'jobs.batch "{name}" already exists')
        made = deepcopy(body)
        self.serial += 1
        made["metadata"] |= {"uid": f"uid-{self.serial}", "creationTimestamp": self.time()}
        made["status"] = {}
        self.jobs[name] = made
        self.control(made)
        for pod in self.of(made):
            self.schedule(pod)
        return 201, json.dumps(made).encode()

    def listed(self, kind, query):
        items = getattr(self, kind)
        items = items if isinstance(items, list) else list(items.values())
        if "labelSelector" in query:
            label, _, value = query["labelSelector"].partition("=")
            items = [item for item in items if item["metadata"]["labels"].get(label) == value]
        start, limit = int(query.get("continue", 0)), int(query["limit"])
        more = {"continue": str(start + limit)} if len(items) > start + limit else {}
        return 200, json.dumps({"metadata": more, "items": items[start : start + limit]}).encode()


def fits(spec, name, labels):
    if any(labels.get(key) != value for key, value in spec.get("nodeSelector", {}).items()):
        return False
    affinity = spec.get("affinity", {}).get("nodeAffinity", {})
    terms = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", [{}])
    return any(
        all(holds(item, labels) for item in term.get("matchExpressions", []))
        and all(holds(item, {"metadata.name": name}) for item in term.get("matchFields", []))
        for term in terms
    )


def holds(item, labels):
    value, wanted = labels.get(item["key"]), item["values"]
    match item["operator"]:
        case "In":
            return value in wanted
        case "NotIn":
            return value not in wanted
        case "Gt" | "Lt":
            (bound,) = map(int, wanted)
            if value is None or not re.fullmatch(r"-?\d+", value):
                return False
            return int(value) > bound if item["operator"] == "Gt" else int(value) < bound


def merge(target, change):
    for key, value in change.items():
        if isinstance(value, dict):
            merge(target.setdefault(key, {}), value)
        else:
            target[key] = value


def status(code, reason, message):
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": message}
    return code, json.dumps({**body, "code": code}).encode()


@contextmanager
def serving(cluster):
    """Serve the cluster until the block ends; yield its address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self):
            address = urlsplit(self.path)
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            query = {key: values[0] for key, values in parse_qs(address.query).items()}
            cluster.requests.append((self.command, address.path))
            code, data = cluster.answer(self.command, address.path, query, body)
            self.send_response_only(code)
            self.send_header("Date", format_datetime(cluster.clock, usegmt=True))
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PATCH = answer  # noqa: N815

        def log_message(self, *_):
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_):
            pass  # the client closed the connection

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
