"""What can be said of an attribute that no release of any package has: whose class it is. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from packaging.version import Version

from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.core.nearest_names import find_nearest_name
from knowngood_diagnose.failures.names.model_configurations import explain_model_configuration, explain_unsloth_class
from knowngood_diagnose.failures.names.name_places import (
    PYTHON_TYPES,
    is_plain_word,
    list_frame_packages,
    list_likely_bases,
)
from knowngood_diagnose.failures.names.name_situation import (
    NameCaller,
    NameCause,
    advise,
    build_own_cause,
    component_of,
    describe_caller,
    find_caller,
    list_defining_packages,
)
from knowngood_diagnose.failures.names.plain_values import explain_value
from knowngood_facts.compat.incident import Fix, OwnComponent
from knowngood_facts.facts.atlas_file import RowKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from knowngood_diagnose.failures.logs.logged_errors import LoggedError, NameFault
    from knowngood_diagnose.failures.names.atlas_shelf import AtlasShelf
    from knowngood_facts.facts.atlas_lookup import AtlasLookup

_OF_A_MODEL = lazy_pattern(
    r"(?:For[A-Z]\w+|Model|LM|Config|Tokenizer(?:Fast)?|Processor|Transformer|Criterion|Loader|Net|Loss|Encoder|Decoder"
    r"|Layer|Block|Head|Trainer|Arguments|Namespace|Experiment|Agent|Policy)$"
)
"""How the names of classes end that come with a model or are written for one, or that hold a script's options."""
_ADDS_ATTRIBUTES = ("unsloth", "unsloth-zoo")
"""Packages that give attributes of their own to the models of transformers."""
_IS_MODULE = lazy_pattern(r"(?:For[A-Z]\w+|Model|LM|Module|Net|Linear|Sequential|Encoder|Decoder|Layer|Attention)$")
"""How the names of classes end that mostly derive from torch's Module."""
_PLAIN_ARGUMENTS = frozenset(("TrainingArguments", "Seq2SeqTrainingArguments"))
_HAS_HEAD = lazy_pattern(r"For[A-Z]\w+$|LMHeadModel$")
_LAYERS = {
    "embed_tokens": ("model.model.embed_tokens is the embedding of the tokens", "model.get_input_embeddings()"),
    "lm_head": ("model.lm_head is the last layer", "model.get_output_embeddings()"),
    "model": ("model.model is the part without the head", "model.base_model"),
}
"""A layer -> where most models have it, and what asks any model for it."""
_FEWEST_LETTERS = 8
_SETTINGS = r"(?:\w+_)?(?:args|cfg|config|conf|opts?|argv|options|hparams|params|flags|settings)"
"""How programs call the object that holds their settings."""


def explain_own_attribute(  # noqa: C901, PLR0911, PLR0912 - one return for each kind of class
    error: LoggedError, shelf: AtlasShelf
) -> NameCause | None:
    """Return what lacks an attribute that no package has; `None` where nothing says whose class it is."""
    fault, caller = error.fault, find_caller(error, shelf)
    is_own_code = caller is not None and not caller.package
    if fault.owner in PYTHON_TYPES:
        return explain_value(error, caller, shelf) if is_own_code and caller else None
    if (written := explain_unsloth_class(error)) is not None:
        return written
    if caller is not None and (lacking := explain_model_configuration(error, caller, shelf)) is not None:
        return lacking
    if fault.name == "module" and is_own_code and caller:
        return explain_bare_model(error, caller)
    if (trainer := _explain_trainer_arguments(error, caller, shelf)) is not None:
        return trainer
    owners = list_defining_packages(fault.owner, shelf)
    is_anywhere = bool(owners)
    if is_plain_word(fault.owner):  # anyone may call a class so: the traceback must lead to the package
        owners = [package for package in owners if package in list_frame_packages(error, shelf)]
    known = next((package for package in owners if package in WRAPPED_PACKAGES), next(iter(owners), ""))
    near = _near_attribute(fault, known, shelf) if known else ""
    if near and (caller is not None or _is_one_letter_off(fault.name, near)):
        return build_own_cause(
            error,
            title=f"{fault.owner} of {known} has `{near}`, and no `{fault.name}`",
            because=f"It looks like a slip of the pen for {near}.{describe_caller(caller)}",
            fixes=[advise(f"Write {near} in place of {fault.name}")],
            component=component_of(caller),
        )
    if (replaced := explain_replaced_class(error, owners, caller, shelf)) is not None:
        return replaced
    if known and (failed := _explain_property(error, known, caller, shelf)) is not None:
        return failed
    if known and (cause := explain_older_torch(error, caller, shelf) or explain_unwrapped(error, known, caller, shelf)):
        return cause
    if fault.owner == "Namespace" and not (caller and caller.package):
        return _explain_setting(error, caller)
    if caller is None and "transformers" not in owners and (renamed := _explain_model_part(error)) is not None:
        return renamed
    if not is_own_code and (is_anywhere or not (caller or _OF_A_MODEL.search(fault.owner))):
        return None
    component = component_of(caller)
    if fault.owner.endswith("Config") and known == "transformers":
        return _explain_configuration(error, caller)
    if is_own_code and caller and _is_setting(fault.name, caller) and is_plain_word(fault.owner):
        return _explain_setting(error, caller)
    if known:
        title = f"No release of {known} has `{fault.name}` of {fault.owner}"
        because = f"The class {fault.owner} of {known}, or one of your own with that name, has no {fault.name}."
    elif caller is not None and caller.package and f"self.{fault.name}" in caller.frame.code:
        return _explain_unset_by_subclass(error, caller)
    else:
        title = f"{fault.owner}, a class of the project or the model, has no attribute {fault.name}"
        because = f"No package in the traceback has a class {fault.owner}: the project, or the model, brought it along."
    because += describe_caller(caller) + _describe_bases(fault, shelf)
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
    return build_own_cause(error, title=title, because=because, fixes=fixes, component=component)


