"""A place for reproductions: virtual environments on this machine, made by uv."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from knowngood import paths, smoke
from knowngood.errors import KnowngoodError
from knowngood.locks import resolve
from knowngood.reproducing.observation import Observation
from knowngood.reproducing.reproduce import CannotTryError, Job, Say
from knowngood.reproducing.run import SECONDS, mode, observed, variables


class Venv:
    """Environments in a folder of the cache; those of the same pins are one."""

    where = "venv"

    def __init__(self, *, locked_at: str, keep: bool) -> None:
        self._locked_at = locked_at
        self._keep = keep

    def node(self) -> Mapping[str, Any]:
        """The fingerprint of this machine."""
        return smoke.fingerprint(platform.node(), {"kernel": platform.release(), "cpus": os.cpu_count()})

    def gpus(self) -> int:
        """NVIDIA's devices."""
        return sum(1 for path in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name))

    def observe(self, job: Job, say: Say) -> Observation:
        """The program's run, in an environment of the job's pins."""
        if job.base_without:
            raise CannotTryError(f"it wants a system without {', '.join(job.base_without)}; --in image")
        python = find_python(job.case.definition.python)
        with self._environment(python, job, say) as environment, tempfile.TemporaryDirectory() as name:
            say("running the program")
            return run(environment, Path(name), job)

    @contextlib.contextmanager
    def _environment(self, python: Path, job: Job, say: Say) -> Iterator[Path]:
        shape = [str(python), self._locked_at, sorted(job.requirements), sorted(job.excludes)]
        key = hashlib.sha256(json.dumps(shape).encode()).hexdigest()[:16]
        folder = paths.cache_dir() / "reproduce" / key
        with paths.locked(folder.parent / "locks" / key):
            if not (folder / "complete").exists():
                make(folder / "venv", python, job, self._locked_at, say)
                (folder / "complete").touch()
            yield folder / "venv"
            if self._keep:
                say(f"kept {folder / 'venv'}")
            else:
                shutil.rmtree(folder, ignore_errors=True)


def find_python(wanted: Sequence[str]) -> Path:
    """An interpreter of the first of these releases that this machine has; `CannotTryError` when it has none."""
    roots = [Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"]
    roots.append(Path(os.environ.get("UV_PYTHON_INSTALL_DIR", Path.home() / ".local/share/uv/python")))
    for version in wanted:
        if version == ".".join(map(str, sys.version_info[:2])):
            return Path(sys.base_prefix) / "bin" / f"python{version}"
        found = [Path(folder) / f"python{version}" for folder in os.get_exec_path()]
        found += [path for root in roots for path in sorted(root.glob(f"*/bin/python{version}"))]
        for path in found:
            if path.is_file() and _answers(path, version):
                return path
    raise CannotTryError(f"this machine has no Python {' or '.join(wanted)}; --in image brings its own")


def _answers(path: Path, version: str) -> bool:
    """Whether it is that release: a shim of a version manager may be nothing behind its name."""
    asked = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([path, "-c", asked], capture_output=True, text=True, check=False)
    return done.returncode == 0 and done.stdout.strip() == version


def make(venv: Path, python: Path, job: Job, locked_at: str, say: Say) -> None:
    """An environment with everything that the job's pins need, resolved and pinned by hash first."""
    from uv import find_uv_bin

    shutil.rmtree(venv, ignore_errors=True)
    release = re.sub(r".*python", "", python.name)
    _uv([find_uv_bin(), "venv", "--quiet", "--no-config", "--no-python-downloads", "--python", str(python), str(venv)])
    if not job.requirements:
        return
    say(f"resolving {', '.join(job.requirements)}")
    request = resolve.Request(
        requirements=job.requirements,
        excludes=job.excludes,
        python=release,
        glibc=platform.libc_ver()[1],
        locked_at=locked_at,
    )
    pinned = resolve.resolve(request)
    lock = venv / "requirements.txt"
    lock.write_text("".join(f"{item.name}=={item.version} --hash=sha256:{item.sha256}\n" for item in pinned))
    say(f"installing {len(pinned)} wheels")
    argv = [find_uv_bin(), "pip", "install", "--quiet", "--no-config", "--no-deps", "--require-hashes"]
    _uv([*argv, "--only-binary", ":all:", "--python", str(venv / "bin/python"), "--requirements", str(lock)])


def _uv(argv: Sequence[str]) -> None:
    done = subprocess.run(argv, env=resolve.environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise resolve.failure(done.stderr, [])


def run(venv: Path, folder: Path, job: Job) -> Observation:
    """Run the job's program with the environment's Python, in a folder with its files."""
    environment = {"PATH": f"{venv / 'bin'}:/usr/local/bin:/usr/bin:/bin", **variables(job, str(folder))}
    return execute(venv / "bin/python", folder, job, environment, {str(venv): "venv", sys.base_prefix: "python"})


def execute(
    python: Path, folder: Path, job: Job, environment: Mapping[str, str], places: Mapping[str, str]
) -> Observation:
    """Run the job's program in a folder, with its files laid there; `places` are folders and what they are called."""
    for name, content in job.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(mode(content))
    (folder / "tmp").mkdir()
    try:
        done = subprocess.run(
            [python, *job.command],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise KnowngoodError(f"{job.case.name}, {job.side}: the program did not end within {SECONDS} s") from None
    report = folder / "report.json"
    return observed(
        done.returncode,
        done.stdout.decode(errors="replace"),
        json.loads(report.read_text()) if report.exists() else {},
        places={**places, str(folder.resolve()): ".", str(folder): "."},
    )
