"""What is said of a name that no package is known to have: whose code asks for it, and where. Pure.

It is the project's own, or came with the model. Nothing is guessed of it: the answer has the file, the line and the
error. A package of the atlas is named only where the line of code passes the keyword to it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from knowngood.core.lazy_patterns import lazy_pattern
from knowngood_diagnose.failures.logs.logged_errors import FaultKind, LoggedError
from knowngood_diagnose.failures.names.atlas_shelf import FOLDERS_OF_PROJECTS
from knowngood_diagnose.failures.names.name_places import PYTHON_TYPES, is_plain_word, list_frame_packages
from knowngood_diagnose.failures.names.name_situation import (
    REMOTE_CODE,
    NameCaller,
    NameCause,
    advise,
    build_own_cause,
    component_of,
    describe_caller,
    find_caller,
    find_chooser,
    list_defining_packages,
)
from knowngood_facts.compat.incident import Fix, OwnComponent

if TYPE_CHECKING:
    from knowngood_diagnose.failures.names.atlas_shelf import AtlasShelf, NamePlace

_ABOUT_MODULES = frozenset((FaultKind.IMPORT, FaultKind.MODULE_ATTRIBUTE, FaultKind.MODULE))
_OF_A_MODEL = lazy_pattern(
    r"(?:For[A-Z]\w+|Model|LM|Config|Tokenizer(?:Fast)?|Processor|Transformer|Criterion|Loader|Net|Loss|Encoder|Decoder"
    r"|Layer|Block|Head|Trainer|Arguments|Namespace|Experiment|Agent|Policy)$"
)
"""How the names of classes end that come with a model or are written for one, or that hold a script's options."""
_ANY_FUNCTION = frozenset(("__init__", "__new__", "wrapper", "inner"))
_OLDER_OR_NEWER = "The releases of packages that the project's own requirements name, or a newer commit of the project"
_PASSES_ON = lazy_pattern(r"\b(?:cls|model_class)\(")
"""A line of transformers' from_pretrained, which gives the model what it does not know itself."""
_COMPILED = lazy_pattern(r"^(?:_C|_ext|\w+_(?:cuda|ext|cpp|fast|cython)|cython_\w+|\w*_c_ext|_cuda\w*)$")
"""How the parts are mostly called that a project compiles from C++, CUDA or Cython."""


def explain_own_name(error: LoggedError, place: NamePlace | None, shelf: AtlasShelf) -> NameCause | None:
    """Return whose an attribute, keyword or module is that no release of any package has; `None` where that is open.

    Args:
        error: an error about a name.
        place: the place of the name in the atlas, when a package has the class or function without it.
        shelf: the atlas of all packages.
    """
    if error.fault.kind is FaultKind.OBJECT_ATTRIBUTE:
        return _explain_attribute(error, shelf)
    if error.fault.kind is FaultKind.KEYWORD:
        return _explain_keyword(error, place, shelf)
    return _explain_module(error, shelf) if error.fault.kind in _ABOUT_MODULES else None


def _explain_attribute(error: LoggedError, shelf: AtlasShelf) -> NameCause | None:
    fault, caller = error.fault, find_caller(error, shelf)
    is_own_code = caller is not None and not caller.package
    owners = list_defining_packages(fault.owner, shelf) if fault.owner not in PYTHON_TYPES else []
    is_anywhere = bool(owners) or fault.owner in PYTHON_TYPES
    if is_plain_word(fault.owner):  # anyone may call a class so: the traceback must lead to the package
        owners = [package for package in owners if package in list_frame_packages(error, shelf)]
    if not is_own_code and (is_anywhere or not (caller or _OF_A_MODEL.search(fault.owner))):
        return None
    component = component_of(caller)
    if fault.owner in PYTHON_TYPES:
        what = "None" if fault.owner == "NoneType" else f"a {fault.owner}"
        title = f"A value is {what} where the code asks for `{fault.name}` of it"
        because = f"What gave the value returned {what}, which has no {fault.name}."
    elif owners:
        title = f"No release of {owners[0]} has `{fault.name}` of {fault.owner}"
        because = f"The class {fault.owner} of {owners[0]}, or one of your own with that name, has no {fault.name}."
        component = OwnComponent.MODEL if fault.owner.endswith("Config") and is_own_code else component
    else:
        title = f"{fault.owner}, a class of the project or the model, has no attribute {fault.name}"
        because = f"No package in the traceback has a class {fault.owner}: the project, or the model, brought it along."
    return build_own_cause(
        error,
        title=title,
        because=because + describe_caller(caller),
        fixes=[
            advise(f"Look where {fault.name} is set: {_OLDER_OR_NEWER[:1].lower()}{_OLDER_OR_NEWER[1:]} may set it")
        ],
        component=component,
    )


