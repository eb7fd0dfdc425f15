"""Rules as data: what must hold between packages, GPU, driver and the rest, with reason and source.

A rule of `rules/*.yaml`:

    - id: torch-runs-on-gpu
      when: {torch: "*"}                               # every condition must hold, else the rule has nothing to say
      given: {dtype: bf16}                             # how it is used (`--with`); optional
      require: {gpu: {runs: "{torch.sass}", ptx: "{torch.ptx}"}}
      because: torch {torch} has machine code for {torch.sass} and none that {gpu} runs
      source: [facts/torch.json]
      confidence: artefact

Subjects are axes (`gpu`, `python`, `driver`, `nvcc`, `glibc`, `attn`), packages, or a fact of one (`torch.cuda`). A
condition is a specifier, or one of the named relations of `solving.relations`. `{torch.sass}` stands for that fact
of the torch at hand, so that numbers come from facts and a rule states the relation only. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from knowngood import document
from knowngood.errors import InputError, Problem
from knowngood.solving import relations

SEVERITIES = ("error", "warning", "info")
CONFIDENCES = ("measured", "artefact", "maintainer", "reported")
KINDS = ("rule", "incident", "fact")

REFERENCE = re.compile(r"\{([a-z0-9-]+(?:\.[a-z0-9_]+(?::[a-z0-9-]+)?)?(?:\[[a-z]+\])?)\}")
"""`{torch}`, `{torch.sass}`, `{xtuner.requires:torch}`, `{flash-attn.sass[gpu]}` (what that map has for the GPU)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Condition:
    """A relation (`spec`, `runs`, ...) and the texts it is given, in which references stand."""

    relation: str
    arguments: tuple[str, ...]

    @property
    def references(self) -> list[str]:
        """What must be known to evaluate this: `torch.sass`, ..."""
        return [name for text in self.arguments for name in REFERENCE.findall(text)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """One rule; see the module's text."""

    id: str
    require: Mapping[str, Condition]
    when: Mapping[str, Condition] = field(default_factory=dict)
    given: Mapping[str, str] = field(default_factory=dict)
    unless: Mapping[str, str] = field(default_factory=dict)
    """Conditions of use under any of which it has nothing to say; what is not stated does not count."""
    because: str
    source: tuple[str, ...]
    confidence: str = "artefact"
    severity: str = "error"
    kind: str = "rule"
    forbid: tuple[Mapping[str, str], ...] = ()
    """Combinations that break it, beside `require`: what an incident's `affected` becomes."""
    silent: bool = False
    """Nothing fails by it: while its conditions are open it does not weigh in the choice of a change."""
    fix: tuple[Mapping[str, Any], ...] = ()
    """`{"change": {...}, "note": ...}` each, before those that are computed."""

    @property
    def always(self) -> bool:
        """Whether it holds however it is used."""
        return not self.given and not self.unless

    @property
    def references(self) -> list[str]:
        """References of all conditions, each once."""
        conditions = [*self.when.values(), *self.require.values()]
        return list(dict.fromkeys(name for condition in conditions for name in condition.references))


_KEYS = ("id", "when", "given", "require", "because", "source", "confidence", "severity", "kind", "fix")


def parse(text: str, file: str) -> list[Rule]:
    """The rules of a file's text; raises `InputError` with the line of each defect."""
    data = document.plain(text, file)
    items = data.get("rules") if isinstance(data, dict) else None
    if not isinstance(items, list):
        raise InputError([Problem(file=file, line=1, column=1, text="the file must have a list under the key 'rules'")])
    found: list[Rule] = []
    defects: list[tuple[tuple[str | int, ...], str]] = []
    for place, item in enumerate(items):
        try:
            found.append(rule(item))
        except _Defect as defect:
            defects.append((("rules", place, *defect.path), str(defect)))
    if defects:
        source = document.parse(text, file)
        raise InputError([source.problem(path, said) for path, said in defects])
    return found


class _Defect(Exception):  # noqa: N818 - it never leaves this module
    def __init__(self, said: str, *path: str) -> None:
        super().__init__(said)
        self.path = path


def rule(item: Any) -> Rule:
    """A rule from plain data (a YAML item, or what another module generates in the same form)."""
    if not isinstance(item, Mapping):
        raise _Defect("a rule is a mapping")
    for key in item:
        if key not in _KEYS:
            raise _Defect(f"unknown key {key!r}; the keys of a rule are {', '.join(_KEYS)}", key)
    for key in ("id", "require", "because", "source"):
        if not item.get(key):
            raise _Defect(f"the key {key!r} is missing")
    return Rule(
        id=item["id"],
        when=_conditions(item, "when"),
        given=_mapping(item, "given"),
        require=_conditions(item, "require"),
        because=item["because"],
        source=tuple(_listed(item["source"])),
        confidence=_one_of(item, "confidence", CONFIDENCES, "artefact"),
        severity=_one_of(item, "severity", SEVERITIES, "error"),
        kind=_one_of(item, "kind", KINDS, "rule"),
        fix=tuple(_listed(item.get("fix", []))),
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
    if name is None or name not in relations.NAMED:
        raise _Defect(f"a condition is text, a list, or one of {', '.join(relations.NAMED)}", *path)
    if list(raw)[1:] not in ([], ["ptx"]):
        raise _Defect(f"beside {name!r} only 'ptx' can stand", *path)
    return Condition(relation=name, arguments=tuple(map(str, raw.values())))
