from __future__ import annotations

import pytest
from samples import FA0, FA2, FA4

from knowngood.building import dryrun
from knowngood.building.pipeline import Options, Pipeline
from knowngood.cell import parse
from knowngood.engines.engine import Engine
from knowngood.errors import KnowngoodError
from knowngood.system import base
from knowngood.system.base import PackagesLock

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
def line(home, monkeypatch):
    path = home.tree.folder / "bases" / "debian12" / "packages.lock"
    path.parent.mkdir(parents=True)
    lock = PackagesLock(
        suite="bookworm", epoch=1, requested=("gcc",), tools=(), packages=(), digest="sha256:" + "b" * 64
    )
    path.write_text(str(lock))
    monkeypatch.setattr(dryrun, "cxx11abi", lambda _: True)
    return Pipeline(home, Options(wheelhouse=home.root / "house"), ENGINE)


def test_a_locked_cell_is_built_and_smoked(line, lock_of):
    lock_of(FA4)
    comment, build, smoke = dryrun.commands(line, parse(FA4))
    assert comment == f"# {FA4}"
    assert build.startswith("docker --context here buildx build ")
    assert f"knowngood:{FA4}" in build
    assert smoke.startswith("docker --context here run --rm --network none ")
    assert " -m pytest " in smoke


def test_nothing_is_written_into_the_project(line, lock_of, home):
    lock_of(FA4)
    before = sorted(home.root.rglob("*"))
    dryrun.commands(line, parse(FA4))
    assert sorted(home.root.rglob("*")) == before


@pytest.mark.parametrize(("identity", "house"), [(FA4, False), (FA2, True), (FA0, False)])
def test_a_cell_without_a_lock_would_be_resolved(line, home, identity, house):
    (home.root / "house").mkdir()
    (home.root / "house" / WHEEL).write_bytes(b"")
    said = "\n".join(dryrun.commands(line, parse(identity)))
    assert "the lock is stale" in said
    assert "pip compile" in said
    assert f"knowngood lock {identity}" in said
    assert ("--find-links" in said) is house


def test_without_its_wheel_the_twin_is_what_would_be_built(line, lock_of):
    lock_of(FA0)
    why, comment, build, _ = dryrun.commands(line, parse(FA2))
    assert why.startswith(f"# {FA2}: the wheelhouse has no flash-attn 2.8.3.post2 wheel for it")
    assert comment == f"# {FA0}"
    assert f"knowngood:{FA0}" in build


def test_the_base_is_where_the_build_looks_for_it(line, lock_of, home):
    lock_of(FA4)
    lock = PackagesLock.parse((home.tree.folder / "bases" / "debian12" / "packages.lock").read_text())
    assert f"--build-context base=oci-layout://{base.layout(lock)}@sha256:bbb" in dryrun.commands(line, parse(FA4))[1]


def test_no_secret_is_printed(line, lock_of, monkeypatch):
    lock_of(FA4)
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://me:s3cret@index.example/simple")
    monkeypatch.setenv("HTTPS_PROXY", "http://me:s3cret@proxy.example:3128")
    said = "\n".join(dryrun.commands(line, parse(FA4)))
    assert "s3cret" not in said
    assert "id=env," in said


def test_a_base_without_its_lock_says_what_to_do(line, lock_of, home):
    lock_of(FA4)
    (home.tree.folder / "bases" / "debian12" / "packages.lock").unlink()
    with pytest.raises(KnowngoodError, match="run `knowngood lock --base debian12`"):
        dryrun.commands(line, parse(FA4))
