"""repack.py and wheel_index.py: an installed package becomes a wheel with the same files."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import zipfile

import pytest
from uv import find_uv_bin

from knowngood.core import local_files

ROOT = local_files.data_folder()
WHEEL = "Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: cp312-cp312-{one}\nTag: cp312-cp312-{other}\n"


def load_script(name):
    spec = importlib.util.spec_from_file_location(name.rpartition("/")[2], ROOT / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


repack, wheel_index = (
    load_script("packages/knowngood/scripts/repack"),
    load_script("packages/knowngood/benchmarks/wheel_index"),
)


@pytest.fixture
def wheel(tmp_path):
    """The wheel of a package that is compiled for another Python, with a script, bytecode and an installer's files."""
    site = tmp_path / "lib/python3.12/site-packages"
    files = {
        "some_thing/__init__.py": "one = 1\n",
        "some_thing/bin/tool": "#!/bin/sh\n",
        "some_thing/__pycache__/__init__.pyc": "",
        "../../../bin/some-thing": "#!python\n",
        "some_thing-2.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: some-thing\nVersion: 2.0\n",
        "some_thing-2.0.dist-info/WHEEL": WHEEL.format(one="manylinux_2_17_x86_64", other="manylinux2014_x86_64"),
        "some_thing-2.0.dist-info/INSTALLER": "uv",
    }
    for place, text in files.items():
        path = site / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (site / "some_thing/bin/tool").chmod(0o755)
    record = site / "some_thing-2.0.dist-info/RECORD"
    record.write_text("".join(f"{place},,\n" for place in [*files, "some_thing-2.0.dist-info/RECORD", "gone.py"]))
    repack.main([str(site), str(tmp_path / "wheels"), "Some.Thing", "--python", f"cp3{sys.version_info.minor}"])
    (path,) = (tmp_path / "wheels").iterdir()
    return path


def test_the_wheel_has_only_the_packages_files_and_the_tag_of_the_other_python(wheel):
    python = f"cp3{sys.version_info.minor}"
    assert wheel.name == f"some_thing-2.0-{python}-{python}-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"
    with zipfile.ZipFile(wheel) as archive:
        assert archive.namelist() == [
            "some_thing/__init__.py",
            "some_thing/bin/tool",
            "some_thing-2.0.dist-info/METADATA",
            "some_thing-2.0.dist-info/WHEEL",
            "some_thing-2.0.dist-info/RECORD",
        ]
        record = archive.read("some_thing-2.0.dist-info/RECORD").decode()
        assert record.count("sha256=") == 4
        assert f"Tag: {python}-{python}-manylinux2014_x86_64" in archive.read(archive.namelist()[3]).decode()


def test_the_wheel_installs_by_its_hash_from_the_index_on_the_loopback(wheel, tmp_path):
    (item,) = wheel_index.read(wheel.parent)
    (tmp_path / "requirements.txt").write_text(f"{item.name}=={item.version} --hash=sha256:{item.sha256}\n")
    argv = [find_uv_bin(), "pip", "install", "--no-config", "--no-cache", "--no-deps", "--require-hashes", "--quiet"]
    argv += ["--python", sys.executable, "--target", str(tmp_path / "out"), "--requirements", "requirements.txt"]
    with wheel_index.served(wheel.parent, [item]) as index:
        env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "UV_DEFAULT_INDEX": index, "NO_PROXY": "127.0.0.1"}
        subprocess.run(argv, check=True, cwd=tmp_path, env=env)
    assert (tmp_path / "out/some_thing/__init__.py").read_text() == "one = 1\n"
    assert os.access(tmp_path / "out/some_thing/bin/tool", os.X_OK)
    assert item.size == wheel.stat().st_size
