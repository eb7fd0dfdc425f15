"""The C++ standard that torch's headers demand, and the highest that the build of an extension can pass. Pure.

`setup.py` and what it imports to build (`op_builder/`, `build_tools/`) pass the compiler a flag such as `-std=c++17`.
torch's `ATen/ATen.h`, which every extension includes, ends in `#error` below the standard that torch needs.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

HEADER = "torch/include/ATen/ATen.h"
"""The member of torch's wheel that says which standard its headers demand."""

_FLAG = re.compile(r"-std=(?:c|gnu)\+\+(\d\d)")
_DEMAND = re.compile(r"__cplusplus\s*<\s*20(\d\d)\d\dL")
_BUILD_FILE = re.compile(r"setup\.py|[^/]*build[^/]*/[^/]*\.py")


def is_build_file(member: str) -> bool:
    """Whether a member of an sdist, without its top folder, decides how its extension is compiled."""
    return _BUILD_FILE.fullmatch(member) is not None


def find_demanded_standard(header: str) -> int | None:
    """Return the least standard that a header accepts, 17 for C++17; `None` when it demands none."""
    demands = [int(year) for year in _DEMAND.findall(header)]
    return max(demands, default=None)


def find_passed_standard(build_files: Iterable[str]) -> int | None:
    """Return the highest standard that build files name, 17 for C++17; `None` when they leave it to torch.

    Where they choose one by torch's version, it is the highest of the choices. A flag that is only added where there
    is none is no choice, because torch's own build helper has added one before.
    """
    standards = [int(year) for text in build_files for flag in _list_flags(text) for year in _FLAG.findall(flag)]
    return max(standards, default=None)


def _list_flags(source: str) -> Iterator[str]:
    try:
        todo: list[ast.AST] = [ast.parse(source)]
    except (SyntaxError, ValueError):
        return
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        if isinstance(node, ast.If) and "'-std=" in ast.unparse(node.test):
            todo += node.orelse
        else:
            todo += ast.iter_child_nodes(node)
