"""What files of a torch installation or wheel say of its build; nothing of it is imported. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping


def cxx11abi(libc10: bytes) -> bool | None:
    """Whether torch's C++ interface uses the `std::string` of C++11: seen in the name of c10::Error's constructor."""
    match = re.search(rb"_ZN3c105ErrorC[12]E(Ss|NSt7__cxx11)", libc10)
    return match[1] != b"Ss" if match else None


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


def compiler_bounds(source: str) -> dict[str, tuple[str, str]]:
    """CUDA -> (least g++, first that is too new): `CUDA_GCC_VERSIONS` of `torch/utils/cpp_extension.py`."""
    names: dict[str, str] = {}
    for node in ast.parse(source).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if not isinstance(target, ast.Name) or value is None:
            continue
        if isinstance(value, ast.Tuple):
            names[target.id] = ".".join(ast.unparse(item) for item in value.elts)
        elif target.id == "CUDA_GCC_VERSIONS" and isinstance(value, ast.Dict):
            return dict(_bounds(value, names))
    return {}


def _bounds(table: ast.Dict, names: Mapping[str, str]) -> Iterator[tuple[str, tuple[str, str]]]:
    for key, pair in zip(table.keys, table.values, strict=True):
        if isinstance(key, ast.Constant) and isinstance(pair, ast.Tuple) and len(pair.elts) == 2:
            least, most = (
                names.get(item.id, "") if isinstance(item, ast.Name) else ".".join(map(ast.unparse, _parts(item)))
                for item in pair.elts
            )
            yield str(key.value), (least, most)


def _parts(item: ast.expr) -> list[ast.expr]:
    return item.elts if isinstance(item, ast.Tuple) else [item]
