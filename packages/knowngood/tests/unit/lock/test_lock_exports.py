"""A lock in other tools' forms, read by those tools or their libraries where there are any."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import textwrap
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.pylock import Pylock
from uv import find_uv_bin

from knowngood.cli import main
from knowngood.images import dockerfile as render
from knowngood.lock import lock_exports
from knowngood.lock.debian_lock import DebianPackage, PackagesLock
from samples import FA0, FA2, FA4, ROOT

BASE = PackagesLock(
    suite="bookworm",
    epoch=1,
    requested=("python3", "gcc", "+security"),
    tools=(),
    packages=(DebianPackage(name="python3", version="3.11.2-1", arch="amd64", sha256="2" * 64),),
)


def pins(text):
    return dict(re.findall(r"^([a-z0-9-]+==\S+) --hash=sha256:([0-9a-f]{64})$", text, re.MULTILINE))


def wanted(locked):
    return {f"{item.name}=={item.version}": item.sha256 for item in locked.distributions}


@pytest.mark.parametrize("cell", [FA0, FA2, FA4])
def test_every_form_has_every_pin_with_its_hash(lock_of, cell):
    locked = lock_of(cell)
    assert pins(lock_exports.render_requirements(locked)) == wanted(locked)
    assert pins(lock_exports.render_apptainer_definition(locked, BASE, None)) == wanted(locked)


def test_what_is_on_no_index_is_named(lock_of):
    locked = lock_of(FA2)
    (wheel,) = lock_exports.unpublished_wheels(locked)
    assert wheel.name == "flash-attn"
    assert lock_exports.unpublished_wheels(lock_of(FA0)) == []
    for text in (
        lock_exports.render_requirements(locked),
        lock_exports.render_apptainer_definition(locked, BASE, None),
    ):
        assert wheel.file in text
        assert "--find-links" in text
    assert "--find-links" not in lock_exports.render_requirements(lock_of(FA0))


def test_only_packages_of_the_base_are_installed_by_apt(lock_of):
    """`+security` asks for an archive, and is no package."""
    text = lock_exports.render_apptainer_definition(lock_of(FA0), BASE, None)
    assert "apt-get install --yes --no-install-recommends gcc python3 python3-venv\n" in text


def test_a_wheel_with_any_local_version_counts_as_unpublished(lock_of):
    locked = lock_of(FA0)
    item = dataclasses.replace(locked.distributions[0], version="1.0+local")
    one = dataclasses.replace(locked, layers=(dataclasses.replace(locked.layers[0], distributions=(item,)),))
    assert lock_exports.unpublished_wheels(one) == [item]


def test_pylock_is_valid_and_selects_every_wheel(lock_of):
    locked = lock_of(FA2)
    urls = {
        item.sha256: f"https://index.example/{item.file}" for item in locked.distributions if "+" not in item.version
    }
    read = Pylock.from_dict(tomllib.loads(lock_exports.render_pylock(locked, urls)))
    chosen = {package.name: wheel for package, wheel in read.select(environment={"python_full_version": "3.11.2"})}
    assert {name: wheel.hashes["sha256"] for name, wheel in chosen.items()} == {
        item.name: item.sha256 for item in locked.distributions
    }
    assert chosen["flash-attn"].path == lock_exports.unpublished_wheels(locked)[0].file
    assert chosen["torch"].url == urls[chosen["torch"].hashes["sha256"]]
    assert chosen["torch"].path is None


def test_uv_reads_the_pylock_and_the_requirements(lock_of, tmp_path):
    """No network: what uv would install is a wheel beside the lock."""
    import hashlib
    import zipfile

    locked = lock_of(FA0)
    wheel = tmp_path / "tiny-1.0+local-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("tiny-1.0+local.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0+local\n")
        file.writestr(
            "tiny-1.0+local.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\nRoot-Is-Purelib: true\n"
        )
        file.writestr("tiny-1.0+local.dist-info/RECORD", "")
    item = dataclasses.replace(
        locked.distributions[0],
        name="tiny",
        version="1.0+local",
        file=wheel.name,
        sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        size=wheel.stat().st_size,
    )
    one = dataclasses.replace(locked, layers=(dataclasses.replace(locked.layers[0], distributions=(item,)),))
    (tmp_path / "pylock.toml").write_text(lock_exports.render_pylock(one, {}))
    (tmp_path / "requirements.txt").write_text(lock_exports.render_requirements(one))
    environment = ["--target", str(tmp_path / "into"), "--offline", "--no-config", "--python-version", "3.11"]
    for words in (
        ["sync", "pylock.toml", *environment],
        [
            "install",
            "--no-deps",
            "--require-hashes",
            "--find-links",
            ".",
            "--no-index",
            "-r",
            "requirements.txt",
            *environment,
        ],
    ):
        done = subprocess.run(
            [find_uv_bin(), "pip", *words, "--dry-run"], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "+ tiny==1.0+local" in done.stderr


def test_an_apptainer_definition_of_a_published_image_builds_nothing(lock_of):
    text = lock_exports.render_apptainer_definition(
        lock_of(FA4), BASE, "registry.example/team/cells@sha256:" + "1" * 64
    )
    assert text.startswith("Bootstrap: docker\nFrom: registry.example/team/cells@sha256:")
    assert "%post" not in text
    assert "%files" not in text
    of_compiled = lock_exports.render_apptainer_definition(lock_of(FA2), BASE, "registry.example/team/cells:default")
    assert "%files" not in of_compiled


def test_an_apptainer_definition_moves_every_cache_out_of_an_image_that_is_read_only(lock_of):
    """Seen with Apptainer 1.4.5: what is compiled went to /cache, which is a folder of the image there."""
    locked = lock_of(FA4)
    text = lock_exports.render_apptainer_definition(locked, BASE, "registry.example/team/cells:default")
    script = textwrap.dedent(text.partition("%environment\n")[2].partition("\n%")[0])
    dockerfile = render.render_dockerfile(locked, ROOT / "templates")
    image = dict(re.findall(r"(?:ENV|^)\s+(\w+)=(/cache\S*)", dockerfile, re.MULTILINE))
    assert {"XDG_CACHE_HOME", "TRITON_CACHE_DIR"} <= image.keys()

    def inside(**host: str) -> dict[str, str]:
        made = {**image, **host, "PATH": os.environ["PATH"]}
        done = subprocess.run(["sh", "-euc", f"{script}\nenv"], env=made, capture_output=True, text=True, check=True)
        return dict(line.partition("=")[::2] for line in done.stdout.splitlines())

    assert not Path("/cache").exists()
    assert not [name for name, value in inside().items() if value.startswith("/cache")]
    assert inside(XDG_CACHE_HOME="/scratch/me")["XDG_CACHE_HOME"] == "/scratch/me"


def test_the_command_writes_files_and_refuses_what_makes_no_sense(lock_of, tmp_path, capsys):
    lock_of(FA4)
    out = tmp_path / "devcontainer.json"
    image = "registry.example/team/cells:default"
    assert main.main(["export", FA4, "--format", "devcontainer", "--image", image, "-o", str(out)]) == 0
    assert json.loads(out.read_text())["image"] == image
    capsys.readouterr()
    assert main.main(["export", FA4, "--format", "requirements", "--image", image]) == 2
    assert main.main(["export", "sm90-*", "--format", "requirements"]) == 2
    assert main.main(["export", FA4, "--format", "devcontainer", "--image", "cells"]) == 2
    assert "has no tag" in capsys.readouterr().err
    assert main.main(["export", FA0, "--format", "requirements"]) == 1
    assert "has no lock" in capsys.readouterr().err


def test_a_source_archive_of_a_lock_is_one_in_the_pylock(lock_of):
    locked = lock_of(FA0)
    sdist = dataclasses.replace(locked.distributions[0], name="old", version="1.0", file="old-1.0.tar.gz")
    layer = dataclasses.replace(locked.layers[0], distributions=(sdist,))
    read = tomllib.loads(
        lock_exports.render_pylock(dataclasses.replace(locked, layers=(layer,)), {sdist.sha256: "https://i.example/o"})
    )
    assert read["packages"][0]["sdist"]["url"] == "https://i.example/o"
    assert "wheels" not in read["packages"][0]


def test_a_pylock_has_no_login_of_the_index(lock_of, monkeypatch, tmp_path):
    locked = lock_of(FA4)
    files = {
        item.sha256: SimpleNamespace(url=f"http://bob:TOKEN@index.example/files/{item.file}")
        for item in locked.distributions
    }
    monkeypatch.setattr("knowngood.lock.wheelhouse.locate_wheels", lambda *_: files)
    path = tmp_path / "pylock.toml"
    assert main.main(["export", FA4, "--format", "pylock", "--output", str(path)]) == 0
    assert "TOKEN" not in path.read_text()
    assert f"http://index.example/files/{locked.distributions[0].file}" in path.read_text()
