"""torch's wheels: what they pin, what they need of the system, and which GPU code they carry.

Only the wheel for Linux x86_64 is read, and of it the METADATA, `torch/version.py` and a few libraries.
"""

from __future__ import annotations

import ast

from knowngood.harvest import metadata
from knowngood.harvest.artefact import Artefact, one_member, text
from knowngood.harvest.reading import Published, Reader, Reading, by_tags


def read(artefact: Artefact, published: Published, reading: Reading) -> None:
    """Fill in the facts of one torch release (see `knowngood.facts.Torch` for their meaning)."""
    reading.take("pythons", lambda: metadata.pythons(published.files))
    reading.take("free_threaded", lambda: metadata.free_threaded(published.files))
    reading.take("wheel_size", lambda: artefact.size)
    core = metadata.parse_metadata(text(artefact, one_member(artefact, ".dist-info/METADATA")))
    reading.take("requires_python", lambda: core.requires_python)
    reading.take("glibc", lambda: metadata.glibc_of_tags(artefact.file.name))
    build = build_constants(text(artefact, "torch/version.py"))
    reading.take("cuda", lambda: build.get("cuda"))
    reading.take("git", lambda: build.get("git_version"))
    pins = core.on(_python_of(artefact.file.name))
    reading.take("triton", lambda: pinned(metadata.bounds(pins.get("triton"))))
    reading.take("triton_requires", lambda: metadata.bounds(pins.get("triton")) or None)
    for fact, prefix in (("cudnn", "nvidia-cudnn"), ("nccl", "nvidia-nccl")):
        reading.take(
            fact,
            lambda prefix=prefix: next(  # type: ignore[misc]
                (metadata.exact(pin) for name, pin in pins.items() if name.startswith(prefix)), None
            ),
        )
    reading.take("requires", lambda: metadata.requirement_map(pins))


def pinned(specifier: str) -> str | None:
    """The triton that a specifier leads to: the version of `==`, or the base of `~=`."""
    operator, version = specifier[:2], specifier[2:]
    return version if operator in {"==", "~="} and "," not in version else None


def build_constants(source: str) -> dict[str, object]:
    """The literal assignments of `torch/version.py`, read from its syntax tree."""
    found: dict[str, object] = {}
    for node in ast.parse(source).body:
        targets: list[ast.expr] = []
        if isinstance(node, ast.AnnAssign):
            targets = [node.target]
        elif isinstance(node, ast.Assign):
            targets = node.targets
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant):
            found.update({target.id: node.value.value for target in targets if isinstance(target, ast.Name)})
    return found


def _python_of(wheel: str) -> str:
    """`3.11` for a wheel of cp311."""
    interpreter = min(tag.interpreter for tag in metadata.tags(wheel))
    return f"{interpreter[2]}.{interpreter[3:]}"


READER = Reader(
    package="torch",
    revision=1,
    choose=by_tags("-cp311-cp311-", "-cp310-cp310-", "-cp39-cp39-", "-cp312-cp312-"),
    read=read,
)
