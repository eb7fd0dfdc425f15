"""A thin image with added packages: named by its content, built by the recipe, from the host's secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from knowngood.core.cell import parse_cell
from knowngood.core.errors import KnowngoodError
from knowngood.images import image_build
from knowngood.images.build_command import Image
from knowngood.launch import derived_image, dev_toolkit, dev_toolkit_inside
from knowngood.launch.added_packages import AddedPackage
from knowngood.wheels import cuda_toolkit
from knowngood.wheels.cuda_toolkit import CudaToolkit
from samples import FA4

TRL = AddedPackage(name="trl", version="1.16.0", sha256="a" * 64)
PEFT = AddedPackage(name="peft", version="0.20", sha256="b" * 64)


def derive(home, base="sha256:1", added=(TRL,), toolkit=None):
    return derived_image.describe_derived_image(home, parse_cell(FA4), base, added, toolkit)


@pytest.fixture
def toolkit(home, lock_of):
    """What the dev variant of a cell has."""
    return dev_toolkit.describe_dev_toolkit(home.matrix, lock_of(FA4))


def test_the_name_follows_from_all_that_shapes_the_image(home):
    first = derive(home)
    names = {first.name, derive(home, base="sha256:2").name, derive(home, added=(PEFT, TRL)).name}
    assert len(names) == 3
    assert derive(home).name == first.name
    (home.tree.folder / "recipe" / "normalize").write_text("#!/bin/sh\ntrue\n")
    assert derive(home).name not in names


@pytest.fixture
def builds(monkeypatch):
    """The files of each build's context, with its plan."""
    plans = []

    def build(plan, *_, **__):
        files = {path.name: path.read_text() for path in Path(plan.context).rglob("*") if path.is_file()}
        plans.append((plan, files))
        return Image(tag=plan.tag, digest="sha256:9", size=1, built=True)

    monkeypatch.setattr(image_build, "find_image", lambda *_: None)
    monkeypatch.setattr(image_build, "build_image", build)
    return plans


def test_it_is_built_on_the_cells_image_with_secrets_and_no_trace_of_them(home, builds, monkeypatch):
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://user:geheim@index.example/simple")
    image = derived_image.make_derived_image(home, derive(home), None, print)
    [(plan, files)] = builds
    assert (image.name, image.origin) == (plan.tag, "built here")
    assert files["Dockerfile"].startswith(f"FROM knowngood:{FA4} AS base\n")
    assert files["requirements.txt"] == f"trl==1.16.0 --hash=sha256:{'a' * 64}\n"
    assert "env" in plan.secrets
    assert "geheim" not in str(files)
    assert set(plan.contexts) == {"tools", "recipe"}
    assert not Path(plan.context).exists()


def test_an_image_that_is_there_is_not_built_again(home, toolkit, builds, monkeypatch):
    image = Image(tag="t", digest="sha256:9", size=1, built=False)
    monkeypatch.setattr(image_build, "find_image", lambda *_: image)
    for derived in (derive(home), derive(home, toolkit=toolkit)):
        assert derived_image.make_derived_image(home, derived, None, print).origin == "in the engine"
    assert builds == []


def test_the_dev_variant_has_a_toolkit_for_its_gpu(home, toolkit, builds, monkeypatch, tmp_path):
    installs = []

    def install(cell, *_):
        installs.append(cell)
        return CudaToolkit(
            folder=tmp_path, home="cuda", release="13.0", codes=frozenset({"90"}), contents=(), flags="", note=""
        )

    monkeypatch.setattr(cuda_toolkit, "install_cuda_toolkit", install)
    for added in ((), (TRL,)):
        derived_image.make_derived_image(home, derive(home, added=added, toolkit=toolkit), None, print)
    assert installs == [toolkit.cell] * 2
    [(bare, files), (both, more)] = builds
    assert bare.contexts["cuda"] == str(tmp_path)
    assert (
        "ENV CUDA_HOME=/usr/local/cuda PATH=/usr/local/cuda/bin:$PATH TORCH_CUDA_ARCH_LIST=9.0\n" in files["Dockerfile"]
    )
    assert "dev_toolkit_inside.py" in files
    assert ("install-layer" in files["Dockerfile"], "install-layer" in more["Dockerfile"]) == (False, True)
    assert len({bare.tag, both.tag, derive(home).name}) == 3


def test_the_dev_variant_needs_an_nvcc_that_knows_the_gpu(toolkit, monkeypatch, tmp_path):
    old = CudaToolkit(folder=tmp_path, home="cuda", release="12.4", codes=frozenset({"80"}), contents=(), flags="")
    monkeypatch.setattr(cuda_toolkit, "install_cuda_toolkit", lambda *_: old)
    with pytest.raises(KnowngoodError, match=r"nvcc 12\.4 does not know sm_90"):
        toolkit.install(print)


def test_cuda_home_has_what_the_cells_own_wheels_bring(tmp_path):
    toolkit, environment, home = tmp_path / "toolkit", tmp_path / "venv", tmp_path / "out" / "cuda"
    wheels = environment / "lib/python3.11/site-packages/nvidia"
    for path, text in (
        (toolkit / "nvidia/cu13/bin/nvcc", "nvcc"),
        (toolkit / "nvidia/cu13/include/cccl/a.h", "of the toolkit"),
        (toolkit / "nvidia/cu13/lib64/libcudart.so", "of the toolkit"),
        (wheels / "cu13/include/cccl/b.h", "of another release"),
        (wheels / "cu13/include/cublas_v2.h", "cublas"),
        (wheels / "cu13/lib/libcublas.so.13", "cublas"),
        (wheels / "cu13/lib/libcudart.so.13", "of the wheel"),
        (wheels / "cudnn/include/cudnn.h", "cudnn"),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    dev_toolkit_inside.assemble_cuda_home(toolkit, environment, home)
    assert (home / "bin/nvcc").read_text() == "nvcc"
    assert sorted(path.name for path in (home / "include").iterdir()) == ["cccl", "cublas_v2.h", "cudnn.h"]
    assert [path.name for path in (home / "include/cccl").iterdir()] == ["a.h"]
    assert (home / "lib64/libcublas.so").resolve() == wheels / "cu13/lib/libcublas.so.13"
    assert (home / "lib64/libcudart.so").read_text() == "of the toolkit"
    assert (home / "lib64/libcudart.so.13").read_text() == "of the wheel"