def _explain_trainer_arguments(error: LoggedError, caller: NameCaller | None, shelf: AtlasShelf) -> NameCause | None:
    """A setting of one of trl's trainers, which takes its own configuration and was given transformers' arguments."""
    owner, name, lookup = error.fault.owner, error.fault.name, shelf.open("trl")
    if owner not in _PLAIN_ARGUMENTS or lookup is None:
        return None
    rows = (path for _, (path, _, _, _) in lookup.file.search_rows(name))
    classes = sorted({path.partition(".")[0] for path in rows if path.endswith(f"Config.{name}")})
    classes = [path for path in classes if lookup.find_name(f"trl.{path}.{name}").present]
    if not classes:
        return None
    stem = caller.frame.parts[-1].partition("_trainer")[0] if caller is not None else ""
    fitting = [path for path in classes if path.lower() == f"{stem}config"] or classes
    shown = " or ".join(fitting[:3]) + (", or that of another trainer" if len(fitting) > 3 else "")
    because = (
        f"{name} is a setting of trl's trainers, each of which has a configuration of its own, derived from "
        f"TrainingArguments: {shown}. What was passed as args is transformers' plain {owner}.{describe_caller(caller)}"
    )
    fixes = [
        advise(
            f"args={fitting[0]}(...) in place of {owner}(...): it takes the same arguments and those of the trainer"
        ),
        advise("The trl for which the program was written (its requirements), whose trainers took TrainingArguments"),
    ]
    title = f"The trainer takes {fitting[0]}, and was given {owner}, which has no `{name}`"
    if len(fitting) > 1:
        title = f"trl's trainer takes its own configuration, and was given {owner}, which has no `{name}`"
    return build_own_cause(error, title=title, because=because, fixes=fixes, component=OwnComponent.YOUR_CODE)


def _explain_model_part(error: LoggedError) -> NameCause | None:
    """A layer that most models have under one name, and this one, whose code came with it, under another."""
    owner, name = error.fault.owner, error.fault.name
    if name not in _LAYERS or not _HAS_HEAD.search(owner):
        return None
    because = (
        f"{owner} is no class of transformers: its code came with the model, and calls its layers as its authors did. "
        f"What asks for {name} was written for Llama and its like, where {_LAYERS[name][0]}."
    )
    fixes = [
        advise(f"{_LAYERS[name][1]} in place of .{name}: each model says with it which layer it is"),
        advise("print(model) shows the names of this model's layers: write that one, or set it as a second name"),
        advise("A newer commit of the project or trainer that asks, which may know this model"),
    ]
    title = f"{owner} has no layer `{name}`: its own code calls it otherwise"
    return build_own_cause(error, title=title, because=because, fixes=fixes, component=OwnComponent.YOUR_CODE)


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
        f"object that the property goes through, is hidden.{describe_caller(caller)}"
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
    return build_own_cause(error, title=title, because=because, fixes=fixes, component=component_of(caller))


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
    return build_own_cause(error, title=title, because=because, fixes=fixes, component=component_of(caller))


