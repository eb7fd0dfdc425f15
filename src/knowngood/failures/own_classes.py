"""What can be said of a name that no package has: the class is the project's own, or no release took the keyword. Pure.

It is less certain than what the atlas knows, so it counts only when nothing else explains the last error of a log.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

from knowngood.compat.incident import Fix, Incident, IncidentKind, IncidentSeverity, OwnComponent
from knowngood.core.nearest_names import find_nearest_name
from knowngood.facts.atlas_parameters import find_parameter
from knowngood.failures.atlas_shelf import AtlasShelf
from knowngood.failures.logged_errors import LoggedError
from knowngood.failures.module_packages import FOLDERS_OF_PROJECTS, find_distribution
from knowngood.failures.name_callers import REMOTE_CODE, NameCaller, find_caller, find_chooser
from knowngood.failures.name_faults import FaultKind, NameFault
from knowngood.failures.name_place import NamePlace
from knowngood.failures.name_places import (
    PYTHON_TYPES,
    is_plain_word,
    list_frame_packages,
    list_likely_bases,
)
from knowngood.failures.name_situation import NameCause, advise
from knowngood.failures.none_values import explain_empty_value, find_empty_value
from knowngood.failures.refused_keywords import find_refusing_package
from knowngood.failures.unsloth_classes import explain_unsloth_class

_OF_A_MODEL = re.compile(
    r"(?:For[A-Z]\w+|Model|LM|Config|Tokenizer(?:Fast)?|Processor|Transformer|Criterion|Loader|Net|Loss|Encoder|Decoder"
    r"|Layer|Block|Head|Trainer|Arguments|Namespace|Experiment|Agent|Policy)$"
)
"""How the names of classes end that come with a model or are written for one, or that hold a script's options."""
_WRAPPERS = ("peft", "deepspeed", "accelerate")
"""Packages that make an object of their own of a model, an optimizer or a loader."""
_WRAPPED = frozenset(("transformers", "torch", "peft"))
_CAN_BE_WRAPPED = re.compile(
    r"(?:For[A-Z]\w+|Model|LM|Module|Net|Linear|Sequential|Optimizer|Adam\w*|SGD|Loader|Scheduler)$"
)
"""How the names of classes end of which such a package makes an object of its own."""
_ADDS_ATTRIBUTES = ("unsloth", "unsloth-zoo")
"""Packages that give attributes of their own to the models of transformers."""
_IS_MODULE = re.compile(r"(?:For[A-Z]\w+|Model|LM|Module|Net|Linear|Sequential|Encoder|Decoder|Layer|Attention)$")
"""How the names of classes end that mostly derive from torch's Module."""
_FEWEST_LETTERS = 8
_ABOUT_MODULES = frozenset((FaultKind.IMPORT, FaultKind.MODULE_ATTRIBUTE, FaultKind.MODULE))


def explain_own_name(error: LoggedError, place: NamePlace | None, shelf: AtlasShelf) -> NameCause | None:
    """Return what is certain of an attribute or keyword that no release of any package has; `None` when nothing is.

    Args:
        error: an error about an attribute of an object, or about an unexpected keyword.
        place: the place of the name in the atlas, when a package has the class or function without it.
        shelf: the atlas of all packages.
    """
    if error.fault.kind is FaultKind.OBJECT_ATTRIBUTE:
        return _explain_attribute(error, shelf)
    if error.fault.kind is FaultKind.KEYWORD:
        return _explain_keyword(error, place, shelf)
    if error.fault.kind in _ABOUT_MODULES:
        return _explain_own_module(error, shelf)
    return _explain_class_key(error, shelf) if error.fault.kind is FaultKind.CLASS_KEY else None


