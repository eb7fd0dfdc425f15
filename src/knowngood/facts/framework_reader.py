"""What frameworks and numpy declare; xtuner's code also states which transformers each of its models needs.

A package of which only the metadata is of interest needs no reader of its own, only an entry in `READERS` here.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from knowngood.facts import python_source
from knowngood.facts.fact_reader import (
    FactReader,
    IndexedRelease,
    ReleaseReading,
    Requirements,
    choose_wheel_by,
    choose_wheel_or_sdist,
)
from knowngood.index import wheel_metadata, wheel_tags
from knowngood.index.artefact import Artefact, read_text_member

if TYPE_CHECKING:
    from collections.abc import Mapping

_DISPATCH = "xtuner/model/modules/dispatch/__init__.py"


@dataclass(frozen=True, kw_only=True, slots=True)
class FrameworkFacts:
    """A release of xtuner, openrlhf or numpy."""

    requires_python: str | None
    """PEP 440 specifier; METADATA."""
    pythons: tuple[str, ...] | None
    """CPython releases with a Linux x86_64 wheel; None for pure Python. Tags."""
    abi3_from: str | None
    """Oldest CPython of its wheels of the stable ABI; tags."""
    requires: Requirements | None
    """Distribution -> specifier that it requires; METADATA."""
    model_minimums: Mapping[str, str] | None
    """Model (`qwen2-moe`) -> lowest transformers that xtuner accepts for it, by an assertion; its dispatch module."""


def read_framework(artefact: Artefact, release: IndexedRelease, reading: ReleaseReading) -> None:
    """Record the facts of one release (see `FrameworkFacts`)."""
    core = wheel_metadata.read_metadata(artefact)
    python = wheel_metadata.oldest_python(core.requires_python)
    reading.take("requires_python", lambda: core.requires_python, optional=True)
    reading.take("requires", lambda: wheel_metadata.requirement_map(core.requirements_on(python)))
    pythons = wheel_tags.supported_pythons(release.files, core.requires_python)
    reading.take("pythons", lambda: pythons or None, optional=True)
    reading.take("abi3_from", lambda: wheel_tags.oldest_abi3_python(release.files), optional=True)


def read_xtuner(artefact: Artefact, release: IndexedRelease, reading: ReleaseReading) -> None:
    """Record the same facts, and the lowest transformers of each model that xtuner patches."""
    read_framework(artefact, release, reading)
    if _DISPATCH in artefact.members:
        tree = python_source.parse_python(read_text_member(artefact, _DISPATCH), _DISPATCH)
        reading.take("model_minimums", lambda: find_model_minimums(tree), optional=True)


def find_model_minimums(dispatch: ast.Module) -> dict[str, str] | None:
    """Read `LOWEST_TRANSFORMERS_VERSION = dict(Qwen2ForCausalLM=digit_version('4.39'), ...)`; `None` without it.

    The keys are model types as in a config: `qwen2-moe` for `Qwen2MoeForCausalLM`, and for 0.1.19's `qwen2_moe`.
    """
    table = python_source.find_assigned_value(dispatch, "LOWEST_TRANSFORMERS_VERSION")
    if not isinstance(table, ast.Call):
        return None
    return {
        _model_type(keyword.arg): next(python_source.string_constants(keyword.value))
        for keyword in table.keywords
        if keyword.arg
    }


def _model_type(name: str) -> str:
    words = name.removesuffix("ForCausalLM").replace("InternLM", "Internlm").replace("_", "-")
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", words).lower()


READERS = (
    FactReader(
        package="numpy",
        revision=1,
        model=FrameworkFacts,
        choose=choose_wheel_by("-cp311-", "-cp310-", "-cp312-", "-cp39-"),
        read=read_framework,
        accepts=lambda version: not version.is_prerelease,
    ),
    FactReader(package="xtuner", revision=3, model=FrameworkFacts, choose=choose_wheel_or_sdist, read=read_xtuner),
    FactReader(
        package="openrlhf",
        revision=2,
        model=FrameworkFacts,
        choose=choose_wheel_by("-any.whl", "-cp311-"),
        read=read_framework,
    ),
)
