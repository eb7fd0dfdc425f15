"""A method of a package that a project overrides or replaces with one that takes other arguments. Pure."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from knowngood.core.lazy_patterns import lazy_pattern
from knowngood_diagnose.failures.logs.logged_errors import CodeFrame, FaultKind, LoggedError
from knowngood_diagnose.failures.names.name_places import list_frame_packages
from knowngood_diagnose.failures.names.name_situation import (
    NameCause,
    advise,
    describe_failure,
    find_caller,
    list_defining_packages,
    ranges_of_mask,
)
from knowngood_facts.compat.incident import Fix, IncidentKind, OwnComponent
from knowngood_facts.facts.atlas_answer import describe_spans, spans_of_mask
from knowngood_facts.facts.atlas_lookup import parse_signature, takes_positions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from knowngood_diagnose.failures.names.atlas_shelf import AtlasShelf
    from knowngood_facts.facts.atlas_lookup import AtlasLookup

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
        f"{'/'.join(frame.installed)}.py calls self.{method} with {passed}, and {package}'s own {base}.{method} takes "
        f"that {spans}. {whose} overrides it with the arguments of {'a newer' if is_gone else 'an older'} {package}."
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
    incident = describe_failure(
        f"name:{error.fault.text}",
        IncidentKind.SIGNATURE_CHANGED,
        OwnComponent.YOUR_CODE,
        title=title,
        because=because,
        fixes=[*fixes, newer],
        source="the message, its traceback and the atlas",
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


_CALLS_PART = lazy_pattern(r"\bself\.(?P<part>\w+)\(|(?:= |\b)(?P<looped>\w+)\($")
"""A call of a part of the model; of one in a loop, the arguments stand in the lines below."""


_OF_A_MODEL = lazy_pattern(r"(?:For[A-Z]\w+|Model)$")
"""How the names of transformers' models end."""


def explain_replaced_forward(error: LoggedError, shelf: AtlasShelf) -> NameCause | None:
    """Return that a patched forward refuses a keyword which the package passes to its own class.

    `None` where the package's own class may be the one that refuses, or where no class in the calling file takes it.
    """
    fault, caller = error.fault, find_caller(error, shelf)
    if fault.kind is FaultKind.KEYWORD and fault.owner.endswith(".forward"):
        return _explain_derived_model(error, shelf)
    is_own = "." in fault.owner and fault.owner.rpartition(".")[2] == "forward"
    if fault.kind is not FaultKind.KEYWORD or is_own or caller is None or caller.lookup is None:
        return None
    call = _CALLS_PART.search(caller.frame.code)
    if call is None or fault.owner == "__init__" or caller.frame.function != "forward":
        return None
    part = call["part"] or call["looped"]
    lookup = caller.lookup
    owners = dict(_list_takers(lookup, caller.module, fault.name))
    if fault.owner != "forward" and any(True for _ in lookup.definitions_of(fault.owner)):
        return None  # a function of the package itself
    if not owners:
        return None
    short = part.replace("_", "").lower().removeprefix("self")
    owner = next((name for name in owners if short[:4] in name.lower()), next(iter(owners)))
    return _describe(error, lookup, f"{caller.file}, line {caller.frame.line}", part, owner, owners[owner])


def _explain_derived_model(error: LoggedError, shelf: AtlasShelf) -> NameCause | None:
    """A model of a project that derives from one of transformers, by its name, and overrides forward as of old."""
    fault, lookup = error.fault, shelf.open("transformers")
    name = fault.owner.removesuffix(".forward").rpartition(".")[2]
    words = re.findall(r"[A-Z][a-z0-9]+|[A-Z]+(?![a-z])", name)
    packages = {"transformers", *list_frame_packages(error, shelf)}
    if lookup is None or packages.intersection(list_defining_packages(name, shelf)):
        return None
    for start in range(1, len(words) - 1):
        base = "".join(words[start:])
        every = lookup.find_name(f"transformers.{base}").present if _OF_A_MODEL.search(base) else 0
        signatures = lookup.find_name(f"transformers.{base}.forward").signatures.items() if every else ()
        takes = sum(mask for text, mask in signatures if fault.name in parse_signature(text))
        if takes:
            return _describe_derived(error, lookup, name, base, takes, every & ~takes)
    return None


