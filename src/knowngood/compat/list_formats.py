"""Every kind of file that says which packages somebody has or wants, recognized by its name and by its content. Pure.

Each kind has a module: `requirement_lines` (requirements files and `pip freeze`), `project_file` (pyproject.toml),
`lock_lists` (uv.lock, pylock.toml) and `environment_listing` (conda's environment.yml, `pip list`).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping

from knowngood.compat.requirement_lines import ListOptions, RequirementList, RequirementReader
from knowngood.core.errors import UsageError

_NAMES = (
    (r"pyproject\.toml", "pyproject.toml"),
    (r"uv\.lock", "uv.lock"),
    (r"pylock(\.[^.]+)?\.toml", "pylock.toml"),
    (r"(.*[-_.])?environment([-_.].*)?\.ya?ml|conda\.ya?ml", "environment.yml"),
)
_CONTENTS = (
    (r"^lock-version\s*=.*(?s:.)*^\[\[packages\]\]", "pylock.toml"),
    (r"^content-hash\s*=", "poetry.lock"),
    (r"^revision\s*=\s*\d|^version\s*=\s*1\s*$(?s:.)*^\[\[package\]\]", "uv.lock"),
    (r"^\[(?:project|build-system|dependency-groups|tool\.[\w.-]+)\]\s*(?:#.*)?$", "pyproject.toml"),
    (r"^dependencies:\s*(?:#.*)?$", "environment.yml"),
    (r"\A\s*[\[{]\s*[\[{\"\]]", "pip list --format json"),
    (r"\A\s*Package\s+Version\b.*\n\s*-{3,}", "pip list"),
    (r"\A(?:#.*\n)*#\s+Name\s+Version\s+Build", "conda list"),
)
_REFUSED = {
    "poetry.lock": "`poetry export`, or the pyproject.toml beside it, says the same",
    "Pipfile": "`pipenv requirements` writes what it says as a requirements file",
    "Pipfile.lock": "`pipenv requirements` writes what it says as a requirements file",
    "setup.py": "it is a program; `uv pip compile setup.py` writes what it requires as a requirements file",
    "setup.cfg": "`uv pip compile setup.cfg` writes what it requires as a requirements file",
}
PROJECT_FORMATS = ("pyproject.toml", "uv.lock", "pylock.toml")
"""The kinds that have extras and groups."""


def recognize_format(origin: str, text: str) -> str:
    """Return the kind of a file: the name of one, or `requirements`; its content counts where the name says nothing.

    Raises:
        UsageError: it is of a kind that is not read; the text says what to give instead.
    """
    name = posixpath.basename(origin)
    kind = next((kind for pattern, kind in _NAMES if re.fullmatch(pattern, name)), None)
    if kind is None and name in _REFUSED:
        kind = name
    if kind is None:
        kind = next((kind for pattern, kind in _CONTENTS if re.search(pattern, text, re.MULTILINE)), "requirements")
    if kind in _REFUSED:
        raise UsageError(f"{origin}: {kind} is not read; {_REFUSED[kind]}")
    if kind == "requirements" and name.endswith((".toml", ".yml", ".yaml", ".json")):
        known = "a pyproject.toml, a pylock.toml, a uv.lock, a conda environment.yml or a requirements file"
        raise UsageError(f"{origin}: neither its name nor its content is that of {known}")
    return kind


def parse_requirement_file(text: str, origin: str, options: ListOptions | None = None) -> RequirementList:
    """Parse any file of requirements, and the files that it names.

    Args:
        text: the file's text.
        origin: its path, for messages and to find the other files; `stdin` when it has none.
        options: the Python, the extras and groups that are asked for, and how other files are read.

    Raises:
        UsageError: the file is of a kind that is not read, or has defects; the text names file, line and column.
    """
    text = text.removeprefix("\ufeff")
    reader = RequirementReader(options=options or ListOptions())
    kind = recognize_format(origin, text)
    if kind not in PROJECT_FORMATS and (reader.options.extras or reader.options.groups):
        raise UsageError(f"{origin}: --extra and --group are for {', '.join(PROJECT_FORMATS)}; this is {kind}")
    _readers()[kind](reader, text, origin)
    return reader.finish()


def _readers() -> Mapping[str, Callable[[RequirementReader, str, str], None]]:
    """Kind -> what reads it; imported here, because most questions need none or one of them."""
    from knowngood.compat import environment_listing, lock_lists, project_file

    return {
        "requirements": RequirementReader.read_lines,
        "pyproject.toml": project_file.read_project_file,
        "uv.lock": lock_lists.read_uv_lock,
        "pylock.toml": lock_lists.read_pylock,
        "environment.yml": environment_listing.read_conda_environment,
        "pip list": environment_listing.read_pip_table,
        "conda list": environment_listing.read_conda_table,
        "pip list --format json": environment_listing.read_pip_json,
    }
