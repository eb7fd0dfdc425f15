"""Rules as data: what must hold between packages, GPU, driver and the rest, with reason and source.

A rule of `rules/*.yaml`:

    - id: torch-runs-on-gpu
      when: {torch: "*"}                               # the rule applies only where all of these hold
      given: {dtype: bf16}                             # conditions of use (`--with`); optional
      unless: {model: "!qwen2"}                        # conditions of use under which it does not apply; optional
      require: {gpu: {runs: "{torch.sass}", ptx: "{torch.ptx}"}}
      because: torch {torch} has machine code for {torch.sass} and none that {gpu} runs
      source: [facts/torch.json]
      confidence: artefact

Subjects are axes (`gpu`, `python`, `driver`, `nvcc`, `glibc`, `attn`), packages, or a fact of one (`torch.cuda`). A
condition is a specifier, or one of the relations of `compat.rule_relations`. `{torch.sass}` stands for that
fact of the torch in the combination, so numbers come from facts and a rule states only the relation. An incident
(`incidents/*.yaml`) becomes a rule that forbids the combinations that it affects. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from knowngood.core import yaml_document
from knowngood.core.errors import InputError, InputProblem
from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.core.yaml_cache import ParseYaml
from knowngood_facts.compat import rule_relations

if TYPE_CHECKING:
    from knowngood_facts.compat.incident import Incident

SEVERITIES = ("error", "warning", "info")
CONFIDENCES = ("measured", "artefact", "maintainer", "reported")
KINDS = ("rule", "incident", "fact")

REFERENCE = lazy_pattern(r"\{([a-z0-9-]+(?:\.[a-z0-9_]+(?::[a-z0-9-]+)?)?(?:\[[a-z]+(?:\.[a-z]+)?\])?)\}")
"""`{torch}`, `{torch.sass}`, `{xtuner.model_minimums:qwen2}`, `{flash-attn.sass[gpu]}` (its entry for the GPU),
`{bitsandbytes.sass_by_cuda[torch.cuda]}` (its entry for that fact of torch)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Condition:
    """A relation (`spec`, `any`, `runs`, ...) and its arguments, which may hold references."""

    relation: str
    arguments: tuple[str, ...]

    @property
    def references(self) -> list[str]:
        """The facts that are needed to evaluate the condition: `torch.sass`, ..."""
        return [name for text in self.arguments for name in REFERENCE.findall(text)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """One rule; the module's docstring has its form in a file."""

    id: str
    require: Mapping[str, Condition]
    when: Mapping[str, Condition] = field(default_factory=dict)
    given: Mapping[str, str] = field(default_factory=dict)
    unless: Mapping[str, str] = field(default_factory=dict)
    """Conditions of use under any of which the rule does not apply; a condition that is not stated does not count."""
    because: str
    source: tuple[str, ...]
    confidence: str = "artefact"
    severity: str = "error"
    kind: str = "rule"
    forbid: tuple[Mapping[str, str], ...] = ()
    """Combinations that break the rule, besides `require`: the `affected` of an incident."""
    silent: bool = False
    """The fault raises no error. While its conditions are not decided, it does not influence the choice of a change."""
    file: str = ""
    """The file that it was read from, for messages; empty for a rule from a package's metadata."""
    fix: tuple[Mapping[str, Any], ...] = ()
    """Remedies of the form `{"change": {...}, "note": ...}`, which come before those that are computed."""

    @property
    def always(self) -> bool:
        """Whether the rule applies under all conditions of use."""
        return not self.given and not self.unless

    @property
    def references(self) -> list[str]:
        """The references of all conditions, each once."""
        conditions = [*self.when.values(), *self.require.values()]
        return list(dict.fromkeys(name for condition in conditions for name in condition.references))


_KEYS = ("id", "when", "given", "unless", "require", "because", "source", "confidence", "severity", "kind", "fix")


def parse_rules(text: str, file: str, parse: ParseYaml = yaml_document.parse_yaml_data) -> list[Rule]:
    """Return the rules in the text of a file, whose data `parse` gives; raises `InputError` with each defect's line."""
    data = parse(text, file)
    items = data.get("rules") if isinstance(data, dict) else None
    if not isinstance(items, list):
        raise InputError(
            [InputProblem(file=file, line=1, column=1, text="the file must have a list under the key 'rules'")]
        )
    rules: list[Rule] = []
    defects: list[tuple[tuple[str | int, ...], str]] = [
        ((key,), f"unknown key {key!r}; a file of rules has the key 'rules' alone") for key in data if key != "rules"
    ]
    for place, item in enumerate(items):
        try:
            rules.append(parse_rule(item, file))
        except _Defect as defect:
            defects.append((("rules", place, *defect.path), str(defect)))
    if defects:
        source = yaml_document.parse_yaml(text, file)
        raise InputError([source.problem(path, text) for path, text in defects])
    return rules


class _Defect(Exception):  # noqa: N818 - it never leaves this module
    def __init__(self, text: str, *path: str | int) -> None:
        super().__init__(text)
        self.path = path


def parse_rule(item: Any, file: str = "") -> Rule:
    """Parse one rule in plain data: an item of the YAML file `file`, or data of the same form."""
    if not isinstance(item, Mapping):
        raise _Defect("a rule is a mapping")
    for key in item:
        if key not in _KEYS:
            raise _Defect(f"unknown key {key!r}; the keys of a rule are {', '.join(_KEYS)}", key)
    for key in ("id", "require", "because", "source"):
        if not item.get(key):
            raise _Defect(f"the key {key!r} is missing")
    for place, fix in enumerate(fixes := _listed(item.get("fix", []))):
        if not isinstance(fix, Mapping) or not fix.keys() <= {"change", "note"}:
            raise _Defect("a fix has the keys 'change' and 'note' alone", "fix", place)
    return Rule(
        id=item["id"],
        when=_conditions(item, "when"),
        given=_mapping(item, "given"),
        unless=_mapping(item, "unless"),
        require=_conditions(item, "require"),
        because=item["because"],
        source=tuple(_listed(item["source"])),
        confidence=_one_of(item, "confidence", CONFIDENCES, "artefact"),
        severity=_one_of(item, "severity", SEVERITIES, "error"),
        kind=_one_of(item, "kind", KINDS, "rule"),
        file=file,
        fix=tuple(fixes),
    )


def _one_of(item: Mapping[str, Any], key: str, allowed: Sequence[str], default: str) -> str:
    value = item.get(key, default)
    if value not in allowed:
        raise _Defect(f"{key} is one of {', '.join(allowed)}, not {value!r}", key)
    return str(value)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _mapping(item: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = item.get(key, {})
    if not isinstance(value, Mapping):
        raise _Defect(f"{key} must be a mapping", key)
    return value


def _conditions(item: Mapping[str, Any], key: str) -> dict[str, Condition]:
    return {subject: _condition(raw, key, subject) for subject, raw in _mapping(item, key).items()}


def _condition(raw: Any, *path: str) -> Condition:
    if isinstance(raw, str):
        return Condition(relation="spec", arguments=(raw,))
    if isinstance(raw, list):
        return Condition(relation="any", arguments=tuple(map(str, raw)))
    name = next(iter(raw), None) if isinstance(raw, Mapping) else None
    if name is None or name not in rule_relations.RELATIONS:
        raise _Defect(f"a condition is text, a list, or one of {', '.join(rule_relations.RELATIONS)}", *path)
    if list(raw)[1:] not in ([], ["ptx"]):
        raise _Defect(f"besides {name!r} only 'ptx' is allowed", *path)
    return Condition(relation=name, arguments=tuple(map(str, raw.values())))


INCIDENT_KEYS: Mapping[str, bool] = {
    "title": True,
    "kind": True,
    "severity": False,
    "component": True,
    "signatures": False,
    "context": False,
    "frames": False,
    "without": False,
    "affected": False,
    "when": False,
    "unless": False,
    "run_reasons": False,
    "because": True,
    "fix": True,
    "source": True,
    "confidence": True,
    "report_erred": False,
    "uses": False,
    "rule": False,
    "range_from": False,
    "reproduction": False,
    "variants": False,
    "traits": False,
    "narrowed_by": False,
}
"""The keys of an incident's file, and whether each must be there."""


def rule_from_incident(incident: Incident) -> Rule | None:
    """Return the rule that forbids what an incident affects; `None` as in `rule_from_incident_data`."""
    affected = [{name: str(text) or "*" for name, text in item.items()} for item in incident.affected]
    fix = [{"change": dict(item.change), "note": item.note} for item in incident.fix]
    parts = {"title": incident.title, "because": incident.because, "when": incident.when, "unless": incident.unless}
    parts |= {"severity": str(incident.severity), "source": incident.source, "confidence": incident.confidence}
    return rule_from_incident_data(incident.id, {**parts, "affected": affected, "fix": fix})


def _read_conditions(data: Mapping[str, Any]) -> dict[str, str]:
    """Return conditions of use (subject -> value); raises `TypeError` where one is no text."""
    if not all(isinstance(value, str) for value in data.values()):
        raise TypeError("a condition of use is a text")
    return dict(data)


def rule_from_incident_data(name: str, data: Mapping[str, Any]) -> Rule | None:
    """Return the rule that forbids what an incident (plain data of its file) affects.

    The result is `None` when `check` has nothing to say about the incident: it is harmless, or it names no combination,
    or one package alone under all conditions of use (then some caller of that package fails, not the package).
    """
    when, severity = data.get("when", {}), data.get("severity")
    affected = [dict(item) for item in data.get("affected", []) if when or len(item) > 1]
    if severity == "harmless" or not affected:
        return None
    because = " ".join(data["because"].split())
    fixes = ({"note": item} if isinstance(item, str) else item for item in data["fix"])
    return Rule(
        id=name,
        kind="incident",
        require={},
        forbid=tuple(affected),
        given=_read_conditions(when),
        unless=_read_conditions(data.get("unless", {})),
        because=f"{' '.join(data['title'].split())}. {because}",
        source=tuple([data["source"]] if isinstance(data["source"], str) else data["source"]),
        confidence=data["confidence"],
        severity="warning" if severity == "slow" or (severity == "silent" and not when) else "error",
        silent=severity in ("silent", "slow"),
        file=f"incidents/{name}.yaml",
        fix=tuple({**item, "note": " ".join(item["note"].split())} for item in fixes),
    )
