"""A thin image with added packages: named by its content, built by the recipe, from the host's secrets."""

from __future__ import annotations

from pathlib import Path

import pytest
from samples import FA4

from knowngood.core.cell import parse_cell
from knowngood.images import image_build
from knowngood.images.build_command import Image
from knowngood.launch import derived_image
from knowngood.launch.added_packages import AddedPackage

TRL = AddedPackage(name="trl", version="1.16.0", sha256="a" * 64)
PEFT = AddedPackage(name="peft", version="0.20", sha256="b" * 64)


def derive(home, base="sha256:1", added=(TRL,)):
    return derived_image.describe_derived_image(home, parse_cell(FA4), base, added)


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


def test_an_image_that_is_there_is_not_built_again(home, builds, monkeypatch):
    image = Image(tag="t", digest="sha256:9", size=1, built=False)
    monkeypatch.setattr(image_build, "find_image", lambda *_: image)
    assert derived_image.make_derived_image(home, derive(home), None, print).origin == "in the engine"
    assert builds == []