def _explain_attribute(  # noqa: C901, PLR0911, PLR0912 - one return for each kind of class
    error: LoggedError, shelf: AtlasShelf
) -> NameCause | None:
    fault, caller = error.fault, find_caller(error, shelf)
    is_own_code = caller is not None and not caller.package
    if fault.owner in PYTHON_TYPES:
        return _explain_value(error, caller) if is_own_code and caller else None
    if (written := explain_unsloth_class(error)) is not None:
        return written
    if fault.name == "module" and is_own_code and caller:
        return _explain_bare_model(error, caller)
    owners = _packages_with(fault.owner, shelf)
    is_anywhere = bool(owners)
    if is_plain_word(fault.owner):  # anyone may call a class so: the traceback must lead to the package
        owners = [package for package in owners if package in list_frame_packages(error, shelf)]
    known = next((package for package in owners if package in _WRAPPED), next(iter(owners), ""))
    near = _near_attribute(fault, known, shelf) if known else ""
    if near and (caller is not None or _is_one_letter_off(fault.name, near)):
        return _own_cause(
            error,
            title=f"{fault.owner} of {known} has `{near}`, and no `{fault.name}`",
            because=f"It looks like a slip of the pen for {near}.{_describe_caller(caller)}",
            fixes=[advise(f"Write {near} in place of {fault.name}")],
            component=_component_of(caller),
        )
    if known and (failed := _explain_property(error, known, caller, shelf)) is not None:
        return failed
    if known and (
        cause := _explain_older_torch(error, caller, shelf) or _explain_unwrapped(error, known, caller, shelf)
    ):
        return cause
    if not is_own_code and (is_anywhere or not (caller or _OF_A_MODEL.search(fault.owner))):
        return None
    component = _component_of(caller)
    if fault.owner.endswith("Config") and known == "transformers":
        return _explain_configuration(error, caller)
    if known:
        title = f"No release of {known} has `{fault.name}` of {fault.owner}"
        because = f"The class {fault.owner} of {known}, or one of your own with that name, has no {fault.name}."
    elif caller is not None and caller.package and f"self.{fault.name}" in caller.frame.code:
        return _explain_unset_by_subclass(error, caller)
    else:
        title = f"{fault.owner}, a class of the project or the model, has no attribute {fault.name}"
        because = f"No package in the traceback has a class {fault.owner}: the project, or the model, brought it along."
    because += _describe_caller(caller) + _describe_bases(fault, shelf)
    fixes = [
        advise(
            f"Set {fault.name} in __init__ of {fault.owner} (or of its base class), before it is asked for; an option "
            "or a branch may have left it out"
        ),
        advise("The packages that the project's own requirements name, and a newer release or commit of the project"),
    ]
    if known:
        fixes[0] = advise(
            f"Another object is meant: what wraps the model (a trainer, DeepSpeed's engine, peft), or one to which a "
            f"package adds {fault.name} when it loads the model itself{_describe_adding(fault, shelf)}"
        )
    if caller is not None and caller.package:
        fixes.append(
            advise(f"{caller.package} asks for it: the class must derive from the one that {caller.file} expects")
        )
    return _own_cause(error, title=title, because=because, fixes=fixes, component=component)


def _explain_bare_model(error: LoggedError, caller: NameCaller) -> NameCause:
    """`model.module` of a model that nothing wraps: the script was written for several processes."""
    owner = error.fault.owner
    because = (
        f"model.module is the model inside DistributedDataParallel, DataParallel or DeepSpeed's engine. {owner} is the "
        "bare model: with one process or one GPU nothing wraps it (accelerate and the Trainer leave it as it is)."
        f"{_describe_caller(caller)}"
    )
    return _own_cause(
        error,
        title=f"{owner} is not wrapped, and the code asks for model.module, which only a wrapped model has",
        because=because,
        fixes=[
            advise(
                "Start it as the project does, with the launcher (torchrun --nproc_per_node=1, accelerate launch with "
                "MULTI_GPU, python -m torch.distributed.launch), so that the model is wrapped"
            ),
            advise(
                "In that line: getattr(model, 'module', model) in place of model.module, or "
                "accelerator.unwrap_model(model)"
            ),
        ],
        component=_component_of(caller),
    )


