"""What `knowngood diagnose` knows: incidents, rules and GPUs, read from YAML once and then kept as JSON in the cache.

Parsing over a hundred YAML files and compiling their signatures takes longer than the diagnosis of a page of log. The
name of the cached file is a digest of all those files and of the modules that parse them, so its content is never out
of date. When it cannot be written or read, the YAML files are parsed.

msgspec would decode the JSON without code for each field, but its import costs more time than it saves.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet

from knowngood.compat import incident, log_signature, rule, rule_files
from knowngood.compat.incident import Fix, Incident, IncidentKind, IncidentSeverity, IncidentUse, RangeOrigin
from knowngood.compat.log_signature import Signature
from knowngood.compat.rule import Condition, Rule
from knowngood.core import gpus, local_files
from knowngood.core.errors import InputError


@dataclass(frozen=True, kw_only=True)
class KnownFailures:
    """Everything that a log is compared with."""

    incidents: tuple[Incident, ...]
    rules: tuple[Rule, ...]
    catalog: gpus.GpuCatalog | None
    """The GPUs of matrix.yaml; `None` when it cannot be read, which other commands report."""


def load_known_failures(folder: Path | None = None) -> KnownFailures:
    """Load the incidents of a folder, knowngood's own by default; raises `InputError` with every defect."""
    root = local_files.data_folder()
    texts = rule_files.read_incident_texts(folder)
    rules = {path.name: _read_or_empty(path) for path in sorted((root / "rules").glob("*.yaml"))}
    matrix = _read_or_empty(root / "matrix.yaml")
    place = local_files.cache_folder() / "diagnose" / f"{_cache_key(texts, rules, matrix)}.json"
    try:
        return _decode_failures(json.loads(place.read_bytes()))
    except (OSError, ValueError, KeyError, TypeError):
        text = json.dumps(_parse_failures(root, texts, matrix), default=_encode)
        _write_cache(place, text)
        return _decode_failures(json.loads(text))


def _read_or_empty(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _cache_key(*data: Any) -> str:
    """A digest of the data and of the modules that parse it; `compat.incident_file` is not imported for that."""
    digest = hashlib.sha256(json.dumps(data).encode())
    here = Path(__file__)
    modules = [here, *(Path(str(module.__file__)) for module in (log_signature, gpus, incident, rule))]
    for path in (*modules, here.parents[1] / "compat/incident_file.py", here.parents[1] / "core/yaml_document.py"):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:32]


def _parse_failures(root: Path, texts: Mapping[str, str], matrix: str) -> dict[str, Any]:
    # These take time to import, and are not needed when the cache has an answer.
    from knowngood.compat.incident_file import parse_incidents
    from knowngood.core.yaml_document import parse_yaml_data

    try:
        sections = parse_yaml_data(matrix, "matrix.yaml")["gpus"]
        gpus.gpu_catalog_from_sections(sections)
    except (InputError, KeyError, TypeError, AttributeError):
        sections = None
    return {"incidents": parse_incidents(texts), "rules": rule_files.load_rules(root / "rules"), "gpus": sections}


def _write_cache(place: Path, text: str) -> None:
    """Replace the cached files; without fsync, because half a file is no JSON and is then replaced too."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        temporary = place.with_suffix(f".{os.getpid()}")
        temporary.write_text(text, encoding="utf-8")
        for old in place.parent.glob("*.json"):
            old.unlink(missing_ok=True)
        temporary.rename(place)
    except OSError:
        return


def _encode(value: Any) -> Any:
    """What JSON stores of a value that it does not know."""
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _decode_failures(cached: Mapping[str, Any]) -> KnownFailures:
    return KnownFailures(
        incidents=tuple(map(_decode_incident, cached["incidents"])),
        rules=tuple(map(_decode_rule, cached["rules"])),
        catalog=None if cached["gpus"] is None else gpus.gpu_catalog_from_sections(cached["gpus"]),
    )


_SIGNATURE_KEYS = ("signatures", "context", "frames", "without")


def _decode_incident(cached: dict[str, Any]) -> Incident:
    decoded = {
        "kind": IncidentKind(cached["kind"]),
        "severity": IncidentSeverity(cached["severity"]),
        "range_from": RangeOrigin(cached["range_from"]) if cached["range_from"] else None,
        "uses": IncidentUse(**cached["uses"]) if cached["uses"] else None,
        "affected": tuple(
            {name: SpecifierSet(text, prereleases=True) for name, text in item.items()} for item in cached["affected"]
        ),
        "fix": tuple(Fix(**item) for item in cached["fix"]),
        **{name: tuple(cached[name]) for name in ("source", "report_erred")},
        **{name: tuple(map(_decode_signature, cached[name])) for name in _SIGNATURE_KEYS},
    }
    return Incident(**{**cached, **decoded})


def _decode_signature(cached: Mapping[str, Any]) -> Signature:
    return Signature(
        text=cached["text"],
        words=tuple(word.encode("latin-1") for word in cached["words"]),
        literal=cached["literal"].encode("latin-1"),
        segments=tuple(segment.encode("latin-1") for segment in cached["segments"]),
        beside=tuple(map(_decode_signature, cached["beside"])),
    )


def _decode_rule(cached: dict[str, Any]) -> Rule:
    conditions = {
        key: {
            subject: Condition(relation=item["relation"], arguments=tuple(item["arguments"]))
            for subject, item in cached[key].items()
        }
        for key in ("when", "require")
    }
    return Rule(**{**cached, **conditions, **{key: tuple(cached[key]) for key in ("source", "forbid", "fix")}})
