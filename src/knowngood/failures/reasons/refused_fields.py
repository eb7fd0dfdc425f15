"""Which field a configuration refuses, and why, from the lines that pydantic writes below its error. Pure."""

from __future__ import annotations

from dataclasses import replace

from knowngood.compat.incident import Incident
from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.failures.logs.last_errors import LastError, redact_secrets

_REFUSED = lazy_pattern(
    r"validation errors? for (?P<owner>\S{1,80}) (?P<field>\S{1,120}) (?P<words>.{1,160}?) \[type=\w+"
    r"(?:, input_value=(?P<value>.{1,80}?), input_type=(?P<kind>\w{1,40})\])?"
)


def describe_fields(incident: Incident, error: LastError) -> Incident | None:
    """Return the failure with the first field that is refused, and why; `None` where the log does not say it."""
    refused = _REFUSED.search(error.message)
    if refused is None:
        return None
    sentence = f"Here it is {refused['field']} of {refused['owner']}: {refused['words']}"
    if refused["kind"]:
        sentence += f", and it was given a {refused['kind']} ({redact_secrets(refused['value'])})"
    return replace(incident, because=f"{incident.because} {sentence}.")