def _explain_property(
    error: LoggedError, package: str, caller: NameCaller | None, shelf: AtlasShelf
) -> NameCause | None:
    """A property that the class has in every release: its own code asked something else for what is not there."""
    fault, lookup = error.fault, shelf.open(package)
    if lookup is None:
        return None
    presence = lookup.find_name(f"{lookup.file.root}.{fault.owner}.{fault.name}")
    if presence.present != lookup.every or presence.kinds.get("property", 0) != lookup.every:
        return None
    because = (
        f"Every release of {package} that was read has the property {fault.name} of {fault.owner}. torch's Module says "
        "of a property whose code raises an AttributeError that the property itself is not there: the real one, of an "
        f"object that the property goes through, is hidden.{_describe_caller(caller)}"
    )
    fixes = [
        advise(
            f"type(model).{fault.name}.fget(model) in place of model.{fault.name} shows the real error with its line"
        ),
        advise(
            f"What your code put into the model before (a class or module of your own, such as an attention processor) "
            f"lacks what {package} expects of it: derive it from {package}'s own class, or from torch.nn.Module"
        ),
    ]
    title = f"{package}'s {fault.owner} has `{fault.name}`: the property fails inside, and torch hides the real error"
    return _own_cause(error, title=title, because=because, fixes=fixes, component=_component_of(caller))


def _explain_unset_by_subclass(error: LoggedError, caller: NameCaller) -> NameCause:
    """A package's own method asks self for an attribute: the project's subclass did not let the base class set it."""
    owner, name, package = error.fault.owner, error.fault.name, caller.package
    because = (
        f"A method of {package} ({caller.file}, line {caller.frame.line}) asks self.{name}, which the base class in "
        f"this {package} sets. {owner}, a class of the project or the model, derives from it and has an __init__ of "
        f"its own that does not call super().__init__, calls it later, or was copied from an older {package}."
    )
    fixes = [
        advise(
            f"Call super().__init__(...) first in the __init__ of {owner}, or set self.{name} there before that step"
        ),
        advise(f"The {package} for which the project was written (its requirements), or a newer commit of the project"),
    ]
    title = f"{owner} derives from a class of {package} and did not set `{name}`, which this {package} asks of it"
    return _own_cause(error, title=title, because=because, fixes=fixes, component=_component_of(caller))


def _explain_configuration(error: LoggedError, caller: NameCaller | None) -> NameCause:
    """A field that a model's configuration has in no release: it comes from config.json, and is not there."""
    owner, name = error.fault.owner, error.fault.name
    because = (
        f"No release of transformers gives {owner} a field {name}, so it must come from the model's config.json, which "
        f"lacks it: the model, or its newest revision, is another one than the code was written for; or the code wants "
        f"a configuration class of its own.{_describe_caller(caller)}"
    )
    fixes = [
        advise(
            f"grep {name} config.json: take the model (or the revision of it) that the project names, or add the field "
            "with the value that the project's own configuration has"
        ),
        advise("The packages that the project's own requirements name, and a newer release or commit of the project"),
    ]
    title = f"The model's configuration ({owner}, config.json) has no field {name}, for which the code asks"
    return _own_cause(error, title=title, because=because, fixes=fixes, component=OwnComponent.MODEL)


def _describe_adding(fault: NameFault, shelf: AtlasShelf) -> str:
    """Say which package, that gives attributes to others' models, has a function of that name, and where."""
    for package in _ADDS_ATTRIBUTES if len(fault.name) >= _FEWEST_LETTERS else ():
        lookup = shelf.open(package)
        home = next((home for home, _ in lookup.definitions_of(fault.name)), "") if lookup else ""
        if home:
            with_vllm = ", which is for generation by vLLM (fast_inference=True)" if "vllm" in home else ""
            return f": {package} has a function {fault.name} in {home.partition(':')[0]}{with_vllm}"
    return ""


def _explain_older_torch(error: LoggedError, caller: NameCaller | None, shelf: AtlasShelf) -> NameCause | None:
    """An attribute that every Module has in each torch that was read: an older one runs, or it is no Module."""
    fault, lookup = error.fault, shelf.open("torch")
    if lookup is None or not _IS_MODULE.search(fault.owner):
        return None
    if lookup.find_name(f"torch.nn.modules.module.Module.{fault.name}").present != lookup.every:
        return None
    first = lookup.file.releases[0]
    return _own_cause(
        error,
        title=f"torch has `{fault.name}` of Module since {first}: an older one runs, or {fault.owner} is no Module",
        because=(
            f"Every release of torch from {first} on has {fault.name} of Module, from which {fault.owner} mostly "
            f"derives. Otherwise {fault.owner} here is a class of your own that does not.{_describe_caller(caller)}"
        ),
        fixes=[
            Fix(change={"torch": f">={first}"}, note="has it; with the torchvision and extensions of that torch"),
            advise("python -c 'import torch; print(torch.__version__)' shows which torch runs"),
        ],
        component="torch",
    )


