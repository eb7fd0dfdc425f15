"""Why a model's configuration, or a class that unsloth rewrote, lacks a field that a program asks of it. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from knowngood.core.lazy_patterns import lazy_pattern
from knowngood_diagnose.failures.names.atlas_shelf import AtlasShelf, upgrade_package
from knowngood_diagnose.failures.names.name_situation import (
    NameCause,
    advise,
    build_own_cause,
    component_of,
    describe_caller,
    describe_failure,
)
from knowngood_facts.compat.incident import Fix, IncidentKind
from knowngood_facts.facts.atlas_file import RowKind

if TYPE_CHECKING:
    from knowngood_diagnose.failures.logs.logged_errors import LoggedError
    from knowngood_diagnose.failures.names.name_situation import NameCaller
    from knowngood_facts.facts.atlas_lookup import AtlasLookup

_ASKS_CONFIG = lazy_pattern(r"\b(?:\w*config|\w*cfg)\.", re.IGNORECASE)
_FROM_FIVE = "5.0.0"
"""The first transformers whose configurations of models have no settings of generation.

Source: configuration_utils.py in the wheels of 4.57.6, which sets them, and 5.0.0, which does not."""
_PART = lazy_pattern(r"(?:Text|Vision|Audio|Language|LLM|Decoder|Encoder|Qformer|QFormer)Config$")


def explain_model_configuration(error: LoggedError, caller: NameCaller, shelf: AtlasShelf) -> NameCause | None:
    """Return why a configuration lacks a field; `None` where the atlas has nothing of the class or the field."""
    fault, lookup = error.fault, shelf.open("transformers")
    if lookup is None or not fault.owner.endswith("Config"):
        return None
    homes = [home.partition(":")[0] for home, _ in lookup.definitions_of(fault.owner)]
    is_known = any(".models." in home for home in homes)
    is_asked = is_known or f"config.{fault.name}" in caller.frame.code
    if is_asked and (moved := _explain_generation_setting(error, caller, lookup)) is not None:
        return moved
    if is_known:
        return _explain_part(error, caller, lookup, homes)
    return _explain_unknown_model(error, caller, shelf) if _ASKS_CONFIG.search(caller.frame.code) else None


def _explain_generation_setting(error: LoggedError, caller: NameCaller, lookup: AtlasLookup) -> NameCause | None:
    owner, name = error.fault.owner, error.fault.name
    is_setting = lookup.find_name(f"transformers.GenerationConfig.{name}").present == lookup.every
    if not is_setting or lookup.find_name(f"transformers.PretrainedConfig.{name}").present:
        return None
    whose = caller.package if caller.package and not caller.is_remote_code else ""
    because = (
        f"{name} is a setting of generation. Up to transformers 4 each model's configuration had those settings with "
        f"their default values; since {_FROM_FIVE} only GenerationConfig has them.{describe_caller(caller)}"
    )
    fixes = [
        Fix(change={"transformers": "<5"}, note=f"its {owner} has {name}", cost="a pin"),
        advise(
            f"In that line: model.generation_config.{name}, or getattr(config, '{name}', None), in place of the "
            "model's configuration"
        ),
    ]
    if whose:
        fixes.insert(1, upgrade_package(whose, f"a newer {whose}, written for transformers 5"))
    return build_own_cause(
        error,
        title=f"transformers 5 no longer keeps `{name}`, a setting of generation, in {owner}",
        because=because,
        fixes=fixes,
        component=whose or component_of(caller),
    )


def _explain_part(error: LoggedError, caller: NameCaller, lookup: AtlasLookup, homes: list[str]) -> NameCause | None:
    """A field that the configuration of one of the model's parts has."""
    owner, name = error.fault.owner, error.fault.name
    parts = [
        path
        for module in dict.fromkeys(homes)
        for path, kind, _, _ in lookup.file.rows(module)
        if kind == RowKind.CLASS
        and path != owner
        and _PART.search(path)
        and lookup.find_name(f"{module}.{path}.{name}").present
    ]
    parts = sorted(dict.fromkeys(parts), key=lambda path: "Text" not in path)
    if not parts:
        return None
    field = "text_config" if "Text" in parts[0] else "the part's own configuration"
    because = (
        f"{owner} is the configuration of a model of several parts, and holds one for each: {', '.join(parts)}. "
        f"{name} is a field of {parts[0]}, and not of the whole.{describe_caller(caller)}"
    )
    whose = caller.package if caller.package and not caller.is_remote_code else ""
    fixes = [advise(f"config.get_text_config().{name}, or config.{field}.{name}, in place of config.{name}")]
    if whose:
        fixes.insert(0, upgrade_package(whose, f"a newer {whose}, which knows models of several parts"))
    else:
        fixes.append(advise("The transformers that the project's requirements name, and a newer commit of the project"))
    return build_own_cause(
        error,
        title=f"{owner} has no `{name}`: {parts[0]}, the configuration of a part of it, has",
        because=because,
        fixes=fixes,
        component=whose or component_of(caller),
    )


