"""What can be said of a name, keyword or module that no package has: it is the project's own, or the model's. Pure."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from knowngood.core.lazy_patterns import lazy_pattern
from knowngood_diagnose.failures.logs.logged_errors import FaultKind, LoggedError
from knowngood_diagnose.failures.names.atlas_shelf import FOLDERS_OF_PROJECTS
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
from knowngood_diagnose.failures.names.own_classes import explain_own_attribute
from knowngood_facts.compat.incident import Fix, OwnComponent
from knowngood_facts.facts.atlas_lookup import find_parameter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from knowngood_diagnose.failures.names.atlas_shelf import AtlasShelf, NamePlace
    from knowngood_facts.facts.atlas_lookup import AtlasLookup

_ABOUT_MODULES = frozenset((FaultKind.IMPORT, FaultKind.MODULE_ATTRIBUTE, FaultKind.MODULE))


def explain_own_name(error: LoggedError, place: NamePlace | None, shelf: AtlasShelf) -> NameCause | None:
    """Return what is certain of an attribute or keyword that no release of any package has; `None` when nothing is.

    Args:
        error: an error about an attribute of an object, or about an unexpected keyword.
        place: the place of the name in the atlas, when a package has the class or function without it.
        shelf: the atlas of all packages.
    """
    if error.fault.kind is FaultKind.OBJECT_ATTRIBUTE:
        return explain_own_attribute(error, shelf)
    if error.fault.kind is FaultKind.KEYWORD:
        return explain_own_keyword(error, place, shelf)
    if error.fault.kind in _ABOUT_MODULES:
        return explain_uncompiled_part(error, shelf) or explain_own_module(error, shelf)
    return explain_class_key(error, shelf) if error.fault.kind is FaultKind.CLASS_KEY else None


_REWRITE_OTHERS = frozenset(("axolotl", "llamafactory", "ms-swift", "unsloth", "unsloth-zoo", "verl"))
"""Trainers that have copies of other packages' functions under the same names."""


def explain_own_keyword(error: LoggedError, place: NamePlace | None, shelf: AtlasShelf) -> NameCause | None:
    """Return whose call passes a keyword that no function takes; `None` where it cannot be told."""
    fault, chooser = error.fault, find_chooser(error, shelf)
    function = fault.owner.removesuffix(".__init__").removesuffix(".__new__")
    is_named = function not in {"__init__", "__new__", "wrapper", "inner"}
    refused = find_refusing_package(error)
    if refused is not None and (place is None or not place.present):
        because = refused.because + describe_caller(chooser, verb="passes it in")
        return build_own_cause(
            error, title=refused.title, because=because, fixes=refused.fixes, component=refused.component
        )
    if place is not None and not place.present:
        package, releases = place.lookup.file.package, place.lookup.file.releases
        title = f"No release of {package} since {releases[0]} takes {place.what}"
        because = f"{place.what} is no parameter in any release from {releases[0]} to {releases[-1]}."
    elif chooser is None and (not is_named or function.startswith("_")):
        return None  # whose call it is cannot be told: a private function is called by its own package
    else:
        title = f"{function if is_named else 'The function'} does not take the keyword {fault.name}"
        because = f"No release of a package in the atlas is known whose {function} takes {fault.name}."
    if is_named and place is None and (newer := _explain_later_keyword(error, function, shelf)) is not None:
        return newer
    near = _near_keyword(function, fault.name, shelf) if is_named and place is None else None
    if near is not None:
        package, near_name = near
        title += f": {package}'s {function} has {near_name} in its place"
        because = (
            f"{package}'s {function} takes {near_name} and no {fault.name} in any release that was read: the name was "
            "changed before, and the code was written for an older release."
        )
    component = component_of(chooser)
    if chooser is None and function == "forward":
        component = OwnComponent.MODEL
    because += describe_caller(chooser, verb="passes it in")
    who = chooser.package if chooser and chooser.package and not chooser.is_remote_code else ""
    fixes = [
        advise(f"Remove {fault.name} from the call, from the script's options or from the configuration file"),
        advise(
            f"The release, revision or project that the {who or 'code'} was written for: a fork, a newer script or an "
            f"own class may take {fault.name}"
        ),
    ]
    if near is not None:
        fixes.insert(0, advise(f"Write {near[1]}= in place of {fault.name}= (its value may have to be another too)"))
        fixes[2] = advise(f"The older {near[0]} that the project's requirements name")
    if who and (place is None or place.lookup.file.package != who):
        fixes.insert(0, advise(f"Another release of {who}, written for the package that it calls"))
    return build_own_cause(error, title=title, because=because, fixes=fixes, component=component)


