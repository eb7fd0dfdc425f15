"""What is ready to be published: a cell's image in the engine, if it is current and was seen green."""

from __future__ import annotations

import contextlib
import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from knowngood import __version__, evidence, render
from knowngood.building import build, records, survey
from knowngood.errors import KnowngoodError, MissingError, UsageError, redacted
from knowngood.evidence import Evidence, Where
from knowngood.publishing import licences, provenance, sbom
from knowngood.publishing.publish import Release
from knowngood.registries import attachments
from knowngood.registries.attachments import Attachment
from knowngood.registries.reference import immutable_tag
from knowngood.system import bases
from knowngood.system.packages_lock import PackagesLock

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from knowngood.building.pipeline import Pipeline
    from knowngood.building.record import Record
    from knowngood.cell import Cell
    from knowngood.engines.engine import Engine
    from knowngood.locks.tree import CellLock
    from knowngood.project import Project
    from knowngood.registries.registry import Registry

_SHAPING = ("matrix.yaml", "docker", "smoke_tests", "templates")
"""What of a checkout shapes an image."""


def committed(project: Project, cell: Cell) -> CellLock:
    """The cell's lock; raises `KnowngoodError` when it has none."""
    locked = project.tree.load(cell)
    if locked is None:
        raise KnowngoodError(f"{cell} has no lock; run `knowngood lock '{cell}'`")
    return locked


def base(project: Project, locked: CellLock) -> PackagesLock | str:
    """What the cell stands on: the lock of a base that is bootstrapped, or the image that is pulled."""
    wanted = project.matrix.bases[locked.base]
    if wanted.image:
        return wanted.image
    path = bases.lock_path(project, locked.base)
    if not path.exists():
        raise KnowngoodError(f"base {locked.base} has no {path}; run `knowngood lock --base {locked.base}`")
    return PackagesLock.parse(path.read_text(), file=str(path))


def bill(project: Project, cell: Cell) -> str:
    """The cell's bill of materials, from what is committed alone."""
    locked = committed(project, cell)
    return sbom.write(locked, base(project, locked), licences.load(project.root))


def prepare(line: Pipeline, cell: Cell, *, revision: int = 1) -> Release:
    """The cell as a release.

    Raises `MissingError` when the engine has no image of what is committed, `KnowngoodError` when no run saw it green.
    """
    project = line.project
    locked = committed(project, cell)
    under = base(project, locked)
    inputs = survey.shape(
        project, locked, survey.base_digest(project, locked.base) or "", survey.digests(project)
    ).inputs
    plan = build.Plan(
        tag=f"knowngood:{cell}",
        dockerfile=project.tree.cell_folder(cell) / "Dockerfile",
        context=project.tree.folder,
        contexts={},
        inputs=inputs,
    )
    image = build.existing(plan, line.engine)
    if image is None:
        raise MissingError(
            f"the engine has no image of {cell} as it is committed; run `knowngood build-matrix '{cell}'`"
        )
    run, path = green(project, cell, image.digest)
    noted = project.tree.load_record(cell)
    tools = noted.tools if noted and noted.manifest.digest == image.digest else _tools(line.engine)
    built = provenance.Built(
        digest=image.digest,
        inputs=inputs,
        epoch=build.EPOCH,
        source=source(project.root),
        versions={**tools, "knowngood": __version__},
        builder="embedded-engine" if line.engine.embedded else "engine",
    )
    bill_of_materials = sbom.write(locked, under, licences.load(project.root))
    return Release(
        cell=str(cell),
        image=image.tag,
        digest=image.digest,
        tag=immutable_tag(str(cell), locked.digest, revision),
        labels={**render.labels(locked), f"{render.LABEL}inputs": f"sha256:{inputs}"},
        attachments=(
            Attachment(media=attachments.SBOM, name="sbom.cdx.json", data=bill_of_materials.encode()),
            Attachment(
                media=attachments.PROVENANCE,
                name="provenance.intoto.json",
                data=provenance.write(locked, under, built).encode(),
            ),
            Attachment(
                media=attachments.EVIDENCE,
                name=path,
                data=(json.dumps(run.document(), indent=1, ensure_ascii=False) + "\n").encode(),
            ),
        ),
    )


def _tools(engine: Engine) -> dict[str, str]:
    """The tools of this machine, for an image whose record does not say what built it."""
    return {"uv": build.uv_version(), "buildkit": engine.buildkit, "engine": engine.version}


