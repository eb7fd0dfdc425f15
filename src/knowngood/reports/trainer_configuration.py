"""The parts of a trainer's checks that say how it was configured, cut out of their sources for its page. Pure.

Nothing is typed again: a page shows the functions by which the checks made the options that were seen training.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from knowngood.core.package_names import canonical_name

_NAMES = frozenset({"config", "options", "adapters", "trainer", "command", "four_bits"})
"""What the functions that make a configuration are called, without a leading underscore."""
_PACKAGE = "smoke_tests.trainers"


@dataclass(frozen=True, kw_only=True)
class ConfigurationPart:
    """Functions of one module of the checks."""

    file: str
    """The module's name in `trainer_tests/`."""
    text: str
    """The functions, as they stand in it."""


def find_configuration(trainer: str, sources: Mapping[str, str]) -> list[ConfigurationPart]:
    """Return how a trainer's checks configure it: from its own modules, then from those that they import.

    Args:
        trainer: the package of the trainer, such as `ms-swift`.
        sources: the text of each module in `trainer_tests/`, by its file name.
    """
    prefix = canonical_name(trainer).replace("-", "_") + "_"
    own = [name for name in sources if name.startswith(prefix)]
    imported = [name for file in own for name in _imported_modules(sources[file]) if name in sources]
    parts = (ConfigurationPart(file=name, text=_cut_out(sources[name])) for name in dict.fromkeys((*own, *imported)))
    return [part for part in parts if part.text]


def _imported_modules(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module == _PACKAGE:
            yield from (f"{alias.name}.py" for alias in node.names)


def _cut_out(text: str) -> str:
    lines = text.splitlines()
    functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    wanted = [node for node in functions if node.name.lstrip("_") in _NAMES]
    return "\n\n\n".join("\n".join(lines[node.lineno - 1 : node.end_lineno]) for node in wanted)