def _explain_configuration(error: LoggedError, caller: NameCaller | None) -> NameCause:
    """A field that a model's configuration has in no release: it comes from config.json, and is not there."""
    owner, name = error.fault.owner, error.fault.name
    because = (
        f"No release of transformers gives {owner} a field {name}, so it must come from the model's config.json, which "
        f"lacks it: the model, or its newest revision, is another one than the code was written for; or the code wants "
        f"a configuration class of its own.{describe_caller(caller)}"
    )
    fixes = [
        advise(
            f"grep {name} config.json: take the model (or the revision of it) that the project names, or add the field "
            "with the value that the project's own configuration has"
        ),
        advise("The packages that the project's own requirements name, and a newer release or commit of the project"),
    ]
    title = f"The model's configuration ({owner}, config.json) has no field {name}, for which the code asks"
    return build_own_cause(error, title=title, because=because, fixes=fixes, component=OwnComponent.MODEL)


def _is_setting(name: str, caller: NameCaller) -> bool:
    """Whether the line asks an object for it that has the name of a program's settings."""
    return bool(re.search(rf"\b(?:{_SETTINGS})\.{re.escape(name)}\b", caller.frame.code, re.IGNORECASE))


def _explain_setting(error: LoggedError, caller: NameCaller | None) -> NameCause:
    """An option that the program's own settings lack."""
    owner, name = error.fault.owner, error.fault.name
    line = f" ({caller.frame.code[:100]})" if caller is not None and caller.frame.code else ""
    because = (
        f"The code asks the settings of the program for {name}{line}, and {owner}, which holds them, has no such "
        "option: the part that defines the options (the parser, the class, the file of configuration) is of another "
        f"commit than the code that reads them, or another script's.{describe_caller(caller)}"
    )
    fixes = [
        advise(f"A newer commit of the project (git pull), in which the option {name} is defined"),
        advise(
            f"Define it yourself with the value that switches it off: {name} = False (or None) where the other options "
            f"are, or getattr(args, '{name}', False) in that line"
        ),
        advise("The very script and file of configuration that the project's instructions name for this task"),
    ]
    title = f"The program's own settings ({owner}) have no option {name}, which its code reads"
    return build_own_cause(error, title=title, because=because, fixes=fixes, component=component_of(caller))


def _describe_adding(fault: NameFault, shelf: AtlasShelf) -> str:
    """Say which package, that gives attributes to others' models, has a function of that name, and where."""
    for package in _ADDS_ATTRIBUTES if len(fault.name) >= _FEWEST_LETTERS else ():
        lookup = shelf.open(package)
        home = next((home for home, _ in lookup.definitions_of(fault.name)), "") if lookup else ""
        if home:
            with_vllm = ", which is for generation by vLLM (fast_inference=True)" if "vllm" in home else ""
            return f": {package} has a function {fault.name} in {home.partition(':')[0]}{with_vllm}"
    return ""


