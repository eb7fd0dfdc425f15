"""The cluster, through the official client: a few requests, answers as plain JSON, errors as those of this program.

The client's models are not used for answers: reading 200 pods as JSON takes 0.02 s, as models 0.6 s (decision 0802).
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from knowngood.core.errors import KnowngoodError, MissingError
from knowngood.executors.fleet_config import KubernetesSection
from knowngood.executors.kubernetes_manifest import CONTAINER, MANAGED
from knowngood.executors.kubernetes_pod_status import ApiObject

if TYPE_CHECKING:
    from kubernetes.client import ApiClient
    from kubernetes.client.exceptions import ApiException

SELECTOR = ",".join(f"{label}={value}" for label, value in MANAGED.items())
PAGE_SIZE = 500
TIMEOUT_SECONDS = (10, 60)
"""To connect, and to answer."""


class ClusterRefusedError(KnowngoodError):
    """The cluster refused a request; the text has its own words."""

    def __init__(self, status: int, reason: str, words: str) -> None:
        self.status, self.reason, self.words = status, reason, words
        super().__init__(f"the cluster refused the request ({status} {reason}): {words}")


class KubernetesApi:
    """One namespace of a cluster. Every method raises `MissingError` when the cluster does not answer."""

    def __init__(self, name: str, section: KubernetesSection, client: ApiClient | None = None) -> None:
        from kubernetes import client as kubernetes  # importing it takes about a second

        self._name, self._namespace = name, section.namespace
        api = client or connect_cluster(name, section.context)
        self._batch, self._core = kubernetes.BatchV1Api(api), kubernetes.CoreV1Api(api)

    def list_jobs(self) -> tuple[list[ApiObject], datetime]:
        """Return the Jobs with this program's label, and the time at the API server."""
        return self._list(self._batch.list_namespaced_job, label_selector=SELECTOR)

    def list_pods(self) -> list[ApiObject]:
        """Return the pods with this program's label."""
        return self._list(self._core.list_namespaced_pod, label_selector=SELECTOR)[0]

    def list_events(self) -> list[ApiObject]:
        """Return the Job controller's events about pods that it could not create."""
        selector = "reason=FailedCreate,involvedObject.kind=Job"
        return self._list(self._core.list_namespaced_event, field_selector=selector)[0]

    def create_job(self, manifest: Mapping[str, Any]) -> None:
        """Create a Job. Raises `ClusterRefusedError` (with reason `AlreadyExists` for a name that exists)."""
        self._request(self._batch.create_namespaced_job, self._namespace, manifest)

    def patch_job(self, name: str, patch: Mapping[str, Any]) -> None:
        """Change a Job, if it exists."""
        with _ignore_not_found():
            self._request(self._batch.patch_namespaced_job, name, self._namespace, patch)

    def end_pod(self, name: str) -> None:
        """Let the kubelet end a pod, if it exists. Its Job does not replace a pod that is past its deadline."""
        patch = {"spec": {"activeDeadlineSeconds": 1}}
        with _ignore_not_found():
            self._request(self._core.patch_namespaced_pod, name, self._namespace, patch)

    def read_log(self, pod: str) -> str:
        """Return everything that the suite's container printed; empty if it has not started or is gone."""
        try:
            answer = self._request(self._core.read_namespaced_pod_log, pod, self._namespace, container=CONTAINER)
        except ClusterRefusedError as error:
            if error.status in (400, 404):
                return ""
            raise
        return str(answer.data.decode(errors="replace"))

    def _list(self, method: Callable[..., Any], **selectors: str) -> tuple[list[ApiObject], datetime]:
        items: list[ApiObject] = []
        position: dict[str, str] = {}
        while True:
            try:
                answer = self._request(method, self._namespace, limit=PAGE_SIZE, **selectors, **position)
            except ClusterRefusedError as error:
                hint = "; docs/kubernetes.md has the role that is needed" if error.status in (401, 403) else ""
                raise MissingError(
                    f"{self._name}: cannot list what is in namespace {self._namespace!r} "
                    f"({error.status} {error.reason}: {error.words}){hint}"
                ) from None
            page = json.loads(answer.data)
            items += page.get("items") or []
            if not (token := page.get("metadata", {}).get("continue")):
                return items, parsedate_to_datetime(answer.headers["Date"])
            position = {"_continue": token}

    def _request(self, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        try:
            return method(*arguments, **options, _preload_content=False, _request_timeout=TIMEOUT_SECONDS)
        except ApiException as error:
            reason, words = _error_words(error)
            if error.status is None or error.status >= 500 or error.status == 429:
                raise MissingError(f"{self._name}: the cluster cannot answer now ({reason}: {words})") from None
            raise ClusterRefusedError(error.status, reason, words) from None
        except HTTPError as error:
            raise MissingError(f"{self._name}: the cluster does not answer: {error}") from None


@contextlib.contextmanager
def _ignore_not_found() -> Iterator[None]:
    try:
        yield
    except ClusterRefusedError as error:
        if error.status != 404:
            raise


def _error_words(error: ApiException) -> tuple[str, str]:
    """Return the reason (`AlreadyExists`) and the sentence of the API's answer; those of HTTP, if a proxy answered."""
    try:
        status = json.loads(error.body or "")
        return str(status["reason"]), str(status["message"])
    except (ValueError, KeyError, TypeError):
        return str(error.reason), str(error.body or "no reason given")


def connect_cluster(name: str, context: str | None) -> ApiClient:
    """Return a client for a context of the kubeconfig.

    Without a context, it is the kubeconfig's current one, or the cluster of the pod that this program runs in. `name`
    is the executor's. Raises `MissingError` when there is no usable configuration.
    """
    from kubernetes import client, config

    try:
        if context is None and "KUBERNETES_SERVICE_HOST" in os.environ:
            configuration = client.Configuration()
            config.load_incluster_config(configuration)  # type: ignore[no-untyped-call]
            return client.ApiClient(configuration)
        api: ApiClient = config.new_client_from_config(context=context)  # type: ignore[no-untyped-call]
    except config.ConfigException as error:
        raise MissingError(
            f"{name}: cannot find the cluster ({error}); set KUBECONFIG, or `context` in fleet.yaml"
        ) from None
    return api
