"""flash-attn-4's wheels (CuTe DSL, compiled at first use): the GPUs its forward and backward pass accept."""

from __future__ import annotations

import ast

from knowngood.harvest import closure, metadata, source
from knowngood.harvest.artefact import Artefact, one_member, text
from knowngood.harvest.flash_attn import signatures
from knowngood.harvest.index import Unreadable
from knowngood.harvest.reading import Published, Reader, Reading, by_tags

_INTERFACE = "flash_attn/cute/interface.py"


def read(artefact: Artefact, _: Published, reading: Reading) -> None:
    """Fill in the facts of one release (see `knowngood.models.FlashAttn4`)."""
    core = metadata.parse_metadata(text(artefact, one_member(artefact, ".dist-info/METADATA")))
    reading.take("requires_python", lambda: core.requires_python)
    python = metadata.oldest_python(core.requires_python)
    reading.take("requires", lambda: metadata.requirement_map(core.on(python)))
    cuda13 = {name: req for name, req in core.on(python, extra="cu13").items() if req.marker is not None}
    reading.take("requires_cu13", lambda: metadata.requirement_map(cuda13) or None, optional=True)
    tree = source.parse(text(artefact, _INTERFACE), _INTERFACE)
    for fact, name in (("forward_majors", "_flash_attn_fwd"), ("backward_majors", "_flash_attn_bwd")):
        reading.take(fact, lambda name=name: accepted_majors(tree, name))  # type: ignore[misc]
    reading.take("functions", lambda: signatures(artefact, (_INTERFACE,)))
    reading.take("needs", lambda: closure.needs(artefact, "flash_attn").get("flash_attn.cute.interface"))


def accepted_majors(tree: ast.Module, name: str) -> list[int]:
    """The major compute capabilities in the function's first `assert arch // 10 in [9, 10, 11]` (or `arch in`)."""
    node = source.function(tree, name)
    if node is None:
        raise Unreadable(f"interface.py has no {name}")
    asserts = [part for part in ast.walk(node) if isinstance(part, ast.Assert)]
    for part in sorted(asserts, key=lambda part: part.lineno):
        test = part.test
        if (
            isinstance(test, ast.Compare)
            and isinstance(test.ops[0], ast.In)
            and isinstance(test.comparators[0], ast.List | ast.Tuple)
            and any(word in ast.unparse(test.left) for word in ("arch", "compute_capability"))
        ):
            return [int(item) for item in ast.literal_eval(test.comparators[0])]
    raise Unreadable(f"{name} asserts no compute capability where it did")


READER = Reader(package="flash-attn-4", revision=2, choose=by_tags("-any.whl"), read=read)
