"""A base for real: bootstrapped twice from a mirror, built on by an engine. Root, apt and a mirror are needed."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from knowngood.base import base_image
from knowngood.base.base_packages import DebianBase
from knowngood.core.errors import KnowngoodError
from knowngood.engine import container_engine, embedded_engine
from knowngood.lock.debian_lock import PackagesLock

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(bool(embedded_engine.describe_obstacle()), reason=str(embedded_engine.describe_obstacle())),
]

WANTED = DebianBase(name="test")
PROGRAM = """\
#include <Python.h>
#include <vector>
int main() { std::vector<int> v(3); Py_Initialize(); puts(Py_GetVersion()); return v[0]; }
"""
DOCKERFILE = """\
FROM base AS probe
COPY probe.cc /
RUN g++ -fopenmp -I/usr/include/python3.11 probe.cc -lpython3.11 -o /probe && /probe > /version \\
 && ldconfig && dpkg-query -W -f '${Package} ${Version} ${Architecture}\\n' > /packages
FROM scratch
COPY --link --from=probe /version /packages /
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KNOWNGOOD_CACHE", str(folder))
        patch.setenv("DOCKER_HOST", f"unix://{folder}/none.sock")
        yield folder
        embedded_engine.remove_embedded_engine(print)


@pytest.fixture(scope="module")
def image(cache):
    made = base_image.build_base(WANTED, None, locked=False, notify=print)
    assert made.layout.is_relative_to(cache)
    return made


def files(layout: Path) -> dict[str, bytes]:
    return {str(path.relative_to(layout)): path.read_bytes() for path in layout.rglob("*") if path.is_file()}


def test_the_lock_makes_the_same_bytes_again(image, tmp_path):
    lock = PackagesLock.parse(str(image.lock))
    again = base_image.build_base(WANTED, lock, locked=True, notify=print, out=tmp_path)
    assert again.digest == image.digest == lock.digest
    assert files(again.layout) == files(image.layout)
    assert not list(tmp_path.glob("work-*"))


def test_it_is_small_and_has_no_trace_of_the_host(image):
    blobs = image.layout / "blobs/sha256"
    assert sum(path.stat().st_size for path in blobs.iterdir()) < 100_000_000
    manifest = json.loads((blobs / image.digest.removeprefix("sha256:")).read_bytes())
    assert [layer["mediaType"].rpartition("+")[2] for layer in manifest["layers"]] == ["zstd"]


def test_the_second_time_it_is_there_at_once(image):
    assert base_image.build_base(WANTED, image.lock, locked=True, notify=pytest.fail) == image


def test_a_package_that_moved_on_is_named_and_a_new_lock_made_only_unlocked(image):
    gone = tuple(replace(package, version="4:1.0-1", sha256="0" * 64) for package in image.packages[:1])
    lock = replace(image.lock, packages=gone + image.packages[1:])
    with pytest.raises(
        KnowngoodError, match=rf"the mirror no longer has {gone[0].name} 4:1.0-1; run `knowngood lock --base test`"
    ):
        base_image.build_base(WANTED, lock, locked=True, notify=pytest.fail)
    said = []
    made = base_image.build_base(WANTED, lock, locked=False, notify=said.append)
    assert made.lock == image.lock
    assert "WARNING" in said[0]


def test_a_digest_that_differs_from_the_locks_is_an_error_when_locked(image):
    lock = replace(image.lock, digest=f"sha256:{'0' * 64}")
    with pytest.raises(KnowngoodError, match="how a base is made has changed; run `knowngood lock --base test`"):
        base_image.build_base(WANTED, lock, locked=True, notify=print)
    said = []
    assert base_image.build_base(WANTED, lock, locked=False, notify=said.append) == image
    assert "WARNING" in said[0]


def test_a_cell_can_stand_on_it_and_compile_in_it(image, tmp_path):
    found = container_engine.ensure_engine(notify=print)
    (tmp_path / "Dockerfile").write_text(DOCKERFILE)
    (tmp_path / "probe.cc").write_text(PROGRAM)
    argv = [*found.docker, "buildx", "build", "--network", found.network, "--build-context", f"base={image.context}"]
    argv += ["--output", f"type=local,dest={tmp_path / 'out'}", str(tmp_path)]
    subprocess.run(argv, check=True, env=found.environment(), capture_output=True)
    assert (tmp_path / "out/version").read_text().startswith("3.11.")
    installed = sorted((tmp_path / "out/packages").read_text().splitlines())
    assert installed == sorted(f"{package.name} {package.version} {package.arch}" for package in image.packages)
