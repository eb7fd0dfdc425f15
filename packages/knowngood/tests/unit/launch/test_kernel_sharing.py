"""Packs of kernels in a registry: attached to their image, found by GPU, and trusted only when they are signed."""

from __future__ import annotations

import dataclasses

import pytest

from knowngood.core.errors import KnowngoodError
from knowngood.engine.probe_gpus import NvidiaState
from knowngood.launch import kernel_delivery, kernel_sharing, kernel_store, warm_up
from knowngood.launch.image_access import RunnableImage
from knowngood.launch.kernel_pack import KernelMachine, KernelPack
from knowngood.project import release_signers
from knowngood.registry import signatures
from memory_registry import DIGEST, MemoryRegistry

GPU = "NVIDIA H100"
PACK = KernelPack(
    cell="tiny", image=DIGEST, machine=KernelMachine(gpu=GPU), made="2026-11-23", files={"triton/A/k": b"old"}
)


@pytest.fixture
def registry():
    return MemoryRegistry()


def test_the_newest_pack_of_a_gpu_comes_back(registry):
    newer = dataclasses.replace(PACK, made="2026-11-24", files={"triton/A/k": b"new"})
    other = dataclasses.replace(PACK, machine=KernelMachine(gpu="NVIDIA A100"), made="2026-11-25")
    for pack in (newer, PACK, other):
        kernel_sharing.push_kernel_pack(registry, pack, None)
    assert kernel_sharing.fetch_kernel_pack(registry, DIGEST, GPU, ()) == newer
    assert kernel_sharing.fetch_kernel_pack(registry, DIGEST, "NVIDIA T4", ()) is None


def test_kernels_of_an_image_that_is_not_there_are_not_pushed(registry):
    stray = dataclasses.replace(PACK, image="sha256:" + "0" * 64)
    with pytest.raises(KnowngoodError, match="knowngood publish"):
        kernel_sharing.push_kernel_pack(registry, stray, None)


def test_a_pack_that_claims_another_gpu_is_refused(registry):
    lying = dataclasses.replace(PACK, machine=KernelMachine(gpu=GPU))
    kernel_sharing.push_kernel_pack(registry, lying, None)
    index = next(item for item in registry.manifests.values() if item.document.get("manifests"))
    forged = index.data.replace(GPU.encode(), b"NVIDIA B200")
    registry.manifests[DIGEST.replace(":", "-")] = dataclasses.replace(index, data=forged)
    with pytest.raises(KnowngoodError, match=f"on {GPU}"):
        kernel_sharing.fetch_kernel_pack(registry, DIGEST, "NVIDIA B200", ())


def test_only_a_signed_pack_counts_where_a_signer_is_named(registry, monkeypatch):
    newer = dataclasses.replace(PACK, made="2026-11-24")
    signed = kernel_sharing.push_kernel_pack(registry, PACK, None)
    kernel_sharing.push_kernel_pack(registry, newer, None)
    monkeypatch.setattr(
        signatures, "is_document_signed", lambda _, digest, verifiers: bool(verifiers) and digest == signed
    )
    assert kernel_sharing.fetch_kernel_pack(registry, DIGEST, GPU, ("key",)) == PACK
    assert kernel_sharing.fetch_kernel_pack(registry, DIGEST, GPU, ()) == newer


@pytest.mark.parametrize("signer", [True, False])
def test_a_run_takes_kernels_beside_a_pulled_image_only_when_they_are_signed(registry, home, monkeypatch, signer):
    machine = kernel_store.describe_machine(NvidiaState())
    kernel_sharing.push_kernel_pack(registry, dataclasses.replace(PACK, machine=machine), None)
    monkeypatch.setattr(signatures, "is_document_signed", lambda *_: True)
    monkeypatch.setattr(release_signers, "load_release_verifiers", lambda *_: ("key",) if signer else ())
    filled = []
    monkeypatch.setattr(warm_up, "fill_cache_volume", lambda *arguments: filled.append(arguments) or True)
    image = RunnableImage(name="knowngood:x", digest=DIGEST, origin="pulled", registry=registry)
    said = []
    cell = next(iter(home.matrix.cells))
    kernel_delivery.deliver_kernels(home, cell, image, None, None, NvidiaState(), said.append)
    assert len(filled) == int(signer)
    assert bool(said) == signer
    assert kernel_store.kernel_folder().exists() == signer
