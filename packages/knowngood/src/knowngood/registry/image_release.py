"""Decide what can be published: the image of a cell, if it is current and its newest run passed.

What the runs of an image prove of it, as `publish` requires it and attaches it to the image.

The tier is not a label: labels are part of the image whose digest the tier is about, and a later run may raise it.
"""

from __future__ import annotations

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knowngood import __version__
from knowngood.base import base_image
from knowngood.core.data_files import read_data_text
from knowngood.core.errors import KnowngoodError, MissingError, UsageError, strip_user_information
from knowngood.evidence import run_evidence
from knowngood.evidence.cell_answer import describe_tier, explain_tier
from knowngood.evidence.run_evidence import Evidence, RunPlace, Tier
from knowngood.images import build_command, build_inputs, dockerfile, image_build
from knowngood.lock.debian_lock import PackagesLock
from knowngood.registry import attachments, bill_of_materials, provenance, suite_artifact
from knowngood.registry.attachments import Attachment
from knowngood.registry.image_reference import immutable_tag
from knowngood.registry.publication import ImageRelease
from knowngood.smoke.suite_files import find_cell_suite, has_trainer_checks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from knowngood.core.cell import Cell
    from knowngood.core.image_record import ImageRecord
    from knowngood.core.publish_policy import PublishPolicy
    from knowngood.engine.container_engine import Engine
    from knowngood.images.build_command import Image
    from knowngood.lock.lock_tree import CellLock
    from knowngood.project.checkout import Project
    from knowngood.registry.registry_client import Registry

TIER_SCHEMA = "knowngood/tier/1"


@dataclass(frozen=True, kw_only=True)
class ReleaseProof:
    """The good runs of an image, none of which a newer red run has made invalid."""

    cell: Cell
    digest: str
    runs: tuple[Evidence, ...]
    """At least one, the oldest first."""

    @property
    def newest(self) -> Evidence:
        """The run that was made last."""
        return self.runs[-1]

    @property
    def tier(self) -> Tier:
        """How far the runs prove the image."""
        return max((_tier_of(run) for run in self.runs), key=list(Tier).index)

    @property
    def run(self) -> Evidence:
        """The run that proves the tier: the whole suite before its quick part, then the first.

        The first, so that the documents stay the same while further runs say the same.
        """
        proving = [run for run in self.runs if _tier_of(run) is self.tier]
        return min(proving, key=lambda run: (run.quick, run.when))

    def require_tier(self, policy: PublishPolicy) -> None:
        """Raise `KnowngoodError` when the image is proven less far than matrix.yaml publishes images of its GPU."""
        least, order = Tier(policy.least_tier(self.cell)), list(Tier)
        if order.index(self.tier) < order.index(least):
            gpus = " --gpus" if least is Tier.TRAINS_ON_GPU else ""
            raise KnowngoodError(
                f"{self.cell}: its image is {self.tier} ({describe_tier(self.tier)}), and matrix.yaml publishes images "
                f"for {self.cell.gpu} from {least} on; run `knowngood smoke{gpus} '{self.cell}'` where that can be "
                "shown, or change `publish` in matrix.yaml"
            )

    def document(self) -> dict[str, Any]:
        """Return the document that says the tier of the image, and what that means."""
        environment = self.run.report.get("environment", {})
        return {
            "schema": TIER_SCHEMA,
            "cell": str(self.cell),
            "image": self.digest,
            "gpu": self.cell.gpu,
            "tier": str(self.tier),
            "unseen_on_gpu": self.tier is not Tier.TRAINS_ON_GPU,
            "text": describe_tier(self.tier),
            "meaning": explain_tier(self.tier, self.cell.gpu),
            "run": {
                "when": self.run.when,
                "where": str(self.run.where),
                "gpu": environment.get("gpu"),
                "sm": environment.get("sm"),
                "suite": self.run.suite,
                "quick": self.run.quick,
            },
        }

    def attachments(self) -> tuple[Attachment, Attachment]:
        """Return the tier and the run that proves it, as documents to attach to the image."""
        name = f"evidence-{self.run.when[:10]}-{self.run.suite[:12]}.json"
        return (
            Attachment(media=attachments.EVIDENCE_MEDIA_TYPE, name=name, data=_json_text(self.run.document())),
            Attachment(media=attachments.TIER_MEDIA_TYPE, name="tier.json", data=_json_text(self.document())),
        )


