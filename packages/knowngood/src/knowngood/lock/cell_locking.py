"""`knowngood lock`: from the entry of a cell in matrix.yaml to its committed lock."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from knowngood.core import local_files
from knowngood.core.cell import Cell
from knowngood.core.errors import KnowngoodError, MissingError, UsageError
from knowngood.core.hosts import DEFAULT_HOST
from knowngood.core.matrix import Matrix, MatrixEntry
from knowngood.core.notify import Notify
from knowngood.lock import cell_lock, resolver, wheelhouse
from knowngood.lock.lock_tree import CellLock, LockTree

_FORMAT = 2
"""Raised by one when `knowngood lock` writes something else for the same request."""


@dataclass(frozen=True, kw_only=True)
class LockingResult:
    """The lock of a cell, and whether `lock_cell` wrote it."""

    lock: CellLock
    changed: bool


class NoWheelError(MissingError):
    """The wheelhouse lacks a wheel that the cell needs (exit 4)."""


@dataclass(frozen=True, kw_only=True)
class MissingWheel:
    """A wheel that a cell needs and the wheelhouse does not have."""

    package: str
    message: str


def resolver_request(entry: MatrixEntry, matrix: Matrix) -> resolver.ResolverRequest:
    """Return what the resolver is asked for a cell. Pure."""
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
    return resolver.ResolverRequest(
        requirements=tuple(dict.fromkeys([*requirements, *entry.extras, *entry.companions])),
        excludes=tuple(sorted(excludes)),
        python=base.python,
        glibc=base.glibc,
        locked_at=entry.locked_at,
        sources=tuple(sorted(sources)),
        overrides=tuple(overrides),
        host="" if cell.host == DEFAULT_HOST else str(cell.host),
    )


def entry_without_framework(entry: MatrixEntry) -> MatrixEntry | None:
    """Return the entry of the cell below the framework, or `None` when the cell has no framework."""
    if entry.cell.framework_pin is None:
        return None
    return replace(entry, cell=entry.cell.without_framework(), companions=(), below=None, moves=())


def lock_inputs_digest(entry: MatrixEntry, matrix: Matrix) -> str:
    """Return the SHA-256 over everything that decides a cell's lock."""
    layers = [[name, list(globs)] for name, globs in matrix.layers.items()]
    whole = [_FORMAT, entry.base, layers, resolver_request(entry, matrix).document()]
    if below := entry_without_framework(entry):
        whole.append(resolver_request(below, matrix).document())
    if entry.below:
        whole.append("the versions below are held")
    if entry.moves:
        whole.append(["but for", *entry.moves])
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class LockingPlace:
    """Where cells are locked: the matrix that they belong to, the folder of locks, and the wheels that no index has."""

    matrix: Matrix
    tree: LockTree
    wheel_folder: Path
    cxx11abi: Callable[[str], bool]
    """Gives the C++ ABI of a torch release."""
    locked_only: bool = False
    """A stale lock is an error, and nothing is written."""
    notify: Notify


def lock_cell(entry: MatrixEntry, place: LockingPlace, *, upgrade: bool = False) -> LockingResult:
    """Return the committed lock of a cell while nothing that decides it has changed; else resolve and write a new one.

    A cell with a framework holds the versions of the cell below it, which is locked first. With `upgrade`, the cell is
    resolved again although nothing has changed.

    Raises:
        NoWheelError: the wheelhouse lacks a wheel that the cell needs.
        KnowngoodError: the lock is stale with `locked_only`, or what was resolved does not match the cell.
    """
    held = None
    if entry.below:
        held = _lock_on_top(place.matrix.entry(entry.below), None, place, upgrade=False).lock
    return _lock_on_top(entry, held, place, upgrade=upgrade)


