"""The cluster through the official client: a few requests, plain JSON back, and its errors as ours."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from knowngood.errors import KnowngoodError, MissingError
from knowngood.fleet.kubernetes_manifest import CONTAINER, MANAGED, Settings

if TYPE_CHECKING:
    from kubernetes.client import ApiClient
    from kubernetes.client.exceptions import ApiException

SELECTOR = ",".join(f"{label}={value}" for label, value in MANAGED.items())
PAGE = 500
TIMEOUT = (10, 60)


class RefusedError(KnowngoodError):
    """The cluster said no to one request, in its own words."""

    def __init__(self, status: int, reason: str, said: str) -> None:
        self.status, self.reason, self.said = status, reason, said
        super().__init__(f"the cluster said no ({status} {reason}): {said}")


class Api:
    """One namespace of a cluster."""

    def __init__(self, settings: Settings, client: ApiClient | None = None) -> None:
        from kubernetes import client as kubernetes

        self.settings = settings
        api = client or connect(settings)
        self._batch, self._core = kubernetes.BatchV1Api(api), kubernetes.CoreV1Api(api)

    def jobs(self) -> tuple[list[Mapping[str, Any]], datetime]:
        """Our Jobs, and what time it is at the API server."""
        return self._list(self._batch.list_namespaced_job, label_selector=SELECTOR)

    def pods(self) -> list[Mapping[str, Any]]:
        """Our pods."""
        return self._list(self._core.list_namespaced_pod, label_selector=SELECTOR)[0]

    def events(self) -> list[Mapping[str, Any]]:
        """What the Job controller says of pods that it could not make."""
        return self._list(
            self._core.list_namespaced_event, field_selector="reason=FailedCreate,involvedObject.kind=Job"
        )[0]

    def create(self, manifest: Mapping[str, Any]) -> None:
        """Make a Job; `RefusedError` when the cluster says no (409: there is one of this name)."""
        self._ask(self._batch.create_namespaced_job, self.settings.namespace, manifest)

    def change(self, job: str, what: Mapping[str, Any]) -> None:
        """Change a Job; nothing happens if there is none."""
        self._or_gone(lambda: self._ask(self._batch.patch_namespaced_job, job, self.settings.namespace, what))

    def end(self, pod: str) -> None:
        """Have the kubelet end a pod: its Job does not replace one that is past its deadline."""
        what = {"spec": {"activeDeadlineSeconds": 1}}
        self._or_gone(lambda: self._ask(self._core.patch_namespaced_pod, pod, self.settings.namespace, what))

    def log(self, pod: str) -> str:
        """All that the suite's container printed; empty where it has not begun or is gone."""
        try:
            answer = self._ask(self._core.read_namespaced_pod_log, pod, self.settings.namespace, container=CONTAINER)
        except RefusedError as error:
            if error.status in (400, 404):
                return ""
            raise
        return str(answer.data.decode(errors="replace"))

    def _list(self, method: Callable[..., Any], **selectors: str) -> tuple[list[Mapping[str, Any]], datetime]:
        items: list[Mapping[str, Any]] = []
        more: dict[str, str] = {}
        while True:
            try:
                answer = self._ask(method, self.settings.namespace, limit=PAGE, **selectors, **more)
            except RefusedError as error:
                way = "; docs/kubernetes.md has the role that is needed" if error.status in (401, 403) else ""
                raise MissingError(
                    f"{self.settings.name}: cannot see namespace {self.settings.namespace!r} "
                    f"({error.status} {error.reason}: {error.said}){way}"
                ) from None
            page = json.loads(answer.data)
            items += page.get("items") or []
            if not (token := page.get("metadata", {}).get("continue")):
                return items, parsedate_to_datetime(answer.headers["Date"])
            more = {"_continue": token}

    def _ask(self, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        try:
            return method(*arguments, **options, _preload_content=False, _request_timeout=TIMEOUT)
        except ApiException as error:
            reason, said = _words(error)
            if error.status is None or error.status >= 500 or error.status == 429:
                raise MissingError(
                    f"{self.settings.name}: the cluster does not answer well ({reason}: {said})"
                ) from None
            raise RefusedError(error.status, reason, said) from None
        except HTTPError as error:
            raise MissingError(f"{self.settings.name}: the cluster does not answer: {error}") from None

    @staticmethod
    def _or_gone(ask: Callable[[], Any]) -> None:
        try:
            ask()
        except RefusedError as error:
            if error.status != 404:
                raise


def _words(error: ApiException) -> tuple[str, str]:
    """The reason (`AlreadyExists`) and the sentence of the API's own answer; HTTP's, where a proxy answered."""
    try:
        status = json.loads(error.body or "")
        return str(status["reason"]), str(status["message"])
    except (ValueError, KeyError, TypeError):
        return str(error.reason), str(error.body or "no word why")


def connect(settings: Settings) -> ApiClient:
    """The cluster of the kubeconfig's context; that of the pod that this program runs in, where it does."""
    from kubernetes import client, config

    try:
        if settings.context is None and "KUBERNETES_SERVICE_HOST" in os.environ:
            configuration = client.Configuration()
            config.load_incluster_config(configuration)  # type: ignore[no-untyped-call]
            return client.ApiClient(configuration)
        found: ApiClient = config.new_client_from_config(context=settings.context)  # type: ignore[no-untyped-call]
    except config.ConfigException as error:
        raise MissingError(
            f"{settings.name}: no way to the cluster ({error}); set KUBECONFIG, or `context` in fleet.yaml"
        ) from None
    return found
