"""What the files of a torch installation or wheel say about its build; torch itself is not imported. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

from knowngood_facts.facts.python_source import parse_syntax_tree


def detect_cxx11abi(libc10: bytes) -> bool | None:
    """Return whether torch's C++ interface uses the `std::string` of C++11; `None` when that cannot be seen.

    The exported name of c10::Error's constructor in `libc10.so` shows it.
    """
    match = re.search(rb"_ZN3c105ErrorC[12]E(Ss|NSt7__cxx11)", libc10)
    return match[1] != b"Ss" if match else None


def parse_build_constants(source: str) -> dict[str, object]:
    """Return the literal assignments of `torch/version.py`, read from its syntax tree."""
    constants: dict[str, object] = {}
    for node in parse_syntax_tree(source).body:
        targets: list[ast.expr] = []
        if isinstance(node, ast.AnnAssign):
            targets = [node.target]
        elif isinstance(node, ast.Assign):
            targets = node.targets
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant):
            constants.update({target.id: node.value.value for target in targets if isinstance(target, ast.Name)})
    return constants


def parse_compiler_bounds(source: str) -> dict[str, tuple[str, str]]:
    """Return CUDA -> (lowest g++, first that is too new): `CUDA_GCC_VERSIONS` of `torch/utils/cpp_extension.py`."""
    names: dict[str, str] = {}
    for node in parse_syntax_tree(source).body:
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
