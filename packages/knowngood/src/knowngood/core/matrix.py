"""matrix.yaml, the file that people edit: parsed, checked as a whole, and expanded to cells.

Pure: text and facts in, a frozen `Matrix` out. One run reports every defect of the file, each with its line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from knowngood.core.cell import Cell, parse_cell
from knowngood.core.errors import InputError, InputProblem, KnowngoodError, UsageError
from knowngood.core.formatting import parse_bytes
from knowngood.core.gpus import GpuCatalog, GpuMachine, gpu_catalog_from_sections
from knowngood.core.hosts import DEFAULT_HOST, HostArchitecture
from knowngood.core.matrix_entries import (
    RetiredCellError,
    Retirement,
    expand_product,
    find_exclude_problems,
    retirement_from_item,
)
from knowngood.core.publish_policy import PublishPolicy, SigningIdentity
from knowngood.core.selection import CellFilter, select_cells
from knowngood.core.value_problems import (
    describe_missing_name,
    describe_other_pin,
    describe_unfit_host,
    describe_unfit_place,
    describe_unknown_flash_attn,
    describe_unknown_framework,
    describe_unknown_release,
    hint_nearest_cell,
)
from knowngood.core.yaml_document import YamlDocument, parse_yaml, parse_yaml_with_problems

if TYPE_CHECKING:
    from knowngood.core import matrix_schema

MAX_CELLS = 1000
"""The most cells that one item of `cells` may stand for."""


@dataclass(frozen=True, kw_only=True)
class TorchPins:
    """What a torch release fixes for its cells, read from its own metadata."""

    cuda: str
    triton: str
    pythons: tuple[str, ...]
    aarch64_cuda: str | None = None
    """The CUDA of its wheel for aarch64; `none` where that is for the CPU only, `None` where nothing is known."""


@dataclass(frozen=True, kw_only=True)
class MatrixFacts:
    """The facts that matrix.yaml is checked against."""

    torch: Mapping[str, TorchPins]
    """torch release -> its pins."""
    releases: Callable[[str], Sequence[str] | None]
    """Gives the known versions of a package, or `None` when nothing was harvested for it."""


@dataclass(frozen=True, kw_only=True)
class MatrixEntry:
    """A cell, with what matrix.yaml says about it besides its axes."""

    cell: Cell
    base: str
    extras: tuple[str, ...]
    """Requirements (PEP 508) besides those of the axes."""
    locked_at: str
    """Releases after this day do not exist for its lock: that of its item, else that of the whole file."""
    companions: tuple[str, ...] = ()
    """Requirements that come with the framework, which the cell without it does not have."""
    below: Cell | None = None
    """The cell of this matrix whose locked versions the framework leaves as they are; `None` where it may move them."""
    moves: tuple[str, ...] = ()
    """The packages of the cell below that the framework needs in other versions all the same; canonical names."""
    retired: Retirement | None = None
    """Since when the cell is no longer built, published or offered; `None` while it is."""


@dataclass(frozen=True, kw_only=True)
class Amendment:
    """A change to what the resolver would do, for the cells that `when` matches."""

    when: CellFilter
    require: tuple[str, ...]
    exclude: tuple[str, ...]
    source: tuple[str, ...]
    """Distributions that publish no wheel and need no compiler: built from source together with their layer."""
    override: tuple[str, ...]
    """Requirements that replace what other packages require of the same distribution."""
    wheel: tuple[tuple[str, str], ...]
    """Distributions, with versions, that publish no wheel and need CUDA's compiler. They come from the wheelhouse."""
    waive: tuple[str, ...]
    """The ids of findings of `check` that do not count for these cells."""
    on: str | None
    """The day on which the findings were waived, ISO 8601."""
    because: str


