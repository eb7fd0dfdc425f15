"""What a trainer's checks trained with, as people write it into a file, for the trainer's page. Pure.

Nothing is typed again: the checks keep in their reports the options that they gave to the trainer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import yaml

Options = Mapping[str, Mapping[str, Any]]
"""Options by the file or class that takes them: `{"train.yaml": {"stage": "sft"}}`, `{"SFTConfig": {...}}`."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """Checks that differ from the first one of their kind in the same options."""

    checks: tuple[str, ...]
    """Their ids without the kind: `qwen3/sdpa/fp32/packed/lora`."""
    changed: Options
    """The options that the first one has not, or has with another value."""
    absent: tuple[str, ...]
    """The options that only the first one has."""


@dataclass(frozen=True, kw_only=True)
class SeenOptions:
    """With what a trainer was seen training, for one kind of check such as `trl-sft`."""

    kind: str
    check: str
    """The first of its checks, whose options are given whole."""
    command: str
    """What started the trainer, in a folder with its files; empty where it was made in Python."""
    parts: Options
    variants: tuple[Variant, ...]


def find_seen_options(checks: Sequence[Mapping[str, Any]]) -> list[SeenOptions]:
    """Return the options that were seen training, for each kind of check of a trainer.

    Args:
        checks: the checks of a run (`trainer/KIND/...`); those that failed, that had a fault put in on purpose, or that
            keep no options are passed over.
    """
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for check in checks:
        if check["outcome"] == "pass" and check.get("options") and not (check.get("figures") or {}).get("noticed"):
            kinds.setdefault(check["id"].split("/")[1], []).append(check)
    return [_describe_kind(kind, alike) for kind, alike in kinds.items()]


def format_options(options: Mapping[str, Any]) -> str:
    """Return options as YAML: a line for each, lists in brackets."""
    return yaml.dump(dict(options), Dumper=_Dumper, sort_keys=False, width=110)


def _describe_kind(kind: str, checks: Sequence[Mapping[str, Any]]) -> SeenOptions:
    first = checks[0]["options"]
    variants: dict[str, Variant] = {}
    for check in checks[1:]:
        variant = _compare(check, first["parts"])
        if not variant.changed and not variant.absent:
            continue
        same = variants.setdefault(repr((variant.changed, variant.absent)), replace(variant, checks=()))
        variants[repr((variant.changed, variant.absent))] = replace(same, checks=(*same.checks, *variant.checks))
    return SeenOptions(
        kind=kind,
        check=_name_check(checks[0]),
        command=first["command"],
        parts=first["parts"],
        variants=tuple(variants.values()),
    )


def _compare(check: Mapping[str, Any], first: Options) -> Variant:
    parts: Options = check["options"]["parts"]
    changed = {name: dict(_changes(options, first.get(name, {}))) for name, options in parts.items()}
    absent = (key for name, options in first.items() for key in options if key not in parts.get(name, {}))
    return Variant(
        checks=(_name_check(check),),
        changed={name: options for name, options in changed.items() if options},
        absent=tuple(absent),
    )


def _changes(options: Mapping[str, Any], first: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    return ((key, value) for key, value in options.items() if key not in first or first[key] != value)


def _name_check(check: Mapping[str, Any]) -> str:
    return str(check["id"]).split("/", 2)[2]


class _Dumper(yaml.SafeDumper):
    """PyYAML's, with lists in brackets and nothing by reference."""

    def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> yaml.SequenceNode:
        """Return a list's node, in brackets unless it holds mappings."""
        plain = not any(isinstance(item, Mapping) for item in sequence)
        return super().represent_sequence(tag, sequence, flow_style=plain or flow_style)

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - PyYAML passes it
        """Write what occurs twice twice."""
        return True
