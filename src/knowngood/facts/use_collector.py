"""Collects what one module uses of other packages: calls, attributes and inherited methods. Pure.

The collector knows which names of the module were imported from the packages of interest, and the class and method
whose statements are being read.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from knowngood.facts.atlas_file import AtlasUse
from knowngood.facts.call_rows import find_inherited_call, find_unpacked_call, render_call
from knowngood.facts.python_source import Function, dotted_name, find_own_attributes, flatten_body, list_assigned_names
from knowngood.facts.use_guards import add_condition, join_guards

if TYPE_CHECKING:
    from collections.abc import Sequence

_INSIDE = "an expression"
"""The place for conditions inside an expression: as in a function, only those that ask for a package count."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassContext:
    """The class whose methods are read."""

    path: str
    names: frozenset[str]
    """What it defines or assigns itself."""
    is_derived: bool
    """Whether it has a base of its package or of another."""
    is_watched: bool
    """Whether one of its bases is imported from a callee other than torch, whose classes keep their methods."""


class UseCollector:
    """Collects the uses in the statements and expressions that it is given."""

    def __init__(self, *, postpones_annotations: bool) -> None:
        self.uses: set[AtlasUse] = set()
        self.targets: dict[str, str] = {}
        """Local name -> what it was imported from, for names of other packages."""
        self.owner: ClassContext | None = None
        """The class whose methods are read."""
        self.object_name = ""
        """The name that the method being read gives to its object."""
        self.postpones_annotations = postpones_annotations
        """Whether the module has `from __future__ import annotations`."""

    def take_import(self, target: str, local: str, bound: str, place: str, guards: Sequence[str]) -> None:
        """Record that `target` is imported; `local` is its name in the module, which stands for `bound`."""
        self.uses.add(AtlasUse(target, place, join_guards(guards)))
        self.targets[local] = bound

    def take_statement(self, node: ast.stmt, place: str, guards: Sequence[str]) -> None:
        """Record the uses in a simple statement; Python does not evaluate the annotations of local variables."""
        if isinstance(node, ast.AnnAssign):
            if not place and not self.postpones_annotations:
                self.take_uses(node.annotation, place, guards)
            if node.value is not None:
                self.take_uses(node.value, place, guards)
        else:
            self.take_uses(node, place, guards)

    def take_definition(self, node: ast.FunctionDef | ast.AsyncFunctionDef, guards: Sequence[str]) -> None:
        """Record what Python evaluates when it defines a function: defaults, and annotations unless they wait."""
        arguments = node.args
        parts = [*arguments.defaults, *filter(None, arguments.kw_defaults)]
        if not self.postpones_annotations:
            every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
            every += filter(None, (arguments.vararg, arguments.kwarg))
            parts += filter(None, (*(one.annotation for one in every), node.returns))
        for part in parts:
            self.take_uses(part, "", guards)

    def take_uses(self, node: ast.AST, place: str, guards: Sequence[str]) -> None:
        """Record calls and attributes of names that were imported from the callees."""
        if not self.targets and not self.object_name:
            return
        match node:
            case ast.BoolOp(op=op, values=values):
                for value in values:
                    self.take_uses(value, place, guards)
                    guards = add_condition(guards, value, "if" if isinstance(op, ast.And) else "unless", _INSIDE)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                self.take_uses(test, place, guards)
                self.take_uses(body, place, add_condition(guards, test, "if", _INSIDE))
                self.take_uses(orelse, place, add_condition(guards, test, "unless", _INSIDE))
            case _:
                self._take_parts(node, place, guards)

    def _take_parts(self, node: ast.AST, place: str, guards: Sequence[str]) -> None:
        guard = join_guards(guards)
        if (unpacked := find_unpacked_call(node)) and (target := self.resolve_target(unpacked[0].func)):
            self.uses.add(AtlasUse(f"{target} {render_call(unpacked[0])}{unpacked[1]}", place, guard))
        todo = [node]
        while todo:
            part = todo.pop()
            if isinstance(part, ast.Name | ast.Constant):
                continue
            if isinstance(part, ast.BoolOp | ast.IfExp):
                self.take_uses(part, place, guards)
                continue
            if isinstance(part, ast.Call):
                self._take_call(part, place, guard)
            if isinstance(part, ast.Attribute):
                if target := self.resolve_target(part):
                    self.uses.add(AtlasUse(target, place, guard))
                    continue
                todo.append(part.value)
            else:
                todo.extend(ast.iter_child_nodes(part))

    def _take_call(self, call: ast.Call, place: str, guard: str) -> None:
        if call.keywords and (target := self.resolve_target(call.func)):
            self.uses.add(AtlasUse(f"{target} {render_call(call)}", place, guard))
        elif self.object_name and (method := self._find_inherited_method(call)):
            shape = f" {render_call(call)}" if call.keywords else ""
            self.uses.add(AtlasUse(f"super:{method}{shape}", place, guard))

    def _find_inherited_method(self, call: ast.Call) -> str | None:
        """`Class.method` for a call of a method that the class does not define itself, or calls of its bases.

        Only with keywords, or where a base is of another package: of all others there are too many.
        """
        inherited = find_inherited_call(call, self.object_name)
        if inherited is None or self.owner is None or not self.owner.is_derived:
            return None
        method, by_super = inherited
        has_keyword = any(keyword.arg for keyword in call.keywords)
        if not by_super and method in self.owner.names:
            return None
        is_wanted = has_keyword or not method.startswith("__") if self.owner.is_watched else by_super and has_keyword
        return f"{self.owner.path}.{method}" if is_wanted else None

    def resolve_target(self, node: ast.expr) -> str | None:
        """Return `transformers:Trainer` for `T.Trainer` after `import transformers as T`, or `None` for other names."""
        root = node
        while isinstance(root, ast.Attribute):
            root = root.value
        if not isinstance(root, ast.Name) or (target := self.targets.get(root.id)) is None:
            return None
        rest = dotted_name(node).partition(".")[2]
        if not rest:
            return target
        return f"{target}.{rest}" if ":" in target else f"{target}:{rest}"

    def read_class(self, node: ast.ClassDef, path: str) -> ClassContext:
        """Return what matters of a class for the uses in its methods; `path` is its name in the module."""
        names = set[str]()
        for item in flatten_body(node.body):
            if isinstance(item, ast.ClassDef | Function):
                names.add(item.name)
            if isinstance(item, Function):
                names |= find_own_attributes(item)
            names |= {name for name, _ in list_assigned_names(item)}
        targets = [self.resolve_target(base) for base in node.bases]
        return ClassContext(
            path=path,
            names=frozenset(names),
            is_derived=any(dotted_name(base) not in {"", "object"} for base in node.bases),
            is_watched=any(target and target.partition(":")[0].partition(".")[0] != "torch" for target in targets),
        )
