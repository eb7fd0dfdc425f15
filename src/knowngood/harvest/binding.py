"""Whether a call fits a signature, in Python's own words.

A function with the parameters of the callee and an empty body is compiled and called: the `TypeError` is the one that
a user gets, and no line of the callee is run.
"""

from __future__ import annotations

import ast
import copy
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from knowngood.harvest.shape import Shape
    from knowngood.harvest.source import Function


def unbound(shape: Shape, function: Function, name: str) -> str | None:
    """The text of the `TypeError` that the call raises; `None` when it binds. `name` is `f` or `Class.method`.

    Where the make-up of the call is known in part only, what is certain is answered: a keyword that is not taken.
    """
    stub = _stub(ast.unparse(_bare(function)), name)
    method = "." in name and not _is_static(function)
    keywords = dict.fromkeys(shape.keywords)
    if shape.positional is None or shape.more:
        return _unexpected(function, keywords, name)
    try:
        stub(*([None] * (shape.positional + method)), **keywords)
    except TypeError as error:
        return f"TypeError: {error}"
    return None


def unpacked(shape: Shape, sizes: Sequence[int]) -> str | None:
    """The text of the `ValueError` when none of the numbers of values returned fits the unpacking."""
    if not shape.unpacked or not sizes or min(sizes) < 2:
        return None  # one value may be a sequence of any length
    if any(size >= shape.unpacked if shape.starred else size == shape.unpacked for size in sizes):
        return None
    size = max(sizes)
    if size > shape.unpacked:
        return f"ValueError: too many values to unpack (expected {shape.unpacked})"
    least = "at least " if shape.starred else ""
    return f"ValueError: not enough values to unpack (expected {least}{shape.unpacked}, got {size})"


def _unexpected(function: Function, keywords: dict[str, None], name: str) -> str | None:
    parameters = function.args
    if parameters.kwarg is not None:
        return None
    known = {one.arg for one in (*parameters.args, *parameters.kwonlyargs)}
    strange = next((keyword for keyword in keywords if keyword not in known), None)
    return strange and f"TypeError: {name}() got an unexpected keyword argument '{strange}'"


def _is_static(function: Function) -> bool:
    return any(isinstance(node, ast.Name) and node.id == "staticmethod" for node in function.decorator_list)


def _bare(function: Function) -> ast.arguments:
    """The parameters without annotations, each default replaced by `None`."""
    parameters = copy.deepcopy(function.args)
    for node in ast.walk(parameters):
        if isinstance(node, ast.arg):
            node.annotation = None
    parameters.defaults = [ast.Constant(None) for _ in parameters.defaults]
    parameters.kw_defaults = [default and ast.Constant(None) for default in parameters.kw_defaults]
    return parameters


@cache
def _stub(parameters: str, name: str) -> Callable[..., None]:
    made: dict[str, Callable[..., None]] = {}
    exec(f"def stub({parameters}): pass", {"__builtins__": {}}, made)  # noqa: S102 - parameter names, an empty body
    made["stub"].__qualname__ = name
    return made["stub"]