def _describe_derived(  # noqa: PLR0913, PLR0917 - one step of `_explain_derived_model`
    error: LoggedError, lookup: AtlasLookup, name: str, base: str, takes: int, lacks: int
) -> NameCause:
    keyword, releases = error.fault.name, lookup.file.releases
    spans = describe_spans(spans_of_mask(takes, releases)) if lacks else "in every release that was read"
    because = (
        f"{name} is a class of the project, which by its name derives from transformers' {base} and overrides forward. "
        f"transformers passes {keyword} to it, as its own {base}.forward takes it {spans}; the override was written "
        "for a transformers that did not."
    )
    fixes = [
        Fix(change={"transformers": text}, note=f"does not pass {keyword}: its {base} does not take it", cost="a pin")
        for text in ranges_of_mask(lacks, releases)[:1]
    ]
    fixes += [
        advise(f"In the project: the parameter {keyword}=None (or **kwargs) in {name}.forward; it need not be used"),
        advise("A newer commit of the project, or the transformers that its requirements name"),
    ]
    title = f"{name} overrides forward of an older transformers: it does not take `{keyword}`, which this one passes"
    incident = describe_failure(
        f"name:{name}.forward({keyword}=)",
        IncidentKind.SIGNATURE_CHANGED,
        OwnComponent.YOUR_CODE,
        title=title,
        because=because,
        fixes=fixes,
        source="the message and the atlas",
        confidence="artefact",
    )
    return NameCause(error=error, incident=incident, package="transformers", is_likely=True)


def _list_takers(lookup: AtlasLookup, module: str, keyword: str) -> Iterator[tuple[str, int]]:
    """Yield the classes of a module whose forward takes a keyword, with those releases."""
    for path in dict.fromkeys(row[0] for row in lookup.file.rows(module) if row[0].endswith(".forward")):
        signatures = lookup.find_name(f"{module}.{path}").signatures.items()
        if takes := sum(mask for text, mask in signatures if keyword in parse_signature(text)):
            yield path.removesuffix(".forward"), takes


def _describe(  # noqa: PLR0913, PLR0917 - one step of `explain_replaced_forward`
    error: LoggedError, lookup: AtlasLookup, place: str, part: str, owner: str, takes: int
) -> NameCause:
    package, keyword, releases = lookup.file.package, error.fault.name, lookup.file.releases
    lacks = lookup.find_name(f"{lookup.file.root}.{owner}").present & ~takes
    spans = describe_spans(spans_of_mask(takes, releases)) if lacks else "in every release that was read"
    named = "" if error.fault.owner == "forward" else f" ({error.fault.owner})"
    because = (
        f"{place}, calls its own part {part} with {keyword}; {package}'s own {owner}.forward takes it {spans}. "
        f"So another function{named} runs in its place: a patch of the project or of a package (for flash attention, "
        f"longer texts, quantized layers), which was written for an older {package}."
    )
    fixes = [
        advise(f"A newer commit or release of what patches {owner}.forward, written for this {package}"),
        advise(
            f"The {package} that the project's requirements name, which does not pass {keyword}; or the newest of both"
        ),
        advise(
            f"In the patch: the parameter {keyword}=None, and **kwargs behind it; or do not patch (sdpa has the same)"
        ),
    ]
    fixes += [
        Fix(change={package: text}, note=f"its own {owner} does not take {keyword}", cost="a pin")
        for text in ranges_of_mask(lacks, releases)[-1:]
    ]
    incident = describe_failure(
        f"name:{owner}.forward({keyword}=)",
        IncidentKind.SIGNATURE_CHANGED,
        OwnComponent.YOUR_CODE,
        title=f"A patched forward of {package}'s {owner} does not take `{keyword}`, which {package} passes",
        because=because,
        fixes=fixes,
        source="the message, its traceback and the atlas",
        confidence="artefact",
    )
    return NameCause(error=error, incident=incident, package=package, is_likely=True)
