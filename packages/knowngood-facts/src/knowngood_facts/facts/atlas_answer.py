"""The answer of `knowngood api`: since when and until when a name or a registry's key is there, and what to use now."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from knowngood_facts.facts.atlas_file import RowKind
from knowngood_facts.facts.atlas_lookup import AtlasLookup, NamePresence, find_parameter, parse_signature

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_ELSEWHERE_LIMIT = 5


@dataclass(frozen=True, kw_only=True)
class ReleaseSpan:
    """Consecutive releases of a package."""

    first: str
    last: str
    open: bool
    """Whether the last one is the newest that was read."""
    from_start: bool
    """Whether the first one is the oldest that was read."""

    def text(self) -> str:
        """Return `4.37.0 to 4.47.1`, or `since 4.48.0`."""
        if self.open:
            return "in every release read" if self.from_start else f"since {self.first}"
        if self.from_start:
            return f"until {self.last}"
        return f"in {self.first} only" if self.first == self.last else f"{self.first} to {self.last}"

    def document(self) -> dict[str, Any]:
        """Return the span for `--json`; `until` is null for one that is open."""
        return {"since": None if self.from_start else self.first, "until": None if self.open else self.last}


@dataclass(frozen=True, kw_only=True)
class NameAnswer:
    """What the atlas says of one name."""

    name: str
    package: str
    oldest: str
    newest: str
    present: tuple[ReleaseSpan, ...]
    unclear: tuple[ReleaseSpan, ...]
    kinds: Mapping[str, tuple[ReleaseSpan, ...]]
    signatures: Mapping[str, tuple[ReleaseSpan, ...]]
    homes: Mapping[str, tuple[ReleaseSpan, ...]]
    elsewhere: Mapping[str, tuple[ReleaseSpan, ...]]
    """Definitions of the same name in other places, of releases that lack it here."""
    parameters: Mapping[str, tuple[ReleaseSpan, ...]]
    """Parameters that some of its signatures have and others lack."""
    deprecations: Mapping[str, tuple[ReleaseSpan, ...]]
    """The words of decorators that say that it, or a parameter of it, is deprecated."""
    doubt: str = "not told by the sources (another package's base class or star import, or `__getattr__`, may have it)"
    """Why it is not clear whether the releases in `unclear` have it."""

    def document(self) -> dict[str, Any]:
        """Return the document of `api --json`."""

        def spans(table: Mapping[str, tuple[ReleaseSpan, ...]], key: str) -> list[dict[str, Any]]:
            return [{key: name, "in": [span.document() for span in where]} for name, where in table.items()]

        return {
            "name": self.name,
            "package": self.package,
            "read": {"oldest": self.oldest, "newest": self.newest},
            "present": [span.document() for span in self.present],
            "unclear": [span.document() for span in self.unclear],
            "kinds": spans(self.kinds, "kind"),
            "signatures": spans(self.signatures, "parameters"),
            "parameters": spans(self.parameters, "name"),
            "defined": spans(self.homes, "at"),
            "elsewhere": spans(self.elsewhere, "at"),
            "deprecations": spans(self.deprecations, "words"),
        }

    def text(self) -> str:
        """Return the lines that `api` prints."""
        where = describe_spans(self.present) if self.present else "in no release read"
        lines = [f"{self.name}: {where} of {self.package} ({self.oldest} to {self.newest} were read)"]
        if self.unclear:
            lines.append(f"  {self.doubt}: {describe_spans(self.unclear)}")
        lines += [f"  {kind}: {describe_spans(spans)}" for kind, spans in self.kinds.items() if len(self.kinds) > 1]
        lines += [f"  defined in {home}: {describe_spans(spans)}" for home, spans in self.homes.items()]
        shown = list(self.signatures.items())
        if self.parameters:
            lines += [f"  parameter {name}: {describe_spans(spans)}" for name, spans in self.parameters.items()]
            shown = shown[-1:]
        lines += [f"  ({parameters}): {describe_spans(spans)}" for parameters, spans in shown]
        lines += [f"  deprecated by @{words}: {describe_spans(spans)}" for words, spans in self.deprecations.items()]
        lines += [f"  elsewhere: {home}, {describe_spans(spans)}" for home, spans in self.elsewhere.items()]
        return "\n".join(lines)


def answer_about_name(lookup: AtlasLookup, dotted: str) -> NameAnswer:
    """Say in which releases a dotted name is there, and where else the releases without it have one of that name."""
    return _answer(lookup, dotted, dotted, lookup.find_name(dotted))


def answer_about_parameter(lookup: AtlasLookup, dotted: str, parameter: str) -> NameAnswer:
    """Say in which releases a function, a method or a class takes a parameter."""
    taken = find_parameter(lookup, dotted, parameter)
    presence = NamePresence(present=taken.named, unclear=taken.accepted & ~taken.named)
    answer = _answer(lookup, f"the parameter {parameter} of {dotted}", "", presence)
    holder = lookup.find_name(dotted)
    words = dict.fromkeys(taken.words, holder.present & taken.named)
    return replace(
        answer,
        homes=_spans(holder.homes, lookup.file.releases),
        doubt="not named, but `**kwargs` takes any keyword",
        deprecations=_spans(words, lookup.file.releases),
    )


def answer_about_key(lookup: AtlasLookup, title: str, places: Sequence[str]) -> NameAnswer:
    """Say in which releases any of several places has a key; `title` is how the answer calls it.

    A release that has none of the tables keeps such things elsewhere, so it is not known whether it has the key.
    """
    presence, tables = NamePresence(), 0
    for place in places:
        presence.add(lookup.find_name(place), lookup.every & ~presence.present)
        tables |= lookup.find_name(re.split(r"\[|\.\w+$", place, maxsplit=1)[0]).present
    presence.unclear = (presence.unclear | lookup.every & ~tables) & ~presence.present
    return _answer(lookup, title, "", presence)


def _answer(lookup: AtlasLookup, title: str, dotted: str, presence: NamePresence) -> NameAnswer:
    releases = lookup.file.releases
    return NameAnswer(
        name=title,
        package=lookup.file.package,
        oldest=releases[0] if releases else "",
        newest=releases[-1] if releases else "",
        present=spans_of_mask(presence.present, releases),
        unclear=spans_of_mask(presence.unclear, releases),
        kinds=_spans(presence.kinds, releases),
        signatures=_spans(presence.signatures, releases),
        homes=_spans(presence.homes, releases),
        parameters=_spans(_list_parameters(presence.signatures), releases),
        elsewhere={home: spans_of_mask(mask, releases) for home, mask in _find_elsewhere(lookup, dotted, presence)},
        deprecations=_spans(_find_deprecations(lookup, presence), releases),
    )


def _list_parameters(signatures: Mapping[str, int]) -> dict[str, int]:
    """Return parameter -> releases, of those that not all signatures have."""
    taken: dict[str, int] = {}
    every = 0
    for text, mask in signatures.items():
        every |= mask
        for name in parse_signature(text):
            taken[name] = taken.get(name, 0) | mask
    return {name: mask for name, mask in taken.items() if mask != every}


def _find_elsewhere(lookup: AtlasLookup, dotted: str, presence: NamePresence) -> Iterator[tuple[str, int]]:
    """Yield definitions of the same last name that releases without it have.

    `dotted` is empty for what is searched nowhere else. First those of the release in which it is gone, of them first
    those that it was itself, then those with most such releases.
    """
    missing = lookup.every & ~presence.present & ~presence.unclear
    if not missing or not dotted:
        return
    name = dotted.rpartition(".")[2]
    places: dict[str, int] = {}
    for home, mask in lookup.definitions_of(name):
        if home.replace(":", ".") != dotted and mask & missing:
            places[home] = places.get(home, 0) | mask
    later = missing & ~((presence.present & -presence.present) - 1) if presence.present else 0
    gone = later & -later

    def rank(item: tuple[str, int]) -> tuple[bool, bool, int, str]:
        home, mask = item
        return not mask & gone, home not in presence.homes, -(mask & missing).bit_count(), home

    best = sorted(places.items(), key=rank)
    yield from best[:_ELSEWHERE_LIMIT]


def _find_deprecations(lookup: AtlasLookup, presence: NamePresence) -> dict[str, int]:
    """Return the words of the decorators of a name, where it is defined, with the releases."""
    words: dict[str, int] = {}
    for home, releases in presence.homes.items():
        module, _, path = home.partition(":")
        for own, kind, detail, mask in lookup.file.rows(module) if path else ():
            if own == path and kind == RowKind.WORDS and mask & releases:
                words[detail] = words.get(detail, 0) | (mask & releases)
    return words


def spans_of_mask(mask: int, releases: Sequence[str]) -> tuple[ReleaseSpan, ...]:
    """Return the runs of consecutive releases in a mask, oldest first."""
    spans = []
    start = None
    for place in range(len(releases) + 1):
        inside = place < len(releases) and bool(mask >> place & 1)
        if inside and start is None:
            start = place
        elif not inside and start is not None:
            spans.append(
                ReleaseSpan(
                    first=releases[start],
                    last=releases[place - 1],
                    open=place == len(releases),
                    from_start=start == 0,
                )
            )
            start = None
    return tuple(spans)


def _spans(table: Mapping[str, int], releases: Sequence[str]) -> dict[str, tuple[ReleaseSpan, ...]]:
    return {
        key: spans_of_mask(mask, releases)
        for key, mask in sorted(table.items(), key=lambda item: (item[1] & -item[1], item[0]))
        if mask
    }


def describe_spans(spans: Sequence[ReleaseSpan]) -> str:
    """Return `until 4.38.2, 4.45.0 to 4.46.3`."""
    return ", ".join(span.text() for span in spans)


REGISTRIES: Mapping[str, tuple[str, ...]] = {
    "model type": (
        "transformers.models.auto.configuration_auto.CONFIG_MAPPING_NAMES[{}]",
        "transformers.models.auto.auto_mappings.CONFIG_MAPPING_NAMES[{}]",
    ),
    "attention function": ("transformers.modeling_utils.AttentionInterface._global_mapping[{}]",),
    "optimizer": ("transformers.training_args.OptimizerNames[{}]",),
    "scheduler": ("transformers.trainer_utils.SchedulerType[{}]",),
    "training argument": ("transformers.training_args.TrainingArguments.{}",),
}
"""What a registry holds -> the places of a key in it, over time."""


def find_registry_keys(transformers: AtlasLookup, key: str) -> Iterator[NameAnswer]:
    """Yield an answer for each registry of transformers that has a key in some release, such as `qwen3`."""
    for registry, places in REGISTRIES.items():
        if registry == "training argument" and not key.isidentifier():
            continue
        keys = [place.format(key) for place in places]
        if any(transformers.find_name(place).present for place in keys):
            yield answer_about_key(transformers, f"the {registry} {key}", keys)
