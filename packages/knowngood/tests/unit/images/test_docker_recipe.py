"""Programs of docker/recipe that need no image around them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

RECIPE = Path(__file__).resolve().parents[5] / "docker" / "recipe"


def test_large_files_with_the_same_bytes_and_mode_become_one(tmp_path):
    large, other = b"a" * 70_000, b"b" * 70_000
    for name, data in {"a/one": large, "b/two": large, "b/x": other, "c/run": large, "s1": b"s", "s2": b"s"}.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    (tmp_path / "c/run").chmod(0o755)
    (tmp_path / "link").symlink_to("a/one")

    for _ in range(2):  # what is linked stays as it is
        subprocess.run([sys.executable, RECIPE / "link-same", tmp_path], check=True)
        links = {str(path.relative_to(tmp_path)): path.lstat().st_nlink for path in tmp_path.rglob("*")}
        assert {name: count for name, count in links.items() if not (tmp_path / name).is_dir()} == {
            "a/one": 2,
            "b/two": 2,
            "b/x": 1,
            "c/run": 1,
            "s1": 1,
            "s2": 1,
            "link": 1,
        }
        assert (tmp_path / "a/one").samefile(tmp_path / "b/two")
        assert (tmp_path / "b/x").read_bytes() == other


@pytest.fixture
def modules(tmp_path):
    """A tree with modules, one of which is no Python, and with the time that every file of an image has."""
    package = tmp_path / "opt/venv/lib/python3.11/site-packages/some"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("NAMES = {'a', 'b', 'c'}\ndef f(x):\n    return x in {'d', 'e', 'f'}\n")
    (package / "template.py").write_text("{{ this is a template }} =\n")
    for path in package.iterdir():
        os.utime(path, (315532800, 315532800))
    return tmp_path


def compile_modules(folder, seed="0"):
    environment = {"PATH": os.environ["PATH"], "PYTHONHASHSEED": seed}
    program = [sys.executable, "-s", "-S", RECIPE / "compile-modules", folder]
    return subprocess.run(program, env=environment, capture_output=True, text=True, check=False)


def bytecode(folder):
    return {path.name: path.read_bytes() for path in folder.rglob("*.pyc")}


def test_bytecode_is_the_same_in_every_folder_and_names_the_place_in_the_image(modules, tmp_path_factory):
    other = tmp_path_factory.mktemp("other") / "deeper"
    shutil.copytree(modules, other)
    first, second = compile_modules(modules), compile_modules(other)
    assert (first.returncode, second.returncode) == (0, 0)
    assert "no bytecode for /opt/venv/lib/python3.11/site-packages/some/template.py: SyntaxError" in first.stderr
    (name, data), *others = bytecode(modules).items()
    assert not others
    assert bytecode(other) == {name: data}
    assert b"/opt/venv/lib/python3.11/site-packages/some/__init__.py" in data
    assert str(tmp_path_factory.getbasetemp()).encode() not in data


def test_bytecode_is_used_until_somebody_edits_the_module(modules):
    compile_modules(modules)
    site = modules / "opt/venv/lib/python3.11/site-packages"

    def bytecode_is_used():
        program = f"import sys; sys.path.insert(0, {str(site)!r}); import some"
        process = subprocess.run(
            [sys.executable, "-B", "-I", "-v", "-c", program], capture_output=True, text=True, check=True
        )
        return re.search(r"# code object from '[^']*some/__pycache__/", process.stderr) is not None

    assert bytecode_is_used()
    (site / "some/__init__.py").write_text("NAMES = 1\n")
    assert not bytecode_is_used()


def test_a_random_order_of_sets_is_refused(modules):
    process = compile_modules(modules, seed="random")
    assert process.returncode != 0
    assert "PYTHONHASHSEED=0 is missing" in process.stderr
    assert not bytecode(modules)
