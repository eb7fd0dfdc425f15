"""What the doctor finds on a machine: programs by stand-ins on PATH, folders and libraries by real ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from knowngood.doctor import machine
from knowngood.doctor.seen import Python
from knowngood.doctor.shelf import Files


class Shelf(Files):
    """An empty cache of ldconfig, but for what is put there."""

    def __init__(self, **cached: str) -> None:
        super().__init__()
        self.cache = dict(cached)


@pytest.fixture
def program(tmp_path):
    """Puts a program that prints something onto a PATH of its own."""
    folder = tmp_path / "bin"
    folder.mkdir()

    def put(name: str, says: str, code: int = 0, below: Path = folder) -> Path:
        below.mkdir(parents=True, exist_ok=True)
        path = below / name
        path.write_text(f"#!/bin/sh\necho '{says}'\nexit {code}\n")
        path.chmod(0o755)
        return path

    return put


def test_the_toolkit_is_the_one_that_torch_would_take(program, tmp_path):
    release = "Cuda compilation tools, release 12.8, V12.8.93"
    path = program("nvcc", release, below=tmp_path / "toolkit" / "bin")
    environ = {"PATH": str(tmp_path / "bin"), "CUDA_HOME": str(tmp_path / "toolkit")}
    assert machine.nvcc(environ).version == "12.8"
    assert machine.nvcc({"PATH": str(path.parent)}).path == str(path)
    assert machine.nvcc({**environ, "CUDA_HOME": str(tmp_path)}).problem == f"{tmp_path} has no bin/nvcc"
    program("nvcc", "Illegal instruction", 132, below=tmp_path / "toolkit" / "bin")
    assert machine.nvcc(environ).problem == "it does not run"


def test_the_compiler_is_cc_or_the_first_on_path(program, tmp_path):
    environ = {"PATH": str(tmp_path / "bin")}

    def compiler(**variables: str):
        return machine.look(None, Shelf(), {**environ, **variables}).cc

    assert compiler() is None
    program("clang", "18.1.0")
    program("gcc", "12.2.0")
    assert compiler().version == "12.2.0"
    assert compiler(CC="clang -O2").version == "18.1.0"
    assert compiler(CC="icc").problem == "CC names 'icc', which is not there"


def test_ninja_beside_a_python_that_is_not_on_path(program, tmp_path):
    python = Python(path=str(program("python", "", below=tmp_path / "env" / "bin")), why="--python")
    environ = {"PATH": str(tmp_path / "bin")}
    assert machine.ninja(python, environ) is None
    program("ninja", "1.13.0", below=tmp_path / "env" / "bin")
    assert "not on PATH" in machine.ninja(python, environ).problem
    assert machine.ninja(python, {"PATH": str(tmp_path / "env" / "bin")}).version == "1.13.0"


def test_libcuda_where_triton_looks(tmp_path):
    there = tmp_path / "driver"
    there.mkdir()
    (there / "libcuda.so.1").touch()
    found = (str(there / "libcuda.so.1"),)
    assert machine.libcuda(Shelf(), {}) == ()
    assert machine.libcuda(Shelf(**{"libcuda.so.1": found[0]}), {}) == found
    assert machine.libcuda(Shelf(), {"LD_LIBRARY_PATH": f"/nowhere:{there}"}) == found
    assert machine.libcuda(Shelf(), {"TRITON_LIBCUDA_PATH": str(there)}) == found
    # the variable stands for all other places, also when it is wrong
    assert machine.libcuda(Shelf(**{"libcuda.so.1": found[0]}), {"TRITON_LIBCUDA_PATH": "/nowhere"}) == ()


def test_a_toolkits_stub_is_told_from_the_driver(tmp_path):
    stubs = tmp_path / "lib64" / "stubs"
    stubs.mkdir(parents=True)
    (stubs / "libcuda.so").touch()
    assert machine.look(None, Shelf(), {"LD_LIBRARY_PATH": f"/x:{stubs}"}).libcuda_stub == str(stubs)
    assert machine.look(None, Shelf(), {"LD_LIBRARY_PATH": str(tmp_path)}).libcuda_stub == ""


def test_python_h_of_that_very_python(tmp_path):
    python = Python(path="/x/python", why="--python", include=str(tmp_path))
    assert machine.look(python, Shelf(), {}).python_h is False
    (tmp_path / "Python.h").touch()
    assert machine.look(python, Shelf(), {}).python_h is True
    assert machine.look(Python(path="/x/python", why="--python"), Shelf(), {}).python_h is None


def test_folders_are_those_that_the_variables_name(tmp_path):
    environ = {"HOME": str(tmp_path), "HF_HOME": "/proc/nowhere", "TMPDIR": str(tmp_path)}
    by = {item.variable: item for item in machine.folders(environ)}
    assert by["HF_HOME"].path == "/proc/nowhere"
    assert by["TRITON_CACHE_DIR"].path == str(tmp_path / ".triton" / "cache")
    assert by["TORCHINDUCTOR_CACHE_DIR"].path == str(tmp_path / "torchinductor_root")
    assert by["TMPDIR"].writable
    assert by["TMPDIR"].free > 0


def test_only_variables_that_are_looked_at_are_kept():
    seen = machine.look(None, Shelf(), {"CUDA_VISIBLE_DEVICES": "0", "HF_TOKEN": "secret"})
    assert seen.variables == {"CUDA_VISIBLE_DEVICES": "0"}
