"""flash-attn-4's wheels (CuTe DSL, compiled at first use): which GPUs the forward and backward pass accept."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import partial

from knowngood.facts import import_closure, python_source
from knowngood.facts.fact_reader import (
    FactReader,
    Functions,
    IndexedRelease,
    ReleaseReading,
    Requirements,
    choose_wheel_by,
)
from knowngood.facts.flash_attn_reader import read_function_signatures
from knowngood.index import wheel_metadata
from knowngood.index.artefact import Artefact, UnreadableError, read_text_member

_INTERFACE = "flash_attn/cute/interface.py"


@dataclass(frozen=True, kw_only=True, slots=True)
class FlashAttn4Facts:
    """The wheel of a flash-attn-4 release."""

    requires_python: str | None
    """PEP 440 specifier; METADATA."""
    requires: Requirements | None
    """Distribution -> specifier that it requires; METADATA."""
    requires_cu13: Requirements | None
    """What the extra `cu13` adds; METADATA."""
    forward_majors: tuple[int, ...] | None
    """Major compute capabilities that the forward pass accepts; `_flash_attn_fwd` in `interface.py`."""
    backward_majors: tuple[int, ...] | None
    """The same for the backward pass, so for training; `_flash_attn_bwd`."""
    functions: Functions | None
    """Module-level functions of `interface.py`."""
    needs: tuple[str, ...] | None
    """Modules of other packages that importing `flash_attn.cute.interface` needs."""


def read_flash_attn_4(artefact: Artefact, _: IndexedRelease, reading: ReleaseReading) -> None:
    """Record the facts of one release (see `FlashAttn4Facts`)."""
    core = wheel_metadata.read_metadata(artefact)
    reading.take("requires_python", lambda: core.requires_python)
    python = wheel_metadata.oldest_python(core.requires_python)
    reading.take("requires", lambda: wheel_metadata.requirement_map(core.requirements_on(python)))
    cuda13 = {name: req for name, req in core.requirements_on(python, extra="cu13").items() if req.marker is not None}
    reading.take("requires_cu13", lambda: wheel_metadata.requirement_map(cuda13) or None, optional=True)
    tree = python_source.parse_python(read_text_member(artefact, _INTERFACE), _INTERFACE)
    for fact, name in (("forward_majors", "_flash_attn_fwd"), ("backward_majors", "_flash_attn_bwd")):
        reading.take(fact, partial(find_accepted_majors, tree, name))
    reading.take("functions", lambda: read_function_signatures(artefact, (_INTERFACE,)))
    reading.take(
        "needs", lambda: import_closure.find_needed_modules(artefact, "flash_attn").get("flash_attn.cute.interface")
    )


def find_accepted_majors(tree: ast.Module, name: str) -> list[int]:
    """Return the major compute capabilities in a function's first `assert arch // 10 in [9, 10, 11]` (or `arch in`).

    `UnreadableError` when there is no such function or assertion.
    """
    node = python_source.find_function(tree, name)
    if node is None:
        raise UnreadableError(f"interface.py has no {name}")
    asserts = [part for part in ast.walk(node) if isinstance(part, ast.Assert)]
    for test in (part.test for part in sorted(asserts, key=lambda part: part.lineno)):
        if (
            isinstance(test, ast.Compare)
            and isinstance(test.ops[0], ast.In)
            and isinstance(test.comparators[0], ast.List | ast.Tuple)
            and any(word in ast.unparse(test.left) for word in ("arch", "compute_capability"))
        ):
            return [int(item) for item in ast.literal_eval(test.comparators[0])]
    raise UnreadableError(f"{name} asserts no compute capability where it did")


READERS = (
    FactReader(
        package="flash-attn-4",
        revision=2,
        model=FlashAttn4Facts,
        choose=choose_wheel_by("-any.whl"),
        read=read_flash_attn_4,
    ),
)
