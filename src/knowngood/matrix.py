"""matrix.yaml, the file people write: read, checked as a whole, and expanded to cells.

Pure: text and facts in, a frozen `Matrix` out. Every defect of the file is found in one reading and carries its line.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from packaging.utils import canonicalize_name

from knowngood import document, schema, units
from knowngood.cell import NO_FLASH_ATTN, NO_FRAMEWORK, Cell, flash_attn_package, framework
from knowngood.cell import parse as parse_id
from knowngood.errors import InputError, Problem, UsageError
from knowngood.select import Filter

MAX_CELLS = 1000
"""That one item of `cells` may stand for."""


@dataclass(frozen=True, kw_only=True)
class TorchPins:
    """What a torch release fixes for its cells, as its own metadata says."""

    cuda: str
    triton: str
    pythons: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Knowledge:
    """The facts that matrix.yaml is checked against.

    `releases` gives a package's known versions, or `None` where nothing was harvested; `torch` the pins of a release.
    """

    torch: Mapping[str, TorchPins]
    releases: Callable[[str], Sequence[str] | None]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A cell with what matrix.yaml says of it besides its axes."""

    cell: Cell
    base: str
    extras: tuple[str, ...]
    """Requirements beside the axes, PEP 508."""


@dataclass(frozen=True, kw_only=True)
class Amendment:
    """A change to what the resolver would do, for the cells that `when` matches."""

    when: Filter
    require: tuple[str, ...]
    exclude: tuple[str, ...]
    source: tuple[str, ...]
    """Distributions that publish no wheel and need no compiler: built from their source as their layer is made."""
    override: tuple[str, ...]
    """Requirements that stand in for what anyone else asks of that distribution."""
    wheel: tuple[tuple[str, str], ...]
    """Distributions with their versions that publish no wheel and need CUDA's compiler: out of the wheelhouse."""
    because: str


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """The whole of matrix.yaml, consistent."""

    locked_at: str
    gpus: Mapping[str, schema.Gpu]
    bases: Mapping[str, schema.Base]
    layers: Mapping[str, tuple[str, ...]]
    amendments: tuple[Amendment, ...]
    entries: Mapping[str, Entry]
    aliases: Mapping[str, str]
    size: int | None
    """Bytes that the image of one cell may have in a registry."""

    @property
    def cells(self) -> list[Cell]:
        """Every cell, in the file's order."""
        return [entry.cell for entry in self.entries.values()]

    def entry(self, cell: Cell) -> Entry:
        """What the matrix says of this cell."""
        return self.entries[str(cell)]

    def compiled(self, cell: Cell) -> list[tuple[str, str]]:
        """What the cell has of the wheelhouse, since no index has wheels of it, with versions: flash-attn 2 first."""
        own = [("flash-attn", cell.flash_attn)] if cell.flash_attn_package == "flash-attn" else []
        further = [pin for item in self.amendments if item.when.matches(cell) for pin in item.wheel]
        return list(dict.fromkeys([*own, *further]))


def floors(text: str, file: str) -> dict[str, str]:
    """The oldest release of each package to harvest. It needs no facts: these are what the harvest makes."""
    source = document.parse(text, file)
    raw, problems = schema.validate(source)
    if raw is None or problems:
        raise InputError(problems)
    return dict(raw.floors)


def parse(text: str, file: str, knowledge: Knowledge) -> Matrix:
    """The matrix in `text`. Raises `InputError` with every defect found."""
    source = document.read(text, file)
    raw, problems = schema.validate(source)
    if raw is None:
        raise InputError(problems)
    if len(raw.layers) == len(source.data["layers"]) and not any("*" in globs for globs in raw.layers.values()):
        said = "no glob in layers matches every distribution; end the section with a layer of '*'"
        problems.append(source.problem(("layers",), said, key=True))
    before = len(problems)
    entries = _entries(raw, source, knowledge, problems)
    # While cells are missing because of a defect, an alias may be for one of them.
    _check_aliases(raw.aliases, entries, source, problems, whole=len(problems) == before and all(raw.cells))
    amendments = [_amendment(item, index, source, problems) for index, item in enumerate(raw.amendments) if item]
    if problems:
        raise InputError(list(dict.fromkeys(problems)))
    return Matrix(
        locked_at=raw.locked_at,
        gpus=raw.gpus,
        bases=raw.bases,
        layers=raw.layers,
        amendments=tuple(item for item in amendments if item is not None),
        entries=entries,
        aliases=raw.aliases,
        size=units.parse(raw.size.cell) if raw.size else None,
    )


def _entries(
    raw: schema.MatrixFile, source: document.Document, knowledge: Knowledge, problems: list[Problem]
) -> dict[str, Entry]:
    entries: dict[str, Entry] = {}
    places: dict[str, int] = {}
    for index, item in enumerate(raw.cells):
        if item is None:
            continue
        for entry in _expand(item, index, raw, source, knowledge=knowledge, problems=problems):
            name = str(entry.cell)
            if name in entries:
                first = source.problem(("cells", places[name]), "").line
                said = f"the cell {name} is there already, from line {first}; take one of them out"
                problems.append(source.problem(("cells", index), said))
                continue
            entries[name] = entry
            places[name] = index
    return entries


