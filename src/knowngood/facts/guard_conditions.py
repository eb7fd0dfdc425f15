"""With which releases of a package the code under a guard runs for certain. Pure.

A condition is true, false or undecided for each release of the package that it asks for; what it asks of anything else
is undecided. Sets of releases are bit masks, as in the atlas.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from knowngood.facts.atlas_lookup import AtlasLookup
from knowngood.facts.python_source import dotted_name, string_constants

_CATCHES = re.compile(
    r"try [\w.,]*\b(?:ImportError|ModuleNotFoundError|Exception|BaseException|AttributeError|TypeError)\b"
)
_HANDLES_IMPORT = re.compile(r"except [\w.,]*\b(?:ImportError|Exception|BaseException)\b[\w.,]* of (?P<tried>\S+)")
_ASKS_ELSE = re.compile(r"version|signature|hasattr|find_spec|\bnot\b|['\"]\d+(?:\.\d+)+", re.IGNORECASE)
"""What shows that a condition asks for more than whether a package is there; the last is a release, as in
`is_accelerate_available("1.10.1")`."""
_ASKS_RELEASE = re.compile(r"['\"]\d+(?:\.\d+)+")
_PARSERS = frozenset({"parse", "Version", "parse_version", "LooseVersion", "StrictVersion", "digit_version"})
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "==": operator.eq,
    "!=": operator.ne,
}
_NODES: dict[type[ast.cmpop], str] = {
    ast.GtE: ">=",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.Lt: "<",
    ast.Eq: "==",
    ast.NotEq: "!=",
}


@dataclass(frozen=True, slots=True)
class _Decision:
    """The releases for which a condition is true, and those for which it is false."""

    true: int = 0
    false: int = 0


_UNDECIDED = _Decision()


def find_running_releases(guard: str, callee: AtlasLookup) -> int:
    """Return the releases of the callee with which what stands under a guard runs for certain, as bits.

    `guard` is that of an `AtlasUse`. Code whose failure is caught counts as not running.
    """
    if _CATCHES.search(guard):
        return 0
    running = callee.every
    for part in guard.split(" & ") if guard else ():
        word, _, text = part.partition(" ")
        match word:
            case "try":
                pass
            case "except":
                running &= _find_failing_imports(part, callee)
            case "if":
                running &= _evaluate(text, callee).true or (callee.every if _asks_only_for(text, callee) else 0)
            case _:  # "unless"; whether a package that is installed counts as available may depend on the GPU too
                running &= _evaluate(text, callee).false if _ASKS_RELEASE.search(text) else 0
    return running


def _asks_only_for(text: str, callee: AtlasLookup) -> bool:
    """Whether a condition asks whether the package is there, and for no release of it."""
    return callee.file.root in text and not _ASKS_ELSE.search(text)


def _find_failing_imports(part: str, callee: AtlasLookup) -> int:
    """The releases without one of the names whose import brings the program into this `except`."""
    match = _HANDLES_IMPORT.match(part)
    failing = 0
    for target in match["tried"].split(",") if match else ():
        if re.split(r"[.:]", target, maxsplit=1)[0] == callee.file.root:
            presence = callee.find_name(target.replace(":", "."))
            failing |= callee.every & ~presence.present & ~presence.unclear
    return failing


def _evaluate(text: str, callee: AtlasLookup) -> _Decision:
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError):  # conditions are stored up to a length
        return _UNDECIDED
    return _decide(tree.body, callee)


def _decide(node: ast.expr, callee: AtlasLookup) -> _Decision:
    match node:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            decision = _decide(operand, callee)
            return _Decision(decision.false, decision.true)
        case ast.BoolOp(op=ast.And(), values=values):
            parts = [_decide(value, callee) for value in values]
            return _Decision(_common([part.true for part in parts]), _joint([part.false for part in parts]))
        case ast.BoolOp(values=values):
            parts = [_decide(value, callee) for value in values]
            return _Decision(_joint([part.true for part in parts]), _common([part.false for part in parts]))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _NODES:
            return _decide_comparison(left, _NODES[type(op)], right, callee)
        case ast.Call():
            return _decide_call(node, callee)
    return _UNDECIDED


def _common(masks: Sequence[int]) -> int:
    common = -1
    for mask in masks:
        common &= mask
    return common


def _joint(masks: Sequence[int]) -> int:
    joint = 0
    for mask in masks:
        joint |= mask
    return joint


def _decide_comparison(left: ast.expr, sign: str, right: ast.expr, callee: AtlasLookup) -> _Decision:
    """Decide `version.parse(lib.__version__) >= version.parse("4.46")`, and such comparisons of plain texts."""
    if not _is_version_of(left, callee):
        return _UNDECIDED
    if isinstance(left, ast.Call) and dotted_name(left.func).rpartition(".")[2] in _PARSERS:
        literal = next(string_constants(right), "")
        return _compare_releases(callee, sign, literal)
    if isinstance(right, ast.Constant) and isinstance(right.value, str):  # texts are compared letter by letter
        return _split(callee, [_OPERATORS[sign](release, right.value) for release in callee.file.releases])
    return _UNDECIDED


def _is_version_of(node: ast.expr, callee: AtlasLookup) -> bool:
    """Whether an expression is the callee's version: `lib.__version__`, `metadata.version("lib")`, or one parsed."""
    match node:
        case ast.Attribute(attr="__version__"):
            return dotted_name(node) == f"{callee.file.root}.__version__"
        case ast.Attribute(attr="base_version", value=value):
            return _is_version_of(value, callee)
        case ast.Call(func=function, args=[argument]):
            name = dotted_name(function).rpartition(".")[2]
            if name in _PARSERS:
                return _is_version_of(argument, callee)
            return name in {"version", "get_version"} and _names_package(argument, callee)
    return False


