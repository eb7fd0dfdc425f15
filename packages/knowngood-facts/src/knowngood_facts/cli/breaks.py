"""`knowngood breaks CALLER [CALLEE ...]`: which uses of other packages break, and with which of their releases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from knowngood.cli.main import Answer
from knowngood.core.errors import UnknownError, UsageError
from knowngood_facts.facts import atlas_lookup
from knowngood_facts.facts.broken_use_answer import BrokenPair, select_uses
from knowngood_facts.facts.broken_use_table import read_broken_uses

if TYPE_CHECKING:
    import argparse

    from knowngood_facts.facts.atlas_lookup import AtlasLookup


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("caller", metavar="CALLER", help="a package of the atlas, such as trl or trl==0.11.4")
    parser.add_argument(
        "callees", nargs="*", metavar="CALLEE", help="packages that it uses, such as transformers>=4.46 (default: all)"
    )


def run(arguments: argparse.Namespace) -> Answer:
    """List the uses that break: exit 1 when there is one, else 0."""
    caller, releases = _find_releases(arguments.caller)
    wanted = dict(_find_releases(text) for text in arguments.callees)
    callees = {lookup.file.package: mask for lookup, mask in wanted.items()}

    table = read_broken_uses(caller.file.package, atlas_lookup.atlas_folder())
    chosen = select_uses(table.uses, releases, callees) if table else {}
    pairs = [BrokenPair(table=table, callee=name, uses=tuple(rows)) for name, rows in chosen.items() if table]
    lines = [line for pair in pairs for line in [f"{pair.callee}:", *pair.lines()]]
    text = "\n".join(lines) or f"no use in {arguments.caller} is known to break"
    return Answer(1 if pairs else 0, {"uses": [row for pair in pairs for row in pair.rows()]}, text)


def _find_releases(text: str) -> tuple[AtlasLookup, int]:
    """Return the atlas of the package in a requirement, and the releases that it allows."""
    try:
        requirement = Requirement(text)
    except InvalidRequirement as error:
        raise UsageError(f"{text!r} is not a package or requirement: {str(error).splitlines()[0]}") from None
    name = canonicalize_name(requirement.name)
    lookup = atlas_lookup.open_atlas(name)
    if lookup is None:
        known = ", ".join(atlas_lookup.list_atlas_packages()) or "nothing"
        raise UnknownError(f"the atlas does not have {name}; it has {known}")
    allowed = set(requirement.specifier.filter(lookup.file.releases, prereleases=True))
    mask = sum(1 << place for place, release in enumerate(lookup.file.releases) if release in allowed)
    if not mask:
        first, last = lookup.file.releases[0], lookup.file.releases[-1]
        raise UnknownError(f"the atlas has no release of {text}; it has {first} to {last}")
    return lookup, mask
