"""Jobs in containers of this machine's engine; the engine knows them by a label, so they outlive this program."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knowngood import smoke
from knowngood.atomic import write_text
from knowngood.engines import sdk
from knowngood.errors import KnowngoodError, MissingError
from knowngood.fleet import shell
from knowngood.fleet.job import Cause, Job, Needs, State, Status
from knowngood.fleet.local_room import Begin

if TYPE_CHECKING:
    from docker.models.containers import Container

    from docker import DockerClient
    from knowngood.engines.engine import Engine

_LABEL = "io.knowngood.job"
LOG = "log"


class Containers:
    """See `local.Work`."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self._engine, self._folder = engine, folder

    def begin(self, begin: Begin) -> Status | None:
        """Start a job; how it stands when that cannot be."""
        job = begin.job
        options = smoke.Options(
            gpus=job.needs.gpu is not None, seconds=job.needs.seconds, memory=f"{job.needs.memory >> 20}m"
        )
        labels = {_LABEL: job.key, f"{_LABEL}.device": begin.device or "", f"{_LABEL}.needs": _needs(job.needs)}
        with sdk.client(self._engine) as client:
            try:
                image = _image(client, job)
            except KnowngoodError as error:
                return Status(state=State.FAILED, cause=Cause.IMAGE_PULL, text=str(error))
            words = smoke.inside(job.command, job.needs.seconds)
            container = smoke.create(client, image, words, options, labels=labels, device=begin.device)
            try:
                smoke.give(container, job.predictions)
                smoke.start(container, self._engine)
            except MissingError as error:
                container.remove(force=True, v=True)
                return Status(state=State.REFUSED, cause=Cause.NO_NODE, text=str(error))
            except BaseException:
                container.remove(force=True, v=True)
                raise
        return None

    def running(self) -> dict[str, tuple[Needs, str | None]]:
        """What is at work, by key; what has ended is collected into its folder, and its container removed."""
        found = {}
        with sdk.client(self._engine) as client:
            for container in client.containers.list(all=True, filters={"label": _LABEL}):
                key = container.labels[_LABEL]
                if container.status in ("exited", "dead"):
                    self._collect(container, key)
                elif container.status == "created":  # by a program that was killed before it could start it
                    container.remove(force=True, v=True)
                else:
                    needs = Needs(**json.loads(container.labels[f"{_LABEL}.needs"]))
                    found[key] = (needs, container.labels[f"{_LABEL}.device"] or None)
        return found

    def stop(self, key: str) -> None:
        """End it and leave nothing of it."""
        with sdk.client(self._engine) as client:
            for container in client.containers.list(all=True, filters={"label": f"{_LABEL}={key}"}):
                container.remove(force=True, v=True)

    def log(self, key: str) -> str:
        """What it has printed so far."""
        with sdk.client(self._engine) as client:
            found = client.containers.list(all=True, filters={"label": f"{_LABEL}={key}"})
            return str(found[0].logs().decode(errors="replace")) if found else ""

    def _collect(self, container: Container, key: str) -> None:
        folder, state = self._folder / key, container.attrs["State"]
        write_text(folder / LOG, container.logs().decode(errors="replace"))
        report, code = smoke.report_of(container), int(state["ExitCode"])
        if code in (0, 1) and report is not None:
            with contextlib.suppress(ValueError):  # damaged: there is no outcome
                write_text(folder / shell.OUTCOME, self._outcome(key, json.loads(report), state))
        if not (folder / shell.OUTCOME).exists():
            cause, text = _cause(code, oom=bool(state.get("OOMKilled")))
            write_text(folder / shell.END, f"{cause}\n{text}\n")
        container.remove(force=True, v=True)

    def _outcome(self, key: str, report: Any, state: Mapping[str, Any]) -> str:
        when = datetime.fromisoformat(state["FinishedAt"][:19] + "+00:00").isoformat()
        node = smoke.node(self._engine)
        document = {"schema": shell.SCHEMA, "key": key, "when": when, "node": node, "report": report}
        return json.dumps(document) + "\n"


def _needs(needs: Needs) -> str:
    return json.dumps({"cpus": needs.cpus, "memory": needs.memory, "gpu": needs.gpu, "gpus": needs.gpus})


def _image(client: DockerClient, job: Job) -> str:
    """The image's name on the engine, pulled where it is not there."""
    from docker.errors import APIError, NotFound

    reference = str(job.subject.image)
    for name in filter(None, (job.subject.content, job.subject.config, reference)):
        with contextlib.suppress(NotFound):
            return str(client.images.get(name).id)
    if "/" not in reference:
        raise KnowngoodError(
            f"the engine has no image {job.subject.content[:19]}; run `knowngood build-matrix '{job.cell}'`"
        )
    try:
        return str(client.images.pull(reference).id)
    except APIError as error:
        raise KnowngoodError(f"the engine cannot pull {reference}: {error.explanation or error}") from None


def _cause(code: int, *, oom: bool) -> tuple[Cause, str]:
    if oom:
        return Cause.MEMORY, "the suite was killed for too much memory; --memory gives more"
    if code in smoke.TIMED_OUT:
        return Cause.TIME_LIMIT, "the suite did not end in its time; --timeout gives more"
    return Cause.CRASH, f"the suite's process ended with {code} and left no whole report"
