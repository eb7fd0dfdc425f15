"""What explains an error of which no known failure is in the log: the explainers, in their order of precedence.

`EXPLAINERS` is the one place where the order stands. The first that has an answer gives it, and each answer is only
likely, since the error's words or its place alone give it. An edge: what they read lies in the facts' files. Imported
only for a log that has such an error, because of the time that the imports take.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from knowngood_diagnose.failures.logs.last_errors import LastError
from knowngood_diagnose.failures.machines.missing_commands import (
    explain_killed_program,
    explain_lost_file,
    explain_missing_command,
)
from knowngood_diagnose.failures.machines.resolver_words import explain_pip_conflict
from knowngood_diagnose.failures.names.atlas_shelf import AtlasShelf, open_shelf
from knowngood_diagnose.failures.names.message_causes import MessageCause, MessageReading, explain_told_command
from knowngood_diagnose.failures.names.name_situation import NameCause
from knowngood_diagnose.failures.reasons.own_errors import (
    explain_inner_error,
    explain_own_error,
    explain_raised_words,
)
from knowngood_diagnose.failures.reasons.version_demands import explain_mismatch, explain_version_demand
from knowngood_facts.facts import message_store
from knowngood_facts.facts.package_metadata import read_wheel_names

_FEWEST_LETTERS = 8


@dataclass(frozen=True, kw_only=True)
class ErrorReading:
    """The last error of a log, and all that an explainer may ask about it."""

    error: LastError
    versions: Mapping[str, Sequence[str]]
    """Package -> its versions in the log."""
    causes: Sequence[NameCause]
    """Causes of errors about names that count only when nothing that stands before them explains the error."""
    shelf: AtlasShelf


Explain = Callable[[ErrorReading], MessageCause | NameCause | None]


def _explain_package_words(reading: ErrorReading) -> MessageCause | None:
    """Look the error up among the messages in the sources of packages."""

    def find(text: str, package: str) -> Sequence[message_store.MessageMatch]:
        file = message_store.open_messages(package)
        return list(message_store.find_messages(text, file)) if file else ()

    def find_asserts(code: str, module: str, package: str) -> Sequence[message_store.MessageMatch]:
        file = message_store.open_messages(package)
        return list(message_store.find_bare_asserts(code, module, file)) if file else ()

    packages = message_store.list_message_packages()
    messages = MessageReading(shelf=reading.shelf, packages=packages, find=find, find_asserts=find_asserts)
    return messages.explain_message(reading.error, reading.versions)


def _explain_own_name(reading: ErrorReading) -> NameCause | None:
    """Return what the atlas says of a name that no package is known to have, where it is the last error's."""
    return next((cause for cause in reading.causes if _is_same_line(cause.error.text, reading.error.text)), None)


def _is_same_line(text: str, other: str) -> bool:
    """Whether two lines of a log say the same: one may have the class of the error or a rank before it."""
    short, long = sorted((text.strip(), other.strip()), key=len)
    return short[:100] in long and len(short) > _FEWEST_LETTERS


EXPLAINERS: Sequence[Explain] = (
    # The machine: what a shell, pip or a package's check of releases states.
    lambda reading: explain_missing_command(reading.error, reading.versions, read_wheel_names().commands),
    lambda reading: explain_pip_conflict(reading.error),
    lambda reading: explain_version_demand(reading.error, reading.shelf, reading.versions),
    lambda reading: explain_mismatch(reading.error, reading.shelf),
    lambda reading: explain_lost_file(reading.error, reading.shelf),
    # The words of packages, and of the project itself.
    _explain_package_words,
    lambda reading: explain_raised_words(reading.error, reading.shelf),
    lambda reading: explain_told_command(reading.error),
    lambda reading: explain_own_error(reading.error, reading.shelf),
    lambda reading: explain_killed_program(reading.error),
    # Where it happens, of which nothing else is known.
    _explain_own_name,
    lambda reading: explain_inner_error(reading.error, reading.versions, reading.shelf),
)


def explain_error(
    error: LastError, versions: Mapping[str, Sequence[str]], causes: Sequence[NameCause]
) -> MessageCause | NameCause | None:
    """Return what the first explainer says that has an answer; `None` when none has."""
    reading = ErrorReading(error=error, versions=versions, causes=causes, shelf=open_shelf())
    for explain in EXPLAINERS:
        if (cause := explain(reading)) is not None:
            return cause
    return None
