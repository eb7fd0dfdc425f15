"""Reads which top-level modules and commands the newest release of a package installs, from its list of files."""

from __future__ import annotations

import configparser
import re
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from knowngood.core.local_files import write_atomically
from knowngood.index.artefact import Artefact, PackageIndex, PublishedFile, UnansweredError, UnreadableError
from knowngood.index.releases import open_artefact
from knowngood.index.wheel_contents import installed_path
from knowngood_facts.facts.harvest_run import HarvestReport
from knowngood_facts.facts.package_metadata import InstalledNames, WheelNames, read_wheel_names, render_wheel_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from knowngood.core.notify import Notify

_EXTENSION = re.compile(r"^(?P<name>\w+)(?:\.[\w-]+)*\.(?:so|pyd)$")
_NO_MODULES = frozenset(
    (
        "benchmarks",
        "bin",
        "build_backend",
        "build_utils",
        "data",
        "docs",
        "examples",
        "hopper",
        "include",
        "lib",
        "share",
        "test",
        "tests",
    )
)
"""What wheels install beside their modules, and nobody imports."""
_GROUPS = ("console_scripts", "gui_scripts")


def harvest_wheel_names(packages: Sequence[str], *, path: Path, index: PackageIndex, notify: Notify) -> HarvestReport:
    """Read the newest final release of each package, and replace these packages' blocks in the file."""
    report = HarvestReport()
    known = dict(read_wheel_names(path).packages)
    for name in dict.fromkeys(map(canonicalize_name, packages)):
        try:
            file = _choose_file(index.files(name))
            if name in known and known[name].version == str(file.version):
                report.unchanged += 1
                continue
            artefact = open_artefact(file, index)
            try:
                known[name] = read_installed_names(artefact)
            finally:
                artefact.close()
        except UnreadableError as error:
            report.failed[name] = str(error)
            report.unanswered |= isinstance(error, UnansweredError)
            continue
        report.new.append(f"{name} {file.version}")
        notify(f"{name} {file.version}: {', '.join(known[name].modules)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, render_wheel_names(WheelNames(packages=known)).encode())
    read_wheel_names.cache_clear()
    return report


def read_installed_names(artefact: Artefact) -> InstalledNames:
    """Return what a wheel installs by name; of an sdist, what its own `egg-info` and its folder `bin` state."""
    members = artefact.members
    entries = _read_ending(artefact, "entry_points.txt")
    commands = {name for group in _GROUPS for name in _list_entries(entries, group)}
    if artefact.file.is_wheel:
        files = [installed_path(path) for path in members if ".dist-info/" not in path]
        modules = list_modules(files)
        commands |= {path.removeprefix("bin/") for path in files if path.startswith("bin/")}
    else:
        modules = sorted(set(_read_ending(artefact, "top_level.txt").split()) - _NO_MODULES)
        commands |= {path.removeprefix("bin/") for path in members if re.fullmatch(r"bin/[\w-]+", path)}
    return InstalledNames(version=str(artefact.file.version), modules=tuple(modules), commands=tuple(sorted(commands)))


def list_modules(files: Iterable[str]) -> list[str]:
    """Return the top-level modules among installed files: packages, single files and extensions. Pure.

    A folder without `__init__.py` is a namespace that other packages may share: the modules in it count.
    """
    paths = set(files)
    folders = {path.rpartition("/")[0] for path in paths if path.endswith("/__init__.py")}
    modules: set[str] = set()
    for path in paths:
        parts = path.split("/")
        for count in range(1, len(parts)):
            if "/".join(parts[:count]) in folders:
                modules.add(".".join(parts[:count]))
                break
        else:
            extension = _EXTENSION.match(parts[-1])
            stem = extension["name"] if extension else parts[-1].removesuffix(".py")
            if len(parts) == 1 and stem.isidentifier() and (extension or parts[-1].endswith(".py")):
                modules.add(stem)
    return sorted(name for name in modules if name.partition(".")[0] not in _NO_MODULES and _is_dotted(name))


def _is_dotted(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def _choose_file(files: Sequence[PublishedFile]) -> PublishedFile:
    """The wheel of the newest final release, for Linux where there is a choice; else its sdist."""
    final = [file for file in files if not file.yanked and not file.version.is_prerelease] or list(files)
    newest = [file for file in final if file.version == max(item.version for item in final)]
    wheels = [file for file in newest if file.is_wheel]
    return min(
        wheels or newest, key=lambda file: ("none-any" not in file.name, "manylinux" not in file.name, file.name)
    )


def _read_ending(artefact: Artefact, name: str) -> str:
    paths = [path for path in artefact.members if re.search(rf"\.(?:dist|egg)-info/{re.escape(name)}$", path)]
    return artefact.read(min(paths, key=len)).decode("utf-8", "replace") if paths else ""


def _list_entries(text: str, group: str) -> Mapping[str, str]:
    parser = _EntryPointParser(delimiters=("=",), interpolation=None, strict=False)
    try:
        parser.read_string(text)
    except configparser.Error:
        return {}
    return dict(parser[group]) if parser.has_section(group) else {}


class _EntryPointParser(configparser.ConfigParser):
    """Keeps the case of the names of commands."""

    def optionxform(self, optionstr: str) -> str:
        """Return a name as it is written."""
        return optionstr
