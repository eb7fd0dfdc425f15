"""What a program on the machine lacks or met: a command, a file of a package, a build script's need, a kill. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from knowngood.core.lazy_patterns import lazy_pattern
from knowngood_diagnose.failures.logs.trouble_signs import find_lost_file
from knowngood_diagnose.failures.names.atlas_shelf import upgrade_package
from knowngood_diagnose.failures.names.message_causes import (
    MessageCause,
    shorten_text,
)
from knowngood_diagnose.failures.names.name_situation import advise, describe_failure
from knowngood_facts.compat.incident import Fix, IncidentKind, OwnComponent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from knowngood_diagnose.failures.logs.last_errors import LastError
    from knowngood_diagnose.failures.logs.logged_errors import CodeFrame
    from knowngood_diagnose.failures.names.atlas_shelf import AtlasShelf

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
    name = next((name for name in stated.groups() if name), "") if stated else ""
    return "" if name == "source" else name  # a builtin of bash, which sh has not


def explain_missing_command(
    error: LastError, versions: Mapping[str, Sequence[str]], owners: Mapping[str, str]
) -> MessageCause | None:
    """Return which package has a command that the shell does not find, and in which folder it may be.

    Args:
        error: the last error of the log.
        versions: package -> the versions in the log.
        owners: command -> the package that installs it.

    A command that no package is known to have is one of the system. `None` for other errors.
    """
    command = find_missing_command(error)
    package = owners.get(command) or owners.get(command.removesuffix(".exe"))
    if not command:
        return None
    if not package or command in _OF_PYTHON:
        return _describe_foreign_command(error, command)
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
    incident = describe_failure(
        "command-not-on-path",
        IncidentKind.NOT_INSTALLED,
        OwnComponent.PYTHON,
        title=title,
        because=because,
        fixes=fixes,
        source=f"the message, and the entry points of {package}",
        confidence="artefact",
    )
    return MessageCause(incident=incident, line=error.line, package=package)


def _describe_foreign_command(error: LastError, command: str) -> MessageCause:
    """A command of the system, of a cluster or of an environment that is not active."""
    fixes = [
        advise(
            f"apt-get install -y apt-file && apt-file update && apt-file search bin/{command}: install what it shows"
        ),
        advise(f"On a cluster module avail {command}; else activate the environment, or name the path of {command}"),
    ]
    incident = describe_failure(
        "command-not-found",
        IncidentKind.NOT_INSTALLED,
        OwnComponent.CONTAINER,
        title=f"The shell does not find the program {command}",
        because=f"{command} is not installed here, or its folder is not on the PATH of this shell.",
        fixes=fixes,
        source="the shell's message",
    )
    return MessageCause(incident=incident, line=error.line, package="")


def explain_lost_file(error: LastError, shelf: AtlasShelf) -> MessageCause | None:
    """Return the package that looks for a file in its own folder; `None` for any other file."""
    lost = find_lost_file(error)
    if lost is None:
        return None
    package = shelf.distribution_of(lost.top) or lost.top.replace("_", "-").lower()
    because = (
        f"{'/'.join(lost.frame.installed)}.py, line {lost.frame.line}, reads {lost.file} of {package}'s own "
        "folder, which is not there: its wheel was made without it, or the install was cut short or partly removed."
    )
    fixes = [
        advise(f"pip install --force-reinstall --no-deps --no-cache-dir {package}, when its own release has the file"),
        upgrade_package(package, "another release, whose wheel has the file"),
        advise(f"Install {package} from its source: git clone, then pip install -e . in it"),
    ]
    incident = describe_failure(
        f"lost-file:{package}",
        IncidentKind.NOT_INSTALLED,
        package,
        title=f"The install of {package} is incomplete: its file {lost.file} is missing",
        because=because,
        fixes=fixes,
    )
    return MessageCause(incident=incident, line=error.line, package=package)


_UNPACKED = lazy_pattern(r"[/\\](?:pip-(?:install|req-build|build)-|builds-v\d+[/\\])")
_NAMED = lazy_pattern(r"[/\\]pip-install-[^/\\]+[/\\](?P<name>[A-Za-z][\w.-]*?)_[0-9a-f]{32}[/\\]")
_SHOWN = 140


def is_build_script(frame: CodeFrame) -> bool:
    """Whether a frame is of sources that pip or uv unpacked in order to build them."""
    return bool(_UNPACKED.search(frame.path)) and not frame.installed


def explain_build_error(error: LastError) -> MessageCause | None:
    """Return the package whose build script raises the last error; `None` where the traceback does not name it."""
    frame = error.frames[-1] if error.frames else None
    named = _NAMED.search(frame.path) if frame is not None else None
    if frame is None or named is None or not is_build_script(frame):
        return None
    name = named["name"].replace("_", "-").lower()
    title = f"The build of {name} fails in its own script: {shorten_text(error.message, _SHOWN)}"
    because = (
        f"There was no ready wheel of {name} for this Python and platform. Line {frame.line} of its "
        f"{frame.parts[-1]}.py, which is to build one, does not go with this Python, these tools or this machine."
    )
    fixes = [
        Fix(change={name: "*"}, note=f"a release of {name} that has a ready wheel for this Python and platform"),
        advise(f"The Python for which this release of {name} has wheels; its own instructions name it"),
        advise("pip install --no-build-isolation, when the script needs torch or another package that is installed"),
    ]
    incident = describe_failure(
        "build-script", IncidentKind.SOURCE_BUILD, name, title=title, because=because, fixes=fixes
    )
    return MessageCause(incident=incident, line=error.line, package=name)


_KILLED = lazy_pattern(r"^(?:\S+: line \d+: +\d+ )?Killed\b(?!:)|^zsh: killed\b|\sKilled$")


def explain_killed_program(error: LastError) -> MessageCause | None:
    """Return the cause of a bare `Killed`: on a machine for training, the kernel that ran out of memory."""
    if error.frames or not error.ends_log or not _KILLED.search(error.text):
        return None
    incident = describe_failure(
        "killed",
        IncidentKind.CONFIG,
        OwnComponent.HOST_MEMORY,
        title="The system killed the program: mostly the machine's memory, not the GPU's, was full",
        because="The shell saw the program end by SIGKILL, which leaves no message of the program's own. Loading a "
        "model or a data set, compiling and many workers fill the memory; a job's or container's limit counts too.",
        fixes=[
            advise(
                "A smaller batch, fewer workers and processes, MAX_JOBS=2 when it compiles, low_cpu_mem_usage=True or "
                "a smaller model"
            ),
            advise(
                "More memory or swap for the machine, the container (--memory), the job (--mem) or WSL (.wslconfig)"
            ),
            advise("dmesg | grep -i 'killed process' shows it; watch free -h, or the limit of the container or job"),
        ],
        source="the shell's message of a program that ended by SIGKILL",
    )
    return MessageCause(incident=incident, line=error.line, package="")
