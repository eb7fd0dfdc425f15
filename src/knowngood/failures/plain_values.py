"""An attribute that a plain value of Python lacks: what made the value gave another one than meant. Pure."""

from __future__ import annotations

from knowngood.failures.logged_errors import LoggedError
from knowngood.failures.name_callers import NameCaller
from knowngood.failures.name_situation import NameCause, advise
from knowngood.failures.none_values import explain_empty_value, find_empty_value
from knowngood.failures.own_causes import build_own_cause, component_of, describe_caller


def explain_value(error: LoggedError, caller: NameCaller) -> NameCause:
    """An attribute of a plain Python value, such as None: what made the value gave another one than meant."""
    fault = error.fault
    refused = f"'{fault.owner}' object has no attribute '{fault.name}'"
    if (reason := explain_empty_value(refused, caller.frame, "")) is not None:
        return build_own_cause(
            error, title=reason.title, because=reason.because, fixes=reason.fixes, component=reason.component
        )
    what = "None" if fault.owner == "NoneType" else f"a {fault.owner}"
    value = find_empty_value(refused, caller.frame.code)
    subject = f"`{value.what}`" if value is not None else "A value"
    return build_own_cause(
        error,
        title=f"{subject} is {what} where your code asks for `{fault.name}` of it",
        because=f"What gave {subject if value else 'the value'} returned {what}, which has no "
        f"{fault.name}.{describe_caller(caller)}",
        fixes=[
            advise(f"Look where that value is set: a file, an option or a function there gives {what}; test for it"),
        ],
        component=component_of(caller),
    )
