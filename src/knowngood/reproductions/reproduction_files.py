"""The folder `reproductions/`: which reproductions there are, and the files of each. An edge: it reads files."""

from __future__ import annotations

import hashlib
from pathlib import Path

from knowngood.core import local_files
from knowngood.core.data_files import read_data_text
from knowngood.core.errors import InputError, InputProblem, UnknownError
from knowngood.reproductions.reproduction import Reproduction, ReproductionCase, parse_reproduction

STAND_INS = "stand-ins"
OBSERVER = "observe.py"
DEFINITION = "reproduction.yaml"


def reproductions_folder() -> Path:
    """Return the folder of the reproductions."""
    return local_files.data_folder() / "reproductions"


def list_reproductions(root: Path | None = None) -> list[str]:
    """Return the names of all reproductions, sorted."""
    return sorted(path.parent.name for path in (root or reproductions_folder()).glob(f"*/{DEFINITION}"))


def find_reproduction(incident: str, root: Path | None = None) -> str | None:
    """Return the reproduction with an incident's name, else one with a side of that incident, else `None`."""
    root = root or reproductions_folder()
    known = list_reproductions(root)
    if incident in known:
        return incident
    return next((name for name in known if incident in _incidents_of_sides(name, root)), None)


def _incidents_of_sides(name: str, root: Path) -> set[str]:
    return {side.incident for side in _read_definition(name, root).sides.values()}


def _read_definition(name: str, root: Path) -> Reproduction:
    path = root / name / DEFINITION
    label = f"reproductions/{name}/{DEFINITION}"
    return parse_reproduction(read_data_text(path, label), label)


def load_reproduction(incident: str, root: Path | None = None) -> ReproductionCase:
    """Return an incident's reproduction; raises `UnknownError` without one, `InputError` with its defects."""
    root = root or reproductions_folder()
    name = find_reproduction(incident, root)
    if name is None:
        raise UnknownError(
            f"there is no reproduction of {incident!r}; `knowngood reproduce` lists those that there are"
        )
    path = root / name / DEFINITION
    label = f"reproductions/{name}/{DEFINITION}"
    definition = _read_definition(name, root)
    own = [item for item in (root / name).iterdir() if item.is_file() and item != path]
    stand_ins = [root / STAND_INS / f"{module}.py" for module in definition.all_stand_ins()]
    missing = [item.name for item in stand_ins if not item.is_file()]
    if missing:
        text = f"there is no {', '.join(missing)} in reproductions/{STAND_INS}/"
        raise InputError([InputProblem(file=label, line=1, column=1, text=text)])
    files = {item.name: item.read_bytes() for item in sorted([*own, *stand_ins, root / OBSERVER])}
    digest = hashlib.sha256(path.read_bytes())
    for file, content in files.items():
        digest.update(f"{file}\0{len(content)}\0".encode() + content)
    return ReproductionCase(name=name, definition=definition, files=files, digest=digest.hexdigest())
