"""What an assertion demands that a line of code quotes: a kind of value, or a value of a configuration. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from knowngood.compat.incident import Fix
from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.failures.logs.logged_errors import CodeFrame
from knowngood.failures.names.message_causes import shorten_text
from knowngood.failures.names.name_situation import advise

_KIND = lazy_pattern(r"^assert isinstance\((?P<what>[A-Za-z_][\w.]*), ?(?P<kinds>[\w.]+|\([\w., ]+\))\)")
_EQUAL = lazy_pattern(r"^assert (?P<what>[A-Za-z_][\w.]*) == (?P<value>['\"][^'\"]{1,80}['\"]|[\w.]+)(?:,|$)")
_CONFIGURATION = lazy_pattern(r"(?:^|[._])(?:config|cfg)(?:[._]|$)")
_SHOWN = 120


@dataclass(frozen=True, kw_only=True)
class AssertedCondition:
    """What an assertion demands, in words."""

    title: str
    because: str
    """A sentence, to stand behind the line of code."""
    fixes: tuple[Fix, ...]


def read_assertion(frame: CodeFrame, caller: CodeFrame | None) -> AssertedCondition | None:
    """Return what the assertion of a frame demands; `None` for another line, or one that says nothing of it.

    Args:
        frame: the frame whose line asserts.
        caller: the frame above it.
    """
    if (kind := _KIND.match(frame.code)) is not None:
        what, kinds = kind["what"], kind["kinds"]
        call = f" The call is {shorten_text(caller.code, _SHOWN)}." if caller is not None and caller.code else ""
        return AssertedCondition(
            title=f"{frame.short_file} takes only {kinds} for {what}, and was given another kind of value",
            because=f"What calls it hands over another kind of value for {what}.{call}",
            fixes=(
                advise(f"Give {what} as {kinds} in the call above it" + _hint_of_kind(kinds)),
                advise(f"The release of what {frame.short_file} belongs to that takes it, mostly a newer one"),
            ),
        )
    equal = _EQUAL.match(frame.code)
    if equal is None or not _CONFIGURATION.search(equal["what"]):
        return None
    what, value = equal["what"], equal["value"]
    return AssertedCondition(
        title=f"{frame.short_file} demands that {what} is {value}",
        because=(
            f"The configuration that is loaded has another value for it, or lost {what.rpartition('.')[2]} when the "
            "model was saved again."
        ),
        fixes=(
            advise(f"Compare {what} in config.json with that of the original model, and write {value} back"),
            advise("The release of transformers for which the model's code was written, when it saves the field"),
        ),
    )


def _hint_of_kind(kinds: str) -> str:
    return ": a name or a path in place of an object that is loaded already" if kinds == "str" else ""
