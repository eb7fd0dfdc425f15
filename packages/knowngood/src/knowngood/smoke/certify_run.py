"""Runs the model suite for one configuration, in a container of a cell's image or in the current environment."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from knowngood.core import local_files
from knowngood.core.cell import Cell
from knowngood.core.notify import Notify
from knowngood.evidence import sealed_files
from knowngood.evidence.model_runs import MODEL_EVIDENCE_SCHEMA, MODEL_RUNS_FOLDER
from knowngood.evidence.run_evidence import RunPlace
from knowngood.project.checkout import Project
from knowngood.smoke import suite_files, suite_run
from knowngood.smoke.model_config import CONFIG_NAME, ModelConfig
from knowngood.smoke.suite_command import CONTAINER_FOLDER, SuiteOptions

MODEL_SUITE_FOLDER = "model_tests"
_CODE_FOLDER = "model"
_PREDICTIONS_NAME = "predictions.json"
_LABEL = "io.knowngood.certify"


@dataclass(frozen=True, kw_only=True)
class ModelRequest:
    """What the suite is given: a configuration, and what goes with it."""

    config: ModelConfig
    remote_code: bool = False
    """Whether the Python files beside the configuration are given too, and may run."""
    predictions: Mapping[str, Any] | None = None
    """Predicted outcomes by globs over the ids of checks, which the suite compares with its own."""

    def files(self) -> dict[str, bytes]:
        """Return the files that lie in the folder of the run, by name."""
        files = {CONFIG_NAME: json.dumps(self.config.fields).encode()}
        if self.predictions is not None:
            files[_PREDICTIONS_NAME] = json.dumps(self.predictions).encode()
        if self.remote_code:
            files |= {f"{_CODE_FOLDER}/{name}": data for name, data in self.config.code_files().items()}
        return files


@dataclass(frozen=True, kw_only=True)
class ModelEvidence:
    """One run of the model suite for a configuration."""

    config: ModelConfig
    cell: Cell | None
    where: RunPlace
    image: str | None
    when: str
    node: Mapping[str, Any]
    command: tuple[str, ...]
    report: Mapping[str, Any]

    def document(self) -> dict[str, Any]:
        """Return the content of the evidence file. The configuration is in the report, without its path."""
        text = json.dumps(self.config.fields, sort_keys=True, ensure_ascii=False)
        return {
            "schema": MODEL_EVIDENCE_SCHEMA,
            "config": {"model_type": self.config.model_type, "sha256": hashlib.sha256(text.encode()).hexdigest()},
            "cell": str(self.cell) if self.cell else None,
            "where": str(self.where),
            "image": self.image,
            "node": dict(self.node),
            "when": self.when,
            "command": list(self.command),
            "report": self.report,
        }


def store_model_evidence(evidence: ModelEvidence, store: Path) -> Path:
    """Write a run to `<store>/models/<model type>/<time>-<suite hash>-<digest>.json` and return the path."""
    stamp = datetime.fromisoformat(evidence.when).astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    text = json.dumps(evidence.document(), indent=1, ensure_ascii=False) + "\n"
    folder = store / MODEL_RUNS_FOLDER / evidence.config.model_type.replace("/", "-")
    return sealed_files.write_sealed_json(folder, f"{stamp}-{evidence.report['suite_hash'][:12]}", text)


def suite_words(options: SuiteOptions, folder: str, request: ModelRequest, *, cell_gpu: str | None) -> list[str]:
    """Return the arguments of `python -m model_tests`, whose files lie in `folder`."""
    words = ["--config", f"{folder}/{CONFIG_NAME}", "--report", f"{folder}/report.json"]
    # The last check that starts may take its own time; what is left by then is `not-run`.
    words += ["--budget", str(max(60, options.seconds - 300))]
    words += ["--quick"] if options.quick else []
    words += ["--demand-gpu"] if options.gpus else []
    words += ["--cell-gpu", cell_gpu] if options.gpus and cell_gpu else []
    words += ["--predictions", f"{folder}/{_PREDICTIONS_NAME}"] if request.predictions is not None else []
    return [*words, "--remote-code", f"{folder}/{_CODE_FOLDER}"] if request.remote_code else words


def _cut_folders(report: bytes, folders: Iterable[Path]) -> bytes:
    """Return a report without the folders of this machine before the files that its tracebacks name.

    A program may call a folder as it was given (`../venv`), in its shortest form, or by where its links lead.
    """
    spelt = {text for path in folders for text in (str(path), os.path.abspath(path), os.path.realpath(path))}  # noqa: PTH100
    for folder in sorted(spelt, key=len, reverse=True):
        report = report.replace(json.dumps(f"{folder}{os.sep}").strip('"').encode(), b"")
    return report


def certify_in_environment(
    project: Project, request: ModelRequest, options: SuiteOptions, *, log: Path, notify: Notify
) -> ModelEvidence:
    """Run the suite with the Python of `VIRTUAL_ENV`, or else with this program's.

    Raises `KnowngoodError` where the suite does not end in time or leaves no report.
    """
    python = suite_run.find_environment_python()
    pythons = (python, os.path.realpath(python))
    paths = [str(project.suites), *filter(None, [os.environ.get("PYTHONPATH")])]
    with local_files.scratch_folder() as folder:
        for name, data in request.files().items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(data)
        content = suite_run.run_environment_python(
            ["-m", MODEL_SUITE_FOLDER, *suite_words(options, str(folder), request, cell_gpu=None)],
            folder / "report.json",
            seconds=options.seconds,
            log=log,
            notify=notify,
            variables={"PYTHONPATH": os.pathsep.join(paths)},
            folder=folder,
        )
        folders_of_run = (project.suites, project.root, folder, *(Path(text).parents[1] for text in pythons))
        report = suite_run.parse_suite_report(_cut_folders(content, folders_of_run), log)
    return ModelEvidence(
        config=request.config,
        cell=None,
        where=RunPlace.BARE,
        image=None,
        when=suite_run.current_time(),
        node=suite_run.environment_fingerprint(),
        command=("python", "-m", MODEL_SUITE_FOLDER, *suite_words(options, ".", request, cell_gpu=None)),
        report=report,
    )


def certify_in_container(project: Project, request: ModelRequest, place: suite_run.SuiteContainer) -> ModelEvidence:
    """Run the suite in a container of a cell's image; it is brought in when it runs.

    Raises as `SuiteContainer.run_command`.
    """
    words = suite_words(place.options, CONTAINER_FOLDER, request, cell_gpu=place.cell.gpu)
    command = ["timeout", "--kill-after=10", str(place.options.seconds), "env", f"PYTHONPATH={CONTAINER_FOLDER}"]
    command += ["python", "-m", MODEL_SUITE_FOLDER, *words]
    report = place.run_command(command, files=suite_bundle(project, request), label=_LABEL)
    return ModelEvidence(
        config=request.config,
        cell=place.cell,
        where=suite_run.find_run_place(place.options),
        image=place.digest,
        when=suite_run.current_time(),
        node=suite_run.engine_fingerprint(place.engine),
        command=tuple(command),
        report=report,
    )


def suite_bundle(project: Project, request: ModelRequest) -> dict[str, bytes]:
    """Return all files of a run by their path in its folder: both suites, and what the request gives."""
    suites = suite_files.read_suite_files(project.suite)
    suites |= suite_files.read_suite_files(project.model_suite, MODEL_SUITE_FOLDER)
    return {**suites, **request.files()}
