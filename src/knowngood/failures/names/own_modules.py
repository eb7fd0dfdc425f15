"""A module, or a class as a key, that only the project or the model can have. Pure."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from knowngood.compat.incident import Fix, OwnComponent
from knowngood.failures.logs.logged_errors import FaultKind, LoggedError
from knowngood.failures.names.atlas_shelf import FOLDERS_OF_PROJECTS
from knowngood.failures.names.name_situation import (
    REMOTE_CODE,
    NameCaller,
    NameCause,
    advise,
    build_own_cause,
    component_of,
    describe_caller,
    find_caller,
)

if TYPE_CHECKING:
    from knowngood.failures.names.atlas_shelf import AtlasShelf


def explain_own_module(error: LoggedError, shelf: AtlasShelf) -> NameCause | None:
    """A module of no known package lacks a name or a module: it is the project's own, or another one of its name.

    Python names the first part that it does not find: so the top-level module is there.
    """
    fault = error.fault
    top = fault.owner.partition(".")[0]
    is_there = "." in fault.owner or fault.kind is not FaultKind.MODULE
    if not top or not is_there or fault.circular or shelf.owner(top) or top in sys.stdlib_module_names:
        return None
    if shelf.distribution_of(top):
        return None
    if top == REMOTE_CODE:
        return _explain_model_code(error, shelf)
    what = f"the module {fault.owner}" if fault.kind is FaultKind.MODULE else f"`{fault.name}` in {fault.owner}"
    caller = find_caller(error, shelf)
    if caller is not None and caller.package in shelf.packages and top not in FOLDERS_OF_PROJECTS:
        return _explain_other_release(error, caller, top, what)
    is_own = top in FOLDERS_OF_PROJECTS or (fault.path and "-packages/" not in fault.path.replace("\\", "/"))
    because = (
        f"{top} itself is found, and it has not {what}: it is the project's own folder or file, whole or in part, of "
        f"another commit than the code that asks for it; or another {top} stands before it in sys.path."
    )
    return build_own_cause(
        error,
        title=f"The {top} that is imported has not {what}",
        because=because + describe_caller(caller),
        fixes=[
            advise(
                f"python -c 'import {top}; print({top}.__file__)' shows which {top} it is; rename or uninstall another"
            ),
            advise(
                "Start from the project's root, or add that to PYTHONPATH; git status and git submodule update --init"
            ),
            advise(f"The release or commit of {top} that the code was written for, when {top} is a package of its own"),
        ],
        component=OwnComponent.YOUR_CODE if is_own else top,
    )


def _explain_other_release(error: LoggedError, caller: NameCaller, top: str, what: str) -> NameCause:
    """A package's own file asks another package, which is not known here, for what the installed release has not."""
    asks = caller.package
    because = (
        f"{asks} asks for it in its own file, so this {asks} was written for another release of the package that "
        f"brings {top}, mostly for a newer one.{describe_caller(caller)}"
    )
    fixes = [
        advise(f"A newer release of the package that brings {top}, as this {asks} demands it (pip show {asks})"),
        advise(f"The {asks} of the time of that {top}: an older one, when it came with an upgrade of {asks}"),
        advise(f"python -c 'import {top}; print({top}.__file__)' shows which {top} it is; uninstall it, when unused"),
    ]
    return build_own_cause(
        error,
        title=f"{asks} and the installed {top} are of different times: {top} has not {what}",
        because=because,
        fixes=fixes,
        component=asks,
    )


def _explain_model_code(error: LoggedError, shelf: AtlasShelf) -> NameCause:
    """A file that came with a model lacks a class that the model's configuration, or another such file, names."""
    fault = error.fault
    what = f"the module {fault.owner}" if fault.kind is FaultKind.MODULE else f"`{fault.name}`"
    file = fault.owner.rpartition(".")[2]
    because = (
        f"{file}.py is the model's own code. The configuration names what that file has not: the copy in the cache is "
        "of another revision or not whole, or files of two revisions were put into one folder."
    )
    return build_own_cause(
        error,
        title=f"The code that came with the model has not {what} in {file}.py",
        because=because + describe_caller(find_caller(error, shelf)),
        fixes=[
            advise(
                "Delete the copy (~/.cache/huggingface/modules/transformers_modules, and the model's own), load again"
            ),
            advise("All files of one revision of the model: config.json, tokenizer_config.json and *.py; revision=..."),
        ],
        component=OwnComponent.MODEL,
    )


def explain_class_key(error: LoggedError, shelf: AtlasShelf) -> NameCause:
    """A table whose keys are classes lacks one: mostly a configuration without a model in an auto class."""
    dotted, caller = error.fault.name, find_caller(error, shelf)
    lookup, name = shelf.lookup_of(dotted), dotted.rpartition(".")[2]
    package = lookup.file.package if lookup else ""
    has = lookup.find_name(dotted).present if lookup else 0
    because = f"The table that is asked has no entry for the class {name}: it is not registered there, or not by then."
    if lookup and has:
        first = lookup.file.releases[(has & -has).bit_length() - 1]
        because += f" {package} has the class since {first}; a later release may have the entry."
    fixes = [
        advise(f"Another auto class that takes {name} (the model card names it), or the model's own class"),
        advise("AutoConfig.register and AutoModel.register for a class of your own, before it is loaded"),
    ]
    if package:
        fixes.insert(0, Fix(change={package: "*"}, note=f"a newer {package}: pip install --upgrade {package}"))
    component = package or component_of(caller)
    title = f"A table of classes has no entry for {name}"
    return build_own_cause(
        error, title=title, because=because + describe_caller(caller), fixes=fixes, component=component
    )
