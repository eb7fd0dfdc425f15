"""A package that a project's own file asks for in its own words, and that is not installed. Pure."""

from __future__ import annotations

import re

from knowngood.compat.incident import Fix, IncidentKind
from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.failures.logs.last_errors import LastError
from knowngood.failures.names.atlas_shelf import AtlasShelf
from knowngood.failures.names.message_causes import MessageCause, describe_traceback, find_missing_package, shorten_text

_ABSENT = lazy_pattern(
    r"^(?:no|missing) (?P<only>[A-Za-z][\w.-]+)(?= ?(?:[/!.,]|$| (?:package|module|library|found|installed)))"
    r"|(?P<before>[A-Za-z][\w-]+) (?:(?:package|module|library) )?(?:is|was|are) (?:not (?:installed|found|available)"
    r"|missing|required)"
    r"|install (?P<linked>[A-Za-z][\w-]+)(?= (?:from http|to use|by running|using pip))"
    r"|(?:install|pip install|requires?|needs?|import) (?:the )?[`'\"]?(?P<named>[A-Za-z][\w-]+)[`'\"]?"
    r"|(?P<short>[A-Za-z][\w-]+) not (?:installed|found|available)",
    re.IGNORECASE,
)
_IMPORTS = frozenset(("ImportError", "ModuleNotFoundError"))
_PLAIN = frozenset(("the", "a", "it", "this", "that", "package", "packages", "library", "module", "them", "or", "and"))
_SHOWN = 140


def explain_required_package(error: LastError, name: str, text: str, shelf: AtlasShelf) -> MessageCause | None:
    """Return the package that the message says is not there; `None` where it names none that is known.

    Args:
        error: the last error of the log.
        name: its class.
        text: its message, without the class.
        shelf: the atlas of all packages.
    """
    package = find_missing_package(text, "", "", shelf) if name in _IMPORTS else ""
    for stated in _ABSENT.finditer(text):
        word = next(filter(None, stated.groups())).lower().rstrip(".")
        known = _find_package(word, shelf)
        is_named = name in _IMPORTS and (stated["only"] or stated["linked"]) and word not in _PLAIN
        if not package and (known or is_named):
            package = known or word.replace("_", "-")
    if not package:
        return None
    frame = error.frames[-1]
    file = frame.short_file
    incident = describe_traceback(
        f"package-required:{package}",
        IncidentKind.NOT_INSTALLED,
        package,
        title=f"{package} is not installed, or cannot be imported: {shorten_text(text, _SHOWN)}",
        because=(
            f"Line {frame.line} of {file} raises this where its import of {package} failed. It is needed for an option "
            "that was chosen (an optimizer, a precision, a kind of attention), and it is not in the "
            "environment that runs, "
            "or its import fails there."
        ),
        fixes=(
            Fix(
                change={package: "*"},
                note=f"install it into the very environment that runs: python -m pip install {package}",
            ),
            Fix(
                change={},
                note=(
                    f"python -c 'import {package.replace('-', '_')}' shows whether it is there, and why "
                    "its import fails"
                ),
            ),
            Fix(change={}, note=f"Choose what needs no {package}: another value of the option"),
        ),
    )
    return MessageCause(incident=incident, line=error.line, package=package)


def _find_package(word: str, shelf: AtlasShelf) -> str:
    """The known package of that name; empty for a word that is none, and for what every training has."""
    plain = word.replace("_", "-")
    if word in _PLAIN or plain in {"torch", "python", "cuda"}:
        return ""
    return shelf.distribution_of(plain.replace("-", "_")) or (
        plain if plain in shelf.distributions or plain in shelf.packages else ""
    )
