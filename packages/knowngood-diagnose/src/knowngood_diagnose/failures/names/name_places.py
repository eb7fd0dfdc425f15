"""Which package owns the name or key of an error, and in which of its releases it is there: asked of the atlas."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from knowngood_diagnose.failures.logs.logged_errors import FaultKind, LoggedError, NameFault
from knowngood_diagnose.failures.names.atlas_shelf import (
    AtlasShelf,
    NamePlace,
    find_moved_module,
    find_other_homes,
    list_foreign_bases,
    list_modules_beside,
    list_names_in,
)
from knowngood_diagnose.failures.names.name_situation import passes_all_on
from knowngood_facts.facts.atlas_file import RowKind
from knowngood_facts.facts.atlas_lookup import find_parameter, takes_positions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from knowngood_facts.facts.atlas_lookup import AtlasLookup

_BASES: Sequence[tuple[str, Sequence[str]]] = (
    (r"Config$", ("transformers.PretrainedConfig",)),
    (r"Tokenizer(?:Fast)?$", ("transformers.PreTrainedTokenizerBase",)),
    (r"Processor$", ("transformers.ProcessorMixin",)),
    (r"Trainer$", ("transformers.Trainer",)),
    (r"\wTrainingArguments$", ("transformers.TrainingArguments",)),
    (r"For[A-Z]\w+$|Model$|LM$", ("transformers.PreTrainedModel", "transformers.generation.utils.GenerationMixin")),
)
"""The end of a class's name -> the classes of transformers from which such a class mostly derives."""
PYTHON_TYPES = frozenset(
    ("NoneType", "str", "int", "float", "bool", "list", "dict", "tuple", "set", "bytes", "function", "method", "module")
)
"""The types of Python's own values; their attributes are those of no package."""