def _explain_keyword(error: LoggedError, place: NamePlace | None, shelf: AtlasShelf) -> NameCause | None:
    fault, chooser = error.fault, find_chooser(error, shelf)
    function = fault.owner.removesuffix(".__init__").removesuffix(".__new__")
    if place is not None and not place.present:
        package, releases = place.lookup.file.package, place.lookup.file.releases
        title = f"No release of {package} since {releases[0]} takes {place.what}"
        because = f"{place.what} is no parameter in any release from {releases[0]} to {releases[-1]}."
    elif chooser is None and (function in _ANY_FUNCTION or function.startswith("_")):
        return None  # whose call it is cannot be told: a private function is called by its own package
    else:
        title = f"{'The function' if function in _ANY_FUNCTION else function} does not take the keyword {fault.name}"
        because = f"No release of a package in the atlas is known whose {function} takes {fault.name}."
    component = OwnComponent.MODEL if chooser is None and function == "forward" else component_of(chooser)
    fixes = [
        advise(f"Remove {fault.name} from the call, from the script's options or from the configuration file"),
        advise(_OLDER_OR_NEWER),
    ]
    if passing := _find_passing_package(error):
        title = f"from_pretrained of this {passing} does not know the option {fault.name}"
        because = (
            f"from_pretrained gives to the model what it does not know itself: {fault.name} is of a newer release."
        )
        component = passing
        fixes.insert(0, Fix(change={passing: "*"}, note=f"a newer {passing}: pip install -U {passing}"))
    return build_own_cause(
        error,
        title=title,
        because=because + describe_caller(chooser, verb="passes it in"),
        fixes=fixes,
        component=component,
    )


def _find_passing_package(error: LoggedError) -> str:
    """The package whose from_pretrained passes on what it does not know; empty for any other call."""
    frames = [frame for frame in error.frames if frame.installed]
    if not frames or frames[-1].installed[0] != "transformers" or not _PASSES_ON.search(frames[-1].code):
        return ""
    outer = next((frame for frame in reversed(frames) if frame.installed[0] != "transformers"), None)
    passes = outer is not None and "**" in outer.code
    return outer.installed[0].replace("_", "-") if outer is not None and passes else "transformers"


def _explain_module(error: LoggedError, shelf: AtlasShelf) -> NameCause | None:
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
    caller = find_caller(error, shelf)
    what = f"the module {fault.owner}" if fault.kind is FaultKind.MODULE else f"`{fault.name}` in {fault.owner}"
    fixes = [
        advise(f"python -c 'import {top}; print({top}.__file__)' shows which {top} it is; rename or uninstall another"),
        advise("Start from the project's root, or add that to PYTHONPATH; git status and git submodule update --init"),
        advise(f"The release or commit of {top} that the code was written for, when {top} is a package of its own"),
    ]
    because = (
        f"{top} itself is found, and it has not {what}: of another commit than what asks for it, or another {top}."
    )
    if is_compiled_part(error):
        because = f"{what} is compiled by setup.py, and {top} has no such file: it was not built, or elsewhere."
        fixes.insert(0, advise_build(error, top))
    return build_own_cause(
        error,
        title=f"The {top} that is imported has not {what}",
        because=because + describe_caller(caller),
        fixes=fixes,
        component=_name_owner(error, top, caller, shelf),
    )


def is_compiled_part(error: LoggedError) -> bool:
    """Whether what is missing is called as the part that a package compiles."""
    fault = error.fault
    return bool(_COMPILED.match((fault.name if fault.kind is not FaultKind.MODULE else fault.owner).rpartition(".")[2]))


def advise_build(error: LoggedError, package: str) -> Fix:
    """How the compiled part is made: where it is installed by its distribution, in a source tree in that folder."""
    path, top = error.fault.path.replace("\\", "/"), error.fault.owner.partition(".")[0]
    is_installed = "-packages/" in path or (not path and any(frame.installed[:1] == (top,) for frame in error.frames))
    if not is_installed:
        return advise("pip install --no-build-isolation -e . in the folder with setup.py; its first error")
    name = package.replace("_", "-")
    return advise(
        f"pip install --force-reinstall --no-deps --no-cache-dir --no-build-isolation {name}, or the wheel that its "
        "project makes for this torch, CUDA and Python; where it has a variant with its compiled parts (NAME-full, a "
        "flag of the build), that one"
    )


def _name_owner(error: LoggedError, top: str, caller: NameCaller | None, shelf: AtlasShelf) -> str:
    """Whose module it is: the model's, the project's, or that of a package that the atlas lacks."""
    path = error.fault.path.replace("\\", "/")
    if top == REMOTE_CODE:
        return OwnComponent.MODEL
    if top in FOLDERS_OF_PROJECTS or (path and "-packages/" not in path):
        return OwnComponent.YOUR_CODE
    return caller.package if caller is not None and caller.package in shelf.packages else top
