"""A method that a package calls, and that a class of the project overrides with other arguments. Pure.

The class of such an error is in no package. Its base is told by the file that calls the method: `self.method(...)`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from knowngood.compat.incident import Fix, Incident, IncidentKind, IncidentSeverity, OwnComponent
from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.facts.atlas_answer import describe_spans, spans_of_mask
from knowngood.facts.atlas_parameters import parse_signature, takes_positions
from knowngood.failures.logs.logged_errors import CodeFrame, FaultKind, LoggedError
from knowngood.failures.names.name_situation import NameCause, advise, ranges_of_mask

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from knowngood.facts.atlas_lookup import AtlasLookup
    from knowngood.failures.names.atlas_shelf import AtlasShelf

_KINDS = frozenset((FaultKind.KEYWORD, FaultKind.POSITIONS))
_HOOK = lazy_pattern(r"^(?:on_\w+|\w+_(?:step|epoch_end|step_end|epoch_start)|configure_\w+|optimizer_zero_grad)$")
"""Methods that a trainer calls of the project's model or callback."""
_CALLS_HOOKS = frozenset(("lightning", "pytorch-lightning"))
_HAVE_HOOKS = frozenset(("Callback", "LightningModule", "ModelHooks", "DataHooks", "LightningDataModule"))
"""Their classes whose methods are hooks."""


def explain_overridden_method(error: LoggedError, shelf: AtlasShelf) -> NameCause | None:
    """Return that a subclass overrides a package's method with the arguments of another release.

    `None` where the last line of code is no call of a method of the object itself, or where the package's own method
    does not take the arguments in any release.
    """
    fault, frame = error.fault, error.frames[-1] if error.frames else None
    method = fault.owner.rpartition(".")[2]
    module = shelf.module_of(frame) if frame is not None and frame.installed else ""
    lookup = shelf.lookup_of(module) if module else None
    if lookup is None or frame is None or not method.isidentifier() or method.startswith("__"):
        return None
    if fault.kind is FaultKind.REQUIRED:
        return _explain_hook(error, lookup, method)
    if fault.kind not in _KINDS or not re.search(rf"\bself\.{re.escape(method)}\(", frame.code):
        return None
    for path in dict.fromkeys(row[0] for row in lookup.file.rows(module) if row[0].endswith(f".{method}")):
        takes, lacks = _releases_that_take(lookup, f"{module}.{path}", error)
        if _class_of(error) == path.partition(".")[0]:
            return None  # it is the package's own class
        if takes:
            return _explain_override(error, lookup, frame, path, takes, lacks)
    return None


def _class_of(error: LoggedError) -> str:
    """The class that the message names; empty before Python 3.10."""
    return error.fault.owner.rpartition(".")[0].rpartition(".")[2]


def _explain_override(  # noqa: PLR0913, PLR0917 - one step of `explain_overridden_method`
    error: LoggedError, lookup: AtlasLookup, frame: CodeFrame, path: str, takes: int, lacks: int
) -> NameCause:
    package, fault = lookup.file.package, error.fault
    base, _, method = path.rpartition(".")
    whose = _class_of(error) or "A class of the project"
    passed = fault.name if fault.kind is FaultKind.KEYWORD else f"{fault.name} positional arguments"
    is_gone = lacks.bit_length() > takes.bit_length()
    spans = describe_spans(spans_of_mask(takes, lookup.file.releases)) if lacks else "in every release that was read"
    because = (
        f"{'/'.join(frame.installed)}.py calls self.{method} with {passed}, and {package}'s own {base}.{method} "
        f"takes that {spans}. {whose} overrides it with the arguments of {'a newer' if is_gone else 'an older'} "
        f"{package}."
    )
    fixes = [
        advise(
            f"In the class that overrides it: def {method}(self, *args, **kwargs), or the parameters that this "
            f"{package} has, handed on to super().{method}"
        )
    ]
    older = f"its own {method} takes as few, as the subclass does"
    fixes += [
        Fix(change={package: text}, note=older, cost="an upgrade" if is_gone else "a pin")
        for text in ranges_of_mask(lacks, lookup.file.releases)[-1:]
    ]
    title = f"{whose} overrides `{method}` of {package}'s {base} without what this {package} passes: {passed}"
    return _cause(error, package, title, because, fixes)