def _check_aliases(
    aliases: Mapping[str, str],
    entries: Mapping[str, Entry],
    source: document.Document,
    problems: list[Problem],
    *,
    whole: bool,
) -> None:
    for alias, target in aliases.items():
        if _is_id(alias):
            said = f"the alias {alias!r} is a cell id itself; an alias needs another name"
            problems.append(source.problem(("aliases", alias), said, key=True))
        if target not in entries and (whole or not _is_id(target)):
            near = difflib.get_close_matches(target, entries, 1, 0)
            hint = f"; the nearest is {near[0]}" if near else ""
            said = f"the alias {alias!r} names {target!r}, which is no cell{hint}"
            problems.append(source.problem(("aliases", alias), said))


def _is_id(text: str) -> bool:
    try:
        parse_id(text)
    except UsageError:
        return False
    return True


def _amendment(
    item: schema.Amendment, index: int, source: document.Document, problems: list[Problem]
) -> Amendment | None:
    try:
        when = Filter(item.when)
    except UsageError as error:
        problems.append(source.problem(("amendments", index, "when"), str(error)))
        return None
    exclude, from_source = (tuple(map(canonicalize_name, names)) for names in (item.exclude, item.source))
    return Amendment(
        when=when,
        require=item.require,
        exclude=exclude,
        source=from_source,
        override=item.override,
        wheel=tuple((canonicalize_name(pin.partition("==")[0]), pin.partition("==")[2]) for pin in item.wheel),
        because=item.because,
    )


def _expand(  # noqa: PLR0913
    item: schema.CellItem,
    index: int,
    raw: schema.MatrixFile,
    source: document.Document,
    *,
    knowledge: Knowledge,
    problems: list[Problem],
) -> list[Entry]:
    """The product of an item's lists, without the points that a problem was reported for."""

    def check(axis: str, value: str, text: str | None) -> bool:
        if text is None:
            return True
        path: tuple[str | int, ...] = ("cells", index, axis)
        values = source.data["cells"][index].get(axis)
        if isinstance(values, list) and value in values:
            path = (*path, values.index(value))
        problems.append(source.problem(path, text))
        return False

    gpus = [x for x in item.gpu if check("gpu", x, _absent(x, source.data["gpus"], "gpus"))]
    torches = [x for x in item.torch if check("torch", x, _unknown("torch", x, knowledge))]
    transformers = [x for x in item.transformers if check("transformers", x, _unknown("transformers", x, knowledge))]
    flash = [x for x in item.flash_attn if check("flash-attn", x, _unknown_flash_attn(x, knowledge))]
    frameworks = [x for x in item.framework if check("framework", x, _unknown_framework(x, knowledge))]
    bases = [x for x in item.base if check("base", x, _absent(x, source.data["bases"], "bases"))]
    for x in list(torches):
        cuda = check("cuda", item.cuda or "", _disagrees("cuda", item.cuda, x, knowledge.torch[x].cuda))
        triton = check("triton", item.triton or "", _disagrees("triton", item.triton, x, knowledge.torch[x].triton))
        if not (cuda and triton):
            torches.remove(x)
    bases = [x for x in bases if x in raw.bases]
    size = len(gpus) * len(bases) * len(torches) * len(transformers) * len(flash) * len(frameworks)
    if size > MAX_CELLS:
        problems.append(source.problem(("cells", index), f"it stands for {size:,} cells; {MAX_CELLS} are the most"))
        return []
    entries = []
    points = itertools.product(gpus, bases, torches, transformers, flash, frameworks)
    for gpu, base, torch, tf, fa, on_top in points:
        pins, python = knowledge.torch[torch], raw.bases[base].python
        if python not in pins.pythons:
            text = f"torch {torch} has no wheel for Python {python} of base {base}; it has {', '.join(pins.pythons)}"
            check("torch", torch, text)
            continue
        cell = Cell(
            gpu=gpu,
            cuda=pins.cuda,
            torch=torch,
            transformers=tf,
            flash_attn=fa,
            triton=pins.triton,
            python=python,
            framework=on_top,
        )
        entries.append(Entry(cell=cell, base=base, extras=(*raw.stack, *item.extras)))
    return entries


def _absent(name: str, section: Mapping[str, object], title: str) -> str | None:
    if name in section:
        return None
    near = difflib.get_close_matches(name, section, 1, 0)
    return f"{name!r} is not in {title}" + (f"; the nearest there is {near[0]}" if near else "")


def _unknown(package: str, version: str, knowledge: Knowledge) -> str | None:
    releases = knowledge.torch if package == "torch" else knowledge.releases(package)
    if releases is None or version in releases:
        return None
    near = difflib.get_close_matches(version, releases, 3, 0)
    return (
        f"{package} {version} is not among the releases that facts/{package}.json has "
        f"(near it: {', '.join(near)}); correct it, or `knowngood harvest {package}` if it is new"
    )


def _unknown_flash_attn(version: str, knowledge: Knowledge) -> str | None:
    if version == NO_FLASH_ATTN:
        return None
    return _unknown(flash_attn_package(version), version, knowledge)


def _unknown_framework(value: str, knowledge: Knowledge) -> str | None:
    if value == NO_FRAMEWORK:
        return None
    return _unknown(*framework(value), knowledge)


def _disagrees(axis: str, written: str | None, torch: str, pinned: str) -> str | None:
    if written is None or written == pinned:
        return None
    return (
        f"{axis} {written} is written here, but torch {torch} pins {axis} {pinned}; "
        f"leave {axis} out, or take a torch that pins {written}"
    )