def _find_wrapping_package(fault: NameFault, package: str, shelf: AtlasShelf) -> str:
    """The package whose own class, which wraps others, has an attribute that a wrapped class lacks; empty for none."""
    if package not in _WRAPPED or len(fault.name) < _FEWEST_LETTERS or fault.name.startswith("_"):
        return ""
    if not _CAN_BE_WRAPPED.search(fault.owner):
        return ""
    for wrapper in _WRAPPERS:
        lookup = shelf.open(wrapper)
        rows = lookup.file.search_rows(fault.name) if lookup else ()
        if any(path.endswith(f".{fault.name}") for _, (path, _, _, _) in rows):
            return wrapper
    return ""


def _explain_unwrapped(
    error: LoggedError, package: str, caller: NameCaller | None, shelf: AtlasShelf
) -> NameCause | None:
    """An attribute of the object that one package makes of another's model, asked of the bare model."""
    fault = error.fault
    wrapper = _find_wrapping_package(fault, package, shelf)
    if not wrapper:
        return None
    asks_itself = caller is not None and caller.package in {"transformers", "accelerate"} and wrapper == "deepspeed"
    first = (
        [
            advise(
                "The Trainer takes this run for one with DeepSpeed, and the model was not prepared for it: unset "
                "ACCELERATE_USE_DEEPSPEED and leave --deepspeed (and accelerate's saved configuration for DeepSpeed) "
                "out, or start with the deepspeed launcher and a configuration"
            )
        ]
        if asks_itself
        else []
    )
    return _own_cause(
        error,
        title=f"{fault.owner} of {package} has no `{fault.name}`: that is {wrapper}'s, which does not wrap the object",
        because=(
            f"A class of {wrapper} has {fault.name}, and {fault.owner} is a plain class of {package}: the object was "
            f"not yet given to {wrapper}, was unwrapped or merged before, or the adapter did not load."
            f"{_describe_caller(caller)}"
        ),
        fixes=[
            *first,
            advise(
                f"print(type(...)) of the object: {fault.name} is of what {wrapper} returns (PeftModel.from_pretrained "
                "or get_peft_model, deepspeed.initialize, accelerator.prepare); keep that, and call it there"
            ),
            advise(f"Leave the call out where the object is merged or unwrapped already: {package}'s own methods do"),
        ],
        component=_component_of(caller),
    )


def _near_attribute(fault: NameFault, package: str, shelf: AtlasShelf) -> str:
    """The attribute of a package's class of which a few wrong letters make the one of the error; empty for none."""
    lookup = shelf.open(package)
    rows = lookup.file.find_rows(f"{fault.owner}.") if lookup else ()
    names = {path.partition(".")[2] for _, (path, _, _, _) in rows}
    near = find_nearest_name(fault.name, sorted(names)) or ""
    return near if near.startswith("_") == fault.name.startswith("_") else ""


def _is_one_letter_off(name: str, other: str) -> bool:
    """Whether one letter more, less or another makes one name of the other: no need to see who wrote it."""
    short, long = sorted((name, other), key=len)
    if len(short) == len(long):
        return sum(first != second for first, second in zip(short, long, strict=True)) == 1
    return any(long[:at] + long[at + 1 :] == short for at in range(len(long)))


