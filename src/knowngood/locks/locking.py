"""`knowngood lock`: from what matrix.yaml asks of a cell to its committed lock."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from knowngood import paths
from knowngood.cell import Cell
from knowngood.compiling import record
from knowngood.errors import KnowngoodError, MissingError, UsageError
from knowngood.locks import contents, lock, resolve, wheelhouse
from knowngood.locks.tree import CellLock, Tree
from knowngood.matrix import Entry, Matrix

_FORMAT = 1
"""Counts up when what `lock` makes of the same request changes."""


@dataclass(frozen=True, kw_only=True)
class Locked:
    """What `lock_cell` found or made."""

    lock: CellLock
    changed: bool


class NoWheelError(MissingError):
    """The wheelhouse lacks a wheel that the cell needs (exit 4)."""


@dataclass(frozen=True, kw_only=True)
class Lacking:
    """A wheel that the wheelhouse does not have."""

    package: str
    said: str


def request(entry: Entry, matrix: Matrix) -> resolve.Request:
    """What the resolver is asked for a cell. Pure."""
    cell = entry.cell
    requirements = [f"torch=={cell.torch}", f"transformers=={cell.transformers}", f"triton=={cell.triton}"]
    if cell.flash_attn_package:
        requirements.append(f"{cell.flash_attn_package}=={cell.flash_attn}")
    if cell.framework_pin:
        requirements.append("==".join(cell.framework_pin))
    excludes: set[str] = set()
    sources: set[str] = set()
    overrides: list[str] = []
    for amendment in matrix.amendments:
        if amendment.when.matches(cell):
            requirements += amendment.require
            excludes |= set(amendment.exclude)
            sources |= set(amendment.source)
            overrides += amendment.override
            requirements += ["==".join(pin) for pin in amendment.wheel]
    base = matrix.bases[entry.base]
    return resolve.Request(
        requirements=tuple(dict.fromkeys([*requirements, *entry.extras])),
        excludes=tuple(sorted(excludes)),
        python=base.python,
        glibc=base.glibc,
        locked_at=matrix.locked_at,
        sources=tuple(sorted(sources)),
        overrides=tuple(overrides),
    )


def plain(entry: Entry) -> Entry | None:
    """The cell that the framework is put on, `None` where there is no framework."""
    return replace(entry, cell=entry.cell.without_framework()) if entry.cell.framework_pin else None


def inputs(entry: Entry, matrix: Matrix) -> str:
    """SHA-256 over everything that a cell's lock follows from."""
    layers = [[name, list(globs)] for name, globs in matrix.layers.items()]
    whole = [_FORMAT, entry.base, layers, request(entry, matrix).document()]
    if below := plain(entry):
        whole.append(request(below, matrix).document())
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()


def lock_cell(  # noqa: PLR0913
    entry: Entry,
    matrix: Matrix,
    tree: Tree,
    *,
    house: Path,
    cxx11abi: Callable[[str], bool],
    upgrade: bool,
    locked_only: bool,
    say: Callable[[str], None],
) -> Locked:
    """The cell's lock: the committed one while nothing it follows from has changed, else a new one, written.

    `cxx11abi` gives the C++ ABI of a torch release. With `locked_only` a stale lock is an error and nothing is written.
    """
    cell, wanted = entry.cell, inputs(entry, matrix)
    committed = None if upgrade else _committed(tree, cell, locked_only=locked_only, say=say)
    if committed and committed.inputs == wanted:
        return Locked(lock=committed, changed=False)
    if locked_only:
        state = "follows from an older matrix.yaml" if committed else "is missing"
        raise KnowngoodError(f"{cell}: its lock {state}; run `knowngood lock '{cell}'` and commit what it writes")
    say("resolving")
    wheels = _wheels(cell, matrix, house, cxx11abi=cxx11abi)
    pinned = resolve.resolve(request(entry, matrix), wheels)
    below = plain(entry)
    of = set(resolve.resolve(request(below, matrix), wheels)) if below else set()
    found = contents.read_all({item.name: (item.url, item.sha256) for item in pinned}, say)
    distributions = [
        lock.Distribution(
            name=item.name,
            version=item.version,
            file=item.file,
            sha256=item.sha256,
            size=found[item.name].size,
        )
        for item in pinned
    ]
    lock.check(distributions, cell)
    _check_clobbers(cell, found)
    layers = lock.split(
        distributions,
        matrix.layers,
        on_top=cell.framework_pin[0] if cell.framework_pin else None,
        of=[item for item, pin in zip(distributions, pinned, strict=True) if pin in of],
    )
    made = CellLock(cell=cell, base=entry.base, inputs=wanted, layers=layers)
    with writing(tree):
        return Locked(lock=made, changed=tree.save(made))


def writing(tree: Tree) -> contextlib.AbstractContextManager[None]:
    """One writer of `docker/` at a time: what one run saves, another must not take for orphans."""
    return paths.locked(tree.folder)


def _committed(tree: Tree, cell: Cell, *, locked_only: bool, say: Callable[[str], None]) -> CellLock | None:
    try:
        return tree.load(cell)
    except UsageError as error:
        if locked_only:
            raise
        say(f"locking anew: {error}")
        return None


def lacking(cell: Cell, matrix: Matrix, house: Path, *, cxx11abi: Callable[[str], bool]) -> Lacking | None:
    """The first wheel of the cell's that the wheelhouse does not have."""
    for package, version in matrix.compiled(cell):
        wheel, refused = wheelhouse.find(cell, house, cxx11abi=cxx11abi(cell.torch), package=package, version=version)
        if wheel is None:
            return Lacking(package=package, said=no_wheel(cell, package, version, refused))
    return None


def _wheels(cell: Cell, matrix: Matrix, house: Path, *, cxx11abi: Callable[[str], bool]) -> Path | None:
    """The wheelhouse where it has what the cell needs of it, each as it was made; `None` for a cell that needs none."""
    if found := lacking(cell, matrix, house, cxx11abi=cxx11abi):
        raise NoWheelError(found.said)
    wanted = matrix.compiled(cell)
    for package, version in wanted:
        wheel, _ = wheelhouse.find(cell, house, cxx11abi=cxx11abi(cell.torch), package=package, version=version)
        if wheel and (damage := record.damage(wheel.path)):
            raise KnowngoodError(f"{damage}; `knowngood compile '{cell}'` takes it out and makes it again")
    return house if wanted else None


def no_wheel(cell: Cell, package: str, version: str, refused: Sequence[str] = ()) -> str:
    """The sentence for a cell whose wheel of a package is not in the wheelhouse."""
    others = f" ({'; '.join(refused)})" if refused else ""
    return (
        f"{cell}: the wheelhouse has no {package} {version} wheel for it{others}; "
        f"`knowngood compile '{cell}'` makes one, --wheelhouse or KNOWNGOOD_WHEELHOUSE names a folder that has one"
    )


def _check_clobbers(cell: Cell, found: Mapping[str, contents.Contents]) -> None:
    pairs = contents.clobbered(found)
    if pairs:
        raise KnowngoodError(
            f"{cell}: distributions would overwrite each other's files: {'; '.join(pairs)}; "
            "take one of each pair out with matrix.yaml's amendments"
        )
