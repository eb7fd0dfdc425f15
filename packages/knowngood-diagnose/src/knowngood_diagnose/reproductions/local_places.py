"""Places for reproductions on this machine: virtual environments made by uv, unpacked files, what is there already."""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement
from packaging.utils import parse_wheel_filename
from packaging.version import Version

from knowngood.core import local_files
from knowngood.core.child_processes import end_with_parent
from knowngood.core.errors import KnowngoodError, MissingError
from knowngood.index.artefact import PublishedFile, UnreadableError
from knowngood.index.local_pythons import find_python
from knowngood.index.package_index import SimpleIndex
from knowngood.index.releases import open_artefact
from knowngood.index.wheel_contents import installed_path
from knowngood.lock import resolver
from knowngood.lock.resolver import supported_tags
from knowngood.smoke import suite_run
from knowngood_diagnose.reproductions.reproduction import (
    PROGRAM_SECONDS,
    CannotTryError,
    Observation,
    SideJob,
    file_mode,
    observation_from_report,
    pinned_version,
    program_variables,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from knowngood.core.notify import Notify

_COUNT_GPUS = "import json, torch; print(json.dumps(torch.cuda.device_count()))"


class VirtualEnvironments:
    """Virtual environments in the cache folder; sides with equal pins share one."""

    where = "venv"

    def __init__(self, *, locked_at: str) -> None:
        self._locked_at = locked_at

    def node(self) -> Mapping[str, Any]:
        """Return the fingerprint of this machine."""
        return _machine_fingerprint()

    def gpus(self) -> int:
        """Return the number of NVIDIA devices in /dev."""
        return sum(1 for path in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name))

    def observe(self, job: SideJob, notify: Notify) -> Observation:
        """Run the program in an environment with the pins of the job; raises `CannotTryError`."""
        _refuse_another_base(job)
        python = _find_python(job.case.definition.python)
        with self._environment(python, job, notify) as venv, tempfile.TemporaryDirectory() as folder:
            notify("running the program")
            environment = {"PATH": f"{venv / 'bin'}:/usr/local/bin:/usr/bin:/bin", **program_variables(job, folder)}
            places = {str(venv): "venv", sys.base_prefix: "python"}
            return run_program(venv / "bin/python", Path(folder), job, environment, places)

    @contextlib.contextmanager
    def _environment(self, python: Path, job: SideJob, notify: Notify) -> Iterator[Path]:
        shape = [str(python), self._locked_at, sorted(job.side.requirements), sorted(job.side.excludes)]
        key = hashlib.sha256(json.dumps(shape).encode()).hexdigest()[:16]
        folder = local_files.cache_folder() / "reproduce" / key
        with local_files.lock_folder(folder.parent / "locks" / key):
            if not (folder / "complete").exists():
                create_environment(folder / "venv", python, job, self._locked_at, notify)
                (folder / "complete").touch()
            yield folder / "venv"
            shutil.rmtree(folder, ignore_errors=True)


class CurrentEnvironment:
    """The environment in which knowngood runs; a side is not run when its pins are not installed there."""

    where = "here"

    def node(self) -> Mapping[str, Any]:
        """Return the fingerprint of this machine."""
        return _machine_fingerprint()

    def gpus(self) -> int:
        """Return the number of GPUs that this environment's torch sees; 0 without a torch."""
        return self._gpus

    @functools.cached_property
    def _gpus(self) -> int:
        done = subprocess.run(
            [sys.executable, "-c", _COUNT_GPUS],
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=end_with_parent(),
        )
        return int(json.loads(done.stdout)) if done.returncode == 0 else 0

    def observe(self, job: SideJob, notify: Notify) -> Observation:
        """Run the program, when everything that the job asks for is installed; raises `CannotTryError`."""
        _refuse_another_base(job)
        if unmet := unmet_requirements(job.side.requirements, job.side.excludes):
            raise CannotTryError(f"this environment does not have what the side asks for: {'; '.join(unmet)}")
        notify("running the program")
        own_path = os.environ.get("PYTHONPATH", "")
        folders = [*own_path.split(os.pathsep), sys.prefix, sys.base_prefix]
        with tempfile.TemporaryDirectory() as name:
            variables = program_variables(job, name)
            path = os.pathsep.join(filter(None, [variables["PYTHONPATH"], own_path]))
            environment = {**os.environ, **variables, "PYTHONPATH": path}
            places = {folder: "environment" for folder in folders if folder}
            run = run_program(Path(sys.executable), Path(name), job, environment, places)
        # An unpacked release hides the installed one of that name, so its version is the one that ran.
        unpacked = {pin.name: pinned_version(pin) for pin in map(Requirement, job.side.sources)}
        return replace(run, packages={**run.packages, **unpacked})


def _machine_fingerprint() -> Mapping[str, Any]:
    return suite_run.machine_fingerprint(platform.node(), {"kernel": platform.release(), "cpus": os.cpu_count()})


def _refuse_another_base(job: SideJob) -> None:
    if job.side.base_without:
        raise CannotTryError(f"it needs a system without {', '.join(job.side.base_without)}; --in image makes one")


