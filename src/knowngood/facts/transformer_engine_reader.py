"""TransformerEngine's four packages: what they declare, and which flash-attn releases their code accepts.

The code is in the wheel `transformer-engine` (not in 1.9.0 to 1.12.0) and again in `-cu12` and `-cu13`;
`-torch` is an sdist with the binding alone.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass

from knowngood.facts import python_source
from knowngood.facts.fact_reader import (
    FactReader,
    IndexedRelease,
    ReleaseReading,
    Requirements,
    choose_sdist,
    choose_wheel_by,
)
from knowngood.index import wheel_metadata
from knowngood.index.artefact import Artefact, read_text_member

_ATTENTION = re.compile(r"transformer_engine/pytorch/(attention|(\w+/)*(utils|backends|dot_product_attention))\.py")
_EXTRAS = ("core", "core-cu12", "core-cu13", "pytorch")
_BOUNDS = {
    "version_required": "flash_attn_minimum",
    "version_required_blackwell": "flash_attn_minimum_blackwell",
    "max_version": "flash_attn_maximum",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class TransformerEngineFacts:
    """One of TransformerEngine's four packages; the Python code is in all but `-torch`."""

    requires_python: str | None
    """PEP 440 specifier; METADATA."""
    requires: Requirements | None
    """METADATA; of `-torch` PKG-INFO, written where the sdist was made: its pin names the CUDA of that machine."""
    extras: Mapping[str, Requirements] | None
    """Extra -> what it adds; METADATA."""
    flash_attn_minimum: str | None
    """Lowest flash-attn that it uses; its attention code."""
    flash_attn_minimum_blackwell: str | None
    """The same on sm_100 and newer."""
    flash_attn_maximum: str | None
    """Highest flash-attn that it uses; its attention code."""
    flash_attn_maximum_included: bool | None
    """Whether `flash_attn_maximum` itself is still used."""
    flash_attn_names: tuple[str, ...] | None
    """Distributions whose version its code looks up."""
    flash_attn_imported: bool | None
    """Whether its attention code cannot be imported without flash-attn: it looks the version up outside any `try`."""
    flash_attn_asserted: bool | None
    """Whether its attention asserts the bounds on any flash-attn that is there; otherwise it leaves that one alone."""


def read_transformer_engine(artefact: Artefact, _: IndexedRelease, reading: ReleaseReading) -> None:
    """Record the facts of one release (see `TransformerEngineFacts`)."""
    core = wheel_metadata.read_metadata(artefact)
    reading.take("requires_python", lambda: core.requires_python, optional=True)
    python = wheel_metadata.oldest_python(core.requires_python)
    reading.take("requires", lambda: wheel_metadata.requirement_map(core.requirements_on(python)))
    base = reading.facts.get("requires", {})
    extras = {}
    for extra in _EXTRAS:
        requirements = wheel_metadata.requirement_map(core.requirements_on(python, extra=extra))
        if added := {name: bound for name, bound in requirements.items() if name not in base}:
            extras[extra] = added
    reading.facts["extras"] = extras
    files = [name for name in artefact.members if _ATTENTION.fullmatch(name) and "attention" in name]
    if files:
        trees = [python_source.parse_python(read_text_member(artefact, member), member) for member in sorted(files)]
        reading.facts |= find_flash_attn_window(trees)
        reading.take("flash_attn_names", lambda: find_flash_attn_names(trees))
        reading.take("flash_attn_imported", lambda: any(map(imports_flash_attn, trees)))
        reading.take("flash_attn_asserted", lambda: any(map(asserts_flash_attn, trees)))


def find_flash_attn_window(trees: list[ast.Module]) -> dict[str, object]:
    """Return the first bounds on flash-attn that the code sets, and whether the upper bound itself is accepted."""
    bounds: dict[str, object] = {}
    for tree in trees:
        for node in ast.walk(tree):
            if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
                continue
            name = node.targets[0].id.removeprefix("_flash_attn_")
            fact = _BOUNDS.get(name)
            literals = python_source.string_constants(node.value) if isinstance(node.value, ast.Call) else iter(())
            if fact and fact not in bounds and (literal := next(literals, None)):
                bounds[fact] = literal
    if "flash_attn_maximum" in bounds:
        names = ("max_version", "_flash_attn_max_version")
        is_exclusive = any(_is_exclusive_maximum(tree, name) for tree in trees for name in names)
        bounds["flash_attn_maximum_included"] = not is_exclusive
    return bounds


def _is_exclusive_maximum(tree: ast.Module, name: str) -> bool:
    """Whether something is compared as `... < name`, so that the maximum itself is not accepted."""
    last = name.rsplit(".", 1)[-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            for op, right in zip(node.ops, node.comparators, strict=True):
                if (
                    isinstance(op, ast.Lt)
                    and isinstance(right, ast.Name | ast.Attribute)
                    and python_source.dotted_name(right).rpartition(".")[2] == last
                ):
                    return True
    return False


def find_flash_attn_names(trees: list[ast.Module]) -> list[str]:
    """Return the flash-attention distributions whose version the code looks up."""
    return sorted(
        {
            name
            for tree in trees
            for name in python_source.string_constants(tree)
            if re.fullmatch(r"flash-?attn(-\w+)?", name)
        }
    )


def imports_flash_attn(tree: ast.Module) -> bool:
    """Return whether importing the module fails without flash-attn: it looks its version up outside `try` and `if`."""
    return any(
        isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and "flash-attn" in python_source.string_constants(node.value)
        for node in tree.body
    )


def asserts_flash_attn(tree: ast.Module) -> bool:
    """Return whether making a `FlashAttention` asserts the upper bound on flash-attn, whatever release is there.

    An assertion under `if _flash_attn_is_installed` does not count: outside the bounds that is false.
    """
    made = python_source.find_function(tree, "FlashAttention.__init__")
    return any(
        isinstance(node, ast.Assert) and "_flash_attn_max_version" in ast.unparse(node.test)
        for node in (made.body if made else ())
    )


READERS = tuple(
    FactReader(package=package, revision=3, model=TransformerEngineFacts, choose=choose, read=read_transformer_engine)
    for package, choose in (
        ("transformer-engine", choose_wheel_by("-any.whl")),
        ("transformer-engine-torch", choose_sdist),
        ("transformer-engine-cu12", choose_wheel_by("x86_64")),
        ("transformer-engine-cu13", choose_wheel_by("x86_64")),
    )
)