def explain_older_torch(error: LoggedError, caller: NameCaller | None, shelf: AtlasShelf) -> NameCause | None:
    """An attribute that every Module has in each torch that was read: an older one runs, or it is no Module."""
    fault, lookup = error.fault, shelf.open("torch")
    if lookup is None or not _IS_MODULE.search(fault.owner):
        return None
    if lookup.find_name(f"torch.nn.modules.module.Module.{fault.name}").present != lookup.every:
        return None
    first = lookup.file.releases[0]
    return build_own_cause(
        error,
        title=f"torch has `{fault.name}` of Module since {first}: an older one runs, or {fault.owner} is no Module",
        because=(
            f"Every release of torch from {first} on has {fault.name} of Module, from which {fault.owner} mostly "
            f"derives. Otherwise {fault.owner} here is a class of your own that does not.{describe_caller(caller)}"
        ),
        fixes=[
            Fix(change={"torch": f">={first}"}, note="has it; with the torchvision and extensions of that torch"),
            advise("python -c 'import torch; print(torch.__version__)' shows which torch runs"),
        ],
        component="torch",
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


_WRAPPERS = ("peft", "deepspeed", "accelerate")
"""Packages that make an object of their own of a model, an optimizer or a loader."""
WRAPPED_PACKAGES = frozenset(("transformers", "torch", "peft"))
_CAN_BEWRAPPED_PACKAGES = lazy_pattern(
    r"(?:For[A-Z]\w+|Model|LM|Module|Net|Linear|Sequential|Optimizer|Adam\w*|SGD|Loader|Scheduler)$"
)
"""How the names of classes end of which such a package makes an object of its own."""


def explain_bare_model(error: LoggedError, caller: NameCaller) -> NameCause:
    """`model.module` of a model that nothing wraps: the script was written for several processes."""
    owner = error.fault.owner
    because = (
        f"model.module is the model inside DistributedDataParallel, DataParallel or DeepSpeed's engine. {owner} is the "
        "bare model: with one process or one GPU nothing wraps it (accelerate and the Trainer leave it as it is)."
        f"{describe_caller(caller)}"
    )
    return build_own_cause(
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
        component=component_of(caller),
    )


def _find_wrapping_package(fault: NameFault, package: str, shelf: AtlasShelf) -> str:
    """The package whose own class, which wraps others, has an attribute that a wrapped class lacks; empty for none."""
    if package not in WRAPPED_PACKAGES or len(fault.name) < _FEWEST_LETTERS or fault.name.startswith("_"):
        return ""
    if not _CAN_BEWRAPPED_PACKAGES.search(fault.owner):
        return ""
    for wrapper in _WRAPPERS:
        lookup = shelf.open(wrapper)
        rows = lookup.file.search_rows(fault.name) if lookup else ()
        if any(path.endswith(f".{fault.name}") for _, (path, _, _, _) in rows):
            return wrapper
    return ""


def explain_unwrapped(
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
    return build_own_cause(
        error,
        title=f"{fault.owner} of {package} has no `{fault.name}`: that is {wrapper}'s, which does not wrap the object",
        because=(
            f"A class of {wrapper} has {fault.name}, and {fault.owner} is a plain class of {package}: the object was "
            f"not yet given to {wrapper}, was unwrapped or merged before, or the adapter did not load."
            f"{describe_caller(caller)}"
        ),
        fixes=[
            *first,
            advise(
                f"print(type(...)) of the object: {fault.name} is of what {wrapper} returns (PeftModel.from_pretrained "
                "or get_peft_model, deepspeed.initialize, accelerator.prepare); keep that, and call it there"
            ),
            advise(f"Leave the call out where the object is merged or unwrapped already: {package}'s own methods do"),
        ],
        component=component_of(caller),
    )


_MEMBERS = frozenset((RowKind.ATTRIBUTE, RowKind.PROPERTY, RowKind.FUNCTION, RowKind.VALUE))


def explain_replaced_class(
    error: LoggedError, owners: Sequence[str], caller: NameCaller | None, shelf: AtlasShelf
) -> NameCause | None:
    """Return which class of an older release had the attribute; `None` where no class of the module had.

    Args:
        error: an error about an attribute that no release gives to its class.
        owners: the packages that have a class of that name.
        caller: the code that asks.
        shelf: the atlas of all packages.
    """
    for package in owners:
        lookup = shelf.open(package)
        older_class = _find_older_class(lookup, error) if lookup else None
        if lookup and older_class:
            return _describe(error, lookup, *older_class, caller)
    return None


def _find_older_class(lookup: AtlasLookup, error: LoggedError) -> tuple[str, int] | None:
    """The class that had the attribute and is gone, with its releases, all of them older than the newest."""
    owner, name = error.fault.owner, error.fault.name
    modules = {home.partition(":")[0] for home, _ in lookup.definitions_of(owner)}
    for module, (path, kind, _, mask) in lookup.file.search_rows(name):
        other, _, member = path.rpartition(".")
        is_other = member == name and other.isidentifier() and other != owner and kind in _MEMBERS
        if not is_other or module not in modules:
            continue
        if (
            _ends_with_series(lookup.find_name(f"{module}.{other}").present, lookup.file.releases)
            and lookup.find_name(f"{module}.{owner}").present & ~mask
        ):
            return other, mask
    return None


def _ends_with_series(mask: int, releases: Sequence[str]) -> bool:
    """Whether the last of some releases ends a main release: from one to the next a package may be rewritten."""
    last = mask.bit_length() - 1
    if not 0 <= last < len(releases) - 1:
        return False
    return Version(releases[last]).major != Version(releases[last + 1]).major


def _describe(error: LoggedError, lookup: AtlasLookup, other: str, mask: int, caller: NameCaller | None) -> NameCause:
    package, owner, name = lookup.file.package, error.fault.owner, error.fault.name
    newest = lookup.file.releases[mask.bit_length() - 1]
    asker = caller.package if caller and caller.package != package else ""
    because = (
        f"{name} is an attribute of {other}, which {package} has until {newest}. Newer releases have objects of "
        f"{owner} in their place, without {name}: the {package} that runs is too new for the code that asks."
        f"{describe_caller(caller)}"
    )
    fixes = [Fix(change={package: f"<={newest}"}, note=f"still has {other}, with {name}", cost="a pin")]
    if asker:
        fixes.append(Fix(change={asker: "*"}, note=f"a newer {asker}, written for the {package} that is there"))
    else:
        fixes.append(advise(f"A newer release of the package whose file asks, written for the {package} that is there"))
    title = f"This {package} is too new: {owner} has no `{name}`, which {other} had until {newest}"
    return build_own_cause(error, title=title, because=because, fixes=fixes, component=package)
