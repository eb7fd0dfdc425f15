"""flash-attn's sdists: what its setup can build, the signatures of its functions, and what its modules import."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from knowngood.harvest import closure, flash_attn_limits, source
from knowngood.harvest.artefact import Artefact, text
from knowngood.harvest.reading import Published, Reader, Reading, sdist

if TYPE_CHECKING:
    from collections.abc import Iterator

_MODULES = (
    "flash_attn/flash_attn_interface.py",
    "flash_attn/bert_padding.py",
    "flash_attn/layers/rotary.py",
    "flash_attn/ops/layer_norm.py",
    "flash_attn/ops/rms_norm.py",
    "flash_attn/ops/triton/layer_norm.py",
    "flash_attn/ops/triton/rotary.py",
    "flash_attn/losses/cross_entropy.py",
    "hopper/flash_attn_interface.py",
)
_TARGET = re.compile(r"arch=compute_(\w+),code=(sm|compute)_(\w+)")


def read(artefact: Artefact, _: Published, reading: Reading) -> None:
    """Fill in the facts of one release (see `knowngood.models.FlashAttn`)."""
    reading.take("sdist_size", lambda: artefact.size)
    setup = source.parse(text(artefact, "setup.py"), "setup.py")
    call = setup_call(setup)
    reading.take("requires_python", lambda: literal(call.get("python_requires")))
    reading.take("requires", lambda: literal(call.get("install_requires")))
    reading.take("cuda_minimum", lambda: cuda_minimum(setup), optional=True)
    least = reading.facts.get("cuda_minimum", "")
    reading.take("sass", lambda: {arch: floor or least for kind, arch, floor in targets(setup) if kind == "sm"})
    reading.take("ptx", lambda: {arch: floor or least for kind, arch, floor in targets(setup) if kind == "compute"})
    reading.take("archs_by_default", lambda: chosen_archs(setup), optional=True)
    reading.take("extensions", lambda: extensions(artefact))
    checked = reading.take("limits", lambda: flash_attn_limits.limits(artefact))
    if checked is not None:
        reading.facts |= reading.facts.pop("limits")
    reading.take("functions", lambda: signatures(artefact, _MODULES))
    reading.take("needs", lambda: closure.needs(artefact, "flash_attn"))


def setup_call(setup: ast.Module) -> dict[str, ast.expr]:
    """The keywords of the call of `setup(...)`."""
    for node in ast.walk(setup):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "setup":
            return {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
    return {}


def literal(node: ast.expr | None) -> object:
    """The value of a literal; `None` when it is none."""
    if node is None:
        return None
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


def targets(setup: ast.Module) -> Iterator[tuple[str, str, str]]:
    """What nvcc can be told: (`sm` or `compute`, architecture, least CUDA by the `if` around it, or empty)."""

    def visit(node: ast.AST, floor: str) -> Iterator[tuple[str, str, str]]:
        if isinstance(node, ast.If):
            floors = source.version_floors(node.test)
            for then in node.body:
                yield from visit(then, floors[0] if floors else floor)
            for otherwise in node.orelse:
                yield from visit(otherwise, floor)
            return
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for match in _TARGET.finditer(node.value):
                yield match[2], match[3], floor
        for child in ast.iter_child_nodes(node):
            yield from visit(child, floor)

    yield from visit(setup, "")


def cuda_minimum(setup: ast.Module) -> str | None:
    """The nvcc below which the setup raises: the greatest `if bare_metal_version < Version("11.7"): raise`."""
    found: list[tuple[int, ...]] = []
    for node in ast.walk(setup):
        if not isinstance(node, ast.If) or not any(isinstance(child, ast.Raise) for child in node.body):
            continue
        test = node.test
        if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Lt):
            found += [
                tuple(map(int, name.split("."))) for name in source.strings(test) if re.fullmatch(r"\d+\.\d+", name)
            ]
    return ".".join(map(str, max(found))) if found else None


def chosen_archs(setup: ast.Module) -> list[str] | None:
    """The default of `FLASH_ATTN_CUDA_ARCHS`, in releases whose setup heeds it."""
    for node in ast.walk(setup):
        if isinstance(node, ast.Call) and len(node.args) == 2:
            name, default = node.args
            if literal(name) == "FLASH_ATTN_CUDA_ARCHS" and isinstance(text := literal(default), str):
                return text.split(";")
    return None


def extensions(artefact: Artefact) -> list[str]:
    """The folders of `csrc` with a setup of their own: built by hand, not by installing flash-attn."""
    return sorted(member.split("/")[1] for member in artefact.members if re.fullmatch(r"csrc/[^/]+/setup\.py", member))


def signatures(artefact: Artefact, members: tuple[str, ...]) -> dict[str, list[object]]:
    """Dotted name of each module-level function -> its parameters and how many values it returns."""
    found: dict[str, list[object]] = {}
    for member in members:
        if member not in artefact.members:
            continue
        tree = source.parse(text(artefact, member), member)
        module = member.removesuffix(".py").replace("/", ".")
        for name, node in source.functions(tree):
            if "." not in name:
                found.setdefault(f"{module}.{name}", [source.signature(node), source.returned(node, tree)])
    return found


READER = Reader(package="flash-attn", revision=4, choose=sdist, read=read)
