"""The program installed from its wheel, in a fresh environment and an empty folder: answers, a run and a build."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import registry_server
import small
from docker.errors import ImageNotFound
from uv import find_uv_bin

from conftest import ROOT
from knowngood.engine import container_engine
from knowngood.evidence import run_evidence

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("engine")]

RELEASE = "4.53.2"  # of no other test: its image stays this one's
STAND_IN = '''\
"""A suite of one test, whose report is as short as one may be."""
import json, pathlib
from smoke_tests.environment import suite_hash

def pytest_addoption(parser):
    for name in ("--report", "--predictions"):
        parser.addoption(name)
    parser.addoption("--quick", action="store_true")

def pytest_sessionfinish(session, exitstatus):
    assert json.loads(pathlib.Path(session.config.getoption("--predictions")).read_text())
    ok = exitstatus == 0
    verdict = {"ok": ok, "domain": "none" if ok else "image", "text": "it ran" if ok else "it failed"}
    report = {"verdict": verdict, "suite_hash": suite_hash(), "checks": [], "environment": {}}
    pathlib.Path(session.config.getoption("--report")).write_text(json.dumps(report))
'''
ENVIRONMENT = """\
import hashlib, pathlib
def suite_hash(folder=pathlib.Path(__file__).parent):
    texts = [path.read_bytes() for path in sorted(folder.glob("*.py"))]
    return hashlib.sha256(b"".join(texts)).hexdigest()
"""


DISTRIBUTIONS = ("knowngood", "knowngood-facts", "knowngood-diagnose", "knowngood-pages")
"""Each needs those before it."""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """Distribution -> its wheel."""
    folder = tmp_path_factory.mktemp("wheels")
    for name in DISTRIBUTIONS:
        build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
        subprocess.run(build, cwd=ROOT / "packages" / name, check=True, capture_output=True)
    return {name: next(folder.glob(f"{name.replace('-', '_')}-[0-9]*.whl")) for name in DISTRIBUTIONS}


def install_wheels(folder: Path, wheels: list[Path]) -> Path:
    """Make an environment with nothing but these wheels and what they require; returns it."""
    subprocess.run([find_uv_bin(), "venv", "--quiet", "--python", sys.executable, folder / "venv"], check=True)
    python = folder / "venv/bin/python"
    subprocess.run([find_uv_bin(), "pip", "install", "--quiet", "--python", python, *wheels], check=True)
    return folder / "venv"


@pytest.fixture(scope="module")
def environment(tmp_path_factory, wheels):
    """The folder of an environment with nothing but the four wheels and what they require."""
    return install_wheels(tmp_path_factory.mktemp("installed"), list(wheels.values()))


@pytest.mark.parametrize(
    ("count", "words", "answer", "other"),
    [
        (1, ["run", "--gpu", "H100", "--print", "--", "python", "-V"], "apptainer exec", ("check", "knowngood-facts")),
        (2, ["check", "--gpu", "V100", "torch==2.11.0"], "broken", ("diagnose", "knowngood-diagnose")),
        (3, ["doctor", "--gpu", "H100"], "GPU", ("site", "knowngood-pages")),
        (4, ["cells", "--long"], "sm90-", ()),
    ],
    ids=DISTRIBUTIONS,
)
def test_each_distribution_works_with_those_below_it_alone(tmp_path, wheels, *, count, words, answer, other):
    environment = install_wheels(tmp_path, list(wheels.values())[:count])
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    variables["XDG_DATA_HOME"] = str(tmp_path / "data")

    def run(*words):
        program = [environment / "bin/knowngood", *words]
        return subprocess.run(program, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)

    result = run(*words)
    assert answer in result.stdout, result.stderr
    assert "Traceback" not in result.stderr
    if other:
        refused = run(other[0])
        assert (refused.returncode, other[1] in refused.stderr) == (2, True), refused.stderr


@pytest.fixture
def knowngood(environment, tmp_path):
    """A function that runs the installed program in an empty folder, and returns the process."""

    def run(*words, text=""):
        variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        variables["XDG_DATA_HOME"] = str(tmp_path / "data")
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
        (["run", "--gpu", "H100", "--print", "--", "python", "-V"], {0}, "apptainer exec"),
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


@pytest.fixture
def published(project, registry_program, tmp_path_factory, engine):
    """A small image in a real registry, proven by a stand-in suite, which is attached to it; and its cell."""
    shutil.rmtree(project.suite)
    project.suite.mkdir()
    files = {
        "conftest.py": STAND_IN,
        "environment.py": ENVIRONMENT,
        "test_it.py": "def test(): pass\n",
        "__init__.py": "",
    }
    for name, text in files.items():
        (project.suite / name).write_text(text)
    layers = {"tools": ["iniconfig", "pluggy", "pygments", "pytest"], "python": ["packaging"]}
    here = small.project(project.root, RELEASE, shared=layers)
    [cell] = here.matrix.cells
    server = registry_server.Server(registry_program, tmp_path_factory.mktemp("registry"))
    server.start()
    repository = f"{server.address}/team/images"
    for words in (["build-matrix", "--record", str(cell)], ["publish", str(cell), "--to", f"http://{repository}"]):
        process = small.command(here, *words)
        out, err = process.communicate(timeout=900)
        assert process.returncode == 0, out + err
    with container_engine.docker_client(engine) as client:
        client.images.remove(f"knowngood:{cell}", force=True)
    digest = here.tree.load_record(cell).manifest.digest
    yield repository, digest, cell
    server.kill()
    with container_engine.docker_client(engine) as client, contextlib.suppress(ImageNotFound):
        client.images.remove(f"{repository}@{digest}", force=True)


def test_the_suite_that_is_attached_to_an_image_runs_without_a_checkout(published, knowngood, environment, tmp_path):
    repository, digest, cell = published
    before = digest_data(environment)
    result = knowngood("smoke", "published", f"http://{repository}@{digest}", "--quick", "--json")
    assert result.returncode == 0, result.stderr
    assert f"{digest}, no record here to compare with, unsigned" in result.stderr
    path = Path(json.loads(result.stdout)["evidence"])
    assert path.is_relative_to(tmp_path / "data/knowngood/evidence" / str(cell))
    run = run_evidence.load_evidence(path)
    assert (run.image, run.ok, run.report["verdict"]["text"]) == (digest, True, "it ran")
    refused = knowngood("smoke", "published", f"http://{repository}@sha256:{'0' * 64}")
    assert (refused.returncode, "there is no" in refused.stderr) == (1, True), refused.stderr
    assert digest_data(environment) == before
