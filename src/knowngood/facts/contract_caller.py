"""The caller's side of a contract: how a release uses the callee, for a given version of the callee."""

from __future__ import annotations

import ast
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from knowngood.facts import python_source
from knowngood.facts.call_shape import CallShape
from knowngood.facts.call_walk import CallerScope, FunctionWalk
from knowngood.facts.caller_guards import (
    decide_comparison,
    find_assigned_version,
    find_import,
    is_exclusive_maximum,
    last_name,
)
from knowngood.facts.contract import Contract, ContractUse, ExpressionForm

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from knowngood.facts.contract import Expression
    from knowngood.facts.release_source import ReleaseSource

REVISION = 4
"""Raised when the same source may give another result: uses in the cache of an older revision are read again."""


@dataclass(frozen=True, kw_only=True)
class CallerUse:
    """How the caller makes one use of the callee."""

    expression: Expression
    shapes: tuple[CallShape, ...] = ()
    """The calls, by how they pass their arguments."""
    refusals: tuple[str, ...] = ()
    """What the caller raises instead, when it always does."""
    caught: bool = False
    """Whether the use is an import in a `try` that catches its failure."""
    spared: str = ""
    """What the caller does so that the callee does not raise; empty when it does nothing."""


def _document_from_use(caller_use: CallerUse | None) -> dict[str, Any] | None:
    return None if caller_use is None else {**asdict(caller_use), "expression": caller_use.expression.text}


def _use_from_document(document: Mapping[str, Any] | None, use: ContractUse) -> CallerUse | None:
    if document is None:
        return None
    shapes = [
        CallShape(**{**one, "keywords": tuple(one["keywords"]), "constants": tuple(map(tuple, one["constants"]))})
        for one in document["shapes"]
    ]
    expression = next(one for one in use.expressions if one.text == document["expression"])
    return CallerUse(
        **{**document, "expression": expression, "shapes": tuple(shapes), "refusals": tuple(document["refusals"])}
    )


