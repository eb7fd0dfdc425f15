"""An attribute of the object that a package makes of a model, asked of the bare model. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.failures.names.name_situation import NameCause, advise, build_own_cause, component_of, describe_caller

if TYPE_CHECKING:
    from knowngood.failures.logs.logged_errors import LoggedError, NameFault
    from knowngood.failures.names.atlas_shelf import AtlasShelf
    from knowngood.failures.names.name_situation import NameCaller

_WRAPPERS = ("peft", "deepspeed", "accelerate")
"""Packages that make an object of their own of a model, an optimizer or a loader."""
WRAPPED_PACKAGES = frozenset(("transformers", "torch", "peft"))
_CAN_BEWRAPPED_PACKAGES = lazy_pattern(
    r"(?:For[A-Z]\w+|Model|LM|Module|Net|Linear|Sequential|Optimizer|Adam\w*|SGD|Loader|Scheduler)$"
)
"""How the names of classes end of which such a package makes an object of its own."""
_FEWEST_LETTERS = 8


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