@dataclass(kw_only=True)
class NameFinder:
    """Finds the places of the names of one log's errors."""

    shelf: AtlasShelf
    versions: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Package -> its versions in the log."""

    def find_place(self, error: LoggedError) -> NamePlace | None:
        """Return where the name of an error is; `None` when no package of the atlas is known to own it."""
        fault = error.fault
        if fault.kind in _CANDIDATES:
            return self._best(_CANDIDATES[fault.kind](self, error), error)
        return _PLACES[fault.kind](self, error)

    def _in_module(self, error: LoggedError) -> NamePlace | None:
        fault = error.fault
        if fault.kind is FaultKind.TOKENIZER:
            fault = replace(fault, owner="transformers")
        lookup = self.shelf.lookup_of(fault.owner)
        if lookup is None:
            return None
        dotted = f"{fault.owner}.{fault.name}"
        module, presence = lookup.find_name(fault.owner), lookup.find_name(dotted)
        if not module.present:
            return None
        return NamePlace(
            lookup=lookup,
            dotted=dotted,
            present=presence.present,
            possible=module.present & ~presence.present,
            what=f"`{fault.name}`" + ("" if fault.owner == lookup.file.root else f" in {fault.owner}"),
            names={} if presence.present else dict(list_names_in(lookup, fault.owner)),
            uses=_list_targets(dotted),
            elsewhere=find_other_homes(lookup, dotted, presence, module.present)
            or (find_moved_module(lookup, dotted, presence) if presence.present else ()),
        )

    def _module(self, error: LoggedError) -> NamePlace | None:
        fault = error.fault
        lookup = self.shelf.lookup_of(fault.owner)
        if lookup is None or "." not in fault.owner:
            return None
        presence, folder = lookup.find_name(fault.owner), fault.owner.rpartition(".")[0]
        if "." in fault.not_a_package and folder.rpartition(".")[2].startswith("_"):
            return None  # an extension module: what it has inside depends on how it was built
        return NamePlace(
            lookup=lookup,
            dotted=fault.owner,
            unclear=not presence.present and not lookup.find_name(folder).present,
            present=presence.present,
            possible=lookup.every & ~presence.present,
            what=f"the module {fault.owner}",
            names={} if presence.present else dict(list_modules_beside(lookup, fault.owner)),
            uses=(f"{fault.owner}:", f"{fault.owner}\t", f"{fault.owner}."),
            elsewhere=find_moved_module(lookup, fault.owner, presence),
        )

    def _attributes(self, error: LoggedError) -> Iterator[NamePlace]:
        """Yield the classes of that name, of which some release has the attribute."""
        fault = error.fault
        if fault.owner in PYTHON_TYPES:
            return
        is_known = False
        places: dict[tuple[str, str], NamePlace] = {}
        for lookup, module, path, mask in self._definitions(fault.owner):
            dotted = f"{module}.{path}.{fault.name}"
            presence = lookup.find_name(dotted)
            is_known |= lookup.file.package == "transformers" or bool(presence.present)
            if not presence.present:
                continue
            is_public = bool(lookup.find_name(f"{lookup.file.root}.{path}").present)
            key = lookup.file.package, path if is_public else f"{module}.{path}"  # a public class may have moved
            other = places.get(key)
            places[key] = NamePlace(
                lookup=lookup,
                dotted=dotted,
                present=presence.present | (other.present if other else 0),
                possible=(mask & ~presence.present) | (other.possible if other else 0),
                what=f"`{fault.name}` of {fault.owner}",
                uses=(
                    *(other.uses if other else ()),
                    f"{module}:{path}.{fault.name}",
                    f"{lookup.file.root}:{path}.{fault.name}",
                ),
            )
        for place in places.values():
            yield replace(place, possible=place.possible & ~place.present)
        if not is_known:
            yield from self._attributes_of_bases(fault)

    def _attributes_of_bases(self, fault: NameFault) -> Iterator[NamePlace]:
        """Yield the classes of transformers from which a class of that name mostly derives, and that have it."""
        for lookup, base in list_likely_bases(fault.owner, self.shelf):
            present, name = lookup.find_name(f"{base}.{fault.name}").present, base.rpartition(".")[2]
            if present and (lacking := lookup.find_name(base).present & ~present):
                yield NamePlace(
                    lookup=lookup,
                    dotted=f"{base}.{fault.name}",
                    present=present,
                    possible=lacking,
                    what=f"`{fault.name}` of {name}, from which {fault.owner} seems to derive",
                    derived=True,
                )

    def _parameters(self, error: LoggedError) -> Iterator[NamePlace]:
        """Yield the functions of that name, with the releases that take the keyword, or can do without it."""
        fault = error.fault
        owner = _called_name(error)
        if owner is None:
            return
        top = owner.partition(".")[0]
        for lookup, module, path, mask in self._definitions(top):
            dotted = f"{module}.{path}{owner.removeprefix(top)}"
            yield from self._parameter_places(lookup, dotted, mask, fault)

    def _positions(self, error: LoggedError) -> Iterator[NamePlace]:
        """Yield the functions of that name, with the releases that take so many positional arguments."""
        owner, count = _called_name(error), int(error.fault.name)
        top = (owner or "").partition(".")[0]
        for lookup, module, path, mask in self._definitions(top) if owner else ():
            dotted = f"{module}.{path}{(owner or '').removeprefix(top)}"
            signatures = lookup.find_name(dotted).signatures.items()
            present = sum(own for text, own in signatures if takes_positions(text, count)) & mask
            refused = sum(own for text, own in signatures) & mask & ~present
            if refused:
                what = f"`{_short(dotted)}` with {count} positional arguments"
                yield NamePlace(lookup=lookup, dotted=dotted, present=present, possible=refused, what=what)

    def _parameter_places(
        self, lookup: AtlasLookup, dotted: str, mask: int, fault: NameFault, *, inherited: bool = False
    ) -> Iterator[NamePlace]:
        parameter = find_parameter(lookup, dotted, fault.name)
        shown = dotted.removesuffix(".__init__")
        what = f"`{fault.name}` of {shown.rpartition('.')[2] if shown != dotted else _short(dotted)}"
        if fault.kind is FaultKind.REQUIRED:
            present = mask & ~parameter.required & (parameter.accepted | parameter.refused)
            if parameter.required and present:
                what = f"{_short(dotted)} without `{fault.name}`"
                yield NamePlace(lookup=lookup, dotted=dotted, present=present, possible=parameter.required, what=what)
            return
        module, _, name = shown.rpartition(".")
        if parameter.accepted and not parameter.named:
            return  # some releases take any keyword, and none knows this one
        if parameter.accepted or parameter.refused:
            yield NamePlace(
                lookup=lookup,
                dotted=dotted,
                present=parameter.accepted,
                possible=mask & ~parameter.accepted,
                what=what,
                names=parameter.names,
                words=parameter.words,
                successor=parameter.successor,
                inherited=inherited,
                uses=(f"{module}:{name} (", f"{lookup.file.root}:{name} ("),
                keyword=fault.name,
            )
        if not parameter.accepted:
            for base in list_foreign_bases(lookup, shown):
                other = self.shelf.lookup_of(base)
                if other is not None and other is not lookup:
                    every = other.find_name(base).present
                    yield from self._parameter_places(other, f"{base}.__init__", every, fault, inherited=True)

    def _definitions(self, name: str) -> Iterator[tuple[AtlasLookup, str, str, int]]:
        """Yield the definitions of a class or function in every package: atlas, module, path, releases."""
        for package in self.shelf.packages:
            lookup = self.shelf.open(package)
            homes = list(lookup.definitions_of(name)) if lookup else []
            if lookup is None or not homes:
                continue
            masks: dict[tuple[str, str], int] = {}
            public = lookup.find_name(f"{lookup.file.root}.{name}").homes
            for home, mask in homes:
                module, _, path = home.partition(":")
                if ".dummy_" in module or (public and home not in public):
                    continue  # what stands in for a class that cannot be imported, or another class of that name
                masks[module, path] = masks.get((module, path), 0) | mask
            for (module, path), mask in masks.items():
                yield lookup, module, path, mask

    def _is_public(self, place: NamePlace) -> bool:
        """Whether the package's top-level module has the class or function, as what users call."""
        return self._with_public_name(place) is not place or place.dotted.removesuffix(".__init__").count(".") == 1

    def _best(self, places: Iterable[NamePlace], error: LoggedError) -> NamePlace | None:
        """Return the place that fits the log best: by the traceback, by the packages that it names, by its versions."""
        candidates = list(places)
        if error.fault.kind is FaultKind.POSITIONS:  # where no release takes so many, it is another function
            candidates = [place for place in candidates if place.present] or candidates
        modules = [module for frame in error.frames if (module := self.shelf.module_of(frame))]
        packages = list_frame_packages(error, self.shelf)

        def rank(place: NamePlace) -> tuple[bool, ...]:
            package = place.lookup.file.package
            return (
                not any(place.dotted.startswith(f"{module}.") for module in modules),
                package not in packages,
                package not in self.versions,
                not self._is_public(place),
                not place.present,
                place.inherited,
            )

        owners = {place.lookup.file.package for place in candidates}
        for package, other in _SAME_PROJECT.items():  # both have the same classes: the older name has all releases
            if {package, other} <= owners and package not in packages and package not in self.versions:
                candidates = [place for place in candidates if place.lookup.file.package != package]
        ranks = [rank(place) for place in candidates]
        if not ranks:
            return None
        best = min(ranks)
        if all(best[:3]) and error.fault.kind is FaultKind.OBJECT_ATTRIBUTE and is_plain_word(error.fault.owner):
            return None  # anyone may call a class so
        telling = [place for place in candidates if place.present and place.possible]
        owners = {place.lookup.file.package for place in telling}
        if all(best[1:3]) and all(place.derived for place in candidates):
            return None  # nothing says that transformers is used at all
        is_own = error.fault.kind is FaultKind.POSITIONS and error.fault.owner.startswith("_")  # no name to be shared
        if all(best[:4]) and (len(owners) != 1 or (any(frame.installed for frame in error.frames) and not is_own)):
            return None  # nothing says that it is one of these
        equal = [place for place, own in zip(candidates, ranks, strict=True) if own == best]
        # Several classes have that name: only where they agree is it known.
        same = {(place.lookup.file.package, place.present) for place in equal}
        return self._with_public_name(equal[0]) if len(same) == 1 else None

    def _with_public_name(self, place: NamePlace) -> NamePlace:
        """Return the place under the name by which users know its class or function."""
        parts = place.dotted.split(".")
        at = next((at for at, part in enumerate(parts) if part[:1].isupper()), len(parts) - 1)
        root = place.lookup.file.root
        if at > 1 and place.lookup.find_name(f"{root}.{parts[at]}").present:
            return replace(place, dotted=".".join([root, *parts[at:]]))
        return place


