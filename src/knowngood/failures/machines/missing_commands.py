"""A command that the shell does not find: which package installs it, and whether the log shows that package installed.

Pure, except for what it is given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from knowngood.compat.incident import Fix, Incident, IncidentKind, IncidentSeverity, OwnComponent
from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.failures.logs.last_errors import LastError
from knowngood.failures.names.message_causes import MessageCause
from knowngood.failures.names.name_situation import advise

_NOT_FOUND = lazy_pattern(
    r"(?:^|[\s:])(?P<name>[A-Za-z][\w.-]{0,60}): (?:(?:command )?not found|未找到命令)\s*$"
    r"|failed to run command [\u2018'](?P<run>[A-Za-z][\w.-]{0,60})[\u2019']: No such file"
    r"|zsh: command not found: (?P<zsh>[A-Za-z][\w.-]{0,60})\s*$"
    r"|^.{0,80}?'(?P<windows>[A-Za-z][\w.-]{0,60})' is not recognized as an internal or external command"
    r"|The term '(?P<power>[A-Za-z][\w.-]{0,60})' is not recognized as"
)
_FOLDER = lazy_pattern(rb"(?P<root>[/\w.@+-]{2,200})/lib/python3\.\d{1,2}/(?:site|dist)-packages")
_SCRIPTS = lazy_pattern(rb"scripts? .{1,200}? (?:is|are) installed in '(?P<folder>[^'\n]{2,200})' which is not on PATH")
_OF_PYTHON = frozenset(("python", "python3", "pip", "pip3", "conda"))


def find_missing_command(error: LastError | None) -> str:
    """Return the command that a shell does not find; empty for other errors."""
    stated = _NOT_FOUND.search(error.text) if error is not None else None
    return next((name for name in stated.groups() if name), "") if stated else ""


def explain_missing_command(
    error: LastError, versions: Mapping[str, Sequence[str]], owners: Mapping[str, str]
) -> MessageCause | None:
    """Return which package has a command that the shell does not find, and in which folder it may be.

    Args:
        error: the last error of the log.
        versions: package -> the versions in the log.
        owners: command -> the package that installs it.

    `None` where no package is known to have the command.
    """
    command = find_missing_command(error)
    package = owners.get(command) or owners.get(command.removesuffix(".exe"))
    if not package or command in _OF_PYTHON:
        return None
    stated = _SCRIPTS.search(error.above) or None
    folder = _FOLDER.search(error.above)
    place = stated["folder"].decode() if stated else f"{folder['root'].decode()}/bin" if folder else ""
    installed = versions.get(package, ())
    because = f"{command} is a command of the package {package}."
    fixes: list[Fix] = []
    if installed:
        because += (
            f" The log shows {package} installed"
            + (f" for the Python whose commands are in {place}" if place else "")
            + ", so the command exists: its folder is not on the PATH of this shell, because several Pythons are "
            "installed, the environment is not active, or pip put it into ~/.local/bin."
        )
        title = f"{command} is installed with {package} into a folder that is not on PATH"
        fixes.append(advise(f'export PATH="{place or "$HOME/.local/bin"}:$PATH", and hash -r'))
        fixes.append(advise("Or activate the environment into which it was installed (conda activate, source .../bin)"))
    else:
        because += (
            f" Either {package} is not installed in the environment that is active, or pip put its commands into a "
            "folder that is not on PATH (another Python's bin, ~/.local/bin)."
        )
        title = f"The shell does not find {command}, a command of {package}"
        fixes.append(
            Fix(change={package: "*"}, note=f"python -m pip install {package}, in the environment that trains")
        )
        fixes.append(advise('export PATH="$HOME/.local/bin:$PATH", or activate the environment that has it'))
    fixes.append(
        advise(f"python -m pip show -f {package} | grep bin/ shows where it is, relative to the Location of {package}")
    )
    incident = Incident(
        id="command-not-on-path",
        title=title,
        kind=IncidentKind.NOT_INSTALLED,
        severity=IncidentSeverity.FAILURE,
        component=OwnComponent.PYTHON,
        because=because,
        fix=tuple(fixes),
        source=(f"the message, and the entry points of {package}",),
        confidence="artefact",
    )
    return MessageCause(incident=incident, line=error.line, package=package)
