"""A module that is missing and seems to be a file of the project itself, which Python does not find there. Pure.

Python looks for a bare name beside the script that was started, on PYTHONPATH and among the installed packages: not
beside the file that asks for it, when that one was imported as a part of a package.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from knowngood.compat.incident import Fix, OwnComponent
from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.core.nearest_names import find_nearest_name
from knowngood.failures.names.atlas_shelf import FOLDERS_OF_PROJECTS
from knowngood.failures.names.name_situation import advise

if TYPE_CHECKING:
    from collections.abc import Sequence

    from knowngood.failures.logs.logged_errors import CodeFrame, LoggedError
    from knowngood.failures.names.name_situation import NameCaller

_PARTS = lazy_pattern(r"^(?:from|import) (?P<top>\w+)\.(?P<part>\w+)")
_OWN_FUNCTION = lazy_pattern(
    r"^from (?P<module>[a-z]+_\w+) import "
    r"(?P<name>(?:add|build|compute|create|get|init|is|load|make|parse|prepare|process|read|run|save|set|setup|to)_\w+)"
)
"""A module of two words from which a function is imported: mostly a file beside the one that asks."""
_OWN_ENDING = lazy_pattern(
    r"^[a-z]+_(?:utils?|helpers?|models?|modules?|layers?|lib|common|config|configs|loaders?|misc)$"
)
"""How the names of a project's own folders and files end."""


@dataclass(frozen=True, kw_only=True)
class OwnFile:
    """What is known of a missing module that may be the project's own."""

    component: str
    title: str
    because: str
    fixes: Sequence[Fix]
    is_likely: bool = True


def find_own_file(error: LoggedError, caller: NameCaller | None) -> OwnFile | None:
    """Return why a module of no known package may be the project's own file; `None` where nothing says so."""
    top = error.fault.owner.partition(".")[0]
    folder = next((frame for frame in error.frames if not frame.installed and top in frame.parts[:-1]), None)
    if folder is not None:
        return _describe_folder(error, top, folder)
    is_own_code = caller is None or not caller.package
    is_unpickled = caller is not None and bool(caller.frame.code) and top not in caller.frame.code
    if (is_own_code or is_unpickled) and (top in FOLDERS_OF_PROJECTS or _OWN_ENDING.search(top)):
        return _describe_project_folder(error, top)
    if caller is None:
        return None
    if caller.frame.installed:
        return _describe_sibling(top, caller) if _OWN_FUNCTION.match(caller.frame.code) else None
    if is_own_code and (near := find_nearest_name(top, sorted(FOLDERS_OF_PROJECTS))):
        return _describe_mistyped_folder(top, near, caller)
    parts = _PARTS.match(caller.frame.code)
    is_folder = parts is not None and parts["top"] == top and parts["part"] in FOLDERS_OF_PROJECTS
    return _describe_unfound_folder(top, parts["part"], caller) if parts and is_folder else None


def _describe_folder(error: LoggedError, top: str, folder: CodeFrame) -> OwnFile:
    script = next((frame for frame in error.frames if not frame.installed), folder)
    place = folder.path.replace("\\", "/")
    root = place[: f"/{place}".index(f"/{top}/")].rstrip("/") or "."
    because = (
        f"The traceback has a file in a folder {top} ({root}/{top}), so the project has it. Python looks for {top} "
        f"beside the script that was started ({script.parts[-1]}.py), on PYTHONPATH and among the installed packages, "
        "and that folder is in none of these."
    )
    fixes = [
        advise(f"PYTHONPATH={root} python ..., or start it from {root} with python -m and dots for the slashes"),
        advise(f"pip install -e . in the checkout, when it has a setup.py or pyproject.toml that installs {top}"),
    ]
    title = f"The project's own folder {top} is not on Python's path"
    return OwnFile(component=OwnComponent.YOUR_CODE, title=title, because=because, fixes=fixes)


def _describe_project_folder(error: LoggedError, top: str) -> OwnFile:
    script = next((frame for frame in error.frames if not frame.installed and frame.path.endswith(".py")), None)
    because = f"{top} is a name that projects give to their own folders and files, and no package is meant."
    root = "the project's root"
    if script is not None:
        folder = script.path.replace("\\", "/").rpartition("/")[0].removeprefix("./")
        because += (
            f" Python looks for it beside the script that was started ({script.parts[-1]}.py, in "
            f"{folder or 'the current folder'}), on PYTHONPATH and among the installed packages. The folder in which "
            "the command is given does not count."
        )
        if folder and not folder.startswith(("/", "~")) and ":" not in folder:
            root = "the folder in which the command was given"
    fixes = [
        advise(
            f"PYTHONPATH=. before the command, in the folder that has {top} (mostly {root}); or python -m with dots in "
            "the place of slashes and without .py"
        ),
        advise(f"pip install -e . in the project, when its instructions say so, which puts {top} on the path"),
        advise(
            f"When the checkout has no {top} at all: git submodule update --init, a newer commit, or the part that the "
            f"instructions put there. Not pip install {top}: that is another project's"
        ),
    ]
    title = f"The project's own {top} is not found: its folder is not on Python's path"
    return OwnFile(component=OwnComponent.YOUR_CODE, title=title, because=because, fixes=fixes, is_likely=False)


def _describe_mistyped_folder(top: str, near: str, caller: NameCaller) -> OwnFile:
    because = (
        f"{caller.file} imports {top}. No known package has that module, and it is {near} with a slip of the pen: a "
        "file of the project that is called otherwise, or that was never put into the repository."
    )
    fixes = [
        advise(f"ls {top}.py {near}.py: write import {near} when that is there"),
        advise("A newer commit of the project, which has the file"),
    ]
    title = f"The project has no {top}: a wrong name for {near}, or a file that is missing in the repository"
    return OwnFile(component=OwnComponent.YOUR_CODE, title=title, because=because, fixes=fixes)


def _describe_sibling(top: str, caller: NameCaller) -> OwnFile:
    package = caller.frame.installed[0]
    because = (
        f"{caller.file} imports {caller.frame.code.split()[-1]} from {top} by the bare name. No known package has such "
        f"a module: it looks like a file of {package} itself ({package}/{top}.py). When {package} is imported as a "
        "package, Python does not look beside that file; it does so only when the file is started as the script. "
        f"Otherwise {top} is a package which is not installed."
    )
    fixes = [
        advise(f"In {caller.file}: from {package}.{top} import ..., or from .{top} import ...; a newer {package} may"),
        advise(f"PYTHONPATH with the folder of {caller.file} goes around it: export PYTHONPATH=FOLDER:$PYTHONPATH"),
        advise(f"When {package} has no such file: install the package that has the module {top}"),
    ]
    title = f"{top} is not found: most likely a file of {package} itself, imported as if it stood alone"
    return OwnFile(component=package, title=title, because=because, fixes=fixes)


def _describe_unfound_folder(top: str, part: str, caller: NameCaller) -> OwnFile:
    because = (
        f"{caller.file} imports {top}.{part}. No known package has the module {top}, and {part} is a folder that "
        f"projects have: so {top} is mostly the project's own folder, and the root of the project is not on the path."
    )
    fixes = [
        advise(
            f"Start it from the folder that has {top}, with PYTHONPATH=. before the command; or pip install -e . there"
        ),
        advise(f"When there is no folder {top}: clone the project that has it, or install its package"),
    ]
    title = f"{top} is not found: the project's own folder, or another project's that is not installed"
    return OwnFile(component=OwnComponent.YOUR_CODE, title=title, because=because, fixes=fixes)
