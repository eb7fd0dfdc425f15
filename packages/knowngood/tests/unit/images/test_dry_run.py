from __future__ import annotations

import pytest

from knowngood.base import base_image
from knowngood.core.cell import parse_cell
from knowngood.core.errors import KnowngoodError
from knowngood.engine.container_engine import Engine
from knowngood.images import dry_run
from knowngood.images.pipeline import Pipeline, PipelineOptions
from knowngood.lock.debian_lock import PackagesLock
from samples import FA0, FA2, FA4

WHEEL = "flash_attn-2.8.3.post2+cu13torch2.11cxx11abitrue.sm90-cp311-cp311-linux_x86_64.whl"
ENGINE = Engine(
    host="unix:///e.sock",
    docker=("docker", "--context", "here"),
    version="26",
    buildkit="0.13",
    containerd_store=True,
    embedded=False,
    network="default",
)


@pytest.fixture
def line(home):
    path = home.tree.folder / "bases" / "debian12" / "packages.lock"
    path.parent.mkdir(parents=True)
    lock = PackagesLock(
        suite="bookworm", epoch=1, requested=("gcc",), tools=(), packages=(), digest="sha256:" + "b" * 64
    )
    path.write_text(str(lock))
    return Pipeline(home, PipelineOptions(wheelhouse=home.root / "house"), ENGINE)


def test_the_commands_of_a_locked_cell_build_it_and_run_the_suite(line, lock_of):
    lock_of(FA4)
    comment, build, smoke = dry_run.cell_commands(line, parse_cell(FA4))
    assert comment == f"# {FA4}"
    assert build.startswith("docker --context here buildx build ")
    assert f"knowngood:{FA4}" in build
    assert smoke.startswith("docker --context here run --rm --network none ")
    assert " -m pytest " in smoke


def test_nothing_is_written_into_the_project(line, lock_of, home):
    lock_of(FA4)
    before = sorted(home.root.rglob("*"))
    dry_run.cell_commands(line, parse_cell(FA4))
    assert sorted(home.root.rglob("*")) == before


@pytest.mark.parametrize(("identity", "house"), [(FA4, False), (FA2, True), (FA0, False)])
def test_the_commands_of_a_cell_without_a_lock_resolve_it(line, home, identity, house):
    (home.root / "house").mkdir()
    (home.root / "house" / WHEEL).write_bytes(b"")
    said = "\n".join(dry_run.cell_commands(line, parse_cell(identity)))
    assert "its lock is missing or stale" in said
    assert "pip compile" in said
    assert f"knowngood lock {identity}" in said
    assert ("--find-links" in said) is house


def test_the_commands_of_a_cell_without_its_wheel_build_its_twin(line, lock_of):
    lock_of(FA0)
    why, comment, build, _ = dry_run.cell_commands(line, parse_cell(FA2))
    assert why.startswith(f"# {FA2}: the wheelhouse has no flash-attn 2.8.3.post2 wheel for it")
    assert comment == f"# {FA0}"
    assert f"knowngood:{FA0}" in build


def test_the_base_context_is_that_of_the_build(line, lock_of, home):
    lock_of(FA4)
    lock = PackagesLock.parse((home.tree.folder / "bases" / "debian12" / "packages.lock").read_text())
    assert (
        f"--build-context base=oci-layout://{base_image.base_layout(lock)}@sha256:bbb"
        in dry_run.cell_commands(line, parse_cell(FA4))[1]
    )


def test_no_secret_is_printed(line, lock_of, monkeypatch):
    lock_of(FA4)
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://me:s3cret@index.example/simple")
    monkeypatch.setenv("HTTPS_PROXY", "http://me:s3cret@proxy.example:3128")
    said = "\n".join(dry_run.cell_commands(line, parse_cell(FA4)))
    assert "s3cret" not in said
    assert "id=env," in said


def test_a_base_without_a_lock_names_the_command_to_run(line, lock_of, home):
    lock_of(FA4)
    (home.tree.folder / "bases" / "debian12" / "packages.lock").unlink()
    with pytest.raises(KnowngoodError, match="run `knowngood lock --base debian12`"):
        dry_run.cell_commands(line, parse_cell(FA4))