def _explain_hook(error: LoggedError, lookup: AtlasLookup, method: str) -> NameCause | None:
    """A hook of the project that wants an argument which the trainer that calls it does not pass."""
    package, name, releases = lookup.file.package, error.fault.name, lookup.file.releases
    if package not in _CALLS_HOOKS or not _HOOK.match(method):
        return None
    passing = without = 0
    newest = ""
    for dotted in _list_hooks(lookup, method):
        for text, mask in lookup.find_name(dotted).signatures.items():
            newest = text if mask >> (len(releases) - 1) & 1 else newest
            if name in parse_signature(text):
                passing |= mask
            else:
                without |= mask
    if not passing | without:
        return None
    if not without:
        return _explain_class(error, package, method)
    spans = describe_spans(spans_of_mask(passing, releases)) if passing else "in no release that was read"
    because = (
        f"{package} calls the hook {method}, which the project's model or callback defines with the parameter {name}. "
        f"{package}'s own hook has {name} {spans}: the project was written for another release."
    )
    now = f"The newest {package} has {method}({newest}). " if newest else ""
    fixes = [
        advise(f"{now}Take {name} out of the parameters of {method}, and keep what it had in an attribute of self")
    ]
    fixes += [
        Fix(change={package: text}, note="its own hook has it", cost="a pin")
        for text in ranges_of_mask(passing, releases)[-1:]
    ]
    title = f"The project's hook `{method}` wants `{name}`, which this {package} does not pass"
    return replace(_cause(error, package, title, because, fixes), is_likely=not passing)


def _explain_class(error: LoggedError, package: str, method: str) -> NameCause:
    because = (
        f"{package} passes {error.fault.name} to {method} in every release that has it. It is missing because the "
        "first argument was taken for self: what was handed in is the class, and not an object of it; or the method is "
        "written without self."
    )
    fixes = [
        advise("callbacks=[MyCallback()] with the brackets, in place of callbacks=[MyCallback]"),
        advise(f"def {method}(self, {error.fault.name}, ...), when self is missing in it"),
    ]
    title = f"{package} was given a class in place of an object, or `{method}` lacks self"
    return replace(_cause(error, package, title, because, fixes), is_likely=True)


def _list_hooks(lookup: AtlasLookup, method: str) -> Iterator[str]:
    for module, (path, _, _, _) in lookup.file.search_rows(method):
        if path.endswith(f".{method}") and path.partition(".")[0] in _HAVE_HOOKS and not module.startswith("@"):
            yield f"{module}.{path}"


def _cause(error: LoggedError, package: str, title: str, because: str, fixes: Sequence[Fix]) -> NameCause:
    newer = advise("A newer commit of the project, written for this release; or the one that its requirements name")
    incident = Incident(
        id=f"name:{error.fault.text}",
        title=title,
        kind=IncidentKind.SIGNATURE_CHANGED,
        severity=IncidentSeverity.FAILURE,
        component=OwnComponent.YOUR_CODE,
        because=because,
        fix=(*fixes, newer),
        source=("the message, its traceback and the atlas",),
        confidence="artefact",
    )
    return NameCause(error=error, incident=incident, package=package)


def _releases_that_take(lookup: AtlasLookup, dotted: str, error: LoggedError) -> tuple[int, int]:
    """The releases whose own method takes what was passed, and those whose method does not, as bits."""
    takes = lacks = 0
    for text, mask in lookup.find_name(dotted).signatures.items():
        if error.fault.kind is FaultKind.POSITIONS:
            is_taken = takes_positions(text.strip("()"), int(error.fault.name))
        else:
            is_taken = error.fault.name in parse_signature(text)
        takes, lacks = (takes | mask, lacks) if is_taken else (takes, lacks | mask)
    return takes, lacks & ~takes