def _names_package(node: ast.expr, callee: AtlasLookup) -> bool:
    value = node.value if isinstance(node, ast.Constant) else None
    return isinstance(value, str) and canonicalize_name(value) in {
        callee.file.package,
        canonicalize_name(callee.file.root),
    }


def _decide_call(call: ast.Call, callee: AtlasLookup) -> _Decision:
    """Decide `is_lib_available("1.2")`, `is_lib_version(">=", "4.46")`, `is_installed("lib")` and their kin."""
    name = dotted_name(call.func).rpartition(".")[2].lower()
    arguments = [argument for argument in call.args if not _names_package(argument, callee)]
    if (callee.file.root not in name and len(arguments) == len(call.args)) or call.keywords:
        return _UNDECIDED
    texts = [node.value for node in arguments if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    if len(texts) < len(arguments):
        return _UNDECIDED
    return _decide_question(name, texts, callee)


def _decide_question(name: str, texts: Sequence[str], callee: AtlasLookup) -> _Decision:
    """Decide a question about the callee, by the lower-case name of the function and its further texts."""
    match texts:
        case [] if re.search(r"available|installed|exists", name):
            return _Decision(callee.every)
        case [sign, release] if sign in _OPERATORS:
            return _compare_releases(callee, sign, release)
        case [release] if re.search(r"available|_ge$|gte|equal|min", name):
            return _compare_releases(callee, ">=", release)
        case [release] if "greater" in name:  # at the release itself the name does not tell
            above = _compare_releases(callee, ">", release)
            return _Decision(above.true, _compare_releases(callee, "<", release).true)
    return _UNDECIDED


def _compare_releases(callee: AtlasLookup, sign: str, literal: str) -> _Decision:
    try:
        wanted = Version(literal)
    except InvalidVersion:
        return _UNDECIDED
    return _split(callee, [_OPERATORS[sign](Version(release), wanted) for release in callee.file.releases])


def _split(callee: AtlasLookup, answers: Sequence[bool]) -> _Decision:
    true = sum(1 << place for place, answer in enumerate(answers) if answer)
    return _Decision(true, callee.every & ~true)