def _lock_on_top(entry: MatrixEntry, held: CellLock | None, place: LockingPlace, *, upgrade: bool) -> LockingResult:
    """Lock a cell whose versions are those of `held`, the lock of the cell below it, where there is one."""
    cell, digest = entry.cell, lock_inputs_digest(entry, place.matrix)
    shared = [layer for layer in held.layers if not _has_any(layer, entry.moves)] if held else []

    committed = None if upgrade else _load_committed_lock(cell, place)
    if committed and committed.inputs == digest and set(shared) <= set(committed.layers):
        return LockingResult(lock=committed, changed=False)
    if place.locked_only:
        state = "was made from an older matrix.yaml" if committed else "is missing"
        raise KnowngoodError(f"{cell}: its lock {state}; run `knowngood lock '{cell}'` and commit what it writes")

    place.notify("resolving")
    wheels = _require_wheels(cell, place)
    try:
        pinned = resolver.resolve_distributions(_request_with_held_versions(entry, held, place.matrix), wheels)
    except resolver.NoSolutionError as error:
        if "exclude-newer" not in str(error):
            raise
        raise KnowngoodError(
            f"{cell}: releases after {entry.locked_at} do not count for it: give its item in matrix.yaml a later "
            f"`locked-at: DAY`, or move that of the whole file; {error}"
        ) from None
    below = _list_below_framework(entry, held, place.matrix, wheels)
    distributions = _read_distributions(cell, pinned, place.notify)

    layers = cell_lock.split_into_layers(
        distributions,
        place.matrix.layers,
        framework=cell.framework_pin[0] if cell.framework_pin else None,
        below=[item for item in distributions if (item.name, item.version) in below],
    )
    if missing := [layer.name for layer in shared if layer not in layers]:
        raise KnowngoodError(
            f"{cell}: it would not share {', '.join(missing)} with {entry.below}; an amendment that excludes or "
            "replaces what that cell has cannot be for a stack on it"
        )
    lock = CellLock(cell=cell, base=entry.base, inputs=digest, layers=layers)
    with hold_lock_folder(place.tree):
        return LockingResult(lock=lock, changed=place.tree.save(lock))


def _request_with_held_versions(entry: MatrixEntry, held: CellLock | None, matrix: Matrix) -> resolver.ResolverRequest:
    """Return what the resolver is asked for a cell; the versions of the cell below stay, but for those that move."""
    request = resolver_request(entry, matrix)
    if held is None:
        return request
    pins = (f"{it.name}=={it.version}" for it in held.distributions if it.name not in entry.moves)
    return replace(request, constraints=tuple(pins))


def _list_below_framework(
    entry: MatrixEntry, held: CellLock | None, matrix: Matrix, wheels: Path | None
) -> set[tuple[str, str]]:
    """Return name and version of what the cell would have without its framework; empty for a cell without one."""
    if held:
        return {(item.name, item.version) for item in held.distributions}
    plain = entry_without_framework(entry)
    if plain is None:
        return set()
    others = resolver.resolve_distributions(resolver_request(plain, matrix), wheels)
    return {(item.name, item.version) for item in others}


def _read_distributions(
    cell: Cell, pinned: Sequence[resolver.PinnedFile], notify: Notify
) -> list[cell_lock.Distribution]:
    """Return the resolved distributions with their sizes.

    Raises `KnowngoodError` when they do not match the cell, or two of them have one file with different bytes.
    """
    from knowngood.index import wheel_contents  # it imports the client of the index

    contents = wheel_contents.read_contents_of_wheels({item.name: (item.url, item.sha256) for item in pinned}, notify)
    distributions = [
        cell_lock.Distribution(
            name=item.name,
            version=item.version,
            file=item.file,
            sha256=item.sha256,
            size=contents[item.name].size,
        )
        for item in pinned
    ]
    cell_lock.check_lock_matches_cell(distributions, cell)
    if pairs := wheel_contents.describe_clobbered_files(contents):
        raise KnowngoodError(
            f"{cell}: distributions would overwrite each other's files: {'; '.join(pairs)}; "
            "exclude one of each pair in matrix.yaml's amendments"
        )
    return distributions


def _has_any(layer: cell_lock.Layer, names: Sequence[str]) -> bool:
    return any(item.name in names for item in layer.distributions)


def hold_lock_folder(tree: LockTree) -> contextlib.AbstractContextManager[None]:
    """Hold `docker/` for one writer at a time: a folder that one run writes must not look like an orphan to another."""
    return local_files.lock_folder(tree.folder)


