"""Waivers: findings that matrix.yaml takes upon itself for some cells, with a reason and a day. Pure.

A rule can be right in general and wrong for a cell that was seen training: OpenRLHF 0.11.2 pins flash-attn 2.8.3
exactly, and the post-release 2.8.3.post2 does the same. An item of `amendments` with `waive` and `on` says so. The
values that the rule forbids in such a cell are then taken out of the rule's boxes, for `check`, `pick` and all others,
and what remains of the finding is a note with the reason.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from knowngood_facts.compat.broken_pairs import USES
from knowngood_facts.compat.findings import Finding
from knowngood_facts.compat.rule_boxes import Box, ValueSpace
from knowngood_facts.compat.value_domain import NONE

_NO_PACKAGES = ("gpu", "python")
"""The values of a cell that are no packages."""


@dataclass(frozen=True, kw_only=True)
class Waiver:
    """A finding that matrix.yaml waives for one cell."""

    finding: str
    """The id of the finding of `check` that is waived, such as `requires:openrlhf:flash-attn`."""
    values: Mapping[str, str]
    """The cell's value of each axis and package, `none` for a package that it does not have, and what is overridden."""
    on: str
    """The day of the decision, ISO 8601."""
    because: str


def apply_waivers(space: ValueSpace, boxes: Iterable[Box], waivers: Sequence[Waiver]) -> Iterator[Box]:
    """Yield the boxes without the values that waivers allow, and for these values a box of a note."""
    by_finding: dict[str, list[Waiver]] = defaultdict(list)
    for waiver in waivers:
        by_finding[waiver.finding].append(waiver)
    for box in boxes:
        own = by_finding.get(box.rule.id, []) if box.rule.severity == "error" else []
        parts, notes = [box], list[Box]()
        for waiver in own:
            split = [item for part in parts for item in _split_box(space, part, waiver)]
            parts = [item for item in split if item.rule.severity == "error"]
            notes += [item for item in split if item.rule.severity != "error"]
        yield from (*parts, *notes)


def _split_box(space: ValueSpace, box: Box, waiver: Waiver) -> Iterator[Box]:
    """Yield the parts of a box outside of a waived cell's values, and the part inside as a note."""
    inside = dict(box.masks)
    outside = []
    for name, mask in box.masks.items():
        if name in waiver.values:
            own = _mask_of_value(space, name, waiver.values[name])
            outside.append({**inside, name: mask & ~own})
            inside[name] = mask & own
    if not outside or not all(inside.values()):
        yield box
        return
    yield from (replace(box, masks=masks) for masks in outside if all(masks.values()))
    because = _waived_text(box.rule.because, waiver)
    yield replace(box, masks=inside, rule=replace(box.rule, severity="info", because=because, fix=()))


def _mask_of_value(space: ValueSpace, name: str, value: str) -> int:
    domain = space.domains[name]
    if value == NONE:
        return domain.absent
    return 1 << domain.index[value] if value in domain.index else 0


def waive_pairs(
    findings: Iterable[Finding], versions: Mapping[str, str], waivers: Sequence[Waiver]
) -> Iterator[Finding]:
    """Yield findings about broken pairs, as notes where a waiver names them for a cell with these releases."""
    for finding in findings:
        waiver = next((item for item in waivers if item.finding == finding.id and _is_cell_with(item, versions)), None)
        if waiver is None:
            yield finding
        else:
            yield replace(finding, severity="info", because=_waived_text(finding.because, waiver), fix=())


def _is_cell_with(waiver: Waiver, versions: Mapping[str, str]) -> bool:
    """Whether these are the releases of all packages that the waiver's cell states."""
    stated = {name: value for name, value in waiver.values.items() if value != NONE and name not in _NO_PACKAGES}
    return all(versions.get(name) == value for name, value in stated.items())


def _waived_text(because: str, waiver: Waiver) -> str:
    return f"{because} (waived in matrix.yaml on {waiver.on}: {waiver.because})"


def needless_waivers(space: ValueSpace, boxes: Sequence[Box], waivers: Sequence[Waiver]) -> list[str]:
    """Return the findings that are waived although no cell of the waiver has them.

    `boxes` are those that `apply_waivers` returned: what a waiver allows is a note there. A finding about a broken pair
    is in none of them, nor is one about a package without facts of its own, which only a resolution looks at: both
    count as needed.
    """
    used = {waiver.finding for waiver in waivers if any(_is_note_of(space, box, waiver) for box in boxes)}
    named = dict.fromkeys(waiver.finding for waiver in waivers)
    return [finding for finding in named if finding not in used and _has_box(space, finding)]


def _has_box(space: ValueSpace, finding: str) -> bool:
    """Return whether a finding with this id would be made from boxes."""
    kind, *packages = finding.split(":")
    return not finding.startswith(USES) and (kind != "requires" or all(name in space.domains for name in packages))


def _is_note_of(space: ValueSpace, box: Box, waiver: Waiver) -> bool:
    if box.rule.id != waiver.finding or box.rule.severity == "error":
        return False
    values = waiver.values
    return all(mask & _mask_of_value(space, name, values[name]) for name, mask in box.masks.items() if name in values)
