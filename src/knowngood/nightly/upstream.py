"""What is new upstream, which rules, incidents and contracts it meets, and which cells could be made of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.version import Version

from knowngood.nightly.model import Check, Finding, Severity
from knowngood.solving import query
from knowngood.solving.check import check
from knowngood.solving.picking import pick
from knowngood.solving.published import Published, packages_of
from knowngood.solving.verdict import Verdict

if TYPE_CHECKING:
    from knowngood.cell import Cell
    from knowngood.solving.universe import Universe

AXES = ("torch", "triton", "transformers", "flash-attn", "flash-attn-4")
"""The packages of the axes; a cell's framework is one more."""

_DERIVED = {"torch": ("triton",)}
"""What another release of an axis decides anew."""


@dataclass(frozen=True, kw_only=True)
class Release:
    """A release that the committed facts do not have."""

    package: str
    version: str

    def __str__(self) -> str:
        return f"{self.package} {self.version}"


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One axis, as upstream has it and as the matrix has it."""

    package: str
    newest: str | None
    """Of the final releases that there are facts of."""
    in_cells: str | None
    """The newest that a cell has."""
    new: tuple[str, ...] = ()
    """Releases that the committed facts do not have."""


@dataclass(frozen=True, kw_only=True)
class Met:
    """What a new release meets in the place of a cell's own."""

    cell: str
    verdict: Verdict
    ids: tuple[str, ...]
    """The rules and incidents that forbid it."""


def packages(cells: Iterable[Cell]) -> list[str]:
    """The packages whose releases matter to these cells."""
    frameworks = {cell.framework_pin[0] for cell in cells if cell.framework_pin}
    return [*AXES, *sorted(frameworks)]


def axis(package: str, known: Sequence[str], cells: Iterable[Cell], new: Sequence[str]) -> Axis:
    """The axis of a package, of whose releases `known` are in the facts now."""
    final = [version for version in known if not Version(version).is_prerelease]
    used = [version for cell in cells if (version := packages_of(cell).get(package, "none")) != "none"]
    return Axis(
        package=package,
        newest=max(final, key=Version, default=None),
        in_cells=max(used, key=Version, default=None),
        new=tuple(sorted(new, key=Version)),
    )


def met(universe: Universe, published: Published, release: Release, cells: Iterable[Cell]) -> list[Met]:
    """The cells that have the package, each with the new release in the place of its own."""
    found = []
    for cell in cells:
        pins = packages_of(cell)
        if pins.get(release.package, "none") == "none":
            continue
        left = {name: pin for name, pin in pins.items() if name not in _DERIVED.get(release.package, ())}
        packages = {**left, release.package: release.version}
        request = query.from_document({"gpu": cell.gpu, "python": cell.python, "packages": packages})
        result = check(universe, request, published, suggest=False)
        ids = [item.id for item in result.findings if item.severity == "error"]
        found.append(Met(cell=str(cell), verdict=result.verdict, ids=tuple(dict.fromkeys(ids))))
    return found


def proposed(universe: Universe, published: Published, release: Release, gpus: Iterable[str]) -> dict[str, str]:
    """GPU -> the new cell that `pick` makes of a release, or why it makes none."""
    found = {}
    for gpu in gpus:
        request = query.from_document({"gpu": gpu, "packages": {release.package: release.version}})
        picked = pick(universe, request, published, count=1)
        if picked.choices:
            found[gpu] = str(picked.choices[0].cell)
        elif picked.conflict:
            because = (str(rule["because"]) for clash in picked.conflict for rule in clash.rules)
            found[gpu] = f"none: {next(because, 'the demands collide')}"
        else:
            found[gpu] = "none: facts do not cover it"
    return found


def finding(release: Release, met_: Sequence[Met], made: Mapping[str, str], contracts: Mapping[str, str]) -> Finding:
    """What there is to say of one new release; `contracts` are those that it breaks, with the words."""
    fits = [item for item in met_ if item.verdict in (Verdict.COMPATIBLE, Verdict.VERIFIED)]
    said = [f"{release}: fits {len(fits)} of {len(met_)} cells" if met_ else f"{release}: no cell has it"]
    said += ["contract " + name + ": " + text for name, text in contracts.items()]
    cells = list(dict.fromkeys(cell for cell in made.values() if not cell.startswith("none: ")))
    more = f" and {len(cells) - 1} for other GPUs" if len(cells) > 1 else ""
    said.append(f"pick makes {cells[0]}{more}" if cells else f"pick makes {next(iter(made.values()), 'none')}")
    if broken := [item for item in met_ if item.verdict is Verdict.BROKEN]:
        ids = dict.fromkeys(name for item in broken for name in item.ids)
        said.append(f"breaks {len(broken)} ({', '.join(ids)})")
    return Finding(
        check=Check.UPSTREAM,
        kind="release",
        severity=Severity.WARNING if contracts else Severity.INFO,
        subject=str(release),
        text="; ".join(said),
        cells=tuple(item.cell for item in fits),
    )