def _explain_later_keyword(error: LoggedError, function: str, shelf: AtlasShelf) -> NameCause | None:
    """A function that one package alone has, in several of its files, which take the keyword in its newest release.

    Which file's function it is, the message does not say; `None` where one of them does not take the keyword.
    """
    keyword, lookup = error.fault.name, _find_only_owner(function, shelf)
    if lookup is None:
        return None
    releases, firsts = lookup.file.releases, list[int]()
    newest = 1 << (len(releases) - 1)
    for home, mask in lookup.definitions_of(function):
        accepted = find_parameter(lookup, home.replace(":", "."), keyword).accepted
        if mask & newest and accepted & newest:
            firsts.append((accepted & -accepted).bit_length() - 1)
    if not firsts:
        return None
    package, first = lookup.file.package, releases[max(firsts)]
    return build_own_cause(
        error,
        title=f"This {package}'s {function} does not take `{keyword}`: an older release runs",
        because=(
            f"{function} is a function of {package}, which puts it into the place of another package's, or calls it "
            f"so. In its newest release it takes {keyword}, in every file since {first}; the one that "
            f"runs was written for an older release of what passes {keyword}."
        ),
        fixes=[
            Fix(change={package: f">={first}"}, note=f"its {function} takes {keyword}", cost="an upgrade"),
            advise(f"The release of what passes {keyword} (often transformers) that is as old as this {package}"),
        ],
        component=package,
    )


def _find_only_owner(function: str, shelf: AtlasShelf) -> AtlasLookup | None:
    """The atlas of the package that alone defines a function whose name tells; `None` for a single word."""
    if "_" not in function.strip("_") and not re.search(r"[a-z][A-Z]", function):
        return None  # a single word, which many projects choose
    packages = list_defining_packages(function, shelf)
    if len(packages) > 1:
        packages = [package for package in packages if package not in _REWRITE_OTHERS]
    return shelf.open(packages[0]) if len(packages) == 1 else None


def _near_keyword(function: str, keyword: str, shelf: AtlasShelf) -> tuple[str, str] | None:
    """The package that alone defines a function, and its one keyword that shares a word with the refused one."""
    lookup = _find_only_owner(function, shelf)
    if lookup is None:
        return None
    names: dict[str, int] = {}
    for home, _ in lookup.definitions_of(function):
        names |= find_parameter(lookup, home.replace(":", "."), keyword).names
    if keyword in names:
        return None
    words = keyword.split("_")
    newest = 1 << (len(lookup.file.releases) - 1)
    near = [
        name
        for name, mask in names.items()
        if mask & newest and len(words) > 1 and name.split("_")[1:] == words[1:] and len(name.split("_")) == len(words)
    ]
    makers = [name for name in near if name.startswith(("process", "tokeniz", "eval", "quant"))]
    chosen = makers if len(near) > 1 else near
    return (lookup.file.package, chosen[0]) if len(chosen) == 1 else None


_CALLS_TORCH = lazy_pattern(r"\b(?:torch|nn|F|dist|optim)\.(?:\w+\.)*(?P<called>\w+)\(")
_MAKES_MODEL = lazy_pattern(r"\b(?:cls|model_class)\(")
_LOADING_OPTIONS = frozenset(
    (
        "adapter_kwargs",
        "attn_implementation",
        "device_map",
        "dtype",
        "gguf_file",
        "key_mapping",
        "load_in_4bit",
        "load_in_8bit",
        "low_cpu_mem_usage",
        "max_memory",
        "offload_folder",
        "quantization_config",
        "subfolder",
        "token",
        "torch_dtype",
        "tp_plan",
        "trust_remote_code",
        "use_auth_token",
        "use_flash_attention_2",
        "use_safetensors",
        "variant",
    )
)
"""Options of from_pretrained in some release of transformers."""


@dataclass(frozen=True, kw_only=True)
class RefusedKeyword:
    """What is known of a keyword that a function refuses."""

    component: str
    title: str
    because: str
    fixes: Sequence[Fix]