def _explain_value(error: LoggedError, caller: NameCaller) -> NameCause:
    """An attribute of a plain Python value, such as None: what made the value gave another one than meant."""
    fault = error.fault
    refused = f"'{fault.owner}' object has no attribute '{fault.name}'"
    if (reason := explain_empty_value(refused, caller.frame, "")) is not None:
        return _own_cause(
            error, title=reason.title, because=reason.because, fixes=reason.fixes, component=reason.component
        )
    what = "None" if fault.owner == "NoneType" else f"a {fault.owner}"
    value = find_empty_value(refused, caller.frame.code)
    subject = f"`{value.what}`" if value is not None else "A value"
    return _own_cause(
        error,
        title=f"{subject} is {what} where your code asks for `{fault.name}` of it",
        because=f"What gave {subject if value else 'the value'} returned {what}, which has no "
        f"{fault.name}.{_describe_caller(caller)}",
        fixes=[
            advise(f"Look where that value is set: a file, an option or a function there gives {what}; test for it"),
        ],
        component=_component_of(caller),
    )


def _explain_keyword(error: LoggedError, place: NamePlace | None, shelf: AtlasShelf) -> NameCause | None:
    fault, chooser = error.fault, find_chooser(error, shelf)
    function = fault.owner.removesuffix(".__init__").removesuffix(".__new__")
    is_named = function not in {"__init__", "__new__", "wrapper", "inner"}
    refused = find_refusing_package(error)
    if refused is not None and (place is None or not place.present):
        because = refused.because + _describe_caller(chooser, verb="passes it in")
        return _own_cause(error, title=refused.title, because=because, fixes=refused.fixes, component=refused.component)
    if place is not None and not place.present:
        package, releases = place.lookup.file.package, place.lookup.file.releases
        title = f"No release of {package} since {releases[0]} takes {place.what}"
        because = f"{place.what} is no parameter in any release from {releases[0]} to {releases[-1]}."
    elif chooser is None and (not is_named or function.startswith("_")):
        return None  # whose call it is cannot be told: a private function is called by its own package
    else:
        title = f"{function if is_named else 'The function'} does not take the keyword {fault.name}"
        because = f"No release of a package in the atlas is known whose {function} takes {fault.name}."
    near = _near_keyword(function, fault.name, shelf) if is_named and place is None else None
    if near is not None:
        package, near_name = near
        title += f": {package}'s {function} has {near_name} in its place"
        because = (
            f"{package}'s {function} takes {near_name} and no {fault.name} in any release that was read: the name was "
            "changed before, and the code was written for an older release."
        )
    component = _component_of(chooser)
    if chooser is None and function == "forward":
        component = OwnComponent.MODEL
    because += _describe_caller(chooser, verb="passes it in")
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
    return _own_cause(error, title=title, because=because, fixes=fixes, component=component)


def _near_keyword(function: str, keyword: str, shelf: AtlasShelf) -> tuple[str, str] | None:
    """The package that alone defines a function, and its one keyword that shares a word with the refused one."""
    if "_" not in function.strip("_") and not re.search(r"[a-z][A-Z]", function):
        return None  # a single word, which many projects choose
    lookups = [shelf.open(package) for package in _packages_with(function, shelf)]
    if len(lookups) != 1 or lookups[0] is None:
        return None
    names: dict[str, int] = {}
    for home, _ in lookups[0].definitions_of(function):
        names |= find_parameter(lookups[0], home.replace(":", "."), keyword).names
    if keyword in names:
        return None
    words = keyword.split("_")
    newest = 1 << (len(lookups[0].file.releases) - 1)
    near = [
        name
        for name, mask in names.items()
        if mask & newest and len(words) > 1 and name.split("_")[1:] == words[1:] and len(name.split("_")) == len(words)
    ]
    makers = [name for name in near if name.startswith(("process", "tokeniz", "eval", "quant"))]
    chosen = makers if len(near) > 1 else near
    return (lookups[0].file.package, chosen[0]) if len(chosen) == 1 else None


def _explain_class_key(error: LoggedError, shelf: AtlasShelf) -> NameCause:
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
    component = package or _component_of(caller)
    title = f"A table of classes has no entry for {name}"
    return _own_cause(error, title=title, because=because + _describe_caller(caller), fixes=fixes, component=component)