_SAME_PROJECT = {"lightning": "pytorch-lightning"}
"""A package -> the older one whose classes it has under the same names."""


def is_plain_word(name: str) -> bool:
    """Whether a class has a single word for its name, such as Version or Trainer, which many projects choose."""
    return bool(re.fullmatch(r"[A-Z][a-z0-9]+", name))


def list_frame_packages(error: LoggedError, shelf: AtlasShelf) -> set[str]:
    """Return the packages of the atlas in whose files the traceback of an error is."""
    modules = [module for frame in error.frames if (module := shelf.module_of(frame))]
    return {name for module in modules if (name := shelf.owner(module.partition(".")[0]))}


def list_likely_bases(name: str, shelf: AtlasShelf) -> Iterator[tuple[AtlasLookup, str]]:
    """Yield the classes of transformers from which a class of that name mostly derives, each with its atlas."""
    for ending, bases in _BASES:
        for base in bases if re.search(ending, name) else ():
            if (lookup := shelf.lookup_of(base)) is not None:
                yield lookup, base


def _called_name(error: LoggedError) -> str | None:
    """The function of an error, with its class; `None` for a method of an unknown class.

    Python before 3.10 leaves the class out; the line of code may have it.
    """
    owner = error.fault.owner
    if "." in owner:
        parts = owner.split(".")
        return ".".join(parts[-2:]) if parts[-2][:1].isupper() or parts[-1] == "__init__" else parts[-1]
    if owner in {"__init__", "__new__"}:
        code = next((frame.code for frame in reversed(error.frames) if not passes_all_on(frame)), "")
        called = [name for name in re.findall(r"\b([A-Z]\w+)\s?\(", code) if name != "TypeError"]
        return f"{called[-1]}.__init__" if called else None
    return owner if owner not in {"forward", "wrapper", "inner", "_call_impl"} else None