def find_refusing_package(error: LoggedError) -> RefusedKeyword | None:
    """Return whose function refuses the keyword, by the line that calls it; `None` where that does not say it."""
    if not error.frames:
        return None
    frame, keyword = error.frames[-1], error.fault.name
    name = error.fault.owner.removesuffix(".__init__").rpartition(".")[2]
    calls = [match["called"] for match in _CALLS_TORCH.finditer(frame.code)]
    if error.fault.owner.startswith("Module.") or (calls and name in {*calls, "__init__"}):
        called = calls[0] if calls else name
        return RefusedKeyword(
            component="torch",
            title=f"This torch's {called} does not take {keyword}",
            because=(
                f"The code passes {keyword} to torch's own {called}, and was written for another release, mostly for a "
                "newer one."
            ),
            fixes=[
                Fix(change={"torch": "*"}, note="a newer torch, with the torchvision, torchaudio and extensions of it"),
                advise(f"The torch that the project's requirements name, or the code without {keyword}"),
            ],
        )
    if "transformers" in frame.parts and keyword in _LOADING_OPTIONS and _MAKES_MODEL.search(frame.code):
        return RefusedKeyword(
            component="transformers",
            title=f"from_pretrained of this transformers does not know the option {keyword}",
            because=(
                f"from_pretrained passes on to the model what it does not know itself: {keyword} is an option of other "
                "releases, mostly of newer ones."
            ),
            fixes=[
                Fix(change={"transformers": "*"}, note="a newer transformers: pip install -U transformers"),
                advise(f"The transformers that the script's requirements name, or the call without {keyword}"),
            ],
        )
    if "transformers" in frame.parts and _MAKES_MODEL.search(frame.code) and name == "__init__":
        return _explain_passed_keyword(error)
    return None


def _explain_passed_keyword(error: LoggedError) -> RefusedKeyword | None:
    """A keyword that another package's from_pretrained passes on with all that it does not know itself."""
    outer = next((frame for frame in reversed(error.frames) if frame.installed[:1] != ("transformers",)), None)
    if outer is None or not outer.installed or "**" not in outer.code:
        return None
    package, keyword = outer.installed[0].replace("_", "-"), error.fault.name
    return RefusedKeyword(
        component=package,
        title=f"from_pretrained of this {package} does not know the option {keyword}",
        because=(
            f"{package} ({'/'.join(outer.installed)}.py, line {outer.line}) passes on what it does not know itself, "
            f"and transformers gives it to the model, which does not take it: {keyword} is of another release of "
            f"{package}, mostly of a newer one."
        ),
        fixes=[
            Fix(change={package: "*"}, note=f"a newer {package}: pip install -U {package}"),
            advise(f"The {package} that the script's requirements name, or its repository (pip install git+...)"),
            advise(f"The call without {keyword}"),
        ],
    )


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


_COMPILED = lazy_pattern(r"^(?:_C|_ext|\w+_(?:cuda|ext|cpp|fast|cython)|cython_\w+|\w*_c_ext|_cuda\w*)$")
"""How the parts are mostly called that a project compiles from C++, CUDA or Cython."""
_IMPORTS = frozenset((FaultKind.IMPORT, FaultKind.MODULE))


def explain_uncompiled_part(error: LoggedError, shelf: AtlasShelf) -> NameCause | None:
    """Return that a project's extension was not built; `None` for other names, and for packages of the atlas."""
    fault = error.fault
    module, _, last = fault.owner.rpartition(".")
    name = fault.name if fault.kind is FaultKind.IMPORT else last
    parent = fault.owner if fault.kind is FaultKind.IMPORT else module
    top = parent.partition(".")[0]
    if fault.kind not in _IMPORTS or not top or not _COMPILED.match(name) or shelf.owner(top):
        return None
    caller = find_caller(error, shelf)
    is_checkout = bool(fault.path) and "-packages/" not in fault.path.replace("\\", "/")
    is_checkout |= not fault.path and caller is not None and not caller.frame.installed
    where = "the project's folder, as it was cloned," if is_checkout else "the folder of the package"
    because = (
        f"{name} is no file of Python: setup.py compiles it from C++, CUDA or Cython into {name}.*.so. Python takes "
        f"{top} from {where} and finds no such file there: it was not built, the build failed, it was built for "
        "another Python or into another copy, or the cloned folder hides the one that is installed."
    )
    return build_own_cause(
        error,
        title=f"The compiled part {name} of {top} is not there: it was not built",
        because=because + describe_caller(caller),
        fixes=[
            advise(
                "In the folder with setup.py (often lib, ops or models/ops): python setup.py build develop, or "
                "pip install --no-build-isolation -e . ; make.sh or compile.sh where the instructions name it"
            ),
            advise(
                "Its first error says why when it fails: nvcc and CUDA_HOME of torch's CUDA, a g++ that it takes, "
                "TORCH_CUDA_ARCH_LIST"
            ),
            advise(f"find . -name '{name}*.so' shows whether there is one, and for which Python (cpython-310)"),
        ],
        component=OwnComponent.YOUR_CODE if is_checkout else top,
    )