def unmet_requirements(requirements: Sequence[str], excludes: Sequence[str]) -> list[str]:
    """Return a few words about each requirement that is not installed here, and each exclusion that is."""
    unmet = [f"{name} is installed" for name in excludes if _installed_version(name) is not None]
    for pin in map(Requirement, requirements):
        version = _installed_version(pin.name)
        if (pin.marker is None or pin.marker.evaluate()) and (
            version is None or not pin.specifier.contains(version, prereleases=True)
        ):
            unmet.append(f"{pin.name} is {version or 'not installed'}, not {pin.specifier}")
    return unmet


def _installed_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def create_environment(venv: Path, python: Path, job: SideJob, locked_at: str, notify: Notify) -> None:
    """Create an environment with the job's pins and what they require, resolved first and installed by hash."""
    from uv import find_uv_bin  # not at the top: --in here works on machines without uv

    shutil.rmtree(venv, ignore_errors=True)
    release = re.sub(r".*python", "", python.name)
    _uv([find_uv_bin(), "venv", "--quiet", "--no-config", "--no-python-downloads", "--python", str(python), str(venv)])
    if not job.side.requirements:
        return
    notify(f"resolving {', '.join(job.side.requirements)}")
    request = resolver.ResolverRequest(
        requirements=job.side.requirements,
        excludes=job.side.excludes,
        python=release,
        glibc=platform.libc_ver()[1],
        locked_at=locked_at,
    )
    pinned = resolver.resolve_distributions(request)
    lock = venv / "requirements.txt"
    lock.write_text("".join(f"{item.name}=={item.version} --hash=sha256:{item.sha256}\n" for item in pinned))
    notify(f"installing {len(pinned)} wheels")
    argv = [find_uv_bin(), "pip", "install", "--quiet", "--no-config", "--no-deps", "--require-hashes"]
    _uv([*argv, "--only-binary", ":all:", "--python", str(venv / "bin/python"), "--requirements", str(lock)])


def _uv(argv: Sequence[str]) -> None:
    done = subprocess.run(
        argv, env=resolver.uv_environment(), capture_output=True, text=True, check=False, preexec_fn=end_with_parent()
    )
    if done.returncode:
        raise resolver.resolver_error(done.stderr, [])


def run_program(
    python: Path, folder: Path, job: SideJob, environment: Mapping[str, str], places: Mapping[str, str]
) -> Observation:
    """Write the job's files into `folder` and run its program there.

    `places` maps folders of this machine to the names that stand for them in the observation. Raises `KnowngoodError`
    for a program that does not end in time.
    """
    for name, content in job.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(file_mode(content))
    (folder / "tmp").mkdir()
    try:
        done = subprocess.run(
            [python, *job.command],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PROGRAM_SECONDS,
            check=False,
            preexec_fn=end_with_parent(),
        )
    except subprocess.TimeoutExpired:
        raise KnowngoodError(
            f"{job.case.name}, {job.name}: the program did not end within {PROGRAM_SECONDS} s"
        ) from None
    report = folder / "report.json"
    return observation_from_report(
        done.returncode,
        done.stdout.decode(errors="replace"),
        json.loads(report.read_text()) if report.exists() else {},
        places={**places, str(folder.resolve()): ".", str(folder): "."},
    )


_METADATA = ("*.egg-info/PKG-INFO", "*.dist-info/METADATA")


def unpack_release(pin: str, globs: Sequence[str], python: str) -> Mapping[str, bytes]:
    """Return the files of a published release that match the globs, and its metadata, which holds its version.

    `pin` is `NAME==VERSION`; of several wheels the one for the Python release `python` is read. Raises
    `CannotTryError` for a release or a file that the index does not have.
    """
    requirement = Requirement(pin)
    version = Version(pinned_version(requirement))
    index = SimpleIndex()
    try:
        files = [file for file in index.files(requirement.name) if file.version == version]
        if not files:
            raise CannotTryError(f"the registry has no {pin}")
        artefact = open_artefact(_choose_file(files, python) or files[0], index)
        try:
            members = {installed_path(name): name for name in artefact.members}
            matches = [name for name in members if any(fnmatch.fnmatch(name, glob) for glob in globs)]
            if not matches:
                raise CannotTryError(f"{artefact.file.name} has no file {' or '.join(globs)}")
            metadata = [name for name in members if any(fnmatch.fnmatch(name, glob) for glob in _METADATA)]
            return {name: artefact.read(members[name]) for name in [*matches, *metadata]}
        finally:
            artefact.close()
    except UnreadableError as error:
        raise CannotTryError(f"{pin} cannot be read: {error}") from None


def _choose_file(files: Sequence[PublishedFile], python: str) -> PublishedFile | None:
    """Return the wheel that an installer would choose for that Python, else the sdist, else `None`."""
    order = {tag: rank for rank, tag in enumerate(supported_tags(python, "2.36"))}
    ranks = {
        file: min(order[tag] for tag in tags)
        for file in files
        if file.is_wheel and (tags := parse_wheel_filename(file.name)[3] & order.keys())
    }
    return min(ranks, key=lambda file: ranks[file]) if ranks else next((f for f in files if not f.is_wheel), None)


def _find_python(wanted: Sequence[str]) -> Path:
    """Return an interpreter of the first of these releases; raises `CannotTryError` where there is none."""
    try:
        return find_python(wanted)
    except MissingError as error:
        raise CannotTryError(f"{error}; --in image brings its own") from None
