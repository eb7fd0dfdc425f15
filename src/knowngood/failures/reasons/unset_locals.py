"""A variable of a function that is used on a path on which no line has set it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.failures.names.atlas_shelf import upgrade_package
from knowngood.failures.names.name_situation import advise

if TYPE_CHECKING:
    from knowngood.compat.incident import Fix
    from knowngood.failures.logs.logged_errors import CodeFrame

_UNSET = lazy_pattern(
    r"(?:cannot access )?(?:local|free) variable '(?P<name>\w+)' "
    r"(?:referenced before assignment|where it is not associated with a value)"
)
_LOOPED = frozenset(
    (
        "batch",
        "batch_idx",
        "data",
        "epoch",
        "i",
        "images",
        "input",
        "inputs",
        "labels",
        "logits",
        "loss",
        "output",
        "outputs",
        "step",
        "target",
        "targets",
    )
)
"""Names that the body of a loop over the data mostly sets."""


@dataclass(frozen=True, kw_only=True)
class UnsetLocal:
    """What is known of a variable that was never set."""

    title: str
    because: str
    fixes: tuple[Fix, ...]


def find_unset_local(text: str, frame: CodeFrame, package: str) -> UnsetLocal | None:
    """Return which variable was not set, and what sets it; `None` for other errors.

    Args:
        text: the message of the error, without its class.
        frame: the code in which it arises.
        package: the package whose code that is; empty for the program's own.
    """
    stated = _UNSET.match(text)
    if stated is None:
        return None
    name, file = stated["name"], "/".join(frame.installed or frame.parts[-2:])
    function = frame.function if frame.function.isidentifier() else "the script"
    because = (
        f"Line {frame.line} of {file}.py uses {name}, which {function} sets in one branch only (an if, a try, a loop): "
        "an option, a kind of model or a file for which that branch is meant was not the case, and no other sets it."
    )
    fixes = [
        advise(
            f"Look in {file}.py above line {frame.line} for where {name} is set, and under which condition: choose the "
            "option that meets it, or set it before (None or a default)"
        )
    ]
    if name in _LOOPED:
        because += f" When it is the body of a loop over the data that sets {name}, the loop had not one turn."
        fixes.append(advise("Print the length of the loader: too few rows for one batch (drop_last), or an empty file"))
    newer = f"a newer {package}, where that branch may be mended" if package else ""
    fixes.append(upgrade_package(package, newer) if package else advise("A newer commit of the project (git pull)"))
    title = f"`{name}` is used and was never set: the branch of {function} that sets it was not taken"
    if name in _LOOPED:
        title = f"`{name}` is used and was never set: the loop or branch of {function} that sets it did not run"
    return UnsetLocal(title=title, because=because, fixes=tuple(fixes))
