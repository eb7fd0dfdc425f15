"""The nox sessions of the project, for newcomers, maintainers and CI. `nox -l` lists them.

Every session installs the environment locked in `requirements.lock`, so all machines run the same versions.
"""

from __future__ import annotations

import os
from pathlib import Path

import nox

nox.needs_version = ">=2025.2"
nox.options.default_venv_backend = "uv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["lint", "tests"]

LOCK = "requirements.lock"
TRAINING = ("torch==2.11.0", "transformers==5.17.0", "accelerate==1.15.0", "numpy")
DEEPSPEED = "deepspeed==0.19.8"
"""What `parallel` trains with: about 6 GB, and DeepSpeed is a source archive that wants torch when it is built."""

BUDGETS = {"knowngood": 24_000, "knowngood-facts": 15_000, "knowngood-diagnose": 13_000, "knowngood-pages": 1_000}
"""Distribution -> the lines that it may have, each standing on those before it. Going over one takes a decision record
that says what it buys."""


def install(session: nox.Session, folder: str = ".") -> None:
    """Install the locked environment, with this checkout or one of its distributions in editable mode."""
    session.run_install("uv", "pip", "sync", "--quiet", "--require-hashes", LOCK, external=True)
    session.run_install(
        "uv", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--editable", folder, external=True
    )


@nox.session(name="build-matrix")
def build_matrix(session: nox.Session) -> None:
    """Lock, render, build and smoke-test the selected cells (default: the alias default)."""
    install(session)
    session.run("knowngood", "build-matrix", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Run the unit tests on all cores, in a new order each time; they need no Docker and no network.

    The order's seed is printed first; `-- --randomly-seed=N` repeats it. `-- --since COMMIT` leaves out those of
    distributions below all that changed since.
    """
    words, folders = list(session.posargs), []
    if words[:1] == ["--since"]:
        commit, *words = words[1:] or session.error("--since takes a commit")
        folders = changed_tests(session, commit)
        if not folders:
            session.skip(f"nothing changed since {commit}")
    install(session)
    session.run("pytest", "-n", "auto", "--dist", "worksteal", *words, *folders)
    if folders and (product := "packages/knowngood/tests/unit") not in folders:
        session.run("pytest", "-n", "auto", "-m", "whole", product, *words)


def changed_tests(session: nox.Session, commit: str) -> list[str]:
    """Return the folders of the tests that changes since a commit can fail: all of them for a file of no distribution.

    A page of docs or a run of evidence is read by tests of the product, so it is a change of the product; `check`
    reads the incidents of the distribution above it.
    """
    diff = session.run("git", "diff", "--name-only", "-z", commit, external=True, silent=True) or ""
    parts = [Path(path).parts for path in diff.split("\0")[:-1]]
    names = list(BUDGETS)
    owners = [part[1] if part[0] == "packages" and part[1] in names else "knowngood" for part in parts]
    owners += ["knowngood-facts" for part in parts if "incidents" in part]
    first = min(map(names.index, owners), default=len(names))
    return [f"packages/{name}/tests/unit" for name in names[first:]]


@nox.session
def product(session: nox.Session) -> None:
    """Install `packages/knowngood` alone and run its own unit tests, but those marked `whole`."""
    install(session, "packages/knowngood")
    session.run("pytest", "-n", "auto", "-m", "not whole", "packages/knowngood/tests/unit", *session.posargs)


@nox.session
def integration(session: nox.Session) -> None:
    """Run the tests against a real engine, a real registry and the real index."""
    install(session)
    session.run(
        *("pytest", "-p", "no:randomly", "-m", "integration", "-n", "2", "--dist", "loadfile", "--durations=20"),
        *("packages/knowngood/tests/integration", *session.posargs),
    )


@nox.session
def lint(session: nox.Session) -> None:
    """Run ruff, mypy --strict and the import rules; check rendered files, sizes and workflows."""
    install(session)
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("mypy")
    session.run("lint-imports", "--no-cache")
    session.run("knowngood", "render", "--check")
    session.run("knowngood", "cells", "--size")
    session.run("zizmor", "--offline", "--quiet", ".github")
    workflows = [str(path) for path in sorted(Path(".github/workflows").glob("*.yml"))]
    session.run("check-jsonschema", "--builtin-schema", "vendor.github-workflows", *workflows)
    for name, budget in BUDGETS.items():
        paths = Path("packages", name, "src").rglob("*.py")
        lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)
        session.log(f"{name}: {lines:,} lines of a budget of {budget:,}")


@nox.session
def render(session: nox.Session) -> None:
    """Write docker/ from matrix.yaml."""
    install(session)
    session.run("knowngood", "lock", *session.posargs)
    session.run("knowngood", "render")


@nox.session
def site(session: nox.Session) -> None:
    """Write the site, where people find their image, into public/."""
    install(session)
    session.run("knowngood", "site", "-o", "public", *session.posargs)


@nox.session
def smoke(session: nox.Session) -> None:
    """Run the smoke suite in the images of the selected cells."""
    install(session)
    session.run("knowngood", "smoke", *session.posargs)


@nox.session
def parallel(session: nox.Session) -> None:
    """Check training over two processes on the CPU; `-- --only GLOB` narrows. It installs torch and DeepSpeed."""
    session.install(*TRAINING, "setuptools", "wheel", "ninja", "py-cpuinfo", "psutil", "packaging")
    session.install("--no-build-isolation", DEEPSPEED, env={"DS_BUILD_OPS": "0", "DS_ACCELERATOR": "cpu"})
    words = ("--processes", "2", "--backend", "gloo", *session.posargs)
    session.run("python", "-m", "parallel_tests", *words, env={"PYTHONPATH": "smoke_tests"})


@nox.session
def fuzz(session: nox.Session) -> None:
    """Damage data files, answers of registries and logs for a minute; `-- --seconds N --seed N` sets how."""
    install(session)
    session.run("python", "packages/knowngood/tests/fuzz", *session.posargs)


@nox.session
def nightly(session: nox.Session) -> None:
    """Check that the cells are still good; `-- SELECT --budget MINUTES` checks fewer of them. Fuzz for a minute."""
    session.notify("fuzz", [])
    install(session)
    session.run("knowngood", "nightly", *session.posargs)


@nox.session(name="lock-tools", venv_backend="none")
def lock_tools(session: nox.Session) -> None:
    """Write requirements.lock from pyproject.toml: this project's own tools, with hashes, for Python 3.11 and newer."""
    command = ["uv", "pip", "compile", "--quiet", "--universal", "--python-version", "3.11", "--generate-hashes"]
    command += ["--no-emit-index-url", "--no-annotate", "--group", "dev", "pyproject.toml", "-o", LOCK]
    session.run(
        *command, *session.posargs, external=True, env={**os.environ, "UV_CUSTOM_COMPILE_COMMAND": "nox -s lock-tools"}
    )
