"""What `check` found: the findings of its contract, worded with the values at hand. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from knowngood.solving.compiled import Compiled
from knowngood.solving.domain import NONE, bits, nearest
from knowngood.solving.relations import condition_holds
from knowngood.solving.rules import REFERENCE, Rule
from knowngood.solving.world import Box, World

AXES = frozenset({"gpu", "python", "driver", "nvcc", "glibc", "attn"})
"""Variables that are no packages: a fix cannot pin them."""

_RANK = {"error": 0, "warning": 1, "info": 2}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One finding."""

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
    """Known failures with a page of their own that this rule says."""

    @property
    def pages(self) -> tuple[str, ...]:
        """Where more is told."""
        names = (self.id,) if self.kind == "incident" else self.incidents
        return tuple(f"docs/incidents/{name}.md" for name in names)

    def document(self) -> dict[str, Any]:
        """As `check --json` has it."""
        made: dict[str, Any] = {
            "id": self.id,
            "kind": self.kind,
            "severity": self.severity,
            "packages": dict(self.packages),
            "because": self.because,
            "source": list(self.source),
            "confidence": self.confidence,
            "fix": [dict(item) for item in self.fix],
        }
        made |= {"when": dict(self.when)} if self.when else {}
        return made | ({"incidents": list(self.incidents)} if self.incidents else {})


def ordered(findings: Sequence[Finding]) -> list[Finding]:
    """Errors first; each id once."""
    by_id: dict[str, Finding] = {}
    for finding in sorted(findings, key=lambda item: (_RANK[item.severity], item.id)):
        by_id.setdefault(finding.id, finding)
    return list(by_id.values())


def of_box(
    compiled: Compiled, box: Box, point: Mapping[str, int], shown: Mapping[str, str], constants: Mapping[str, str]
) -> Finding:
    """A broken rule. `shown` has the values as they were asked for (a driver's own version, not its class)."""
    rule, world = box.rule, compiled.world
    computed = rule.severity != "info" and rule.kind != "incident"
    fixes = [*rule.fix, *(_fixes(compiled, box, point) if computed else [])]
    return Finding(
        id=rule.id,
        kind=rule.kind,
        severity=rule.severity,
        packages={name: shown.get(name, world.domains[name].text(point[name])) for name in box.masks if name in point},
        because=word(world, rule.because, box, point, {**constants, **shown}),
        source=tuple(word(world, text, box, point, constants) for text in rule.source),
        confidence=rule.confidence,
        fix=tuple(fixes),
        when=dict(rule.given),
    )


def _fixes(compiled: Compiled, box: Box, point: Mapping[str, int]) -> list[dict[str, Any]]:
    """For each package of the rule, the nearest release with which it holds, the others kept."""
    whole = compiled.of_rule.get(box.rule.id, 0) | compiled.hard
    kept = {variable: point[variable] for variable in box.masks if variable in point}
    made: list[dict[str, Any]] = []
    for name, mask in box.masks.items():
        domain = compiled.domains[name]
        if name in AXES or name not in point:
            continue
        others = domain.some & ~mask
        if domain.final >> point[name] & 1:
            others &= domain.final
        fitting = (
            place
            for place in nearest(domain, others, 1 << point[name])
            if not compiled.broken({**kept, name: place}, whole)
        )
        place = next(fitting, None)
        if place is not None:
            note = "the nearest release for which this rule holds"
            made.append({"change": {name: domain.text(place)}, "note": note})
    return made


def word(world: World, text: str, box: Box, point: Mapping[str, int], known: Mapping[str, str]) -> str:
    """A rule's text with its references filled in."""

    def fill(match: re.Match[str]) -> str:
        return _value(world, match[1], box, point, known)

    text = re.sub(r"\{source:([a-z0-9-]+)\}", lambda match: _source(world, match[1], box, point), text)
    return REFERENCE.sub(fill, text)


def _source(world: World, package: str, box: Box, point: Mapping[str, int]) -> str:
    domain = world.domains[package]
    place = point.get(package, next(bits(box.masks.get(package, domain.some)), 0))
    return world.book.source(package, domain.text(place))


def _value(world: World, reference: str, box: Box, point: Mapping[str, int], known: Mapping[str, str]) -> str:
    if reference in known:
        return known[reference]
    name, _, index = reference.partition("[")
    variable = name.partition(".")[0]
    if variable not in world.domains:
        return f"{{{reference}}}"
    domain = world.domains[variable]
    mask = 1 << point[variable] if variable in point else box.masks.get(variable, domain.some)
    if "." not in name:
        return span(world, variable, mask)
    try:
        found = world.get(name, domain.text(next(bits(mask), 0)))
        if index:
            axis = index[:-1]
            found = found[world.domains[axis].text(point[axis]).removeprefix("sm_")]
    except Exception:  # noqa: BLE001 - a word in a sentence; the rule itself was evaluated without it
        return "unknown"
    if isinstance(found, Mapping):
        return ", ".join(found)
    return ", ".join(map(str, found)) if isinstance(found, (list, tuple)) else str(found)


def span(world: World, variable: str, mask: int) -> str:
    """A set of versions in few words."""
    names = [world.domains[variable].text(bit) for bit in bits(mask)]
    names = [name for name in names if name != NONE] or names
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}" if names else NONE


def fact(id_: str, severity: str, packages: Mapping[str, str], because: str, source: Sequence[str]) -> Finding:
    """A finding about the facts themselves."""
    return Finding(
        id=id_,
        kind="fact",
        severity=severity,
        packages=packages,
        because=because,
        source=tuple(source),
        confidence="artefact",
    )


def applies(rule: Rule, used: Mapping[str, str]) -> bool | None:
    """Whether the conditions of use of a rule hold: `None` when what was stated does not decide it."""
    if any(key in used and condition_holds(excluded, used[key]) for key, excluded in rule.unless.items()):
        return False
    answers = [condition_holds(wanted, used[key]) if key in used else None for key, wanted in rule.given.items()]
    if any(answer is False for answer in answers):
        return False
    return None if None in answers else True