class MatrixError(InputError):
    """Defects of matrix.yaml, with the cells that it has all the same, so that these can be judged in the same run."""

    def __init__(self, problems: Sequence[InputProblem], lines: Mapping[Cell, int]) -> None:
        super().__init__(problems)
        self.lines = lines
        """Maintained cell -> the line of its item."""


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """The whole of matrix.yaml, checked and consistent."""

    locked_at: str
    """The day of every cell that has none of its own."""
    gpus: Mapping[str, matrix_schema.GpuArchitecture]
    bases: Mapping[str, matrix_schema.Base]
    layers: Mapping[str, tuple[str, ...]]
    amendments: tuple[Amendment, ...]
    entries: Mapping[str, MatrixEntry]
    """Cell id -> its entry, in the order of the file."""
    lines: Mapping[Cell, int]
    """Cell -> the line of the file that has it."""
    aliases: Mapping[str, str]
    size: int | None
    """The most bytes that the image of one cell may have in a registry."""
    publish: PublishPolicy = field(default_factory=PublishPolicy)
    """How far an image must be proven to be published."""
    wheel_places: tuple[str, ...] = ()
    """Folders, addresses and repositories (`oci://...`) that may have the wheels that were compiled for cells."""

    @cached_property
    def gpu_catalog(self) -> GpuCatalog:
        """What decides which GPU a name means, and which cards a cell is for."""
        return gpu_catalog_from_sections({sm: dict(item) for sm, item in self.gpus.items()})

    def machine_of(self, cell: Cell) -> GpuMachine:
        """Return the kind of machine that a cell is for, with its cards."""
        for item in self.gpu_catalog.machines:
            if (item.sm, item.host) == (cell.gpu, cell.host):
                return item
        name = f"{cell.gpu}-{cell.host}"
        return GpuMachine(name=name, sm=cell.gpu, host=cell.host, cards=self.gpus[cell.gpu].cards, query=cell.gpu)

    @property
    def cells(self) -> list[Cell]:
        """All cells, also retired ones, in the order of the file."""
        return [entry.cell for entry in self.entries.values()]

    @property
    def maintained_cells(self) -> list[Cell]:
        """The cells that are not retired, in the order of the file."""
        return [cell for cell in self.cells if str(cell) not in self.retired]

    @property
    def retired(self) -> dict[str, Retirement]:
        """The ids of the retired cells, with what the file says about each."""
        return {name: entry.retired for name, entry in self.entries.items() if entry.retired}

    def select_all_cells(self, words: Sequence[str]) -> list[Cell]:
        """Return the cells that the words of SELECT select, also retired ones, as `selection.select_cells` does."""
        return select_cells(self.cells, self.aliases, words, self.gpu_catalog)

    def select_cells(self, words: Sequence[str]) -> list[Cell]:
        """Return the maintained cells that the words of SELECT select.

        Raises:
            RetiredCellError: a word is the id or alias of a retired cell, or selects only retired cells.
            UsageError: a word selects no cell.
        """
        retired = self.retired
        cells = self.select_all_cells(words)
        for word in words if retired else ():
            named = [str(cell) for cell in self.select_all_cells([word])]
            if all(name in retired for name in named):
                raise RetiredCellError("; ".join(retired[name].sentence(name) for name in named))
        return [cell for cell in cells if str(cell) not in retired]

    def entry(self, cell: Cell) -> MatrixEntry:
        """Return the entry of a cell of this matrix."""
        return self.entries[str(cell)]

    def find_base(self, name: str) -> matrix_schema.Base:
        """Return the base with the name that a lock states; `KnowngoodError` when the matrix has none of that name."""
        if name not in self.bases:
            raise KnowngoodError(
                f"a lock names the base {name!r}, which matrix.yaml does not have; run `knowngood lock`"
            )
        return self.bases[name]

    def compiled_packages(self, cell: Cell) -> list[tuple[str, str]]:
        """Return the packages, with versions, that a cell takes from the wheelhouse because no index has their wheels.

        flash-attn 2 comes first.
        """
        flash_attn = [("flash-attn", cell.flash_attn)] if cell.flash_attn_package == "flash-attn" else []
        amended = [pin for item in self.amendments if item.when.matches(cell) for pin in item.wheel]
        return list(dict.fromkeys([*flash_attn, *amended]))


