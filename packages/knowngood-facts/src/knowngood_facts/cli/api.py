"""`knowngood api NAME`: in which releases a Python name is there, with which parameters, and where it went.

`knowngood api --breaks CALLER [CALLEE ...]`: which uses of other packages break, and with which of their releases.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from knowngood.cli.main import Answer
from knowngood.core.errors import UnknownError, UsageError
from knowngood.core.lazy_patterns import lazy_pattern
from knowngood_facts.facts import atlas_lookup
from knowngood_facts.facts.atlas_answer import (
    REGISTRIES,
    NameAnswer,
    answer_about_name,
    answer_about_parameter,
    find_registry_keys,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from knowngood_facts.facts.atlas_lookup import AtlasLookup

_NAME = lazy_pattern(r"[^\W\d]\w*(?:[.:][^\W\d]\w*)*(?:\[[^\]]+\])?")
_PARAMETER = lazy_pattern(r"(?P<name>[\w.:]+)\((?P<parameter>[^\W\d]\w*)=?\)")
_KEY = lazy_pattern(r"\w[\w-]*")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "names",
        metavar="NAME",
        nargs="+",
        help="a dotted name, such as transformers.models.qwen2.modeling_qwen2.Qwen2FlashAttention2; or a model type, "
        "attention function, optimizer, scheduler or training argument of transformers, such as qwen3; or a parameter, "
        "such as 'trl.SFTTrainer(tokenizer)'; with --breaks packages, such as trl==0.11.4 'transformers>=4.46'",
    )
    parser.add_argument(
        "--breaks",
        action="store_true",
        help="which uses of other packages break in the first package, and with which of their releases; with more "
        "packages, only its uses of those",
    )


def run(arguments: argparse.Namespace) -> Answer:
    """Look the name up: exit 0 when any release has it, 1 when none has, 3 when the sources do not tell."""
    if arguments.breaks:
        return _list_breaks(arguments.names)
    name, *more = arguments.names
    if more:
        raise UsageError(f"{more[0]!r}: one name at a time; several packages are for --breaks")
    dotted = name.strip().replace(":", ".")
    parameter = _PARAMETER.fullmatch(dotted)
    if not (_NAME.fullmatch(dotted) or _KEY.fullmatch(dotted) or parameter):
        raise UsageError(
            f"{name!r} is not a dotted Python name such as transformers.Trainer; an error message is for "
            "`knowngood diagnose`"
        )
    if parameter is not None:
        answers = _answers_about_parameter(parameter["name"], parameter["parameter"])
    else:
        answers = _answers_about_name(dotted) or _answers_about_key(dotted)
    if not answers:
        known = ", ".join(atlas_lookup.list_atlas_packages()) or "nothing"
        what = re.split(r"[.\[(]", dotted, maxsplit=1)[0]
        key = f", nor has transformers any {', '.join(REGISTRIES)} of that name" if dotted == what else ""
        raise UnknownError(f"the atlas does not have {what}{key}; it has {known}")
    best = next((answer for answer in answers if answer.present), answers[0])
    code = 0 if best.present else 3 if best.unclear else 1
    others = [answer for answer in answers if answer.present and answer is not best]
    also = {"also": [answer.document() for answer in others]} if others else {}
    return Answer(code, best.document() | also, "\n".join(answer.text() for answer in [best, *others]))


def _answers_about_name(dotted: str) -> list[NameAnswer]:
    return [answer_about_name(lookup, dotted) for lookup in _open_owners(dotted)]


def _answers_about_parameter(dotted: str, parameter: str) -> list[NameAnswer]:
    return [answer_about_parameter(lookup, dotted, parameter) for lookup in _open_owners(dotted)]


def _open_owners(dotted: str) -> list[AtlasLookup]:
    """Return the packages that have the name's top-level module: one, but for shared modules."""
    owners = atlas_lookup.list_owners(re.split(r"[.\[]", dotted, maxsplit=1)[0])
    return [lookup for owner in owners if (lookup := atlas_lookup.open_atlas(owner)) is not None]


def _answers_about_key(key: str) -> list[NameAnswer]:
    """Return what transformers' registries say of a word without dots, such as `qwen3` or `adamw_torch`."""
    lookup = atlas_lookup.open_atlas("transformers") if _KEY.fullmatch(key) else None
    return list(find_registry_keys(lookup, key)) if lookup else []


def _list_breaks(words: Sequence[str]) -> Answer:
    """List the uses in a package of other packages that break: exit 1 when there is one, else 0."""
    from knowngood_facts.facts.broken_use_answer import BrokenPair, select_uses
    from knowngood_facts.facts.broken_use_table import read_broken_uses

    caller, releases = _find_releases(words[0])
    wanted = dict(_find_releases(text) for text in words[1:])
    callees = {lookup.file.package: mask for lookup, mask in wanted.items()}

    table = read_broken_uses(caller.file.package, atlas_lookup.atlas_folder())
    chosen = select_uses(table.uses, releases, callees) if table else {}
    pairs = [BrokenPair(table=table, callee=name, uses=tuple(rows)) for name, rows in chosen.items() if table]
    lines = [line for pair in pairs for line in [f"{pair.callee}:", *pair.lines()]]
    text = "\n".join(lines) or f"no use in {words[0]} is known to break"
    return Answer(1 if pairs else 0, {"uses": [row for pair in pairs for row in pair.rows()]}, text)


def _find_releases(text: str) -> tuple[AtlasLookup, int]:
    """Return the atlas of the package in a requirement, and the releases that it allows."""
    from packaging.requirements import InvalidRequirement
    from packaging.utils import canonicalize_name

    from knowngood.core.package_names import parse_requirement_text

    try:
        requirement = parse_requirement_text(text)
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