def _explain_unknown_model(error: LoggedError, caller: NameCaller, shelf: AtlasShelf) -> NameCause | None:
    """A class that came with the model, which the package that asks does not know in the release that runs."""
    owner, name, package = error.fault.owner, error.fault.name, caller.package
    lookup = shelf.open(package) if package in shelf.packages and package != "transformers" else None
    if lookup is None or caller.is_remote_code:
        return None
    mask = 0
    for _, own in lookup.definitions_of(owner):
        mask |= own
    first = lookup.file.releases[(mask & -mask).bit_length() - 1] if mask else ""
    because = (
        f"{owner} is no class of transformers: it came with the model, or {package} brings it. {caller.file}, line "
        f"{caller.frame.line} ({caller.frame.code[:100]}), asks it for {name} as of a model of one part; it keeps that "
        "in the configuration of a part, under a name of its own. "
    )
    because += (
        f"{package} has a {owner} since {first}: an older release runs, which takes the model for another kind."
        if first
        else f"No {package} that was read has a {owner}, so none of them is known to have this model."
    )
    fixes = [
        Fix(change={package: f">={first}"}, note=f"has {owner}, and so the model", cost="an upgrade")
        if first
        else upgrade_package(package, f"the newest {package}, which may know the model"),
        advise(
            f"{package}'s list of supported models: where this one is not in it, the release, fork or image that the "
            "model's own page names"
        ),
    ]
    return build_own_cause(
        error,
        title=f"The {package} that runs does not know this model: its {owner} has no `{name}` where {package} asks",
        because=because,
        fixes=fixes,
        component=package,
    )


_PACKAGE = "unsloth"
_FOLDER = "unsloth_compiled_cache"
"""Where unsloth keeps the classes that it wrote."""


def explain_unsloth_class(error: LoggedError) -> NameCause | None:
    """Return why a class that unsloth writes, or should have replaced, lacks an attribute; `None` for other classes."""
    fault = error.fault
    is_written = fault.owner.startswith("Unsloth")
    if is_written or any(_FOLDER in frame.parts for frame in error.frames):
        title = f"What unsloth wrote in place of another package's class does not go together: no `{fault.name}`"
        because = (
            f"{fault.owner} is a class that unsloth wrote from trl's or transformers', or one asks for it. unsloth "
            f"does not know the trl or transformers that is installed, or {_FOLDER} has files of another release."
        )
        fixes = [
            advise(f"rm -r {_FOLDER}, in the folder where the program starts; it is written again"),
            upgrade_package(_PACKAGE, "the newest release, which knows newer packages"),
            advise("The trl and transformers of this unsloth's time: pip check, or the pins of its own notebooks"),
        ]
    elif fault.name.startswith("unsloth_"):
        title = f"{fault.owner} was made before unsloth replaced it: it has no `{fault.name}`"
        because = (
            f"unsloth's trainer asks for {fault.name}, which only its own {fault.owner} has; this one is the original."
        )
        fixes = [
            advise("import unsloth in the first line, before trl, transformers and peft, in each file and process"),
            Fix(
                change={},
                note=f"Take {fault.owner} from trl after that import, and not from a module that had it before",
            ),
            upgrade_package(_PACKAGE),
        ]
    else:
        return None
    incident = describe_failure(
        f"name:{fault.text}", IncidentKind.API_UNKNOWN, _PACKAGE, title=title, because=because, fixes=fixes
    )
    return NameCause(error=error, incident=incident, package=_PACKAGE, is_fallback=True)
