"""carry_image.py: the layers that the other machine rebuilds are those that were packed, byte for byte."""

from __future__ import annotations

import gzip
import importlib.util
import io
import json
import os
import random
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[5]
SPEC = importlib.util.spec_from_file_location("carry_image", ROOT / "packages/knowngood/scripts/carry_image.py")
carry_image = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(carry_image)

pytestmark = pytest.mark.skipif(shutil.which("zstd") is None, reason="there is no zstd command")


def layer(path, files):
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(f"opt/venv/lib/python3.11/site-packages/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
        link = tarfile.TarInfo("opt/venv/link")
        link.type, link.linkname = tarfile.SYMTYPE, "lib"
        archive.addfile(link)
    return path


@pytest.fixture
def other_machine(tmp_path):
    """The files of the other machine, the list of them, and their large file unpacked from its wheel here."""
    large = random.Random(1).randbytes(5 << 20)  # noqa: S311
    place, wheels = tmp_path / "there/lib/python3.12/site-packages", tmp_path / "wheels"
    for folder, names in ((place, ("big.so", "same.so")), (wheels, ("big.so",))):
        folder.mkdir(parents=True)
        for name in names:
            (folder / name).write_bytes(large if name == "big.so" else b"s" * 9000)
    lines = [
        f"d\t{path}\t{carry_image.digest(io.BytesIO(path.read_bytes()))}\t{path.stat().st_size}"
        for path in sorted(place.iterdir())
    ]
    (tmp_path / "records.gz").write_bytes(gzip.compress(("\n".join(lines) + "\n").encode()))
    return tmp_path, large


def test_a_layer_is_rebuilt_byte_by_byte(other_machine):
    folder, large = other_machine
    other = large[: 1 << 20] + b"another release" + large[1 << 20 :]
    tar = layer(
        folder / "layer.tar", {"a.py": b"print()", "big.so": other, "new.so": b"n" * 5000, "same.so": b"s" * 9000}
    )
    carry_image.Packer(folder / "out", folder / "records.gz", folder / "wheels").layer(tar, "name")
    recipe = json.loads((folder / "out/name.json").read_text())
    assert [step[0] for step in recipe] == ["literal", "patch", "literal", "file", "literal"]
    assert sum(path.stat().st_size for path in (folder / "out").iterdir()) < 50_000
    assert b"".join(carry_image.rebuilt(folder / "out", "name")) == tar.read_bytes()


def test_the_files_of_named_distributions_are_listed_without_what_an_installer_writes(tmp_path):
    for name in ("some_torch-2.11.0", "nvidia_nccl_cu13-2.28.9", "nvidia_nvtx-13.0.85", "torch-2.11.0"):
        info = tmp_path / f"{name}.dist-info"
        info.mkdir()
        own = f"{name}.dist-info/RECORD"
        (info / "RECORD").write_text(f"{name}/a.py,sha256=abc,5000\n{name}/b.pyc,,\n../../bin/x,sha256=d,9\n{own},,\n")
    records = tmp_path / "records.gz"
    carry_image.write_records(str(records), str(tmp_path), "/opt/site-packages", "some-torch", "nvidia-")
    by_hash, by_place = carry_image.load_records(records)
    assert by_hash == {"sha256=abc": "/opt/site-packages/some_torch-2.11.0/a.py"}
    assert [path.partition("-")[0] for path in by_place] == ["nvidia_nccl_cu13", "nvidia_nvtx", "some_torch"]


def test_a_large_file_of_two_layers_is_sent_once(other_machine):
    folder, _ = other_machine
    shared = random.Random(2).randbytes(2 << 20)  # noqa: S311
    packer = carry_image.Packer(folder / "out", folder / "records.gz", folder / "wheels")
    for name in ("one", "two"):
        tar = layer(folder / f"{name}.tar", {f"{name}.py": b"print()", "shared.so": shared})
        packer.layer(tar, name)
        assert b"".join(carry_image.rebuilt(folder / "out", name)) == tar.read_bytes()
    assert sum(path.stat().st_size for path in (folder / "out").iterdir()) < 2.2 * (1 << 20)


def test_bytecode_is_made_there_by_the_images_python(other_machine, monkeypatch):
    folder, _ = other_machine
    (folder / "root").mkdir()
    source = folder / "modules/opt/venv/lib/python3.11/site-packages/big.py"
    source.parent.mkdir(parents=True)
    source.write_bytes(b"".join(b"def function_%d(): return {'a', 'b'}\n" % number for number in range(99)))
    os.utime(source, (315532800, 315532800))
    recipe = [sys.executable, "-s", "-S", ROOT / "docker/recipe/compile-modules"]
    subprocess.run([*recipe, folder / "modules"], check=True, env={"PYTHONHASHSEED": "0"})
    (code,) = source.parent.glob("__pycache__/*.pyc")
    with tarfile.open(folder / "layer.tar", "w") as archive:
        for path in (code, source):
            archive.add(path, str(path.relative_to(folder / "modules")))
    carry_image.Packer(folder / "out", folder / "records.gz", folder / "wheels").layer(folder / "layer.tar", "name")
    assert [step[0] for step in json.loads((folder / "out/name.json").read_text())] == [
        "literal",
        "bytecode",
        "literal",
    ]

    def compile_modules(root, work):
        assert work.parent == root
        subprocess.run([*recipe[:3], work / recipe[3].name, work], check=True, env={"PYTHONHASHSEED": "0"})

    monkeypatch.setattr(carry_image, "compile_modules", compile_modules)
    carry_image.write_layer(folder / "out", "name", folder / "again.tar", folder / "root")
    assert (folder / "again.tar").read_bytes() == (folder / "layer.tar").read_bytes()


def test_a_layer_with_another_file_is_not_loaded(other_machine, monkeypatch):
    folder, _ = other_machine
    tar = layer(folder / "layer.tar", {"same.so": b"s" * 9000})
    name = carry_image.hashlib.sha256(tar.read_bytes()).hexdigest()
    out = folder / "out"
    carry_image.Packer(out, folder / "records.gz", folder / "wheels").layer(tar, name)
    (out / "images.json").write_text(json.dumps([{"image": "i:t", "config": "c", "layers": [name]}]))
    (out / "c.config").write_text("{}")
    posted = []

    def post(file):
        with tarfile.open(fileobj=file) as archive:
            posted.append(archive.getnames())

    monkeypatch.setattr(carry_image, "post", post)
    carry_image.load(str(out))
    assert posted == [[f"{name}.tar", "c.json", "manifest.json"]]
    (folder / "there/lib/python3.12/site-packages/same.so").write_bytes(b"S" * 9000)
    with pytest.raises(SystemExit, match=f"layer {name} was rebuilt with another digest"):
        carry_image.load(str(out))
    assert len(posted) == 1
