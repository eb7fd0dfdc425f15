"""The program installed from its wheel, in a fresh environment and an empty folder: answers, a run and a build."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from uv import find_uv_bin

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("engine")]


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """The folder of an environment with nothing but the wheel and what it requires."""
    folder = tmp_path_factory.mktemp("installed")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    [wheel] = folder.glob("*.whl")
    subprocess.run([find_uv_bin(), "venv", "--quiet", "--python", sys.executable, folder / "venv"], check=True)
    python = folder / "venv/bin/python"
    subprocess.run([find_uv_bin(), "pip", "install", "--quiet", "--python", python, wheel], check=True)
    return folder / "venv"


@pytest.fixture
def knowngood(environment, tmp_path):
    """A function that runs the installed program in an empty folder, and returns the process."""

    def run(*words, text=""):
        variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        return subprocess.run(
            [environment / "bin/knowngood", *words],
            cwd=tmp_path,
            env=variables,
            input=text,
            capture_output=True,
            text=True,
            timeout=3000,
            check=False,
        )

    return run


def digest_data(environment: Path) -> dict[str, str]:
    """Return the SHA-256 of each data file of the installed program."""
    [folder] = environment.glob("lib/python3*/site-packages/knowngood/_data")
    files = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize(
    ("words", "codes", "answer"),
    [
        (["check", "--gpu", "V100", "torch==2.11.0"], {1}, "broken"),
        (["pick", "--gpu", "H100"], {0}, "sm90-"),
        (["diagnose", "-"], {0}, "cuda-no-kernel-image"),
        (["doctor", "--gpu", "H100"], {0, 1, 3, 4}, "GPU"),
        (["doctor", "--image", "default"], {0, 1, 3}, "sm90-"),
        (["run", "--gpu", "H100", "--print", "--", "python", "x.py"], {0}, "apptainer exec"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_answers_need_no_checkout(knowngood, words, codes, answer):
    result = knowngood(
        *words, text="RuntimeError: CUDA error: no kernel image is available for execution on the device"
    )
    assert result.returncode in codes, result.stderr
    assert answer in result.stdout
    assert "Traceback" not in result.stderr


def test_a_cell_is_built_as_recorded_and_runs_and_no_file_of_the_program_changes(knowngood, environment):
    before = digest_data(environment)
    result = knowngood("build", "default", "--locked", "--json")
    assert result.returncode == 0, result.stderr
    [cell] = json.loads(result.stdout)["cells"]
    record = json.loads((ROOT / "docker/cells" / cell["id"] / "image.json").read_text())
    assert cell["image"]["digest"] == record["manifest"]["digest"]
    words = ["run", "--gpu", "H100", "--with", "humanize==4.13.0", "--", "python", "-c"]
    result = knowngood(*words, "import humanize, torch; print(torch.__version__, humanize.__version__)")
    assert result.returncode == 0, result.stderr
    assert result.stdout.split()[1] == "4.13.0"
    assert digest_data(environment) == before
