"""What can be said where a log ends with a shell's word that the program was killed. Pure."""

from __future__ import annotations

from knowngood.compat.incident import Incident, IncidentKind, IncidentSeverity, OwnComponent
from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.failures.logs.last_errors import LastError
from knowngood.failures.names.message_causes import MessageCause
from knowngood.failures.names.name_situation import advise

_KILLED = lazy_pattern(r"^(?:\S+: line \d+: +\d+ )?Killed\b(?!:)|^zsh: killed\b|\sKilled$")


def explain_killed_program(error: LastError) -> MessageCause | None:
    """Return the cause of a bare `Killed`: on a machine for training, the kernel that ran out of memory."""
    if error.frames or not error.ends_log or not _KILLED.search(error.text):
        return None
    incident = Incident(
        id="killed",
        title="The system killed the program: mostly the machine's memory, not the GPU's, was full",
        kind=IncidentKind.CONFIG,
        severity=IncidentSeverity.FAILURE,
        component=OwnComponent.HOST_MEMORY,
        because=(
            "The shell saw the program end by SIGKILL, which leaves no message of the program's own. Loading a model "
            "or a data set, compiling and many workers fill the memory; a job's or container's limit counts too."
        ),
        fix=(
            advise("dmesg | grep -i 'killed process' shows it; watch free -h, or the limit of the container or job"),
            advise(
                "Fewer workers and processes, MAX_JOBS=2 when it compiles, low_cpu_mem_usage=True or a smaller model"
            ),
            advise("More memory or swap for the machine, the container (--memory) or WSL (.wslconfig)"),
        ),
        source=("the shell's message of a program that ended by SIGKILL",),
        confidence="reported",
    )
    return MessageCause(incident=incident, line=error.line, package="")
