"""How a call passes its arguments, and whether that fits a signature, in Python's own words. Pure.

A function with the callee's parameters and an empty body is compiled and called: the `TypeError` is the one that a user
gets, and no line of the callee is run.
"""

from __future__ import annotations

import ast
import copy
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from knowngood.facts.python_source import Function


@dataclass(frozen=True, kw_only=True)
class CallShape:
    """How a call passes its arguments, and how its result is unpacked."""

    positional: int | None
    """How many arguments have no keyword; `None` when that is not known."""
    keywords: tuple[str, ...]
    more: bool
    """Whether there may be other keywords."""
    unpacked: int = 0
    """Into how many names the result is unpacked; 0 when it is not."""
    starred: bool = False
    """Whether one of those names is starred and takes the rest."""
    constants: tuple[tuple[str, str], ...] = ()
    """Keywords whose value is a constant, with that value."""


@dataclass
class WalkResult:
    """The calls and refusals that a walk through a function gives."""

    shapes: list[CallShape] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    """What the function itself raises on a path that is certain to be taken: its own gate."""


def find_binding_error(shape: CallShape, function: Function, name: str) -> str | None:
    """Return the text of the `TypeError` that the call raises, or `None` when it binds.

    `name` is `f` or `Class.method`. When not all arguments of the call are known, only a keyword that the function does
    not have is reported.
    """
    stub = _compile_stub(ast.unparse(_bare_parameters(function)), name)
    method = "." in name and not _is_static(function)
    keywords = dict.fromkeys(shape.keywords)
    if shape.positional is None or shape.more:
        return _unexpected_keyword(function, keywords, name)
    try:
        stub(*([None] * (shape.positional + method)), **keywords)
    except TypeError as error:
        return f"TypeError: {error}"
    return None


def find_unpacking_error(shape: CallShape, sizes: Sequence[int]) -> str | None:
    """Return the text of the `ValueError` when none of the `sizes` that a function returns fits the unpacking."""
    if not shape.unpacked or not sizes or min(sizes) < 2:
        return None  # one value may be a sequence of any length
    if any(size >= shape.unpacked if shape.starred else size == shape.unpacked for size in sizes):
        return None
    size = max(sizes)
    if size > shape.unpacked:
        return f"ValueError: too many values to unpack (expected {shape.unpacked})"
    least = "at least " if shape.starred else ""
    return f"ValueError: not enough values to unpack (expected {least}{shape.unpacked}, got {size})"


def _unexpected_keyword(function: Function, keywords: dict[str, None], name: str) -> str | None:
    parameters = function.args
    if parameters.kwarg is not None:
        return None
    known = {one.arg for one in (*parameters.args, *parameters.kwonlyargs)}
    unknown = next((keyword for keyword in keywords if keyword not in known), None)
    return unknown and f"TypeError: {name}() got an unexpected keyword argument '{unknown}'"


def _is_static(function: Function) -> bool:
    return any(isinstance(node, ast.Name) and node.id == "staticmethod" for node in function.decorator_list)


def _bare_parameters(function: Function) -> ast.arguments:
    """Return the parameters without annotations, with `None` for each default."""
    parameters = copy.deepcopy(function.args)
    for node in ast.walk(parameters):
        if isinstance(node, ast.arg):
            node.annotation = None
    parameters.defaults = [ast.Constant(None) for _ in parameters.defaults]
    parameters.kw_defaults = [default and ast.Constant(None) for default in parameters.kw_defaults]
    return parameters


@cache
def _compile_stub(parameters: str, name: str) -> Callable[..., None]:
    namespace: dict[str, Callable[..., None]] = {}
    exec(f"def stub({parameters}): pass", {"__builtins__": {}}, namespace)  # noqa: S102 - parameter names, an empty body
    namespace["stub"].__qualname__ = name
    return namespace["stub"]
