"""Packs of kernels in a registry: attached to the image in which they were compiled, as its other documents are.

A pack is code that a program runs without a look at it. So `run` takes one from a registry only if it is signed with
a key or by an identity that matrix.yaml names; `engine warm --from` takes what its user names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from knowngood.core.errors import KnowngoodError
from knowngood.launch.kernel_pack import KernelPack, parse_kernel_pack
from knowngood.registry import attachments, signatures
from knowngood.registry.attachments import Attachment
from knowngood.registry.manifests import Descriptor, DescriptorDocument

if TYPE_CHECKING:
    from knowngood.project.release_signers import ReleaseSigner, ReleaseVerifier
    from knowngood.registry.registry_client import Registry

KERNELS_MEDIA_TYPE = "application/vnd.knowngood.kernels.v1.tar+xz"
_GPU = "io.knowngood.gpu.name"
_MADE = "org.opencontainers.image.created"


def push_kernel_pack(registry: Registry, pack: KernelPack, signer: ReleaseSigner | None) -> str:
    """Attach a pack to its image in a registry, sign it with `signer`, and return the digest of what attaches it.

    Raises `KnowngoodError` when the registry does not have the image.
    """
    image = registry.manifest(pack.image)
    if image is None:
        raise KnowngoodError(
            f"{registry.repository} does not have {pack.image}, in which the kernels were compiled; "
            f"`knowngood publish '{pack.cell}'` brings it there"
        )
    item = Attachment(
        media=KERNELS_MEDIA_TYPE,
        name=pack.name,
        data=pack.data,
        annotations={_GPU: pack.machine.gpu, _MADE: pack.made},
    )
    attachments.attach_documents(registry, image.descriptor, [item])
    digest = attachments.attachment_manifest(image.descriptor, item).descriptor.digest
    if signer:
        signatures.sign_name(registry, str(registry.repository), digest, signer)
    return digest


def fetch_kernel_pack(
    registry: Registry, image: str, gpu: str, verifiers: Sequence[ReleaseVerifier]
) -> KernelPack | None:
    """Return the newest pack for an image and a kind of GPU in a registry; `None` when there is none.

    With `verifiers`, only a pack that one of them has signed counts.

    Raises `KnowngoodError` when a pack is damaged, or is not what the registry says.
    """
    listed = [
        entry
        for entry in attachments.list_referrers(registry, image)[0]
        if entry.get("artifactType") == KERNELS_MEDIA_TYPE and _annotation(entry, _GPU) == gpu
    ]
    for entry in sorted(listed, key=lambda item: _annotation(item, _MADE), reverse=True):
        digest = Descriptor.read(entry).digest
        if verifiers and not signatures.is_document_signed(registry, digest, verifiers):
            continue
        [item] = attachments.fetch_attachments(registry, image, [digest])
        pack = parse_kernel_pack(item.data, f"{registry.repository}@{digest}")
        if (pack.image, pack.machine.gpu) != (image, gpu):
            raise KnowngoodError(f"{registry.repository}@{digest} is a pack of {pack.image} on {pack.machine.gpu}")
        return pack
    return None


def _annotation(entry: DescriptorDocument, key: str) -> str:
    return (entry.get("annotations") or {}).get(key, "")