def parse_floors(text: str, file: str) -> dict[str, str]:
    """Return the oldest release to harvest of each package, from the text of matrix.yaml.

    This needs no facts, because the harvest that produces them starts here. Raises `InputError` with every defect.
    """
    from knowngood.core import matrix_schema  # pydantic takes 0.3 s

    raw, problems = matrix_schema.validate_matrix_file(parse_yaml(text, file))
    if raw is None or problems:
        raise InputError(problems)
    return dict(raw.floors)


def parse_matrix(text: str, file: str, facts: MatrixFacts) -> Matrix:
    """Return the matrix that the text of matrix.yaml describes. Raises `InputError` with every defect."""
    from knowngood.core import matrix_schema

    source = parse_yaml_with_problems(text, file)
    raw, problems = matrix_schema.validate_matrix_file(source)
    if raw is None:
        raise InputError(problems)
    return _MatrixReader(raw, source, facts, problems).matrix()


class _MatrixReader:
    """Builds the matrix from a file of the right shape, and collects the problems on the way."""

    def __init__(
        self, raw: matrix_schema.MatrixFile, source: YamlDocument, facts: MatrixFacts, problems: list[InputProblem]
    ) -> None:
        self.raw = raw
        self.source = source
        self.facts = facts
        self.problems = problems
        self.lines: dict[Cell, int] = {}

    def matrix(self) -> Matrix:
        raw = self.raw
        written = self.source.data.get("layers")
        all_layers_valid = isinstance(written, dict) and len(raw.layers) == len(written)
        if all_layers_valid and not any("*" in globs for globs in raw.layers.values()):
            text = "no glob in layers matches every distribution; end the section with a layer of '*'"
            self.report(("layers",), text, key=True)
        for gpu in raw.publish.gpus:
            if problem := describe_missing_name(gpu, self.source.data["gpus"], "gpus"):
                self.report(("publish", "gpus", gpu), problem, key=True)
        before = len(self.problems)
        entries = self.entries()
        # When a defect leaves out cells, a stack, an alias or a successor may name one of those.
        complete = len(self.problems) == before and all(raw.cells)
        entries |= self.stacks(entries, complete=complete)
        complete = (
            len(self.problems) == before and complete and len(raw.stacks) == len(self.source.data.get("stacks") or ())
        )
        self.check_aliases(entries, complete=complete)
        self.check_successors(entries, complete=complete)
        amendments = [self.amendment(item, index) for index, item in enumerate(raw.amendments) if item]
        if self.problems:
            lines = {cell: line for cell, line in self.lines.items() if not entries[str(cell)].retired}
            raise MatrixError(list(dict.fromkeys(self.problems)), lines)
        return Matrix(
            locked_at=raw.locked_at,
            gpus=raw.gpus,
            bases=self.bases(entries),
            layers=raw.layers,
            amendments=tuple(item for item in amendments if item is not None),
            entries=entries,
            lines=self.lines,
            aliases=raw.aliases,
            size=parse_bytes(raw.size.cell) if raw.size else None,
            publish=PublishPolicy(
                tier=raw.publish.tier,
                gpus=raw.publish.gpus,
                keys=raw.publish.key,
                identities=tuple(
                    SigningIdentity(issuer=item.issuer, subject=item.subject, trust=item.trust)
                    for item in raw.publish.identity
                ),
                repository=raw.publish.repository,
            ),
            wheel_places=raw.wheel_places,
        )

    def report(self, path: Sequence[str | int], text: str, *, key: bool = False) -> None:
        self.problems.append(self.source.problem(path, text, key=key))

    def bases(self, entries: Mapping[str, MatrixEntry]) -> dict[str, matrix_schema.Base]:
        """Return the bases of the file, and those that its cells for aarch64 have of the same packages."""
        bases = dict(self.raw.bases)
        for entry in entries.values():
            for name, base in self.raw.bases.items():
                if base_for_host(name, entry.cell.host) == entry.base:
                    bases.setdefault(entry.base, base.model_copy(update={"host": entry.cell.host}))
        return bases

    def entries(self) -> dict[str, MatrixEntry]:
        entries: dict[str, MatrixEntry] = {}
        for index, item in enumerate(self.raw.cells):
            for entry in self.expand(item, index) if item else ():
                name = str(entry.cell)
                if name in entries:
                    text = f"the cell {name} is there already, from line {self.lines[entry.cell]}; remove one of them"
                    self.report(("cells", index), text)
                    continue
                entries[name] = entry
                self.lines[entry.cell] = self.source.problem(("cells", index), "").line
        return entries

    def stacks(self, entries: Mapping[str, MatrixEntry], *, complete: bool) -> dict[str, MatrixEntry]:
        """Return the cells of the stacks; `complete` says that no cell is left out of `entries`."""
        made: dict[str, MatrixEntry] = {}
        for trainer, item in self.raw.stacks.items():
            if text := describe_unknown_release(trainer, item.release, self.facts):
                self.report(("stacks", trainer, "release"), text)
                continue
            extras = (f"{trainer}[{','.join(item.extras)}]",) if item.extras else ()
            for index, word in enumerate(item.on):
                name = self.raw.aliases.get(word, word)
                below = entries.get(name)
                text = describe_unfit_place(name, below, entries)
                if below is None or text:
                    if below or complete or not (_is_cell_id(word) or word in self.raw.aliases):
                        self.report(("stacks", trainer, "on", index), text or "")
                    continue
                cell = replace(below.cell, framework=f"{trainer}{item.release}")
                if str(cell) in entries or str(cell) in made:
                    text = f"the cell {cell} is there already; remove one of them"
                    self.report(("stacks", trainer, "on", index), text)
                    continue
                self.lines[cell] = self.source.problem(("stacks", trainer, "on", index), "").line
                made[str(cell)] = replace(
                    below,
                    cell=cell,
                    locked_at=item.locked_at or below.locked_at,
                    companions=(*extras, *item.companions),
                    below=below.cell,
                    moves=tuple(map(canonicalize_name, item.moves)),
                )
        return made

    def check_aliases(self, entries: Mapping[str, MatrixEntry], *, complete: bool) -> None:
        """Report aliases that are cell ids or name no cell; `complete` says that no cell is left out."""
        for alias, target in self.raw.aliases.items():
            if _is_cell_id(alias):
                self.report(
                    ("aliases", alias), f"the alias {alias!r} is itself a cell id; give it another name", key=True
                )
            if target not in entries and (complete or not _is_cell_id(target)):
                hint = hint_nearest_cell(target, entries)
                self.report(("aliases", alias), f"the alias {alias!r} names {target!r}, which is no cell{hint}")

    def check_successors(self, entries: Mapping[str, MatrixEntry], *, complete: bool) -> None:
        """Report successors of retired cells that are retired themselves or no cell; `complete` as for aliases."""
        for index, item in enumerate(self.raw.cells):
            target = item.retired.successor if item and item.retired else "none"
            if target == "none":
                continue
            path = ("cells", index, "retired", "for")
            if target in entries:
                if entries[target].retired:
                    self.report(path, f"the successor {target} is retired itself; name one that is not, or `none`")
            elif complete or not _is_cell_id(target):
                hint = hint_nearest_cell(target, entries)
                self.report(path, f"the successor {target!r} is no cell of this file{hint}")

    def amendment(self, item: matrix_schema.AmendmentItem, index: int) -> Amendment | None:
        try:
            when = CellFilter(item.when)
        except UsageError as error:
            self.report(("amendments", index, "when"), str(error))
            return None
        return Amendment(
            when=when,
            require=item.require,
            exclude=tuple(map(canonicalize_name, item.exclude)),
            source=tuple(map(canonicalize_name, item.source)),
            override=item.override,
            wheel=tuple((canonicalize_name(pin.partition("==")[0]), pin.partition("==")[2]) for pin in item.wheel),
            waive=item.waive,
            on=item.on,
            because=item.because,
        )

    def expand(self, item: matrix_schema.CellItem, index: int) -> list[MatrixEntry]:
        """Return the cells of an item, without the combinations that it excludes or that a problem was reported for."""
        facts, data = self.facts, self.source.data

        def check(axis: str, value: str, text: str | None) -> bool:
            if text is None:
                return True
            path: tuple[str | int, ...] = ("cells", index, axis)
            values = data["cells"][index].get(axis)
            if isinstance(values, list) and value in values:
                path = (*path, values.index(value))
            self.report(path, text)
            return False

        gpus = [x for x in item.gpu if check("gpu", x, describe_missing_name(x, data["gpus"], "gpus"))]
        torches = [x for x in item.torch if check("torch", x, describe_unknown_release("torch", x, facts))]
        transformers = [
            x for x in item.transformers if check("transformers", x, describe_unknown_release("transformers", x, facts))
        ]
        flash_attns = [x for x in item.flash_attn if check("flash-attn", x, describe_unknown_flash_attn(x, facts))]
        frameworks = [x for x in item.framework if check("framework", x, describe_unknown_framework(x, facts))]
        bases = [x for x in item.base if check("base", x, describe_missing_name(x, data["bases"], "bases"))]
        for x in list(torches):
            pins = facts.torch[x]
            cuda = check("cuda", item.cuda or "", describe_other_pin("cuda", item.cuda, x, pins.cuda))
            triton = check("triton", item.triton or "", describe_other_pin("triton", item.triton, x, pins.triton))
            if not (cuda and triton):
                torches.remove(x)
        bases = [x for x in bases if x in self.raw.bases]
        hosts = [
            x for x in item.host if check("host", x, describe_unfit_host(x, item.gpu, self.raw.gpus, torches, facts))
        ]
        size = (
            len(hosts) * len(gpus) * len(bases) * len(torches) * len(transformers) * len(flash_attns) * len(frameworks)
        )
        if size > MAX_CELLS:
            self.report(("cells", index), f"this item stands for {size:,} cells; at most {MAX_CELLS} are allowed")
            return []
        lists = {
            "gpu": gpus,
            "base": bases,
            "torch": torches,
            "transformers": transformers,
            "flash-attn": flash_attns,
            "framework": frameworks,
            "host": [str(host) for host in hosts],
        }
        excludes = [exclude.lists() for exclude in item.exclude]
        for place, text in find_exclude_problems(lists, item.lists(), excludes):
            self.report(("cells", index, "exclude", *place), text)
        retired = retirement_from_item(data["cells"][index])
        entries = []
        for axes in expand_product(lists, excludes):
            torch, base = axes["torch"], axes["base"]
            pins, python = facts.torch[torch], self.raw.bases[base].python
            if python not in pins.pythons:
                wheels = ", ".join(pins.pythons)
                check("torch", torch, f"torch {torch} has no wheel for Python {python} of base {base}; it has {wheels}")
                continue
            cell = Cell(
                gpu=axes["gpu"],
                cuda=pins.cuda,
                torch=torch,
                transformers=axes["transformers"],
                flash_attn=axes["flash-attn"],
                triton=pins.triton,
                python=python,
                framework=axes["framework"],
                host=HostArchitecture(axes["host"]),
            )
            extras = (*self.raw.everywhere, *item.extras)
            day = item.locked_at or self.raw.locked_at
            entries.append(
                MatrixEntry(
                    cell=cell, base=base_for_host(base, cell.host), extras=extras, locked_at=day, retired=retired
                )
            )
        return entries


def base_for_host(name: str, host: HostArchitecture) -> str:
    """Return the name of the base that a cell has on a host, given its base in the file: `debian12-aarch64`."""
    return name if host == DEFAULT_HOST else f"{name}-{host}"


def _is_cell_id(text: str) -> bool:
    try:
        parse_cell(text)
    except UsageError:
        return False
    return True
