"""Findings: the reasons of an answer, in words. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from knowngood.core.local_files import INCIDENTS_FOLDER
from knowngood_facts.compat.rule import REFERENCE, Rule
from knowngood_facts.compat.rule_relations import condition_holds
from knowngood_facts.compat.value_domain import NONE, iterate_bits

if TYPE_CHECKING:
    from knowngood_facts.compat.box_index import BoxIndex
    from knowngood_facts.compat.rule_boxes import Box, ValueSpace

AXES = frozenset({"gpu", "python", "driver", "nvcc", "glibc", "attn"})
"""The variables that are not packages: a fix cannot pin them."""

_RANK = {"error": 0, "warning": 1, "info": 2}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One reason for or against a combination: a rule, an incident, or a remark on the facts."""

    id: str
    kind: str
    severity: str
    packages: Mapping[str, str]
    because: str
    source: tuple[str, ...]
    confidence: str
    fix: tuple[Mapping[str, Any], ...] = ()
    when: Mapping[str, str] = field(default_factory=dict)
    incidents: tuple[str, ...] = ()
    """The incidents that this rule covers; each has a page."""
    undecided: bool = False
    """It holds only under conditions of use of which the query states none or not all."""

    @property
    def pages(self) -> tuple[str, ...]:
        """The pages with more about this finding."""
        names = (self.id,) if self.kind == "incident" else self.incidents
        return tuple(f"{INCIDENTS_FOLDER}/{name}.yaml" for name in names)

    def document(self) -> dict[str, Any]:
        """The finding as `check --json` prints it."""
        document: dict[str, Any] = {
            "id": self.id,
            "kind": self.kind,
            "severity": self.severity,
            "packages": dict(self.packages),
            "because": self.because,
            "source": list(self.source),
            "confidence": self.confidence,
            "fix": [dict(item) for item in self.fix],
        }
        document |= {"when": dict(self.when)} if self.when else {}
        return document | ({"incidents": list(self.incidents)} if self.incidents else {})


def sort_findings(findings: Sequence[Finding]) -> list[Finding]:
    """Sort findings, errors first; of findings with the same id keep the first."""
    by_id: dict[str, Finding] = {}
    for finding in sorted(findings, key=lambda item: (_RANK[item.severity], item.id)):
        by_id.setdefault(finding.id, finding)
    return list(by_id.values())


def finding_from_box(
    index: BoxIndex,
    box: Box,
    assignment: Mapping[str, int],
    as_written: Mapping[str, str],
    constants: Mapping[str, str],
) -> Finding:
    """Return the finding of a box that an assignment lies in.

    `as_written` has the values as the user wrote them: a driver's own version, not the release that it counts as.
    """
    rule, space = box.rule, index.space
    computed = rule.severity != "info" and rule.kind != "incident"
    fixes = [*rule.fix, *(_fixes(index, box, assignment) if computed else [])]
    return Finding(
        id=rule.id,
        kind=rule.kind,
        severity=rule.severity,
        packages={
            name: as_written.get(name, space.domains[name].text(assignment[name]))
            for name in box.masks
            if name in assignment
        },
        because=fill_template(space, rule.because, box, assignment, {**constants, **as_written}),
        source=tuple(fill_template(space, text, box, assignment, constants) for text in rule.source),
        confidence=rule.confidence,
        fix=tuple(fixes),
        when=dict(rule.given),
    )


def _fixes(index: BoxIndex, box: Box, assignment: Mapping[str, int]) -> list[dict[str, Any]]:
    """For each package of the rule, the nearest release with which the rule holds while the others are kept."""
    whole = index.boxes_of_rule.get(box.rule.id, 0) | index.errors
    kept = {variable: assignment[variable] for variable in box.masks if variable in assignment}
    fixes: list[dict[str, Any]] = []
    for name, mask in box.masks.items():
        domain = index.domains[name]
        if name in AXES or name not in assignment:
            continue
        others = domain.some & ~mask
        if domain.final >> assignment[name] & 1:
            others &= domain.final
        book = index.space.book
        fitting = (
            place
            for place in domain.nearest_places(others, 1 << assignment[name])
            if not book.yanked(name, domain.text(place)) and not index.find_broken({**kept, name: place}, whole)
        )
        place = next(fitting, None)
        if place is not None:
            note = "the nearest release for which this rule holds"
            fixes.append({"change": {name: domain.text(place)}, "note": note})
    return fixes


def fill_template(
    space: ValueSpace, text: str, box: Box, assignment: Mapping[str, int], known: Mapping[str, str]
) -> str:
    """Fill the references (`{torch.sass}`, `{source:torch}`) of a rule's text; `known` has the values of some."""

    def fill(match: re.Match[str]) -> str:
        return _value(space, match[1], box, assignment, known)

    text = re.sub(r"\{source:([a-z0-9-]+)\}", lambda match: _source(space, match[1], box, assignment), text)
    return REFERENCE.sub(fill, text)


def _source(space: ValueSpace, package: str, box: Box, assignment: Mapping[str, int]) -> str:
    domain = space.domains[package]
    place = assignment.get(package, next(iterate_bits(box.masks.get(package, domain.some)), 0))
    return space.book.source(package, domain.text(place))


def _value(space: ValueSpace, reference: str, box: Box, assignment: Mapping[str, int], known: Mapping[str, str]) -> str:
    if reference in known:
        return known[reference]
    name, _, index = reference.partition("[")
    variable = name.partition(".")[0]
    if variable not in space.domains:
        return f"{{{reference}}}"
    domain = space.domains[variable]
    mask = 1 << assignment[variable] if variable in assignment else box.masks.get(variable, domain.some)
    if "." not in name:
        return describe_versions(space, variable, mask)
    try:
        fact = space.get(name, domain.text(next(iterate_bits(mask), 0)))
        if index:
            subject = index[:-1]
            axis = subject.partition(".")[0]
            fact = fact[str(space.get(subject, space.domains[axis].text(assignment[axis]))).removeprefix("sm_")]
    except Exception:  # noqa: BLE001 - this is only a word of a sentence; the rule was evaluated without it
        return "unknown"
    if isinstance(fact, Mapping):
        return ", ".join(fact)
    return ", ".join(map(str, fact)) if isinstance(fact, (list, tuple)) else str(fact)


def describe_versions(space: ValueSpace, variable: str, mask: int) -> str:
    """Describe a set of versions: `2.6.0`, `2.4.0 to 2.6.0`, or `none`."""
    names = space.domains[variable].texts(mask)
    names = [name for name in names if name != NONE] or names
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}" if names else NONE


def fact_finding(id_: str, severity: str, packages: Mapping[str, str], because: str, source: Sequence[str]) -> Finding:
    """Return a finding about the facts themselves."""
    return Finding(
        id=id_,
        kind="fact",
        severity=severity,
        packages=packages,
        because=because,
        source=tuple(source),
        confidence="artefact",
    )


def conditions_apply(rule: Rule, conditions: Mapping[str, str]) -> bool | None:
    """Whether a rule's conditions of use hold; `None` when the stated conditions do not decide it."""
    if any(key in conditions and condition_holds(text, conditions[key]) for key, text in rule.unless.items()):
        return False
    answers = [
        condition_holds(text, conditions[key]) if key in conditions else None for key, text in rule.given.items()
    ]
    if any(answer is False for answer in answers):
        return False
    return None if None in answers else True
