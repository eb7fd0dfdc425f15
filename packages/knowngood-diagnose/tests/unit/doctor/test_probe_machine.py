"""What the doctor reads of a machine: fake programs on PATH, real folders and libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from knowngood_diagnose.doctor import probe
from knowngood_diagnose.doctor.elf_reader import MachineLibraries
from knowngood_facts.python_environment import PythonInterpreter

if TYPE_CHECKING:
    from pathlib import Path


class FakeLdCache(MachineLibraries):
    """Libraries with a cache of ldconfig that has only the given entries."""

    def __init__(self, **cached: str) -> None:
        super().__init__()
        self.cache = dict(cached)


@pytest.fixture
def program(tmp_path):
    """Return a function that writes a program which prints something into a folder."""
    folder = tmp_path / "bin"
    folder.mkdir()

    def put(name: str, output: str, code: int = 0, below: Path = folder) -> Path:
        below.mkdir(parents=True, exist_ok=True)
        path = below / name
        path.write_text(f"#!/bin/sh\necho '{output}'\nexit {code}\n")
        path.chmod(0o755)
        return path

    return put


def test_the_toolkit_is_the_one_that_torch_would_use(program, tmp_path):
    release = "Cuda compilation tools, release 12.8, V12.8.93"
    path = program("nvcc", release, below=tmp_path / "toolkit" / "bin")
    environ = {"PATH": str(tmp_path / "bin"), "CUDA_HOME": str(tmp_path / "toolkit")}
    assert probe.find_nvcc(environ).version == "12.8"
    assert probe.find_nvcc({"PATH": str(path.parent)}).path == str(path)
    assert probe.find_nvcc({**environ, "CUDA_HOME": str(tmp_path)}).problem == f"{tmp_path} has no bin/nvcc"
    program("nvcc", "Illegal instruction", 132, below=tmp_path / "toolkit" / "bin")
    assert probe.find_nvcc(environ).problem == "it does not run"


def test_the_compiler_is_cc_or_the_first_on_path(program, tmp_path):
    environ = {"PATH": str(tmp_path / "bin")}

    def compiler(**variables: str):
        return probe.read_machine_state(None, FakeLdCache(), {**environ, **variables}).cc

    assert compiler() is None
    program("clang", "18.1.0")
    program("gcc", "12.2.0")
    assert compiler().version == "12.2.0"
    assert compiler(CC="clang -O2").version == "18.1.0"
    assert compiler(CC="icc").problem == "CC names 'icc', which does not exist"


def test_ninja_beside_a_python_that_is_not_on_path(program, tmp_path):
    python = PythonInterpreter(path=str(program("python", "", below=tmp_path / "env" / "bin")), why="--python")
    environ = {"PATH": str(tmp_path / "bin")}
    assert probe.find_ninja(python, environ) is None
    program("ninja", "1.13.0", below=tmp_path / "env" / "bin")
    assert "not on PATH" in probe.find_ninja(python, environ).problem
    assert probe.find_ninja(python, {"PATH": str(tmp_path / "env" / "bin")}).version == "1.13.0"


def test_libcuda_where_triton_looks(tmp_path):
    there = tmp_path / "driver"
    there.mkdir()
    (there / "libcuda.so.1").touch()
    paths = (str(there / "libcuda.so.1"),)
    assert probe.list_libcuda_paths(FakeLdCache(), {}) == ()
    assert probe.list_libcuda_paths(FakeLdCache(**{"libcuda.so.1": paths[0]}), {}) == paths
    assert probe.list_libcuda_paths(FakeLdCache(), {"LD_LIBRARY_PATH": f"/nowhere:{there}"}) == paths
    assert probe.list_libcuda_paths(FakeLdCache(), {"TRITON_LIBCUDA_PATH": str(there)}) == paths
    # the variable stands for all other places, also when it is wrong
    assert (
        probe.list_libcuda_paths(FakeLdCache(**{"libcuda.so.1": paths[0]}), {"TRITON_LIBCUDA_PATH": "/nowhere"}) == ()
    )


def test_a_toolkits_stub_is_not_taken_for_the_driver(tmp_path):
    stubs = tmp_path / "lib64" / "stubs"
    stubs.mkdir(parents=True)
    (stubs / "libcuda.so").touch()
    assert probe.read_machine_state(None, FakeLdCache(), {"LD_LIBRARY_PATH": f"/x:{stubs}"}).libcuda_stub == str(stubs)
    assert probe.read_machine_state(None, FakeLdCache(), {"LD_LIBRARY_PATH": str(tmp_path)}).libcuda_stub == ""


def test_python_h_belongs_to_the_environments_python(tmp_path):
    python = PythonInterpreter(path="/x/python", why="--python", include=str(tmp_path))
    assert probe.read_machine_state(python, FakeLdCache(), {}).python_h is False
    (tmp_path / "Python.h").touch()
    assert probe.read_machine_state(python, FakeLdCache(), {}).python_h is True
    assert (
        probe.read_machine_state(PythonInterpreter(path="/x/python", why="--python"), FakeLdCache(), {}).python_h
        is None
    )


def test_folders_follow_the_environment_variables(tmp_path):
    environ = {"HOME": str(tmp_path), "HF_HOME": "/proc/nowhere", "TMPDIR": str(tmp_path)}
    by = {item.variable: item for item in probe.list_cache_folders(environ)}
    assert by["HF_HOME"].path == "/proc/nowhere"
    assert by["TRITON_CACHE_DIR"].path == str(tmp_path / ".triton" / "cache")
    assert by["TORCHINDUCTOR_CACHE_DIR"].path == str(tmp_path / "torchinductor_root")
    assert by["TMPDIR"].writable
    assert by["TMPDIR"].free > 0


def test_only_judged_variables_are_kept():
    state = probe.read_machine_state(None, FakeLdCache(), {"CUDA_VISIBLE_DEVICES": "0", "HF_TOKEN": "secret"})
    assert state.variables == {"CUDA_VISIBLE_DEVICES": "0"}
