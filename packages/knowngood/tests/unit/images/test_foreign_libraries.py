from __future__ import annotations

import io
import struct
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from knowngood.core.errors import KnowngoodError
from knowngood.core.hosts import HostArchitecture
from knowngood.engine import image_store
from knowngood.images import pipeline

ARM, X86 = HostArchitecture.AARCH64, HostArchitecture.X86_64
NATIVE = Path(sys.executable).resolve().read_bytes()[:4096]
"""The head of a real program of this machine, which the tests turn into one of another processor."""


def program_for(machine: int, kind: int = 3) -> bytes:
    return NATIVE[:16] + struct.pack("<HH", kind, machine) + NATIVE[20:]


def layer_file(path: Path, files: dict[str, bytes], *, packed: bool = False) -> Path:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    data = buffer.getvalue()
    if packed:
        from zstandard import ZstdCompressor

        data = ZstdCompressor().compress(data)
    path.write_bytes(data)
    return path


def test_a_real_program_of_this_machine_is_known():
    assert pipeline.name_processor(NATIVE) in ("x86-64", "aarch64")


@pytest.mark.parametrize("packed", [False, True])
def test_a_library_for_another_processor_is_named(tmp_path, packed):
    files = {
        "opt/venv/lib/libmine.so": program_for(183),
        "opt/venv/lib/libsmuggled.so": program_for(62),
        "opt/venv/lib/kernel.cubin": program_for(190),
        "opt/venv/lib/part.o": program_for(62, kind=1),
        "opt/venv/lib/short.so": b"\x7fELF",
        "opt/venv/lib/module.py": b"import os\n",
    }
    layer = layer_file(tmp_path / "layer", files, packed=packed)
    assert list(pipeline.find_foreign_libraries(layer, ARM)) == [("/opt/venv/lib/libsmuggled.so", "x86-64")]
    assert list(pipeline.find_foreign_libraries(layer, X86)) == [("/opt/venv/lib/libmine.so", "aarch64")]


def test_an_image_with_a_library_for_another_processor_is_refused_by_name(tmp_path, monkeypatch):
    layer = layer_file(tmp_path / "layer", {"opt/venv/lib/libsmuggled.so": program_for(62)})
    record = SimpleNamespace(layers=(SimpleNamespace(name="torch-2.15.0-abc", digest="sha256:1"),))
    monkeypatch.setattr(image_store, "find_blob_file", lambda *_: layer)
    with pytest.raises(
        KnowngoodError,
        match=r"^image:tag is for aarch64, .*: /opt/venv/lib/libsmuggled.so of torch-2.15.0-abc is for x86-64$",
    ):
        pipeline.check_image_processor(SimpleNamespace(), "image:tag", record, ARM)
    pipeline.check_image_processor(SimpleNamespace(), "image:tag", record, X86)
