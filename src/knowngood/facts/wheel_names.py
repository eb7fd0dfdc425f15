"""Which modules and commands the newest release of a package installs; read from `facts/wheels/names.txt`.

    from knowngood.facts.wheel_names import read_wheel_names

    names = read_wheel_names()
    names.modules["google.protobuf"]        # "protobuf"
    names.commands["swift"]                 # "ms-swift"

The file is text, a block for each package: `= NAME VERSION`, then `m MODULE` and `c COMMAND` lines. `knowngood harvest
--wheel-names` writes it from the list of files in a wheel and from its entry points. A module in a folder that several
packages share (a namespace, such as `google`) is named with that folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

from knowngood.core.data_files import read_data_text
from knowngood.core.errors import InputError, InputProblem
from knowngood.facts.fact_store import facts_folder

SCHEMA = "knowngood/wheel-names/1"
WHEEL_NAMES_FILE = "wheels/names.txt"


@dataclass(frozen=True, kw_only=True)
class InstalledNames:
    """What one release installs by name."""

    version: str
    modules: tuple[str, ...] = ()
    """Top-level modules; below a folder that several packages share, with the part that is this package's."""
    commands: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class WheelNames:
    """What packages install by name."""

    packages: Mapping[str, InstalledNames] = field(default_factory=dict)

    @cached_property
    def modules(self) -> Mapping[str, str]:
        """Module -> the package that installs it; of a package and its variants, the plain one."""
        return _invert((module, name) for name, names in self.packages.items() for module in names.modules)

    @cached_property
    def commands(self) -> Mapping[str, str]:
        """Command -> the package that installs it; of a package and its variants, the plain one."""
        return _invert((command, name) for name, names in self.packages.items() for command in names.commands)


@cache
def read_wheel_names(path: Path | None = None) -> WheelNames:
    """Return what is known of packages' names; nothing where the file is not there."""
    place = path or facts_folder() / WHEEL_NAMES_FILE
    try:
        return parse_wheel_names(read_data_text(place), str(place))
    except FileNotFoundError:
        return WheelNames()


def parse_wheel_names(text: str, label: str) -> WheelNames:
    """Return the names in a file's text; `label` names it in the message of an `InputError`."""
    head, *blocks = text.removesuffix("\n").split("\n= ")
    if head.partition("\n")[0] != SCHEMA:
        why = f"this is not a file of names (its first line is not `{SCHEMA}`); run `knowngood harvest --wheel-names`"
        raise InputError([InputProblem(file=label, line=1, column=1, text=why)])
    packages = {}
    for block in blocks:
        first, *lines = block.split("\n")
        name, _, version = first.partition(" ")
        packages[name] = InstalledNames(
            version=version,
            modules=tuple(line[2:] for line in lines if line.startswith("m ")),
            commands=tuple(line[2:] for line in lines if line.startswith("c ")),
        )
    return WheelNames(packages=packages)


def render_wheel_names(names: WheelNames) -> str:
    """Return the text of the file."""
    lines = [SCHEMA, "regenerate: knowngood harvest --wheel-names"]
    for name, own in sorted(names.packages.items()):
        lines += [
            f"= {name} {own.version}",
            *(f"m {item}" for item in own.modules),
            *(f"c {item}" for item in own.commands),
        ]
    return "\n".join([*lines, ""])


def _invert(pairs: Iterator[tuple[str, str]]) -> dict[str, str]:
    owners: dict[str, set[str]] = {}
    for item, name in pairs:
        owners.setdefault(item, set()).add(name)
    shortest = {item: min(names, key=len) for item, names in owners.items()}
    return {item: name for item, name in shortest.items() if all(other.startswith(name) for other in owners[item])}
