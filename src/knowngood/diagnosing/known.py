"""What `knowngood diagnose` knows: incidents, rules and cards, read from YAML once and then kept as JSON in the cache.

Reading over a hundred files of YAML and compiling their signatures takes longer than diagnosing a page of log. What is
kept goes by the content of all those files and of the modules that read them, so it can be old but never wrong; where
it cannot be written or read, the files are read.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet

from knowngood import gpus, resources
from knowngood.diagnosing import signature
from knowngood.diagnosing.signature import Signature
from knowngood.errors import InputError
from knowngood.incidents import files, model
from knowngood.incidents.model import Fix, Incident, Kind, RangeFrom, Severity
from knowngood.paths import cache_dir
from knowngood.solving import rules
from knowngood.solving.rules import Condition, Rule

_SIGNATURES = ("signatures", "context", "frames")


@dataclass(frozen=True, kw_only=True)
class Known:
    """All of it."""

    incidents: Sequence[Incident]
    rules: Sequence[Rule]
    cards: gpus.Gpus | None
    """Those of matrix.yaml; `None` when it cannot be read, which other commands tell."""


def read(folder: Path | None = None) -> Known:
    """With the incidents of a folder, knowngood's own without one; raises `InputError` with every defect."""
    root = resources.root()
    texts = files.texts(folder)
    written = {path.name: _text(path) for path in sorted((root / "rules").glob("*.yaml"))}
    matrix = _text(root / "matrix.yaml")
    place = cache_dir() / "diagnose" / f"{_key(texts, written, matrix)}.json"
    try:
        return _known(json.loads(place.read_bytes()))
    except (OSError, ValueError, KeyError, TypeError):
        found = _parsed(root, texts, matrix)
        _keep(place, found)
        return _known(found)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _key(*parts: Any) -> str:
    """Of the data and of the modules that make something of it; `incidents.reading` is not imported for that."""
    made = hashlib.sha256(json.dumps(parts).encode())
    here = Path(__file__)
    modules = [here, *(Path(str(module.__file__)) for module in (signature, gpus, model, rules))]
    for path in (*modules, here.parents[1] / "incidents/reading.py", here.parents[1] / "document.py"):
        made.update(path.read_bytes())
    return made.hexdigest()[:32]


def _parsed(root: Path, texts: Mapping[str, str], matrix: str) -> dict[str, Any]:
    """Everything, as what JSON has."""
    from knowngood import document
    from knowngood.incidents import reading as incidents
    from knowngood.solving import knowledge

    try:
        sections = document.plain(matrix, "matrix.yaml")["gpus"]
        gpus.from_sections(sections)
    except (InputError, KeyError, TypeError, AttributeError):
        sections = None
    parsed = {"incidents": incidents.parse_all(texts), "rules": knowledge.read_rules(root / "rules"), "gpus": sections}
    return {name: _plain(value) for name, value in parsed.items()}


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {item.name: _plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return str(value) if isinstance(value, SpecifierSet) else value


def _keep(place: Path, found: Mapping[str, Any]) -> None:
    """In the place of those of before; not synced, since half of one is no JSON and is made again."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        beside = place.with_suffix(f".{os.getpid()}")
        beside.write_text(json.dumps(found), encoding="utf-8")
        for old in place.parent.glob("*.json"):
            old.unlink(missing_ok=True)
        beside.rename(place)
    except OSError:
        return


def _known(kept: Mapping[str, Any]) -> Known:
    return Known(
        incidents=tuple(map(_incident, kept["incidents"])),
        rules=tuple(map(_rule, kept["rules"])),
        cards=None if kept["gpus"] is None else gpus.from_sections(kept["gpus"]),
    )


def _incident(kept: dict[str, Any]) -> Incident:
    made = {
        "kind": Kind(kept["kind"]),
        "severity": Severity(kept["severity"]),
        "range_from": RangeFrom(kept["range_from"]) if kept["range_from"] else None,
        "affected": tuple(
            {name: SpecifierSet(text, prereleases=True) for name, text in item.items()} for item in kept["affected"]
        ),
        "fix": tuple(Fix(**item) for item in kept["fix"]),
        "source": tuple(kept["source"]),
        "report_erred": tuple(kept["report_erred"]),
    }
    return Incident(**{**kept, **made, **{name: tuple(map(_signature, kept[name])) for name in _SIGNATURES}})


def _signature(kept: Mapping[str, Any]) -> Signature:
    return Signature(
        text=kept["text"],
        words=tuple(word.encode("latin-1") for word in kept["words"]),
        literal=kept["literal"].encode("latin-1"),
        segments=tuple(segment.encode("latin-1") for segment in kept["segments"]),
        beside=tuple(map(_signature, kept["beside"])),
    )


def _rule(kept: dict[str, Any]) -> Rule:
    conditions = {
        key: {
            subject: Condition(relation=item["relation"], arguments=tuple(item["arguments"]))
            for subject, item in kept[key].items()
        }
        for key in ("when", "require")
    }
    return Rule(**{**kept, **conditions, **{key: tuple(kept[key]) for key in ("source", "forbid", "fix")}})
