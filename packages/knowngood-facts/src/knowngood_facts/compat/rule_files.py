"""The files of `rules/` and `incidents/`, read for `check`, `pick` and `diagnose`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from knowngood.core import local_files, yaml_document
from knowngood.core.data_files import read_data_text
from knowngood.core.errors import InputError, InputProblem, MissingError, UsageError
from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.core.local_files import INCIDENTS_FOLDER, REPRODUCTIONS_FOLDER, RULES_FOLDER
from knowngood.core.yaml_cache import ParseYaml
from knowngood_facts.compat.rule import INCIDENT_KEYS, Rule, parse_rules, rule_from_incident_data

if TYPE_CHECKING:
    from knowngood.evidence.model_judgement import RunIncident
    from knowngood_facts.compat.incident import Incident
    from knowngood_facts.compat.incident_file import IncidentReferences

# `knowngood_facts.compat.incident_file` is imported in functions: `check` needs it only to report a malformed file.

_COVERING_RULE = lazy_pattern(r"^rule: (\S+)$", re.MULTILINE)
"""The rule that covers an incident. Half of the files have one, and need no parsing for `check`."""


def load_rules(folder: Path, parse: ParseYaml = yaml_document.parse_yaml_data) -> list[Rule]:
    """Read the rules of all files of a folder, in the order of the files' names; raises `InputError`."""
    rules: list[Rule] = []
    for path in sorted(folder.glob("*.yaml")):
        label = f"rules/{path.name}"
        rules += parse_rules(read_data_text(path, label), label, parse)
    return rules


_TOP_KEY = lazy_pattern(r"^([A-Za-z_][\w.-]*):", re.MULTILINE)
"""A key of an incident: what is at the beginning of a line."""


@dataclass(frozen=True, kw_only=True)
class IncidentRules:
    """The incidents of a folder in the form in which `check` and `pick` use them."""

    rules: tuple[Rule, ...]
    """A rule for each incident that forbids combinations and is covered by no other rule."""
    incidents_of_rule: Mapping[str, tuple[str, ...]]
    """The id of another rule -> the incidents that it covers."""


def load_incident_rules(folder: Path, parse: ParseYaml = yaml_document.parse_yaml_data) -> IncidentRules:
    """Read the incidents of a folder, parsing only what `check` needs; raises `InputError` for a malformed one."""
    rules: list[Rule] = []
    covered: dict[str, list[str]] = {}
    for path in sorted(folder.glob("*.yaml")):
        label = f"incidents/{path.name}"
        text = read_data_text(path, label)
        if not INCIDENT_KEYS.keys() >= set(_TOP_KEY.findall(text)):
            # A misspelled `affected` or `unless` would change the answer without a word.
            from knowngood_facts.compat.incident_file import parse_incident

            parse_incident(text, label)  # raises InputError with the line of the defect
        covering = _COVERING_RULE.search(text)
        if covering is not None:
            covered.setdefault(covering[1], []).append(path.stem)
        if covering is not None or "\naffected:" not in text:
            continue
        data = parse(text, label)
        try:
            rule = rule_from_incident_data(path.stem, data)
        except (AttributeError, KeyError, TypeError, ValueError):
            from knowngood_facts.compat.incident_file import parse_incident

            parse_incident(text, label)  # raises InputError with the line of the defect
            raise
        if rule is not None:
            rules.append(rule)
    return IncidentRules(rules=tuple(rules), incidents_of_rule={name: tuple(ids) for name, ids in covered.items()})


def load_incidents(folder: Path | None = None, *, check_references: bool = False) -> list[Incident]:
    """Read the incidents of a folder, knowngood's own by default; raises `InputError` with every defect.

    With `check_references`, a rule or reproduction that does not exist is a defect too; this takes longer.
    """
    from knowngood_facts.compat.incident_file import parse_incidents

    return parse_incidents(read_incident_texts(folder), _load_references() if check_references else None)


def load_run_incidents() -> tuple[RunIncident, ...]:
    """Read what runs of the model suite can be explained by: the incidents of this program that name their reasons."""
    from knowngood.evidence.model_judgement import RunIncident
    from knowngood_facts.compat.incident_file import parse_incidents

    texts = {name: text for name, text in read_incident_texts().items() if "\nrun_reasons:" in text}
    return tuple(
        RunIncident(id=incident.id, models=_stated_models(incident), reasons=incident.run_reasons)
        for incident in parse_incidents(texts)
    )


def _stated_models(incident: Incident) -> frozenset[str]:
    return frozenset(filter(None, incident.when.get("model", "").split("|")))


def read_incident_texts(folder: Path | None = None) -> dict[str, str]:
    """Read the incidents of a folder as text, by the name of the file for messages; raises `InputError`."""
    place = folder or local_files.data_folder() / INCIDENTS_FOLDER
    paths = sorted(place.glob("*.yaml"))
    if not paths and folder is None:
        raise MissingError(f"there are no incidents in {place}")
    if not paths:
        raise UsageError(f"{folder} has no incidents (*.yaml)")
    texts: dict[str, str] = {}
    problems: list[InputProblem] = []
    for path in paths:
        label = f"{folder or 'incidents'}/{path.name}"
        try:
            texts[label] = read_data_text(path, label)
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    return texts


def _load_references() -> IncidentReferences:
    """The rules and reproductions that exist."""
    from knowngood_facts.compat.incident_file import IncidentReferences

    root = local_files.data_folder()
    return IncidentReferences(
        rules=frozenset(rule.id for rule in load_rules(root / RULES_FOLDER)),
        reproductions=frozenset(path.name for path in (root / REPRODUCTIONS_FOLDER).glob("*/")),
    )
