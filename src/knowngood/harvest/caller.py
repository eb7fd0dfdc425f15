"""The caller's side of a contract: what a release asks of the callee, for a given version of the callee."""

from __future__ import annotations

import ast
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from knowngood.contracts.model import Contract, Form, Use
from knowngood.harvest import source, written
from knowngood.harvest.calls import Walk
from knowngood.harvest.guarded import import_of
from knowngood.harvest.scope import Scope
from knowngood.harvest.shape import Shape
from knowngood.harvest.versions import assigned_version, decided, is_below, last_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from knowngood.contracts.model import Expression
    from knowngood.harvest.release import Release

REVISION = 4
"""Raised when the same caller may be read in another way."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the caller does with the callee in one use."""

    expression: Expression
    shapes: tuple[Shape, ...] = ()
    refusals: tuple[str, ...] = ()
    caught: bool = False
    """An import in a `try` that catches its failure."""
    spared: str = ""
    """What the caller does so that the callee does not raise."""


def _document(asked: Asked | None) -> dict[str, Any] | None:
    return None if asked is None else {**asdict(asked), "expression": asked.expression.text}


def _from_document(found: Mapping[str, Any] | None, use: Use) -> Asked | None:
    if found is None:
        return None
    shapes = [
        Shape(**{**one, "keywords": tuple(one["keywords"]), "constants": tuple(map(tuple, one["constants"]))})
        for one in found["shapes"]
    ]
    expression = next(one for one in use.expressions if one.text == found["expression"])
    return Asked(**{**found, "expression": expression, "shapes": tuple(shapes), "refusals": tuple(found["refusals"])})


