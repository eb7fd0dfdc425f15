"""xtuner, openrlhf and xformers: what they declare; xtuner also states in code which transformers a model needs."""

from __future__ import annotations

import ast

from knowngood.harvest import metadata, source
from knowngood.harvest.artefact import Artefact, one_member, text
from knowngood.harvest.reading import Published, Reader, Reading, by_tags, wheel_or_sdist

_DISPATCH = "xtuner/model/modules/dispatch/__init__.py"


def read(artefact: Artefact, published: Published, reading: Reading) -> None:
    """Fill in the facts of one release (see `knowngood.models.Framework`)."""
    ending = ".dist-info/METADATA" if artefact.file.is_wheel else "PKG-INFO"
    core = metadata.parse_metadata(text(artefact, one_member(artefact, ending)))
    python = metadata.oldest_python(core.requires_python)
    reading.take("requires_python", lambda: core.requires_python, optional=True)
    reading.take("requires", lambda: metadata.requirement_map(core.on(python)))
    pythons = metadata.pythons(published.files, core.requires_python)
    reading.take("pythons", lambda: pythons or None, optional=True)
    reading.take("abi3_from", lambda: metadata.abi3_from(published.files), optional=True)


def read_xtuner(artefact: Artefact, published: Published, reading: Reading) -> None:
    """The same, and the least transformers of each model that xtuner patches."""
    read(artefact, published, reading)
    if _DISPATCH in artefact.members:
        tree = source.parse(text(artefact, _DISPATCH), _DISPATCH)
        reading.take("model_minimums", lambda: model_minimums(tree), optional=True)


def model_minimums(dispatch: ast.Module) -> dict[str, str] | None:
    """`LOWEST_TRANSFORMERS_VERSION = dict(Qwen2ForCausalLM=digit_version('4.39'), ...)`."""
    table = source.assigned(dispatch, "LOWEST_TRANSFORMERS_VERSION")
    if not isinstance(table, ast.Call):
        return None
    return {keyword.arg: next(source.strings(keyword.value)) for keyword in table.keywords if keyword.arg}


READERS = (
    Reader(package="xtuner", revision=2, choose=wheel_or_sdist, read=read_xtuner),
    Reader(package="openrlhf", revision=2, choose=by_tags("-any.whl", "-cp311-"), read=read),
    Reader(package="xformers", revision=2, choose=by_tags("-cp311-", "-cp310-", "-cp39-abi3-", "-py39-"), read=read),
)