def _load_committed_lock(cell: Cell, place: LockingPlace) -> CellLock | None:
    try:
        return place.tree.load(cell)
    except UsageError as error:
        if place.locked_only:
            raise
        place.notify(f"locking again: {error}")
        return None


def find_missing_wheel(
    cell: Cell, matrix: Matrix, wheel_folder: Path, *, cxx11abi: Callable[[str], bool]
) -> MissingWheel | None:
    """Return the first wheel that the cell needs and the wheelhouse does not have, or `None`."""
    for package, version in matrix.compiled_packages(cell):
        wheel, refused = wheelhouse.find_wheel(
            cell, wheel_folder, cxx11abi=cxx11abi(cell.torch), package=package, version=version
        )
        if wheel is None:
            return MissingWheel(package=package, message=missing_wheel_message(cell, package, version, refused))
    return None


def choose_buildable_cell(
    cell: Cell, matrix: Matrix, wheel_folder: Path, *, cxx11abi: Callable[[str], bool]
) -> tuple[Cell, str]:
    """Return the cell to build, and the reason (a sentence) where it is not the cell that was asked for.

    A cell whose flash-attn wheel is missing is replaced by its `fa0` twin.

    Raises:
        NoWheelError: another wheel is missing, or matrix.yaml does not have the twin or has retired it.
    """
    missing = find_missing_wheel(cell, matrix, wheel_folder, cxx11abi=cxx11abi)
    if missing is None:
        return cell, ""
    twin = cell.without_flash_attn()
    if missing.package != "flash-attn":
        raise NoWheelError(missing.message)
    if str(twin) not in matrix.entries:
        raise NoWheelError(f"{missing.message}; and matrix.yaml has no {twin}")
    if retired := matrix.retired.get(str(twin)):
        raise NoWheelError(f"{missing.message}; and {retired.sentence(str(twin))}")
    return twin, missing.message


def _require_wheels(cell: Cell, place: LockingPlace) -> Path | None:
    """Return the wheelhouse when it has what the cell needs, undamaged; `None` for a cell that needs nothing of it.

    A wheel must have the bytes of its record in `docker/wheels/`; the user hears of one that has no record.
    """
    if missing := find_missing_wheel(cell, place.matrix, place.wheel_folder, cxx11abi=place.cxx11abi):
        raise NoWheelError(missing.message)
    packages = place.matrix.compiled_packages(cell)
    for package, version in packages:
        wheel, _ = wheelhouse.find_wheel(
            cell, place.wheel_folder, cxx11abi=place.cxx11abi(cell.torch), package=package, version=version
        )
        if wheel and (damage := wheelhouse.find_wheel_damage(wheel.path)):
            raise KnowngoodError(f"{damage}; `knowngood compile '{cell}'` removes it and makes it again")
        if wheel and not wheelhouse.check_recorded_bytes(place.tree, wheel):
            place.notify(
                f"locking {wheel.path.name} as the wheelhouse has it: docker/wheels/ has no record of its bytes"
            )
    return place.wheel_folder if packages else None


def missing_wheel_message(cell: Cell, package: str, version: str, refused: Sequence[str] = ()) -> str:
    """Return the sentence for a wheel that is missing; `refused` says why other wheels of the package do not fit."""
    others = f" ({'; '.join(refused)})" if refused else ""
    return (
        f"{cell}: the wheelhouse has no {package} {version} wheel for it{others}; "
        f"`knowngood compile '{cell}'` makes one, KNOWNGOOD_WHEELHOUSE names a folder that has one"
    )


def check_locked_wheels(locked_cell: CellLock, wheel_folder: Path) -> None:
    """Check that the wheelhouse has every wheel that the lock takes from it.

    Raises:
        NoWheelError: a wheel is missing.
        KnowngoodError: a wheel is not the file that was locked.
    """
    for item in locked_cell.distributions:
        if item.made_here:
            path = wheel_folder / item.file
            if not path.is_file():
                raise NoWheelError(missing_wheel_message(locked_cell.cell, item.name, item.version))
            wheelhouse.check_wheel_hash(wheelhouse.WheelhouseWheel(path=path, version=item.version), item.sha256)