def _short(dotted: str) -> str:
    parts = dotted.split(".")
    return ".".join(parts[-2:]) if len(parts) > 1 and parts[-2][:1].isupper() else parts[-1]


def _list_targets(dotted: str) -> tuple[str, ...]:
    """The ways in which code may reach a name: `torch.library:wrap_triton`, or `torch:library.wrap_triton`."""
    parts = dotted.split(".")
    return tuple(f"{'.'.join(parts[:count])}:{'.'.join(parts[count:])}" for count in range(1, len(parts)))


_PLACES: Mapping[FaultKind, Callable[[NameFinder, LoggedError], NamePlace | None]] = {
    FaultKind.IMPORT: NameFinder._in_module,  # noqa: SLF001
    FaultKind.MODULE_ATTRIBUTE: NameFinder._in_module,  # noqa: SLF001
    FaultKind.TOKENIZER: NameFinder._in_module,  # noqa: SLF001
    FaultKind.MODULE: NameFinder._module,  # noqa: SLF001
    FaultKind.MODEL_TYPE: lambda finder, error: find_model_type(finder.shelf, error),
    FaultKind.KEY: lambda finder, error: find_table_key(finder.shelf, error),
}
_CANDIDATES: Mapping[FaultKind, Callable[[NameFinder, LoggedError], Iterator[NamePlace]]] = {
    FaultKind.OBJECT_ATTRIBUTE: NameFinder._attributes,  # noqa: SLF001 - this class's own
    FaultKind.KEYWORD: NameFinder._parameters,  # noqa: SLF001
    FaultKind.REQUIRED: NameFinder._parameters,  # noqa: SLF001
    FaultKind.POSITIONS: NameFinder._positions,  # noqa: SLF001
}
"""The errors that name a class or function without its module, so that several can be meant."""
_CONFIGURATIONS = "transformers.models.auto.configuration_auto.CONFIG_MAPPING_NAMES"


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
