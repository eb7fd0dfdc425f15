"""The GitHub workflows of this project, rendered from `templates/ci/`.

No workflow lists cells: each run asks `knowngood cells --jobs` for them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from knowngood.core.errors import UsageError

WORKFLOW_NAMES = ("nightly", "pull-request", "refresh", "release")
WORKFLOW_FOLDER = ".github/workflows"

SETUP_COMMANDS = (
    "python3 -m venv .venv",
    ".venv/bin/python -m pip install --quiet --require-hashes --requirement requirements.lock",
    ".venv/bin/python -m pip install --quiet --no-deps --no-build-isolation --editable .",
)
"""The commands that install this program in a checkout, at the versions of requirements.lock and from the runner's
package index. A runner needs nothing for them but Python 3.11 or newer."""


def render_workflows(templates: Path) -> dict[str, str]:
    """Return the text of each workflow, by its file name in `.github/workflows/`."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    # The delimiters differ from Jinja's own, because GitHub uses ${{ }} itself.
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
        autoescape=False,  # noqa: S701  # a workflow is not HTML, and it takes no values from outside
    )
    values = {"actions": read_pinned_actions(templates), "setup": SETUP_COMMANDS}
    return {
        f"{name}.yml": f"# Rendered by `knowngood render` from templates/ci/{name}.yml.j2; do not edit.\n"
        + _normalize_blank_lines(environment.get_template(f"{name}.yml.j2").render(values))
        for name in WORKFLOW_NAMES
    }


def read_pinned_actions(templates: Path) -> dict[str, str]:
    """Return what `uses:` has to contain for each action of `actions.yaml`, with its release as a comment.

    Raises:
        UsageError: an action is not pinned by the full hash of a commit.
    """
    import yaml

    path = templates / "ci" / "actions.yaml"
    actions: Mapping[str, Mapping[str, Any]] = yaml.safe_load(path.read_text(encoding="utf-8"))
    for name, action in actions.items():
        if not re.fullmatch(r"[0-9a-f]{40}", str(action["commit"])):
            raise UsageError(
                f"{path}: {name} is pinned by {action['commit']!r}, which is not the full hash of a commit"
            )
    return {name: f"{action['uses']}@{action['commit']} # {action['tag']}" for name, action in actions.items()}


def _normalize_blank_lines(text: str) -> str:
    """Leave one blank line between jobs and sections, none within a job and none at the end."""
    text = re.sub(r"\n{2,}(?=    )", "\n", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"
