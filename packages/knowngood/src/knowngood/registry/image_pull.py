"""`knowngood pull`: which image of a registry is a cell's, whether it may be trusted, and getting it by its digest."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from knowngood.core.errors import KnowngoodError
from knowngood.core.hosts import DEFAULT_HOST, HostArchitecture
from knowngood.engine import image_store
from knowngood.images.dockerfile import LABEL_PREFIX
from knowngood.registry import image_release, platform_index, publication_check, signatures
from knowngood.registry.image_reference import DIGEST, ImageReference
from knowngood.registry.manifests import parse_image_labels

if TYPE_CHECKING:
    from knowngood.core.cell import Cell
    from knowngood.core.notify import Notify
    from knowngood.engine.container_engine import Engine
    from knowngood.project.checkout import Project
    from knowngood.project.release_signers import ReleaseVerifier
    from knowngood.registry.manifests import RegistryManifest
    from knowngood.registry.registry_client import Registry
    from knowngood.registry.signatures import SignatureJudgement


@dataclass(frozen=True, kw_only=True)
class CheckedImage:
    """An image in a registry that is what this checkout says, and signed where matrix.yaml asks for it."""

    repository: str
    digest: str
    content: str
    """Digest of its configuration, by which an engine without the containerd store knows it."""
    cell: str | None
    """The cell that it is; `None` when its label names none of matrix.yaml."""
    label: str
    """The cell that its label names; empty without one."""
    recorded: bool
    """Whether a record in this checkout has its digest."""
    size: int
    """Bytes of its layers in the registry."""
    signature: SignatureJudgement

    @property
    def name(self) -> str | None:
        """The name that a build would give it in the engine."""
        return f"knowngood:{self.cell}" if self.cell else None

    def document(self) -> dict[str, Any]:
        """Return this as JSON values."""
        return {
            "cell": self.cell,
            "reference": f"{self.repository}@{self.digest}",
            "digest": self.digest,
            "name": self.name,
            "recorded": self.recorded,
            "signature": self.signature.document(),
        }

    def text(self) -> str:
        """Return one line for people."""
        record = "as recorded" if self.recorded else "no record here to compare with"
        return f"{self.name or self.repository}: {self.digest}, {record}, {self.signature.text()}"


def check_cell_image(
    project: Project, registry: Registry, cell: Cell, verifiers: Sequence[ReleaseVerifier]
) -> CheckedImage:
    """Return the published image of a cell: the recorded one, or without a record the one under the tag of its lock.

    Raises `KnowngoodError` when the registry does not have it, names another image by that tag, or a wanted signature
    is missing.
    """
    image_release.require_lock(project, cell)
    tags = _published_tags(project, registry, cell)
    record = project.tree.load_record(cell)
    if record is None:
        if not tags:
            raise KnowngoodError(f"{registry.repository} has no image of {cell} as it is locked here")
        tag, digest = list(tags.items())[-1]
        return _check_image(project, registry, _read_image(registry, digest), tag, {str(cell)}, verifiers)
    digest = record.manifest.digest
    if tags and digest not in tags.values():
        others = ", ".join(f"{tag} is {other}" for tag, other in tags.items())
        raise KnowngoodError(
            f"{cell}: its record in this checkout is of {digest}, and in {registry.repository} the tag {others}; "
            "nothing was pulled"
        )
    return _check_image(project, registry, _read_image(registry, digest), None, {str(cell)}, verifiers)


def check_referenced_image(
    project: Project,
    registry: Registry,
    reference: ImageReference,
    verifiers: Sequence[ReleaseVerifier],
    host: HostArchitecture = DEFAULT_HOST,
) -> CheckedImage:
    """Return the image under a tag or a digest, compared with the records of the cells that it is said to be.

    Of an index, which must be signed as an image must, it is the image for `host`.

    Raises `KnowngoodError` when there is none, when it is not the recorded one, or a wanted signature is missing.
    """
    named = registry.manifest(reference.name)
    if named is None:
        raise KnowngoodError(f"there is no {reference}")
    tag = None if DIGEST.fullmatch(reference.name) else reference.name
    if named.is_index:
        _refuse(signatures.judge_image_signature(registry, named.descriptor.digest, tag, verifiers).problems)
    manifest = platform_index.choose_host_image(registry, named, str(reference), host)
    expected = publication_check.find_named_cells(project, reference.name, host if named.is_index else None)
    return _check_image(project, registry, manifest, tag, expected, verifiers)


def pull_checked_image(image: CheckedImage, engine: Engine, notify: Notify) -> bool:
    """Get an image into the engine by its digest, name it as a build would, and return whether it was not there.

    `notify` hears how many bytes are here.

    Raises `KnowngoodError` when the engine cannot pull it, or has another image then.
    """
    ids = (image.digest, image.content)
    if image.name and image_store.find_image_id(engine, image.name) in ids:
        return False
    notify(f"pulling {image.repository}@{image.digest}, {image.size / 1e6:,.1f} MB")
    actual = image_store.pull_image(engine, image.repository, image.digest, image.name, image.size, notify)
    if actual not in ids:
        raise KnowngoodError(f"the engine pulled {image.digest} and has {actual}: its store is damaged")
    return True


def _published_tags(project: Project, registry: Registry, cell: Cell) -> dict[str, str]:
    """Return tag -> digest of the images that are published for the lock of a cell, the first revision first."""
    tags = {}
    for revision in itertools.count(1):
        tag = image_release.lock_tag(project, cell, revision)
        digest = registry.digest(tag) if tag else None
        if tag is None or digest is None:
            break
        tags[tag] = digest
    return tags


def _read_image(registry: Registry, digest: str) -> RegistryManifest:
    manifest = registry.manifest(digest)
    if manifest is None:
        raise KnowngoodError(f"{registry.repository} does not have {digest}")
    return manifest


def _refuse(problems: Sequence[str]) -> None:
    if problems:
        raise KnowngoodError(f"{'; '.join(problems)}; nothing was pulled")


def _check_image(  # noqa: PLR0913, PLR0917
    project: Project,
    registry: Registry,
    manifest: RegistryManifest,
    tag: str | None,
    expected: Collection[str],
    verifiers: Sequence[ReleaseVerifier],
) -> CheckedImage:
    digest = manifest.descriptor.digest
    config = manifest.require_image(f"{registry.repository}@{digest}")
    labels = parse_image_labels(registry.read(config))
    judgement = publication_check.judge_cell(project, manifest, labels, expected)
    _refuse(judgement.problems)
    signature = signatures.judge_image_signature(registry, digest, tag, verifiers)
    _refuse(signature.problems)
    label = labels.get(LABEL_PREFIX + "cell", "")
    return CheckedImage(
        repository=str(registry.repository),
        digest=digest,
        content=config.digest,
        cell=label if label in {str(cell) for cell in project.matrix.cells} else None,
        label=label,
        recorded=bool(judgement.records),
        size=sum(blob.size for blob in manifest.blobs()),
        signature=signature,
    )
