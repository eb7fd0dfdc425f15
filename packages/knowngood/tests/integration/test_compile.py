"""A small CUDA extension, compiled for sm_90 by the registry's nvcc in a container of the default cell.

Killed in the middle, taken over, damaged, compiled from nothing: nothing finished is done twice, nothing broken kept.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import pytest

from conftest import ROOT
from knowngood.cli import main
from knowngood.core.errors import KnowngoodError
from knowngood.core.local_files import cache_folder
from knowngood.core.selection import select_cells
from knowngood.engine import container_engine
from knowngood.lock import cell_locking, wheelhouse
from knowngood.project.checkout import Project
from knowngood.wheels import cuda_toolkit, wheel_packing

pytestmark = pytest.mark.integration

SETUP = """\
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension
sources = ["csrc/bind.cpp", "csrc/one.cu", "csrc/two.cu"]
setup(name="kgprobe", version="1.0", packages=["kgprobe"], cmdclass={"build_ext": BuildExtension},
      ext_modules=[CUDAExtension("kgprobe._C", sources)])
"""
BIND = """\
#include <Python.h>
void one(float*);
void two(float*);
static PyObject* run(PyObject*, PyObject*) { one(nullptr); two(nullptr); Py_RETURN_NONE; }
static PyMethodDef methods[] = {{"run", run, METH_NOARGS, ""}, {}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_C", nullptr, -1, methods};
extern "C" __attribute__((visibility("default"))) PyObject* PyInit__C() { return PyModule_Create(&module); }
"""
KERNEL = """\
#include <cuda_runtime.h>
namespace { __global__ void kernel(float* x) { x[threadIdx.x] += 1.0f; } }
void NAME(float* x) { kernel<<<1, 32>>>(x); }
"""


def sdist(folder, **changes):
    """The extension's sdist; what is compiled follows from its hash, so each test has a work folder of its own."""
    files = {
        "setup.py": SETUP + f"# {folder}\n",
        "PKG-INFO": "Metadata-Version: 2.1\nName: kgprobe\nVersion: 1.0\n",
        "kgprobe/__init__.py": "",
        "csrc/bind.cpp": BIND,
        "csrc/one.cu": KERNEL.replace("NAME", "one"),
        "csrc/two.cu": "#include <cub/cub.cuh>\n" + KERNEL.replace("NAME", "two"),
    } | changes
    for name, text in files.items():
        path = folder / "kgprobe-1.0" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    with tarfile.open(folder / "kgprobe-1.0.tar.gz", "w:gz") as archive:
        archive.add(folder / "kgprobe-1.0", "kgprobe-1.0")
    return folder / "kgprobe-1.0.tar.gz"


@pytest.fixture
def argv(tmp_path, monkeypatch):
    """The command line, with a wheelhouse of its own."""
    (tmp_path / "house").mkdir()
    monkeypatch.setenv("KNOWNGOOD_WHEELHOUSE", str(tmp_path / "house"))
    return ["compile", "default", "--sdist", str(sdist(tmp_path)), "--json"]


@pytest.fixture(autouse=True)
def here(monkeypatch):
    monkeypatch.chdir(ROOT)


def run(capsys, argv):
    """The command's exit code, what it says of its one wheel, and what it said on the way."""
    capsys.readouterr()
    code = main.main(argv)
    out, err = capsys.readouterr()
    return code, json.loads(out)["wheels"][0], err


def build_folder(sources):
    """Where the sdist of these sources is compiled, once that has begun."""
    mine = f"# {sources}\n"
    found = [
        path.parents[1] for path in (cache_folder() / "compile").glob("*/src/setup.py") if mine in path.read_text()
    ]
    return found[0] if found else None


def objects(sources):
    """The objects that are finished, with their times."""
    if work := build_folder(sources):
        lines = (line.split("\t") for log in work.rglob(".ninja_log") for line in log.read_text().splitlines())
        done = {fields[3] for fields in lines if len(fields) == 5}
        return {name: Path(name.replace("/build", str(work), 1)).stat().st_mtime_ns for name in done}
    return {}


def start(argv, sources, count):
    """The command in a process of its own, until so many objects are finished."""
    said = sources / "said"
    with said.open("w") as out:
        process = subprocess.Popen([sys.executable, "-m", "knowngood", *argv, "--jobs", "1"], stdout=out)
    deadline = time.monotonic() + 600
    while len(found := objects(sources)) < count:
        assert process.poll() is None, said.read_text()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return process, found


def kill(process, engine, work, *, container):
    """As when the machine is switched off; without `container`, as when only the terminal goes."""
    process.send_signal(signal.SIGKILL)
    process.wait()
    with container_engine.docker_client(engine) as client:
        running = client.containers.get(f"knowngood-compile-{work.name[:16]}")
        assert running.status == "running"
        if container:
            running.remove(force=True)


def test_a_compile_is_killed_goes_on_is_not_repeated_and_comes_out_the_same(argv, engine, capsys, tmp_path):
    process, found = start(argv, tmp_path, 2)
    work = build_folder(tmp_path)
    kill(process, engine, work, container=True)
    assert not list((tmp_path / "house").iterdir())

    code, first, _ = run(capsys, argv)
    assert (code, first["status"]) == (0, "compiled")
    made = first["record"]["made"]
    assert (made["objects"], made["objects_reused"]) == (3, 2)
    assert found.items() <= objects(tmp_path).items()
    assert [item["objects_found"] for item in made["attempts"]] == [0, 2]
    wheel = tmp_path / "house" / first["record"]["wheel"]
    assert wheel.name == "kgprobe-1.0+cu13torch2.11cxx11abitrue.sm90-cp311-cp311-linux_x86_64.whl"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "wheel")  # noqa: S202
    assert wheel_packing.list_architectures(wheel_packing.read_folder_code(tmp_path / "wheel")) == ["90"]

    code, second, _ = run(capsys, argv)
    assert (code, second["status"], second["record"]) == (0, "present", first["record"])

    damaged = bytearray(wheel.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    wheel.write_bytes(damaged)
    subprocess.run(
        ["rm", "-r", work / "src"], check=True
    )  # and none of its objects: all of it again, in other processes
    process, _ = start(argv, tmp_path, 1)
    kill(process, engine, work, container=False)
    code, again, said = run(capsys, argv)
    assert "still compiling: waiting for it" in said
    assert (code, again["status"], again["record"]["sha256"]) == (0, "compiled", first["record"]["sha256"])
    assert wheelhouse.find_wheel_damage(wheel) is None


def test_a_compile_error_is_shown_with_its_log(argv, capsys, tmp_path):
    sdist(tmp_path, **{"csrc/one.cu": "void one(float*) { unheard_of(); }\n"})
    code, wheel, _ = run(capsys, argv)
    assert (code, wheel["status"]) == (1, "failed")
    assert 'identifier "unheard_of" is undefined' in wheel["error"]
    assert "/log" in wheel["error"]


@pytest.fixture(scope="module")
def toolkit():
    """The CUDA toolkit of the default cell."""
    project = Project(ROOT)
    cell = select_cells(project.matrix.cells, project.matrix.aliases, ["default"])[0]
    pins = [(item.name, item.version) for item in project.tree.load(cell).distributions]
    request = cell_locking.resolver_request(project.matrix.entry(cell), project.matrix)
    return cuda_toolkit.install_cuda_toolkit(cell, request, pins, print)


EXPORTS_NOTHING = """\
#include <cuda_runtime.h>
namespace {
__global__ void kernel(float* x) { x[threadIdx.x] += 1.0f; }
void use() { kernel<<<1, 32>>>(nullptr); }
[[gnu::used]] void (*const at)() = use;
}
"""
"""As flash-attn's files are for nvcc: it finds no name in them by which to call what they keep to themselves."""


@pytest.mark.parametrize("flagged", [True, False])
def test_an_object_is_the_same_from_two_processes_with_the_flags_and_without_them_it_is_not(toolkit, flagged, tmp_path):
    nvcc = toolkit.folder / toolkit.home / "bin/nvcc"
    env = {"PATH": "/usr/bin:/bin", "NVCC_APPEND_FLAGS": toolkit.flags if flagged else ""}
    made = []
    for _ in range(2):
        (tmp_path / "none.cu").write_text(EXPORTS_NOTHING)
        subprocess.run([nvcc, "-arch=sm_80", "-c", "none.cu", "-o", "none.o"], cwd=tmp_path, env=env, check=True)
        whole = (tmp_path / "none.o").read_bytes()
        subprocess.run(["strip", "--strip-unneeded", tmp_path / "none.o"], check=True)
        made.append((whole, (tmp_path / "none.o").read_bytes()))
    (first, stripped), (second, stripped_again) = made
    assert (first == second, stripped == stripped_again) == (flagged, flagged)


def test_nvcc_of_cuda_13_does_not_know_volta(toolkit):
    cuda_toolkit.check_toolkit_codes(toolkit, ["75", "80", "90", "100", "120"])
    with pytest.raises(KnowngoodError, match="does not know sm_70"):
        cuda_toolkit.check_toolkit_codes(toolkit, ["70"])