def _json_text(document: dict[str, Any]) -> bytes:
    return (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode()


def read_release_proof(project: Project, cell: Cell, digest: str) -> ReleaseProof:
    """Return what the runs of this image prove of it.

    Raises `KnowngoodError` when there is no good run of it, or when a newer run of it failed.
    """
    runs, left_out = run_evidence.load_cell_evidence(project.evidence, str(cell), project.seal)
    of_image = [run for run in runs if run.image == digest and run.where is not RunPlace.BARE]
    good = [run for run in of_image if run.ok]
    if not good:
        reason = f"the last of its {len(of_image)} runs failed" if of_image else "evidence/ has no run of it"
        ignored = f" (left out: {'; '.join(left_out)})" if left_out else ""
        raise KnowngoodError(
            f"{cell}: {digest} is not proven: {reason}{ignored}; run `knowngood smoke '{cell}'` and see what fails"
        )
    if of_image[-1] is not good[-1]:
        raise KnowngoodError(
            f"{cell}: the newest run of {digest} ({of_image[-1].when}) failed, although an older one passed; "
            f"run `knowngood smoke '{cell}'`"
        )
    return ReleaseProof(cell=cell, digest=digest, runs=tuple(run_evidence.valid_runs(of_image)))


def _tier_of(run: Evidence) -> Tier:
    return run_evidence.proven_tier([run], locked=False)


_SHAPING_PATHS = ("matrix.yaml", "docker", "templates")
"""The parts of a checkout that shape an image."""


def require_lock(project: Project, cell: Cell) -> CellLock:
    """Return the lock of a cell; `KnowngoodError` when it has none."""
    locked = project.tree.load(cell)
    if locked is None:
        raise KnowngoodError(f"{cell} has no lock; run `knowngood lock '{cell}'`")
    return locked


def require_base_lock(project: Project, locked: CellLock) -> PackagesLock:
    """Return the committed lock of a cell's base."""
    path = base_image.packages_lock_path(project, locked.base)
    if not path.exists():
        raise KnowngoodError(f"base {locked.base} has no {path}; run `knowngood lock --base {locked.base}`")
    return PackagesLock.parse(read_data_text(path), file=str(path))


def render_cell_sbom(project: Project, cell: Cell) -> str:
    """Return the SBOM of a cell from committed files alone."""
    locked = require_lock(project, cell)
    return bill_of_materials.render_sbom(
        locked, require_base_lock(project, locked), bill_of_materials.load_licences(project.root)
    )


def find_engine_image(project: Project, cell: Cell, engine: Engine) -> Image:
    """Return the engine's image of a cell as it is committed; `MissingError` when it has none."""
    inputs = _image_inputs(project, require_lock(project, cell))
    plan = build_command.BuildPlan(
        tag=_engine_tag(cell),
        dockerfile=project.tree.cell_folder(cell) / "Dockerfile",
        context=project.tree.folder,
        contexts={},
        inputs=inputs,
    )
    image = image_build.find_image(plan, engine)
    if image is None:
        raise MissingError(
            f"the engine has no image of {cell} as it is committed; run `knowngood build-matrix '{cell}'`"
        )
    return image


def require_engine_image(project: Project, cell: Cell, digest: str, engine: Engine) -> Engine:
    """Return the engine if its image of a cell has this digest; `MissingError` when it has another or none."""
    image = find_engine_image(project, cell, engine)
    if image.digest != digest:
        raise MissingError(
            f"the engine's image of {cell} is {image.digest}, but {digest} is needed; `knowngood verify '{cell}'` says "
            "why they differ"
        )
    return engine


def prepare_release(
    project: Project, cell: Cell, digest: str, *, engine: Engine | None = None, revision: int = 1
) -> ImageRelease:
    """Return the image of a cell with this digest as a release; without an engine, its record must be here.

    Raises `KnowngoodError` when the cell has no lock, its newest run did not pass, or matrix.yaml wants a higher tier.
    """
    locked = require_lock(project, cell)
    base = require_base_lock(project, locked)
    inputs = _image_inputs(project, locked)
    proof = read_release_proof(project, cell, digest)
    proof.require_tier(project.matrix.publish)
    facts = provenance.BuildFacts(
        digest=digest,
        inputs=inputs,
        epoch=build_command.EPOCH,
        source=read_git_source(project.root),
        versions={**_tool_versions(project, cell, digest, inputs, engine), "knowngood": __version__},
        builder="embedded-engine" if engine and engine.embedded else "engine",
    )
    bill = bill_of_materials.render_sbom(locked, base, bill_of_materials.load_licences(project.root))
    return ImageRelease(
        cell=str(cell),
        image=_engine_tag(cell),
        digest=digest,
        tag=immutable_tag(str(cell), locked.digest, revision),
        tier=str(proof.tier),
        labels={**dockerfile.image_labels(locked), f"{dockerfile.LABEL_PREFIX}inputs": f"sha256:{inputs}"},
        attachments=(
            Attachment(media=attachments.SBOM_MEDIA_TYPE, name="sbom.cdx.json", data=bill.encode()),
            Attachment(
                media=attachments.PROVENANCE_MEDIA_TYPE,
                name="provenance.intoto.json",
                data=provenance.render_provenance(locked, base, facts).encode(),
            ),
            suite_artifact.suite_attachment(find_cell_suite(project, cell), _suite_day(project, cell)),
            *proof.attachments(),
        ),
    )


def _engine_tag(cell: Cell) -> str:
    return f"knowngood:{cell}"


def _image_inputs(project: Project, locked: CellLock) -> str:
    base = base_image.read_base_digest(project, locked.base) or ""
    return build_inputs.read_image_shape(project, locked, base, build_inputs.read_recipe_digest(project)).inputs


def _tool_versions(project: Project, cell: Cell, digest: str, inputs: str, engine: Engine | None) -> Mapping[str, str]:
    """Return the versions of the tools that built an image by its record, else those of this machine."""
    for record in (project.tree.load_record(cell), image_build.load_kept_record(inputs)):
        if record and record.manifest.digest == digest:
            return record.tools
    if engine is None:
        return {"uv": build_inputs.uv_version()}
    return {"uv": build_inputs.uv_version(), "buildkit": engine.buildkit, "engine": engine.version}


def recorded_digest(project: Project, cell: Cell, recipe: str) -> str | None:
    """Return the digest of the current image, or `None` without a record or a valid lock."""
    record = current_record(project, cell, recipe)
    return record.manifest.digest if record else None


def current_record(project: Project, cell: Cell, recipe: str) -> ImageRecord | None:
    """Return the record of the current image, or `None` without a record or a valid lock."""
    try:
        locked = project.tree.load(cell)
        digest = base_image.read_base_digest(project, locked.base) if locked else None
        if locked is None or digest is None:
            return None
        inputs = build_inputs.read_image_shape(project, locked, digest, recipe).inputs
        record = project.tree.load_record(cell)
    except UsageError:
        return None  # `prepare_release` reports what is wrong with it
    return record if record and record.shape.inputs == inputs else image_build.load_kept_record(inputs)


def read_git_source(root: Path) -> provenance.GitSource | None:
    """Return the commit of a checkout and the files that shape images and differ from it; `None` outside of git."""
    commit = _git(root, "rev-parse", "HEAD")
    if commit is None:
        return None
    changed = _git(root, "status", "--porcelain", "--", *_SHAPING_PATHS) or ""
    origin = _git(root, "config", "--get", "remote.origin.url")
    remote = strip_user_information(origin) if origin and "://" in origin and not origin.startswith("file:") else None
    return provenance.GitSource(
        commit=commit, repository=remote, uncommitted=tuple(line[3:] for line in changed.splitlines())
    )


def _suite_day(project: Project, cell: Cell) -> str:
    """Return when the suite of a cell was last changed by a commit; empty outside of git."""
    folders = [project.suite, project.trainer_suite] if has_trainer_checks(project, cell) else [project.suite]
    return _git(project.root, "log", "-1", "--format=%cI", "--", *map(str, folders)) or ""


def _git(root: Path, *words: str) -> str | None:
    try:
        process = subprocess.run(
            ["git", "-C", str(root), *words], check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
    except OSError:
        return None
    return process.stdout.rstrip("\n") if process.returncode == 0 else None


def lock_tag(project: Project, cell: Cell, revision: int = 1) -> str | None:
    """Return the immutable tag of a cell's lock, or `None` when it has no lock."""
    locked = project.tree.load(cell)
    return immutable_tag(str(cell), locked.digest, revision) if locked else None


def published_digests(project: Project, registry: Registry, cells: Iterable[Cell]) -> dict[str, str | None]:
    """Return cell id -> digest that is published for the cell's lock, or `None`.

    This costs one small request for each cell, eight at a time; no image is read. A cell is published already when this
    is the digest of its current image.
    """
    tags = {str(cell): lock_tag(project, cell) for cell in cells}
    with ThreadPoolExecutor(8) as pool:
        digests = pool.map(lambda name: registry.digest(name) if name else None, tags.values())
        return dict(zip(tags, digests, strict=True))