def unchanged(project: Project, registry: Registry, cells: Iterable[Cell], *, revision: int = 1) -> dict[str, str]:
    """The digests of the cells, by id, of which the registry has the image that is committed now under its tag.

    No engine is asked and no image is read: an image is known by its record, committed or kept from its build, and the
    registry is sent a small request a cell. Whoever has nothing but these cells is done.
    """
    folders = survey.digests(project)
    chosen = list(cells)
    known = {str(cell): digest for cell in chosen if (digest := recorded(project, cell, folders))}
    served = published(project, registry, [cell for cell in chosen if str(cell) in known], revision=revision)
    return {name: digest for name, digest in known.items() if served[name] == digest}


def standing(project: Project, registry: Registry, cells: Iterable[Cell]) -> dict[str, tuple[str, Evidence]]:
    """The cells, by id, for which there is nothing to do, with the digest of their image and the run that proved it.

    The registry has the image that is committed now, and the newest run of it that is known here was good.
    """
    found = {}
    chosen = {str(cell): cell for cell in cells}
    for name, digest in unchanged(project, registry, chosen.values()).items():
        with contextlib.suppress(KnowngoodError):  # no good run of it is known here: it is built and run
            found[name] = digest, green(project, chosen[name], digest)[0]
    return found


def recorded(project: Project, cell: Cell, folders: Mapping[str, str]) -> str | None:
    """The digest of the image of what is committed now; `None` where no record, or no sound lock, tells it."""
    found = record(project, cell, folders)
    return found.manifest.digest if found else None


def record(project: Project, cell: Cell, folders: Mapping[str, str]) -> Record | None:
    """The record of the image of what is committed now; `None` where there is none, or no sound lock."""
    try:
        locked = project.tree.load(cell)
        digest = survey.base_digest(project, locked.base) if locked else None
        if locked is None or digest is None:
            return None
        inputs = survey.shape(project, locked, digest, folders).inputs
        noted = project.tree.load_record(cell)
    except UsageError:
        return None  # `prepare` says what is wrong with it
    return noted if noted and noted.shape.inputs == inputs else records.kept(inputs)


def green(project: Project, cell: Cell, digest: str) -> tuple[Evidence, str]:
    """The newest good run of this very image, and its file's name; raises `KnowngoodError` when there is none."""
    runs, left_out = evidence.load_all(project.evidence, str(cell))
    of_image = [run for run in runs if run.image == digest and run.where is not Where.BARE]
    good = [run for run in of_image if run.ok]
    if not good:
        seen = f"the last of its {len(of_image)} runs was not good" if of_image else "no run of it is in evidence/"
        aside = f" (left out: {'; '.join(left_out)})" if left_out else ""
        raise KnowngoodError(
            f"{cell}: {digest} is not proven: {seen}{aside}; run `knowngood smoke '{cell}'` and read what fails"
        )
    if of_image[-1] is not good[-1]:
        raise KnowngoodError(
            f"{cell}: the newest run of {digest} ({of_image[-1].when}) was not good, though an older one was; "
            f"run `knowngood smoke '{cell}'`"
        )
    return good[-1], f"evidence-{good[-1].when[:10]}-{good[-1].suite[:12]}.json"


def source(root: Path) -> provenance.Source | None:
    """The commit of a checkout, and which files that shape images differ from it; `None` outside of git."""
    commit = _git(root, "rev-parse", "HEAD")
    if commit is None:
        return None
    changed = _git(root, "status", "--porcelain", "--", *_SHAPING) or ""
    origin = _git(root, "config", "--get", "remote.origin.url")
    remote = redacted(origin) if origin and "://" in origin and not origin.startswith("file:") else None
    return provenance.Source(
        commit=commit, repository=remote, uncommitted=tuple(line[3:] for line in changed.splitlines())
    )


def _git(root: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *words], check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
    except OSError:
        return None
    return done.stdout.rstrip("\n") if done.returncode == 0 else None


def tag(project: Project, cell: Cell, revision: int = 1) -> str | None:
    """The immutable tag of a cell's present lock; `None` when it has none."""
    locked = project.tree.load(cell)
    return immutable_tag(str(cell), locked.digest, revision) if locked else None


def published(
    project: Project, registry: Registry, cells: Iterable[Cell], *, revision: int = 1
) -> dict[str, str | None]:
    """The digest that is published for each cell's present lock, by the cell's id; `None` where there is none.

    A small request a cell, eight at a time; no image is read. "Is it published already" is: is that the digest that the
    cell is known to have, of its image or as committed.
    """
    tags = {str(cell): tag(project, cell, revision) for cell in cells}
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda name: registry.digest(name) if name else None, tags.values())
        return dict(zip(tags, found, strict=True))
