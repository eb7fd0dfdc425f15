"""`knowngood certify CONFIG`: which attention setting is right for a model, from its config.json."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knowngood.cli import shared_arguments
from knowngood.cli.main import Answer
from knowngood.cli.progress import report_progress
from knowngood.core import extensions
from knowngood.core.errors import KnowngoodError, MissingError, UnknownError, UsageError
from knowngood.core.formatting import format_table
from knowngood.project.checkout import find_project
from knowngood.smoke import certificate, certify_run
from knowngood.smoke.model_config import ModelConfig, read_model_config, read_model_predictions
from knowngood.smoke.suite_command import SuiteOptions

if TYPE_CHECKING:
    from knowngood.evidence.model_judgement import RunIncident
    from knowngood.project.checkout import Project
    from knowngood.smoke.certify_run import ModelEvidence, ModelRequest

_EPILOG = (
    "Example: knowngood certify path/to/model --quick. Exit codes: 0 a setting is right for every kind of data, "
    "1 none is right for some or a prediction was wrong, 2 no configuration of a causal model or code of its own that "
    "was not allowed, 3 this transformers does not know the model, 4 torch, an engine or a GPU is missing."
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add CONFIG, the place where it runs, and the options of a run."""
    parser.epilog = _EPILOG
    parser.add_argument(
        "config",
        type=Path,
        metavar="CONFIG",
        help="a model's config.json, the folder that holds it, or a family of the suite, such as gemma2",
    )
    parser.add_argument(
        "--cell",
        metavar="ID",
        help="run in the image of this cell, an id or an alias (default: in the current environment, VIRTUAL_ENV)",
    )
    parser.add_argument("--quick", action="store_true", help="padded and packed data in bf16, and little in fp32")
    parser.add_argument(
        "--remote-code", action="store_true", help="run the Python files beside CONFIG, where the model needs them"
    )
    parser.add_argument(
        "--predictions",
        type=Path,
        metavar="FILE",
        help="compare with predicted outcomes, which scripts/model_predictions.py writes; 1 where they differ",
    )
    parser.add_argument(
        "--gpus", action="store_true", help="give the container the GPUs of this host; fail without one"
    )
    parser.add_argument(
        "--timeout",
        type=shared_arguments.parse_seconds,
        default=3600,
        metavar="SECONDS",
        help="for the whole run (default: %(default)s)",
    )


def run(arguments: argparse.Namespace) -> Answer:
    """Run the suite for the configuration, store its evidence, and say which setting to use."""
    project = find_project()
    config = read_model_config(arguments.config, project.model_suite)
    if arguments.remote_code and not arguments.config.is_dir():
        raise UsageError("--remote-code runs the Python files beside a config.json; give the folder that holds them")
    predictions = None if arguments.predictions is None else read_model_predictions(arguments.predictions)
    request = certify_run.ModelRequest(config=config, remote_code=arguments.remote_code, predictions=predictions)
    options = SuiteOptions(quick=arguments.quick, gpus=arguments.gpus, seconds=arguments.timeout)
    if arguments.cell is None:
        shared_arguments.refuse_options(
            arguments, ("gpus",), "does nothing without --cell ID: the run is in the current environment"
        )
        evidence = _run_here(project, request, options)
    else:
        evidence = _run_in_cell(project, request, options, arguments)
    _raise_problem(config, evidence.report)
    path = certify_run.store_model_evidence(evidence, project.evidence_store)
    document = certificate.certificate_document(evidence.report, _load_run_incidents()) | {"evidence": str(path)}
    return Answer(_exit_code(document), document, _answer_text(config, document))


def _load_run_incidents() -> Sequence[RunIncident]:
    """Return the known failures that explain what runs observe; none where nothing that knows them is installed."""
    load = extensions.load_extension(extensions.EXPLAIN_RUNS)
    incidents: Sequence[RunIncident] = load() if load else ()
    return incidents


def _run_here(project: Project, request: ModelRequest, options: SuiteOptions) -> ModelEvidence:
    from knowngood.core.local_files import cache_folder

    with report_progress(request.config.model_type) as notify:
        log = cache_folder() / "logs" / "certify-here.log"
        return certify_run.certify_in_environment(project, request, options, log=log, notify=notify)


def _run_in_cell(
    project: Project, request: ModelRequest, options: SuiteOptions, arguments: argparse.Namespace
) -> ModelEvidence:
    from knowngood.cli import run_image

    cell = shared_arguments.select_one_cell([arguments.cell], project.matrix)
    opened = run_image.open_suite_container(project, cell, options, log="certify")
    with opened as place:
        return certify_run.certify_in_container(project, request, place)


def _raise_problem(config: ModelConfig, report: Mapping[str, Any]) -> None:
    """Raise the error for a configuration of which the suite could make no miniature, or for a lack of torch."""
    problem = report.get("problem")
    if problem is not None:
        kind, text = problem["kind"], f"{config.path}: {problem['text']}"
        if kind == "unknown-model":
            raise UnknownError(f"{text}; a newer transformers may: try another environment or --cell")
        if kind == "remote-code":
            raise UsageError(f"{text}; read that code, and give the folder and --remote-code to run it")
        raise UsageError(text)
    if "torch" not in report["environment"]:
        first = report["checks"][0] if report["checks"] else {"reason": "nothing ran"}
        raise MissingError(f"{first['reason']} {first.get('message') or ''}".strip())
    if report.get("host_problems"):
        raise MissingError("; ".join(report["host_problems"]))
    if not report["checks"]:
        raise KnowngoodError("the suite ran no check")


def _exit_code(document: dict[str, Any]) -> int:
    right = document["use"] and all(document["use"].values())
    return 0 if right and not document["disagreements"] else 1


def _answer_text(config: ModelConfig, document: dict[str, Any]) -> str:
    device = document["gpu"] or "the CPU"
    title = f"{config.model_type} with transformers {document['transformers']}, torch {document['torch']}, on {device}"
    header, *rows = certificate.certificate_rows(document)
    table = format_table(header, rows)
    return "\n".join([title, table, *certificate.certificate_sentences(document), f"evidence: {document['evidence']}"])
