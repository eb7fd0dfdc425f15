"""`knowngood run` with the real engine on the CPU: a model trains, and exit codes and signals are the program's."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("engine")]
KNOWNGOOD = [sys.executable, "-m", "knowngood", "run", "--gpu", "H100"]


def run(*words, cwd=ROOT, **variables):
    """Return the finished process and the seconds that it took."""
    start = time.monotonic()
    environment = {**os.environ, **variables}
    result = subprocess.run(
        [*KNOWNGOOD, *words], cwd=cwd, env=environment, capture_output=True, text=True, timeout=3000, check=False
    )
    return result, time.monotonic() - start


def test_the_example_trains_in_the_default_image():
    result, _ = run("--", "python", "docs/examples/train_sft.py", "--steps", "3")
    assert result.returncode == 0, result.stderr
    losses = [float(text) for text in re.findall(r"'loss': '?([\d.]+)", result.stdout)]
    assert len(losses) == 3
    assert losses[0] > losses[1] > losses[2]
    assert "the program runs on the CPU" in result.stderr
    assert "knowngood" not in result.stdout
    _, seconds = run("--", "true")
    print(f"\nsecond call, with a program that does nothing: {seconds:.1f} s")


def test_exit_codes_files_and_variables_are_the_users(tmp_path):
    script = 'echo "$OWN"; echo "$HF_TOKEN" > token; id -u > user; exit 7'
    variables = {"HF_TOKEN": "t", "OWN": "x", "OTHER": "y"}
    result, _ = run("--env", "OWN", "--", "sh", "-c", script, cwd=tmp_path, **variables)
    assert result.stdout == "x\n"
    assert result.returncode == 7
    assert (tmp_path / "token").read_text() == "t\n"
    assert (tmp_path / "user").read_text() == f"{os.getuid()}\n"
    assert (tmp_path / "user").stat().st_uid == os.getuid()
    result, _ = run("--", "no-such-program", cwd=tmp_path)
    assert result.returncode == 127
    result, _ = run("--gpu", "Banana", "--", "true", cwd=tmp_path)
    assert result.returncode == 125


def test_a_signal_reaches_the_program(tmp_path):
    script = "trap 'echo stopped; exit 9' TERM; touch ready; while :; do sleep 0.1; done"
    with subprocess.Popen(
        [*KNOWNGOOD, "--", "sh", "-c", script], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as process:
        deadline = time.monotonic() + 120
        while not (tmp_path / "ready").exists() and time.monotonic() < deadline:
            time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=60)[0] == "stopped\n"
    assert process.returncode == 9


def test_no_container_is_left_when_the_docker_command_is_killed(tmp_path, engine):
    with subprocess.Popen([*KNOWNGOOD, "--", "sh", "-c", "touch ready; sleep 600"], cwd=tmp_path) as process:
        deadline = time.monotonic() + 120
        while not (tmp_path / "ready").exists() and time.monotonic() < deadline:
            time.sleep(0.2)
        process.kill()
    with contextlib.closing(engine.client()) as client:

        def left():
            return [item.name for item in client.containers.list(all=True) if f"run-{process.pid}-" in item.name]

        deadline = time.monotonic() + 30
        while left() and time.monotonic() < deadline:
            time.sleep(0.2)
        assert left() == []


def test_a_package_is_added_and_none_of_the_cells_moves(tmp_path):
    script = "import trl, torch, transformers; print(trl.__version__, torch.__version__, transformers.__version__)"
    result, _ = run("--with", "trl==1.16", "--", "python", "-c", script, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    versions = dict(zip(("trl", "torch", "transformers"), result.stdout.split(), strict=True))
    assert versions["trl"] == "1.16.0"
    cell = re.search(r"torch(?P<torch>[\d.]+)-tf(?P<transformers>[\d.]+)-", result.stderr)
    assert (versions["torch"].partition("+")[0], versions["transformers"]) == (cell["torch"], cell["transformers"])
    refused, _ = run("default", "--with", "sentence-transformers==3.0.0", "--", "true", cwd=tmp_path)
    assert refused.returncode == 125
    assert "depends on transformers" in refused.stderr


def test_an_engine_that_docker_host_names_is_used(engine, tmp_path):
    """With another cache folder, the embedded engine's socket is that of any engine."""
    variables = {"DOCKER_HOST": engine.host, "KNOWNGOOD_CACHE": str(tmp_path / "cache"), "PATH": docker_path(engine)}
    result, _ = run("--", "python", "-c", "import torch; print('ran')", cwd=tmp_path, **variables)
    assert (result.returncode, result.stdout) == (0, "ran\n"), result.stderr
    shown, _ = run("--gpu", "auto", "default", "--print", "--json", "--", "true", cwd=tmp_path, **variables)
    assert f"--host {engine.host} run" in json.loads(shown.stdout)["commands"]["docker"], shown.stderr


def docker_path(engine):
    """Return a PATH with the docker command of the engine."""
    return f"{Path(engine.docker[0]).parent}:{os.environ['PATH']}"
