"""An environment variable that a program reads and that was never set. Pure."""

from __future__ import annotations

import re
from dataclasses import replace

from knowngood.compat.incident import Fix, Incident, IncidentKind, OwnComponent
from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.failures.logs.last_errors import LastError
from knowngood.failures.logs.logged_errors import CodeFrame
from knowngood.failures.names.message_causes import MessageCause, describe_traceback, shorten_text
from knowngood.failures.names.name_situation import advise

_KEY = lazy_pattern(r"^KeyError: (?P<quote>['\"])(?P<key>[A-Za-z_]\w{0,80})(?P=quote)(?=$|\s)")
_READS = lazy_pattern(r"\benviron\[")
_OF_LAUNCHER = frozenset(
    ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
)
"""Variables that torchrun and the launchers of deepspeed and accelerate set (NODE_RANK only those of clusters)."""
_OF_SCHEDULER = lazy_pattern(r"^(?:SLURM|PMI|PMIX|OMPI|PBS|LSB)_")
_SECRET = lazy_pattern(r"(?:KEY|TOKEN|SECRET|PASSWORD)$")
_SHOWN = 100


def explain_unset_variable(error: LastError) -> MessageCause | None:
    """Return which environment variable is missing and how it is set; `None` for another KeyError."""
    stated = _KEY.match(error.message)
    if stated is None or not error.frames:
        return None
    asking = [frame for frame in error.frames if not _is_environ(frame)]
    by_python = len(asking) < len(error.frames)
    frame = asking[-1] if asking else None
    if not by_python and not (frame and _READS.search(frame.code)):
        return None
    name = stated["key"]
    where = "The program"
    if frame is not None:
        code = f" ({shorten_text(frame.code, _SHOWN)})" if frame.code else ""
        where = f"Line {frame.line} of {'/'.join((frame.installed or frame.parts)[-2:])}.py{code}"
    reason, fixes = _describe_variable(name, frame)
    incident = describe_traceback(
        "environment-variable-unset",
        IncidentKind.CONFIG,
        OwnComponent.YOUR_CODE,
        title=f"The environment variable {name} is not set",
        because=f"{where} reads the environment variable {name} and takes for granted that it is set. {reason}",
        fixes=fixes,
    )
    return MessageCause(incident=incident, line=error.line, package="")


def describe_launcher_variable(incident: Incident, error: LastError) -> Incident | None:
    """Return the failure with the variable that no launcher set; `None` where the message names none."""
    cause = explain_unset_variable(error)
    stated = _KEY.match(error.message)
    if cause is None or stated is None or stated["key"] not in _OF_LAUNCHER:
        return None
    stated_cause = cause.incident
    return replace(incident, title=stated_cause.title, because=stated_cause.because, fix=stated_cause.fix)


def _is_environ(frame: CodeFrame) -> bool:
    return frame.parts[-1:] == ("os",) and frame.function == "__getitem__"


def _describe_variable(name: str, frame: CodeFrame | None) -> tuple[str, tuple[Fix, ...]]:
    if name in _OF_LAUNCHER:
        return (
            (
                "A launcher sets it for each process; the program was started with python alone, or by a launcher that "
                "does not set this one."
            ),
            (
                advise(
                    "torchrun --nproc_per_node=NUMBER_OF_GPUS SCRIPT (or deepspeed, accelerate launch) in the place of "
                    "python SCRIPT; also for one GPU, with 1"
                ),
                advise(f"For one process: {_one_process(name)} before the start; or switch distributed training off"),
            ),
        )
    if _OF_SCHEDULER.match(name):
        return (
            "The scheduler of a cluster sets it in its jobs; the program runs outside of one.",
            (
                advise(f"Start it in a job of that scheduler (srun, mpirun), or export {name} by hand"),
                advise("Choose the program's other launcher (pytorch, torchrun, none), when it has an option for it"),
            ),
        )
    if _SECRET.search(name):
        return (
            "It holds a key or a token of a service.",
            (
                advise(f"export {name}=... in the shell or the job that starts it (a .env file is not read by itself)"),
                advise("Switch the service off, when the program has an option for it (such as report_to=none)"),
            ),
        )
    compared = re.search(
        rf"{re.escape(name)}['\"]\s*\]\s*==\s*['\"](?P<value>[^'\"]{{0,40}})['\"]", frame.code if frame else ""
    )
    value = compared["value"] if compared else "VALUE"
    return (
        "The project's own script or instructions set it before this line, and this way of starting does not.",
        (
            advise(
                f"export {name}={value} before the start; or os.environ['{name}'] = '{value}' at the "
                "top of the script, "
                "before the import that reads it"
            ),
            advise(
                f"grep -rn {name} in the project shows which values it takes and which script sets it: start that one"
            ),
            advise(f"os.environ.get('{name}', DEFAULT) in that line, when the program is yours"),
        ),
    )


def _one_process(name: str) -> str:
    values = {"WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    return f"export {name}={values.get(name, '0')}"
