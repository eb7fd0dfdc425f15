"""TransformerEngine's four packages: what they declare, and the window of flash-attn releases their code accepts.

The code lies in the wheel `transformer-engine` (not in 1.9.0 to 1.12.0) and again in `-cu12` and `-cu13`;
`-torch` is an sdist with the binding alone.
"""

from __future__ import annotations

import ast
import re

from knowngood.harvest import metadata, source
from knowngood.harvest.artefact import Artefact, one_member, text
from knowngood.harvest.reading import Published, Reader, Reading, by_tags, sdist

_ATTENTION = re.compile(r"transformer_engine/pytorch/(attention|(\w+/)*(utils|backends|dot_product_attention))\.py")
_EXTRAS = ("core", "core-cu12", "core-cu13", "pytorch")
_BOUNDS = {
    "version_required": "flash_attn_minimum",
    "version_required_blackwell": "flash_attn_minimum_blackwell",
    "max_version": "flash_attn_maximum",
}


def read(artefact: Artefact, _: Published, reading: Reading) -> None:
    """Fill in the facts of one release (see `knowngood.models.TransformerEngine`)."""
    ending = ".dist-info/METADATA" if artefact.file.is_wheel else "PKG-INFO"
    core = metadata.parse_metadata(text(artefact, one_member(artefact, ending)))
    reading.take("requires_python", lambda: core.requires_python, optional=True)
    python = metadata.oldest_python(core.requires_python)
    reading.take("requires", lambda: metadata.requirement_map(core.on(python)))
    found = {extra: metadata.requirement_map(core.on(python, extra=extra)) for extra in _EXTRAS}
    base = reading.facts.get("requires", {})
    reading.facts["extras"] = {
        extra: added
        for extra, names in found.items()
        if (added := {name: bound for name, bound in names.items() if name not in base})
    }
    files = [name for name in artefact.members if _ATTENTION.fullmatch(name) and "attention" in name]
    if files:
        trees = [source.parse(text(artefact, member), member) for member in sorted(files)]
        reading.facts |= window(trees)
        reading.take("flash_attn_names", lambda: distributions(trees))


def window(trees: list[ast.Module]) -> dict[str, object]:
    """The bounds on flash-attn that the module or class sets first, and whether the upper one is itself in."""
    found: dict[str, object] = {}
    for tree in trees:
        for node in ast.walk(tree):
            if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
                continue
            name = node.targets[0].id.removeprefix("_flash_attn_")
            fact = _BOUNDS.get(name)
            literal = next(source.strings(node.value), None) if isinstance(node.value, ast.Call) else None
            if fact and literal and fact not in found:
                found[fact] = literal
    if "flash_attn_maximum" in found:
        found["flash_attn_maximum_included"] = not any(_is_below_maximum(tree) for tree in trees)
    return found


def _is_below_maximum(tree: ast.Module) -> bool:
    """Whether something is compared as `... < max_version`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            for operator, right in zip(node.ops, node.comparators, strict=True):
                name = (
                    right.attr if isinstance(right, ast.Attribute) else right.id if isinstance(right, ast.Name) else ""
                )
                if isinstance(operator, ast.Lt) and name.endswith("max_version"):
                    return True
    return False


def distributions(trees: list[ast.Module]) -> list[str]:
    """The flash-attention distributions whose version it asks for."""
    return sorted(
        {name for tree in trees for name in source.strings(tree) if re.fullmatch(r"flash-?attn(-\w+)?", name)}
    )


READERS = (
    Reader(package="transformer-engine", revision=2, choose=by_tags("-any.whl"), read=read),
    Reader(package="transformer-engine-torch", revision=2, choose=sdist, read=read),
    Reader(package="transformer-engine-cu12", revision=2, choose=by_tags("x86_64"), read=read),
    Reader(package="transformer-engine-cu13", revision=2, choose=by_tags("x86_64"), read=read),
)