def _explain_own_module(error: LoggedError, shelf: AtlasShelf) -> NameCause | None:
    """A module of no known package lacks a name or a module: it is the project's own, or another one of its name.

    Python names the first part that it does not find: so the top-level module is there.
    """
    fault = error.fault
    top = fault.owner.partition(".")[0]
    is_there = "." in fault.owner or fault.kind is not FaultKind.MODULE
    if not top or not is_there or fault.circular or shelf.owner(top) or top in sys.stdlib_module_names:
        return None
    if find_distribution(top, shelf.distributions):
        return None
    if top == REMOTE_CODE:
        return _explain_model_code(error, shelf)
    what = f"the module {fault.owner}" if fault.kind is FaultKind.MODULE else f"`{fault.name}` in {fault.owner}"
    is_own = top in FOLDERS_OF_PROJECTS or (fault.path and "-packages/" not in fault.path.replace("\\", "/"))
    because = (
        f"{top} itself is found, and it has not {what}: it is the project's own folder or file, whole or in part, of "
        f"another commit than the code that asks for it; or another {top} stands before it in sys.path."
    )
    return _own_cause(
        error,
        title=f"The {top} that is imported has not {what}",
        because=because + _describe_caller(find_caller(error, shelf)),
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


def _explain_model_code(error: LoggedError, shelf: AtlasShelf) -> NameCause:
    """A file that came with a model lacks a class that the model's configuration, or another such file, names."""
    fault = error.fault
    what = f"the module {fault.owner}" if fault.kind is FaultKind.MODULE else f"`{fault.name}`"
    file = fault.owner.rpartition(".")[2]
    because = (
        f"{file}.py is the model's own code. The configuration names what that file has not: the copy in the cache is "
        "of another revision or not whole, or files of two revisions were put into one folder."
    )
    return _own_cause(
        error,
        title=f"The code that came with the model has not {what} in {file}.py",
        because=because + _describe_caller(find_caller(error, shelf)),
        fixes=[
            advise(
                "Delete the copy (~/.cache/huggingface/modules/transformers_modules, and the model's own), load again"
            ),
            advise("All files of one revision of the model: config.json, tokenizer_config.json and *.py; revision=..."),
        ],
        component=OwnComponent.MODEL,
    )


def _packages_with(name: str, shelf: AtlasShelf) -> list[str]:
    """Return the packages of the atlas that define a class of that name, transformers first, from which others copy."""
    packages = sorted(shelf.packages, key=lambda package: package != "transformers")
    lookups = ((package, shelf.open(package)) for package in packages)
    return [package for package, lookup in lookups if lookup and any(True for _ in lookup.definitions_of(name))]


def _component_of(caller: NameCaller | None) -> str:
    return OwnComponent.MODEL if caller is not None and caller.is_remote_code else OwnComponent.YOUR_CODE


def _describe_caller(caller: NameCaller | None, verb: str = "asks for it in") -> str:
    if caller is None:
        return ""
    function = f" {caller.frame.function}" if caller.frame.function.isidentifier() else " its main part"
    return f" {caller.file} {verb}{function}, line {caller.frame.line}."


def _describe_bases(fault: NameFault, shelf: AtlasShelf) -> str:
    """Say which class of transformers, from which it may derive, has the attribute, and in which releases."""
    for lookup, base in list_likely_bases(fault.owner, shelf):
        presence, name = lookup.find_name(f"{base}.{fault.name}").present, base.rpartition(".")[2]
        if not presence:
            continue
        package = lookup.file.package
        if presence == lookup.every:
            return f" Every {name} of {package} has it, so {fault.owner} does not derive from that, or hides it."
        releases = [text for place, text in enumerate(lookup.file.releases) if presence >> place & 1]
        return (
            f" {name} of {package} has it from {releases[0]} to {releases[-1]} only: {fault.owner} may derive from it."
        )
    return ""


def _own_cause(error: LoggedError, *, title: str, because: str, fixes: Sequence[Fix], component: str) -> NameCause:
    incident = Incident(
        id=f"name:{error.fault.text}",
        title=title,
        kind=IncidentKind.API_UNKNOWN,
        severity=IncidentSeverity.FAILURE,
        component=component,
        because=because,
        fix=tuple(fixes),
        source=("the message, its traceback and the atlas",),
        confidence="reported",
    )
    return NameCause(error=error, incident=incident, package=component, is_fallback=True)
