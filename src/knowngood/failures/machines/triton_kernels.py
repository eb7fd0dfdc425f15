"""A kernel written in triton that calls a function of triton's language with what this release does not take. Pure.

triton reports an error of a kernel with the kernel's own lines, of which the last is the one that fails.
"""

from __future__ import annotations

from knowngood.compat.incident import Fix, IncidentKind, OwnComponent
from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.facts.atlas_answer import describe_spans, spans_of_mask
from knowngood.facts.atlas_lookup import AtlasLookup
from knowngood.facts.atlas_parameters import find_parameter
from knowngood.failures.logs.last_errors import LastError
from knowngood.failures.names.atlas_shelf import AtlasShelf
from knowngood.failures.names.message_causes import MessageCause, describe_traceback
from knowngood.failures.names.name_callers import REMOTE_CODE
from knowngood.failures.names.name_situation import advise
from knowngood.failures.names.release_places import ranges_of_mask

_KERNEL_ERROR = lazy_pattern(r"^(?:triton\.compiler\.\S*)?CompilationError: at \d+:\d+:")
_CALL = lazy_pattern(r"\btl\.(?P<name>\w+)\((?P<arguments>(?:[^()]|\([^()]*\)){0,200})\)?")
_KEYWORD = lazy_pattern(r"(?:^|,)\s*(?P<keyword>[a-z]\w*)\s*=(?!=)")


def explain_kernel(error: LastError, shelf: AtlasShelf) -> MessageCause | None:
    """Return which call of a kernel this triton does not take; `None` for other errors."""
    lookup = shelf.open("triton")
    calls = list(_CALL.finditer(error.message)) if _KERNEL_ERROR.match(error.message) else []
    if lookup is None or not calls:
        return None
    name, arguments = calls[-1]["name"], calls[-1]["arguments"]
    dotted = f"triton.language.{name}"
    if not (has := lookup.find_name(dotted).present):
        return None
    if has != lookup.every and not has >> (len(lookup.file.releases) - 1) & 1:
        return _describe(error, lookup, f"tl.{name}", has)
    for keyword in (match["keyword"] for match in _KEYWORD.finditer(arguments)):
        parameter = find_parameter(lookup, dotted, keyword)
        if parameter.refused and not parameter.accepted >> (len(lookup.file.releases) - 1) & 1:
            return _describe(error, lookup, f"{keyword} of tl.{name}", parameter.accepted)
    return None


def _describe(error: LastError, lookup: AtlasLookup, what: str, taken: int) -> MessageCause:
    releases = lookup.file.releases
    of_model = any(REMOTE_CODE in frame.parts for frame in error.frames)
    whose = "came with the model" if of_model else "is the project's or a package's"
    spans = describe_spans(spans_of_mask(taken, releases)) if taken else f"in no release since {releases[0]}"
    because = (
        f"The last line of the kernel uses {what}, which triton has {spans}. The kernel (it {whose}) is for an "
        "older triton than the one that runs."
    )
    fixes = [
        Fix(change={"triton": text}, note=f"has {what}; with the torch of that time", cost="a pin")
        for text in (ranges_of_mask(taken, releases)[-1:] if taken else [f"<{releases[0]}"])
    ]
    fixes = [
        advise(
            "Run without this kernel: attention without flash (the option of the model or the configuration, such as "
            "use_flash_attn=False); code that imports triton in a try goes on without it after pip uninstall triton"
        ),
        *fixes,
        advise("A newer revision of the model's code or commit of the project, whose kernel is for this triton"),
    ]
    incident = describe_traceback(
        "kernel-of-another-triton",
        IncidentKind.API_REMOVED,
        OwnComponent.MODEL if of_model else "triton",
        title=f"A triton kernel uses {what}, which this triton does not have any longer",
        because=because,
        fixes=fixes,
    )
    return MessageCause(incident=incident, line=error.line, package="triton")
