"""The runs of the model suite in `evidence/models/`, and what they observed of each model, release and setting."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from knowngood.evidence import sealed_files
from knowngood.evidence.model_judgement import SettingJudgement, judge_settings, model_name_of_type

MODEL_EVIDENCE_SCHEMA = "knowngood/model-evidence/1"
MODEL_RUNS_FOLDER = "models"


def list_run_models(evidence: Path) -> frozenset[str]:
    """Return the models that have a run in a folder of evidence, as `model_name_of_type` writes them."""
    folder = evidence / MODEL_RUNS_FOLDER
    return frozenset(model_name_of_type(path.name) for path in folder.iterdir()) if folder.is_dir() else frozenset()


@dataclass(frozen=True, kw_only=True)
class ModelRun:
    """One run of the model suite, as its file says."""

    file: str
    """Its path below the folder of evidence."""
    content: Mapping[str, Any]

    @property
    def model_type(self) -> str:
        """The type by which transformers chooses the classes."""
        return str(self.content["config"]["model_type"])

    @property
    def report(self) -> Mapping[str, Any]:
        """The suite's own report."""
        report: Mapping[str, Any] = self.content["report"]
        return report

    @property
    def transformers(self) -> str:
        """The release of transformers that ran."""
        return str(self.report["environment"]["transformers"])

    @property
    def gpu(self) -> str | None:
        """The name of the GPU; `None` on a CPU."""
        name = self.report["environment"].get("gpu")
        return None if name is None else str(name)

    @cached_property
    def judgements(self) -> tuple[SettingJudgement, ...]:
        """What it observed of each attention setting."""
        return tuple(judge_settings(self.report["checks"]))

    @property
    def compared(self) -> tuple[int, int]:
        """How many of its checks were as predicted, and for how many there was a prediction."""
        agreements = [check.get("agreement") for check in self.report["checks"]]
        return agreements.count("agree"), sum(item is not None for item in agreements)


@dataclass(frozen=True, kw_only=True)
class SeenSetting:
    """What the runs observed of a setting, and the run that decides."""

    run: ModelRun
    judgement: SettingJudgement


SeenSettings = dict[tuple[str, str, str], SeenSetting]
"""(model type, transformers, setting) -> what was seen."""


def load_model_runs(folder: Path, seal: sealed_files.RunSeal | None = None) -> tuple[list[ModelRun], list[str]]:
    """Return the runs in `<folder>/models/`, the oldest first, and the reasons why other files are left out.

    Of a model that has lost a file which the ledger or the project's seal names, no run counts.
    """
    lost = sealed_files.find_missing_files(folder, seal)
    runs, left_out = (
        [],
        [note for place, notes in lost.items() if place.startswith(MODEL_RUNS_FOLDER) for note in notes],
    )
    for path in sorted((folder / MODEL_RUNS_FOLDER).glob("*/*.json")):
        if path.parent.relative_to(folder).as_posix() in lost:
            continue
        name, data = path.relative_to(folder).as_posix(), path.read_bytes()
        defect = sealed_files.find_defect(path, data)
        if defect is not None:
            left_out.append(f"{name}: {defect}")
            continue
        content = json.loads(data)
        if content.get("schema") != MODEL_EVIDENCE_SCHEMA:
            left_out.append(f"{name}: its schema is {content.get('schema')!r}, not {MODEL_EVIDENCE_SCHEMA!r}")
        elif "transformers" in content["report"]["environment"]:
            runs.append(ModelRun(file=name, content=content))
    return sorted(runs, key=lambda run: str(run.content["when"])), left_out


def merge_model_runs(runs: Iterable[ModelRun]) -> SeenSettings:
    """Return what is known of each setting: of each check, what the newest run saw in which it was made.

    Runs on a GPU come before others: where there is one of a setting, what was seen on a CPU is left out.
    """
    latest: dict[tuple[str, str, str], tuple[ModelRun, dict[str, Mapping[str, Any]]]] = {}
    for run in sorted(runs, key=lambda run: (run.gpu is not None, str(run.content["when"]))):
        for setting, checks in _checks_by_setting(run.report["checks"]).items():
            key = (run.model_type, run.transformers, setting)
            made = {name: check for name, check in checks.items() if check["outcome"] != "not-run"}
            before = latest.get(key)
            if before is None:
                latest[key] = (run, checks)
            elif made:
                same_place = (before[0].gpu is None) == (run.gpu is None)
                latest[key] = (run, {**(before[1] if same_place else checks), **made})
    return {
        key: SeenSetting(run=run, judgement=judgement)
        for key, (run, checks) in latest.items()
        for judgement in judge_settings(list(checks.values()))
    }


def _checks_by_setting(checks: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Mapping[str, Any]]]:
    grouped: dict[str, dict[str, Mapping[str, Any]]] = {}
    for check in checks:
        grouped.setdefault(str(check["setting"]), {})[str(check["id"])] = check
    return grouped
