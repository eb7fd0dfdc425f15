"""Our own workflows, from `templates/ci/`. Nothing in them names a cell: cells are planned at run time. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from knowngood.ci import setup
from knowngood.errors import UsageError

NAMES = ("nightly", "pull-request", "refresh", "release")
FOLDER = ".github/workflows"


def files(templates: Path) -> dict[str, str]:
    """Name in `.github/workflows` to text."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    # GitHub has ${{ }} for itself.
    environment = Environment(
        loader=FileSystemLoader(templates / "ci"),
        undefined=StrictUndefined,
        block_start_string="[%",
        block_end_string="%]",
        variable_start_string="[[",
        variable_end_string="]]",
        comment_start_string="[#",
        comment_end_string="#]",
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701  # a workflow is no HTML, and nothing foreign is put into one
    )
    given = {"actions": actions(templates), "setup": setup.COMMANDS[:-1]}
    rendered = {name: environment.get_template(f"{name}.yml.j2").render(given) for name in NAMES}
    return {f"{name}.yml": _banner(name) + _tidy(text) for name, text in rendered.items()}


def actions(templates: Path) -> dict[str, str]:
    """What `uses:` says for each action of `actions.yaml`, with its release; `UsageError` for one not pinned."""
    import yaml

    path = templates / "ci" / "actions.yaml"
    listed: Mapping[str, Mapping[str, Any]] = yaml.safe_load(path.read_text(encoding="utf-8"))
    found = {}
    for name, action in listed.items():
        if not re.fullmatch(r"[0-9a-f]{40}", str(action["commit"])):
            raise UsageError(f"{path}: {name} is pinned by {action['commit']!r}, which is no commit's whole hash")
        found[name] = f"{action['uses']}@{action['commit']} # {action['tag']}"
    return found


def _banner(name: str) -> str:
    return f"# Rendered by `knowngood render` from templates/ci/{name}.yml.j2; do not edit.\n"


def _tidy(text: str) -> str:
    """Blank lines between jobs and sections, one at a time; none within a job, none at the end."""
    text = re.sub(r"\n{2,}(?=    )", "\n", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"