class CallerRelease:
    """A release of the calling package, read for one contract."""

    def __init__(self, contract: Contract, release: ReleaseSource, versions: Sequence[Version]) -> None:
        self.contract = contract
        self.release = release
        self.versions = versions
        """The callee's versions."""
        self._uses: dict[tuple[int, tuple[bool | None, ...]], CallerUse | None] = {}

    @cached_property
    def path(self) -> str | None:
        """The first of the contract's files that the release has, or `None`."""
        return self.release.first(self.contract.caller.files)

    @cached_property
    def _comparisons(self) -> list[ast.Compare]:
        """Every comparison with the callee's version in the files that the contract names."""
        nodes: list[ast.Compare] = []
        for path in self._files():
            tree = self.release.tree(path)
            nodes += [node for node in ast.walk(tree) if isinstance(node, ast.Compare)] if tree else []
        return [node for node in nodes if decide_comparison(node, self.contract.version, Version("0")) is not None]

    def _files(self) -> list[str]:
        gate, reached = self.contract.gate, self.contract.reached_by
        extra = (*(gate.files if gate else ()), *(reached.files if reached else ()))
        return list(dict.fromkeys([*([self.path] if self.path else []), *extra]))

    @cached_property
    def flags(self) -> dict[str, ast.Compare]:
        """Names that are assigned a comparison with the callee's version."""
        wanted = set(map(id, self._comparisons))
        flags: dict[str, ast.Compare] = {}
        for path in self._files():
            for node in ast.walk(self.release.tree(path) or ast.Module(body=[], type_ignores=[])):
                match node:
                    case ast.Assign(targets=[ast.Name() | ast.Attribute() as target], value=ast.Compare() as value):
                        if id(value) in wanted:
                            flags.setdefault(last_name(target), value)
        return flags

    def holds(self, flag: str, version: Version) -> bool | None:
        """Return whether a flag of the caller is set with this version of the callee; `None` for other names."""
        compare = self.flags.get(flag)
        return None if compare is None else decide_comparison(compare, self.contract.version, version)

    def names_reached_class(self) -> bool:
        """Return whether the file of `reached_by` names the class that it looks for."""
        reached = self.contract.reached_by
        if reached is None:
            return True
        path = self.release.first(reached.files)
        tree = self.release.tree(path) if path else None
        return tree is not None and any(_is_named(node, reached.name) for node in ast.walk(tree))

    @cached_property
    def bounds(self) -> SpecifierSet | None:
        """The caller's own bounds on the callee's version; `None` when it states none."""
        gate = self.contract.gate
        if gate is None:
            return None
        trees = [tree for path in gate.files if (tree := self.release.tree(path))]
        least = next((version for name in gate.minimum if (version := find_assigned_version(trees, name))), None)
        most = next((version for name in gate.maximum if (version := find_assigned_version(trees, name))), None)
        below = any(is_exclusive_maximum(tree, name) for tree in trees for name in gate.maximum)
        texts = [f">={least}"] if least else []
        texts += [f"{'<' if below else '<='}{most}"] if most else []
        return SpecifierSet(",".join(texts), prereleases=True) if texts else None

    @cached_property
    def has_use(self) -> bool:
        """Whether there is any use at all, with a version of the callee that the gate accepts."""
        bounds = self.bounds
        within = [version for version in self.versions if bounds is None or bounds.contains(version)]
        probe = (within or self.versions)[-1]
        return any(self.find_use(place, probe) for place in range(len(self.contract.uses)))

    @cached_property
    def mentions(self) -> bool:
        """Whether there is a call by the last name of a use in the functions that the contract names."""
        wanted = [
            (expression, name)
            for use in self.contract.uses
            for expression in use.expressions
            for name in use.inside or ("",)
            if expression.form is ExpressionForm.CALL
        ]
        for tree in filter(None, map(self.release.tree, self.contract.caller.files)):
            for expression, name in wanted:
                node = self._place(tree, name)
                if node is not None and _calls(node, expression):
                    return True
        return False

    @staticmethod
    def _place(tree: ast.Module, name: str) -> ast.AST | None:
        """Return the function or class of this name, or the file itself when the name is empty."""
        if not name:
            return tree
        return python_source.find_function(tree, name) or next(
            (part for part in ast.walk(tree) if isinstance(part, ast.ClassDef) and part.name == name), None
        )

    def find_use(self, place: int, version: Version) -> CallerUse | None:
        """Return how the contract's use at `place` is made with this version of the callee.

        `None` when the release has no such use.
        """
        situation = tuple(decide_comparison(node, self.contract.version, version) for node in self._comparisons)
        key = (place, situation)
        if key not in self._uses:
            self._uses[key] = self._cached_use(place, situation, version)
        return self._uses[key]

    def _cached_use(self, place: int, situation: tuple[bool | None, ...], version: Version) -> CallerUse | None:
        """The same through the cache: walking a long function takes seconds."""
        artefact = self.release.artefact
        if artefact is None:
            return None
        use = self.contract.uses[place]
        # Everything that the result depends on, except the files, which belong to the artefact.
        about = repr((REVISION, use, self.contract.caller, self.contract.given, self.contract.version, situation))
        document = artefact.derived(f"use {about}", lambda: _document_from_use(self._search_use(use, version)))
        return _use_from_document(document, use)

    def _search_use(self, use: ContractUse, version: Version) -> CallerUse | None:
        for path in self.contract.caller.files:
            tree = self.release.tree(path)
            for name in use.inside or ("",) if tree else ():
                for expression in use.expressions:
                    caller_use = self._use_in(tree, path, name, use, expression, version)  # type: ignore[arg-type]
                    if caller_use is not None:
                        return caller_use
        return None

    def _use_in(  # noqa: PLR0913, PLR0917 - one place of one release
        self, tree: ast.Module, path: str, name: str, use: ContractUse, expression: Expression, version: Version
    ) -> CallerUse | None:
        node = self._place(tree, name)
        if node is None:
            return None
        spared = self._is_spared(tree, use)
        if expression.form is ExpressionForm.IMPORT:
            caught = find_import(node, expression)
            return None if caught is None else CallerUse(expression=expression, caught=caught)
        if expression.form is ExpressionForm.ATTRIBUTE:
            is_there = any(
                isinstance(part, ast.Attribute) and python_source.dotted_name(part) == expression.name
                for part in ast.walk(node)
            )
            return CallerUse(expression=expression, spared=spared) if is_there else None
        scope = CallerScope(caller=self, path=path, version=version)
        walk = FunctionWalk(functions=_functions(tree), matches=scope.matcher(expression), scope=scope)
        for body in _bodies(node):
            walk.body(body, {})
        shapes = walk.result.shapes
        spared = spared or _passes(shapes, use)
        if not shapes and not (walk.result.refusals and _calls(node, expression)):
            return None
        refusals = () if shapes else walk.result.refusals
        return CallerUse(expression=expression, shapes=tuple(shapes), refusals=tuple(refusals), spared=spared)

    @staticmethod
    def _is_spared(tree: ast.Module, use: ContractUse) -> str:
        """Say which place of `spared_by` assigns the value that makes the condition false; empty when none does."""
        for how in use.spared_by:
            node = python_source.find_function(tree, how["inside"]) if "assigns" in how else None
            for part in ast.walk(node) if node else ():
                match part:
                    case ast.Assign(targets=targets, value=ast.Constant(value=value)):
                        if str(value) == how["value"] and how["assigns"] in map(ast.unparse, targets):
                            return f"{how['inside']} sets {how['assigns']} = {value!r}"
        return ""


def _passes(shapes: Sequence[CallShape], use: ContractUse) -> str:
    for how in use.spared_by:
        if "argument" in how and shapes:
            wanted = (how["argument"], how["value"])
            if all(wanted in shape.constants for shape in shapes):
                return f"the call passes {how['argument']}={how['value']}"
    return ""


def _calls(node: ast.AST, expression: Expression) -> bool:
    """Return whether something is called by the last name of the expression."""
    last = expression.name.rsplit(".", 1)[-1]
    return any(isinstance(part, ast.Call) and last_name(part.func) == last for part in ast.walk(node))


def _functions(tree: ast.Module) -> dict[str, python_source.Function]:
    return {name: node for name, node in python_source.list_functions(tree) if "." not in name}


def _bodies(node: ast.AST) -> list[list[ast.stmt]]:
    """Return the blocks to walk: that of a function; for a file or class its own and those of all its functions."""
    if isinstance(node, python_source.Function):
        return [node.body]
    own: list[ast.stmt] = getattr(node, "body", [])
    return [own, *(part.body for part in ast.walk(node) if isinstance(part, python_source.Function))]


def _is_named(node: ast.AST, name: str) -> bool:
    match node:
        case ast.Constant(value=value):
            return bool(value == name)
        case ast.Name(id=other) | ast.keyword(arg=other) | ast.alias(name=other) | ast.Attribute(attr=other):
            return other == name
    return False