class Caller:
    """A release of the calling package, as one contract looks at it."""

    def __init__(self, contract: Contract, release: Release, versions: Sequence[Version]) -> None:
        self.contract = contract
        self.release = release
        self.versions = versions
        """Those of the callee."""
        self._asked: dict[tuple[int, tuple[bool | None, ...]], Asked | None] = {}

    @cached_property
    def path(self) -> str | None:
        """The file with the expression; `None` when the release has none of them."""
        return self.release.first(self.contract.caller.files)

    @cached_property
    def _versions(self) -> list[ast.Compare]:
        """Every comparison with the callee's version in the files that the contract names."""
        found = []
        for path in self._files():
            tree = self.release.tree(path)
            found += [node for node in ast.walk(tree) if isinstance(node, ast.Compare)] if tree else []
        return [node for node in found if decided(node, self.contract.version, Version("0")) is not None]

    def _files(self) -> list[str]:
        gate, reached = self.contract.gate, self.contract.reached_by
        extra = (*(gate.files if gate else ()), *(reached.files if reached else ()))
        return list(dict.fromkeys([*([self.path] if self.path else []), *extra]))

    @cached_property
    def flags(self) -> dict[str, ast.Compare]:
        """Names that are assigned a comparison with the callee's version."""
        wanted = set(map(id, self._versions))
        found: dict[str, ast.Compare] = {}
        for path in self._files():
            for node in ast.walk(self.release.tree(path) or ast.Module(body=[], type_ignores=[])):
                match node:
                    case ast.Assign(targets=[ast.Name() | ast.Attribute() as target], value=ast.Compare() as value):
                        if id(value) in wanted:
                            found.setdefault(last_name(target), value)
        return found

    def holds(self, flag: str, version: Version) -> bool | None:
        """Whether a flag of the caller's is set with this version of the callee."""
        compare = self.flags.get(flag)
        return None if compare is None else decided(compare, self.contract.version, version)

    def names(self) -> bool:
        """Whether the file of `reached_by` names the class that it looks for."""
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
        least = next((found for name in gate.minimum if (found := assigned_version(trees, name))), None)
        most = next((found for name in gate.maximum if (found := assigned_version(trees, name))), None)
        below = any(is_below(tree, name) for tree in trees for name in gate.maximum)
        texts = [f">={least}"] if least else []
        texts += [f"{'<' if below else '<='}{most}"] if most else []
        return SpecifierSet(",".join(texts), prereleases=True) if texts else None

    @cached_property
    def has_use(self) -> bool:
        """Whether there is any use at all, with a version of the callee that the gate lets pass."""
        bounds = self.bounds
        within = [version for version in self.versions if bounds is None or bounds.contains(version)]
        probe = (within or self.versions)[-1]
        return any(self.asks(place, probe) for place in range(len(self.contract.uses)))

    @cached_property
    def mentions(self) -> bool:
        """Whether a call by the last name of a use is there, in the functions that the contract looks at."""
        wanted = [
            (expression, name)
            for use in self.contract.uses
            for expression in use.expressions
            for name in use.inside or ("",)
            if expression.form is Form.CALL
        ]
        for tree in filter(None, map(self.release.tree, self.contract.caller.files)):
            for expression, name in wanted:
                node = self._place(tree, name)
                if node is not None and _calls(node, expression):
                    return True
        return False

    @staticmethod
    def _place(tree: ast.Module, name: str) -> ast.AST | None:
        """The function or class of this name, the file itself without one."""
        if not name:
            return tree
        return source.function(tree, name) or next(
            (part for part in ast.walk(tree) if isinstance(part, ast.ClassDef) and part.name == name), None
        )

    def asks(self, place: int, version: Version) -> Asked | None:
        """What the use at this place asks with this version of the callee; `None` when the release has no such use."""
        situation = tuple(decided(node, self.contract.version, version) for node in self._versions)
        key = (place, situation)
        if key not in self._asked:
            self._asked[key] = self._kept(place, situation, version)
        return self._asked[key]

    def _kept(self, place: int, situation: tuple[bool | None, ...], version: Version) -> Asked | None:
        """The same, kept in the cache: walking a long function takes seconds."""
        artefact = self.release.artefact
        if artefact is None:
            return None
        use = self.contract.uses[place]
        # Everything that the answer follows from, but for the files, which are the artefact's own.
        about = repr((REVISION, use, self.contract.caller, self.contract.given, self.contract.version, situation))
        found = artefact.derived(f"asked {about}", lambda: _document(self._ask(use, version)))
        return _from_document(found, use)

    def _ask(self, use: Use, version: Version) -> Asked | None:
        for path in self.contract.caller.files:
            tree = self.release.tree(path)
            for name in use.inside or ("",) if tree else ():
                for expression in use.expressions:
                    asked = self._in(tree, path, name, use, expression, version)  # type: ignore[arg-type]
                    if asked is not None:
                        return asked
        return None

    def _in(  # noqa: PLR0913, PLR0917 - one place of one release
        self, tree: ast.Module, path: str, name: str, use: Use, expression: Expression, version: Version
    ) -> Asked | None:
        node = self._place(tree, name)
        if node is None:
            return None
        spared = self._is_spared(tree, use)
        if expression.form is Form.IMPORT:
            found = import_of(node, expression)
            return None if found is None else Asked(expression=expression, caught=found)
        if expression.form is Form.ATTRIBUTE:
            there = any(
                isinstance(part, ast.Attribute) and written.dotted(part) == expression.name for part in ast.walk(node)
            )
            return Asked(expression=expression, spared=spared) if there else None
        scope = Scope(caller=self, path=path, version=version)
        walk = Walk(functions=_functions(tree), matches=scope.matcher(expression), scope=scope)
        for body in _bodies(node):
            walk.body(body, {})
        shapes = walk.found.shapes
        spared = spared or _passes(shapes, use)
        if not shapes and not (walk.found.refusals and _calls(node, expression)):
            return None
        refusals = () if shapes else walk.found.refusals
        return Asked(expression=expression, shapes=tuple(shapes), refusals=tuple(refusals), spared=spared)

    @staticmethod
    def _is_spared(tree: ast.Module, use: Use) -> str:
        """Which of the places of `spared_by` assigns the value that takes the condition away."""
        for how in use.spared_by:
            node = source.function(tree, how["inside"]) if "assigns" in how else None
            for part in ast.walk(node) if node else ():
                match part:
                    case ast.Assign(targets=targets, value=ast.Constant(value=value)):
                        if str(value) == how["value"] and how["assigns"] in map(ast.unparse, targets):
                            return f"{how['inside']} sets {how['assigns']} = {value!r}"
        return ""


def _passes(shapes: Sequence[Shape], use: Use) -> str:
    for how in use.spared_by:
        if "argument" in how and shapes:
            wanted = (how["argument"], how["value"])
            if all(wanted in shape.constants for shape in shapes):
                return f"the call passes {how['argument']}={how['value']}"
    return ""


def _calls(node: ast.AST, expression: Expression) -> bool:
    """Whether something is called by the last name of the expression."""
    last = expression.name.rsplit(".", 1)[-1]
    return any(isinstance(part, ast.Call) and last_name(part.func) == last for part in ast.walk(node))


def _functions(tree: ast.Module) -> dict[str, source.Function]:
    return {name: node for name, node in source.functions(tree) if "." not in name}


def _bodies(node: ast.AST) -> list[list[ast.stmt]]:
    """The blocks to walk: of a function its own, of a file or class those of all its functions, and its own."""
    if isinstance(node, source.Function):
        return [node.body]
    own: list[ast.stmt] = getattr(node, "body", [])
    return [own, *(part.body for part in ast.walk(node) if isinstance(part, source.Function))]


def _is_named(node: ast.AST, name: str) -> bool:
    match node:
        case ast.Constant(value=value):
            return bool(value == name)
        case ast.Name(id=found) | ast.keyword(arg=found) | ast.alias(name=found) | ast.Attribute(attr=found):
            return found == name
    return False
