"""Which modules and commands packages install."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from packaging.version import Version

from knowngood.core.errors import InputError
from knowngood_facts.facts.package_metadata import InstalledNames, WheelNames, parse_wheel_names, render_wheel_names
from knowngood_facts.facts.wheel_names_harvest import list_modules, read_installed_names

NAMES = WheelNames(
    packages={
        "opencv-python": InstalledNames(version="1", modules=("cv2",)),
        "opencv-python-headless": InstalledNames(version="1", modules=("cv2",)),
        "one": InstalledNames(version="2", modules=("shared",), commands=("run",)),
        "two": InstalledNames(version="3", modules=("shared",)),
    }
)


def fake_wheel(members: dict[str, bytes], name: str = "thing-1.0-py3-none-any.whl"):
    file = SimpleNamespace(name=name, is_wheel=name.endswith(".whl"), version=Version("1.0"))
    return SimpleNamespace(file=file, members=dict.fromkeys(members, 1), read=members.__getitem__)


def test_a_file_reads_back_as_it_was_written():
    assert parse_wheel_names(render_wheel_names(NAMES), "names.txt").packages == NAMES.packages


def test_another_file_is_refused():
    with pytest.raises(InputError):
        parse_wheel_names("knowngood/metadata/1 one\n", "names.txt")


def test_a_module_of_two_packages_is_that_of_the_plain_one_or_of_none():
    assert NAMES.modules == {"cv2": "opencv-python"}
    assert NAMES.commands == {"run": "one"}


@pytest.mark.parametrize(
    ("files", "modules"),
    [
        (["PIL/__init__.py", "PIL/Image.py"], ["PIL"]),
        (["google/protobuf/__init__.py", "google/protobuf/internal/__init__.py"], ["google.protobuf"]),
        (["six.py"], ["six"]),
        (["thing_cuda.cpython-311-x86_64-linux-gnu.so"], ["thing_cuda"]),
        (["tests/__init__.py", "thing/__init__.py", "README.md"], ["thing"]),
    ],
)
def test_modules_are_told_by_the_list_of_files(files, modules):
    assert list_modules(files) == modules


def test_commands_are_entry_points_and_scripts():
    names = read_installed_names(
        fake_wheel(
            {
                "thing/__init__.py": b"",
                "thing-1.0.data/scripts/old_way": b"",
                "thing-1.0.dist-info/entry_points.txt": b"[console_scripts]\nThing = thing.cli:main\n",
            }
        )
    )
    assert names == InstalledNames(version="1.0", modules=("thing",), commands=("Thing", "old_way"))


def test_an_sdist_states_its_names_in_its_own_metadata():
    members = {"thing.egg-info/top_level.txt": b"thing\nthing_ops\n", "bin/thing": b"", "setup.py": b""}
    names = read_installed_names(fake_wheel(members, "thing-1.0.tar.gz"))
    assert names == InstalledNames(version="1.0", modules=("thing", "thing_ops"), commands=("thing",))
