"""What can be said of a keyword that no release of any package takes. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from knowngood.compat.incident import Fix, OwnComponent
from knowngood.facts.atlas_parameters import find_parameter
from knowngood.failures.names.name_situation import (
    NameCause,
    advise,
    build_own_cause,
    component_of,
    describe_caller,
    find_chooser,
    list_defining_packages,
)
from knowngood.failures.names.refused_keywords import find_refusing_package

if TYPE_CHECKING:
    from knowngood.facts.atlas_lookup import AtlasLookup
    from knowngood.failures.logs.logged_errors import LoggedError
    from knowngood.failures.names.atlas_shelf import AtlasShelf, NamePlace

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
