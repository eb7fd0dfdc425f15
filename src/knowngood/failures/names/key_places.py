"""Where the keys of a package's tables are: model types, auto classes, training arguments, choices. Pure."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from knowngood.facts.atlas_parameters import find_parameter
from knowngood.facts.atlas_rows import RowKind
from knowngood.failures.names.atlas_shelf import AtlasShelf, NamePlace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from knowngood.facts.atlas_lookup import AtlasLookup
    from knowngood.failures.logs.logged_errors import LoggedError

_CONFIGURATIONS = "transformers.models.auto.configuration_auto.CONFIG_MAPPING_NAMES"
_MODELS = "transformers.models.auto.modeling_auto"


def _find_key(shelf: AtlasShelf, table: str, key: str, what: str) -> NamePlace | None:
    """Return the place of a key of a table, in whichever module of the package the table stands in a release."""
    lookup = shelf.lookup_of(table)
    if lookup is None:
        return None
    name = table.rpartition(".")[2]
    keys: dict[str, int] = {}
    for _, (path, kind, _, mask) in lookup.file.find_rows(f"{name}["):
        if kind == RowKind.KEY:
            other = path[len(name) + 1 : -1]
            keys[other] = keys.get(other, 0) | mask
    every = 0
    for mask in keys.values():
        every |= mask
    if not every:
        return None
    present = keys.get(key, 0)
    return NamePlace(
        lookup=lookup, dotted=f"{table}[{key}]", present=present, possible=every & ~present, what=what, names=keys
    )


def find_model_type(shelf: AtlasShelf, error: LoggedError) -> NamePlace | None:
    """Return the place of a model type that the configurations lack."""
    return _find_key(shelf, _CONFIGURATIONS, error.fault.name, f"the model type `{error.fault.name}`")


def find_table_key(shelf: AtlasShelf, error: LoggedError) -> NamePlace | None:
    """Return the place of a key: of the table in the line of code, else a model type."""
    key, last = error.fault.name, error.frames[-1] if error.frames else None
    module = shelf.module_of(last) if last else ""
    if last is not None:
        lookup = shelf.lookup_of(module or "transformers")
        for table in re.findall(r"\b([A-Z][A-Z0-9_]{3,})\s?\[", last.code):
            for own, (_, _, _, mask) in lookup.file.find_rows(f"{table}[{key}]\t") if lookup else ():
                place = _find_key(shelf, f"{own}.{table}", key, f"the key '{key}' of {table}")
                if place is not None and mask:
                    return place
    if last is None or module.startswith("transformers.models.auto."):
        place = _find_key(shelf, _CONFIGURATIONS, key, f"the model type `{key}`")
        if place is not None and (place.present or module):
            return place
    return None


def is_asked_for_model_type(place: NamePlace, error: LoggedError, shelf: AtlasShelf) -> bool:
    """Whether the auto classes of transformers look a key up that a model's configuration names as its type."""
    last = error.frames[-1] if error.frames else None
    if last is None or not place.dotted.startswith(f"{_CONFIGURATIONS}["):
        return False
    return shelf.module_of(last).startswith("transformers.models.auto.") and "CONFIG_MAPPING[" in last.code


def find_auto_class(shelf: AtlasShelf, error: LoggedError) -> NamePlace | None:
    """Return the place of an auto class that has no model for a configuration."""
    fault = error.fault
    lookup = shelf.lookup_of("transformers")
    if lookup is None or not fault.name.startswith("transformers.models."):
        return None
    model = fault.name.split(".")[2]
    words = re.findall(
        r"[A-Z]+(?=[A-Z][a-z]|\d|$)|[A-Z][a-z0-9]+|\d+[A-Z]?[a-z]*", fault.owner.removeprefix("AutoModel")
    )
    table = "_".join(["MODEL", *(word.upper() for word in words), "MAPPING_NAMES"])
    aliases = (table, table.replace("CAUSAL_L_M", "CAUSAL_LM"), table.replace("MASKED_L_M", "MASKED_LM"))
    for name in aliases:
        place = _find_key(shelf, f"{_MODELS}.{name}", model, f"{fault.owner} for `{model}`")
        if place is not None:
            return replace(place, names={}, elsewhere=tuple(_tables_with(lookup, model)))
    return None


def find_training_argument(shelf: AtlasShelf, error: LoggedError) -> NamePlace | None:
    """Return the place of an argument of the trainers' command lines."""
    name = error.fault.name.replace("-", "_")
    for module, path in (
        ("transformers.training_args", "TrainingArguments"),
        ("trl", "SFTConfig"),
        ("trl", "ModelConfig"),
    ):
        lookup = shelf.lookup_of(module)
        if lookup is None:
            continue
        dotted = f"{module}.{path}"
        parameter = find_parameter(lookup, dotted, name)
        if parameter.accepted:
            return NamePlace(
                lookup=lookup,
                dotted=f"{dotted}.{name}",
                present=parameter.accepted,
                possible=parameter.refused & ~parameter.accepted,
                what=f"`{name}` of {path}",
                names=parameter.names,
                successor=parameter.successor,
            )
    return None


def list_choices(shelf: AtlasShelf, error: LoggedError) -> Iterator[NamePlace]:
    """Yield the enumerations of that name, with the releases that have the value."""
    fault = error.fault
    for package in shelf.packages:
        lookup = shelf.open(package)
        for home, _ in lookup.definitions_of(fault.owner) if lookup else ():
            module, _, path = home.partition(":")
            place = _find_key(shelf, f"{module}.{path}", fault.name, f"`{fault.name}` of {fault.owner}")
            if place is not None and (place.present or place.names):
                yield place


def _tables_with(lookup: AtlasLookup, model: str) -> Iterator[str]:
    """Yield the auto classes that have a model for a model type."""
    for path, kind, _, _ in lookup.file.rows(_MODELS):
        if kind == RowKind.KEY and path.endswith(f"_MAPPING_NAMES[{model}]"):
            words = path.partition("_MAPPING_NAMES[")[0].removeprefix("MODEL").split("_")
            name = "AutoModel" + "".join(word.capitalize() if word != "LM" else word for word in words)
            if lookup.find_name(f"{_MODELS}.{name}").present:
                yield name
