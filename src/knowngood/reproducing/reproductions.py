"""The folder `reproductions/`, and the evidence that runs of it left in `evidence/incidents/`."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from knowngood import project, resources, sealed
from knowngood.errors import InputError, Problem, UnknownError
from knowngood.reproducing import reproduction
from knowngood.reproducing.observation import Outcome
from knowngood.reproducing.reproduction import Reproduction

SCHEMA = "knowngood/reproduction/1"
STAND_INS = "stand-ins"
OBSERVER = "observe.py"
DEFINITION = "reproduction.yaml"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A reproduction with its files."""

    name: str
    """Of its folder; an incident's id."""
    definition: Reproduction
    files: Mapping[str, bytes]
    """What lies in the folder that the program runs in: file name to content."""
    digest: str
    """SHA-256 over the definition and the files."""

    def sha256(self, name: str) -> str:
        """Of one file."""
        return hashlib.sha256(self.files[name]).hexdigest()


def folder() -> Path:
    """Where the reproductions lie."""
    return resources.root() / "reproductions"


def names(place: Path | None = None) -> list[str]:
    """Every reproduction."""
    return sorted(path.parent.name for path in (place or folder()).glob(f"*/{DEFINITION}"))


def find(incident: str, place: Path | None = None) -> str | None:
    """The reproduction of an incident: the folder of its name, else one with a side of that incident."""
    root = place or folder()
    known = names(root)
    if incident in known:
        return incident
    return next(
        (name for name in known if incident in {side.incident for side in _read(name, root).sides.values()}), None
    )


def _read(name: str, root: Path) -> Reproduction:
    path = root / name / DEFINITION
    return reproduction.parse(path.read_text(encoding="utf-8"), f"reproductions/{name}/{DEFINITION}")


def load(incident: str, place: Path | None = None) -> Case:
    """An incident's reproduction; `UnknownError` when there is none, `InputError` with its defects."""
    root = place or folder()
    name = find(incident, root)
    if name is None:
        raise UnknownError(
            f"there is no reproduction of {incident!r}; `knowngood reproduce` lists those that there are"
        )
    path = root / name / DEFINITION
    label = f"reproductions/{name}/{DEFINITION}"
    definition = _read(name, root)
    beside = [item for item in (root / name).iterdir() if item.is_file() and item != path]
    stand_ins = [root / STAND_INS / f"{module}.py" for module in definition.standing_in()]
    missing = [item.name for item in stand_ins if not item.is_file()]
    if missing:
        said = f"there is no {', '.join(missing)} in reproductions/{STAND_INS}/"
        raise InputError([Problem(file=label, line=1, column=1, text=said)])
    files = {item.name: item.read_bytes() for item in sorted([*beside, *stand_ins, root / OBSERVER])}
    digest = hashlib.sha256(path.read_bytes())
    for file, content in files.items():
        digest.update(f"{file}\0{len(content)}\0".encode() + content)
    return Case(name=name, definition=definition, files=files, digest=digest.hexdigest())


def store(run: Mapping[str, Any], evidence: Path | None = None) -> Path:
    """Write a run's document, `incidents/<name>/<time>-<program>-<digest>.json`; returns its path."""
    stamp = datetime.fromisoformat(run["when"]).astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    place = (evidence or project.find().evidence) / "incidents" / str(run["reproduction"])
    text = json.dumps(run, indent=1, ensure_ascii=False) + "\n"
    return sealed.write(place, f"{stamp}-{run['digest'][:12]}", text)


def runs(name: str, evidence: Path | None = None) -> list[dict[str, Any]]:
    """Every run of a reproduction, oldest first, each with its `file`; what is not as one was stored is left out."""
    found = []
    for path in sorted(((evidence or project.find().evidence) / "incidents" / name).glob("*.json")):
        try:
            data = path.read_bytes()
            run = json.loads(data)
            if run["schema"] == SCHEMA and run["reproduction"] == name and sealed.defect(path, data) is None:
                found.append({**run, "file": f"evidence/incidents/{name}/{path.name}"})
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return found


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What the newest runs of a reproduction saw: one a place (`venv`, `image`)."""

    name: str
    runs: tuple[Mapping[str, Any], ...]

    @property
    def outcome(self) -> str:
        """The best of them; `not-run` without any."""
        order = list(Outcome)
        return min((run["outcome"] for run in self.runs), key=order.index, default="not-run")

    def lines(self) -> list[str]:
        """Markdown for an incident's page: a table of sides for each place, and what stood in for what."""
        made: list[str] = []
        for run in self.runs:
            made += [
                f"`knowngood reproduce {self.name}` in {_PLACES[run['where']]}, {run['when'][:10]}: {run['outcome']}."
            ]
            made += ["", "| side | Python | asked for | what it did |", "| --- | --- | --- | --- |"]
            made += [f"| {' | '.join(_cells(side))} |" for side in run["sides"]]
            if run["stand_ins"]:
                told = "; ".join(f"`{item['module']}` for {item['for']}" for item in run["stand_ins"])
                made += ["", f"Stand-ins: {told}."]
            made += ["", f"Evidence: [{run['file'].rpartition('/')[2]}](../../{run['file']}).", ""]
        return made[:-1]


_PLACES = {"venv": "a virtual environment", "image": "images", "here": "an environment as it was"}


def summary(name: str, evidence: Path | None = None) -> Summary:
    """What is known of a reproduction from its evidence."""
    newest = {run["where"]: run for run in runs(name, evidence)}
    return Summary(name=name, runs=tuple(newest.values()))


def _cells(side: Mapping[str, Any]) -> list[str]:
    pins = ", ".join(pin.partition(";")[0] for pin in [*side["requirements"], *side["sources"]] if _applies(pin, side))
    if side.get("base_without"):
        pins += f"; a base without {', '.join(side['base_without'])}"
        pins += f", with {', '.join(side['base_with'])}" if side.get("base_with") else ""
    name = side["side"]
    if side["said_cure"] and "exit" in side:
        name += f" (said cure: *{side['said_cure']}*: {'no' if side['exit'] else 'yes'})"
    return [name, side.get("python") or "", pins, told(side).replace("|", "\\|")]


def _applies(pin: str, side: Mapping[str, Any]) -> bool:
    """Whether a pin is for the Python that the side ran."""
    marker = Requirement(pin).marker
    return marker is None or marker.evaluate({"python_version": ".".join(side.get("python", "").split(".")[:2])})


def told(side: Mapping[str, Any]) -> str:
    """What a side of a stored run did, in a sentence."""
    if side["outcome"] == Outcome.NOT_RUN:
        return f"not run: {side['reason']}"
    exception = side["exception"]
    losses = side["said"].get("losses")
    if exception:
        first = (exception["text"].splitlines() or [""])[0]
        did = _code(f"{exception['type']}: {first}")
    elif losses:
        did = f"trains, loss {losses[0]:.4g} to {losses[-1]:.4g}"
    elif side["exit"]:
        did = f"exit {side['exit']}"
    else:
        said = ", ".join(f"{name} {value}" for name, value in side["said"].items())
        did = f"ends well ({said})" if said else "ends well"
    if not exception and side["signature"]:
        did += f", with {_code(side['signature'])}"
    return did if side["outcome"] == Outcome.REPRODUCED else f"{did}; not as expected: {side['reason']}"


def _code(text: str) -> str:
    """As Markdown quotes it, without a terminal's colours."""
    plain = re.sub(r"\x1b\[[\d;]*m", "", text).strip()
    return f"`` {plain} ``" if "`" in plain else f"`{plain}`"
