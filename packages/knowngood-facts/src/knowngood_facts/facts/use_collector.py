"""Collects what one module uses of other packages: calls, attributes and inherited methods, with their guards. Pure."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from knowngood_facts.facts.atlas_file import AtlasUse, fits_row
from knowngood_facts.facts.python_source import (
    Function,
    dotted_name,
    flatten_body,
    list_assigned_names,
    list_own_attributes,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_INSIDE = "an expression"
"""The place for conditions inside an expression: as in a function, only those that ask for a package count."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassContext:
    """The class whose methods are read."""

    path: str
    names: frozenset[str]
    """What it defines or assigns itself."""
    attributes: Mapping[str, str]
    """Attribute of its objects -> the class of another package that its methods call for it, and nothing else."""
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
        if call.keywords and (target := self.resolve_target(call.func) or self._find_attribute_method(call.func)):
            self.uses.add(AtlasUse(f"{target} {render_call(call)}", place, guard))
        elif self.object_name and (method := self._find_inherited_method(call)):
            shape = f" {render_call(call)}" if call.keywords else ""
            self.uses.add(AtlasUse(f"super:{method}{shape}", place, guard))

    def _find_attribute_method(self, func: ast.expr) -> str | None:
        """Return `lib:Class.method` for `self.part.method` where the methods assign `self.part = Class(...)`."""
        match func:
            case ast.Attribute(value=ast.Attribute(value=ast.Name(id=name), attr=part), attr=method):
                if self.owner is not None and name == self.object_name and part in self.owner.attributes:
                    return f"{self.owner.attributes[part]}.{method}"
        return None

    def _find_classes(self, attributes: Iterable[tuple[str, ast.expr | None]]) -> dict[str, str]:
        """Return attribute -> what it is called from, of those that get nothing else but `None`."""
        classes: dict[str, set[str]] = {}
        for name, value in attributes:
            if not (isinstance(value, ast.Constant) and value.value is None):
                target = self.resolve_target(value.func) if isinstance(value, ast.Call) else None
                classes.setdefault(name, set()).add(target or "")
        return {
            name: target
            for name, targets in classes.items()
            for target in targets
            if targets == {target} and ":" in target
        }

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
        names, attributes = set[str](), list[tuple[str, ast.expr | None]]()
        for item in flatten_body(node.body):
            if isinstance(item, ast.ClassDef | Function):
                names.add(item.name)
            if isinstance(item, Function):
                attributes += list_own_attributes(item)
            names |= {name for name, _ in list_assigned_names(item)}
        targets = [self.resolve_target(base) for base in node.bases]
        return ClassContext(
            path=path,
            names=frozenset({*names, *(name for name, _ in attributes)}),
            attributes={name: target for name, target in self._find_classes(attributes).items() if name not in names},
            is_derived=any(dotted_name(base) not in {"", "object"} for base in node.bases),
            is_watched=any(target and target.partition(":")[0].partition(".")[0] != "torch" for target in targets),
        )


_CONDITION_LIMIT = 300
"""Longer conditions are cut, in characters."""

_AVAILABILITY = re.compile(
    r"version|signature|available|installed|greater|hasattr|find_spec|import|_HAS|HAS_|has_|is_torch|supports?_"
    r"|['\"]\d+\.\d+",
    re.IGNORECASE,
)

_PAST = "past"
"""The word of a guard for code behind an `if` whose body always leaves: it runs where the condition was false."""


def add_condition(guards: Sequence[str], test: ast.expr, word: str, place: str) -> tuple[str, ...]:
    """Return the guards with a condition; `word` is `if` or `unless`.

    Inside a function (`place`) only a condition that asks for a version, or whether something is there, is added.
    """
    text = " ".join(ast.unparse(test).split())
    if place and not _AVAILABILITY.search(text):
        return tuple(guards) if guards else ("",)
    return (*guards, f"{word} {text[:_CONDITION_LIMIT]}")


def add_exit(guards: Sequence[str], node: ast.If, place: str) -> Sequence[str]:
    """Return the guards of what follows an `if`: with its condition when its body always leaves and it asks."""
    leaves = isinstance(node.body[-1], ast.Raise | ast.Return | ast.Continue | ast.Break)
    if leaves and _AVAILABILITY.search(ast.unparse(node.test)):
        return add_condition(guards, node.test, _PAST, place)
    return guards


def open_try(guards: Sequence[str], node: ast.Try | ast.TryStar) -> tuple[str, ...]:
    """Return the guards of the body of a `try`.

    A handler that raises again catches nothing, unless another `try` is around.
    """
    is_outer = not any(guard.startswith("try ") for guard in guards)
    kept = [one for one in node.handlers if not (is_outer and isinstance(one.body[-1], ast.Raise))]
    return (*guards, f"try {','.join(list_caught_names(kept))}") if kept else tuple(guards)


def open_with(guards: Sequence[str], headers: Iterable[ast.expr]) -> tuple[str, ...]:
    """Return the guards of the body of a `with`: `contextlib.suppress(ImportError)` catches what a `try` would."""
    caught = ",".join(
        dotted_name(argument)
        for header in headers
        if isinstance(header, ast.Call) and dotted_name(header.func).rpartition(".")[2] == "suppress"
        for argument in header.args
    )
    return (*guards, f"try {caught}") if caught else tuple(guards)


def join_guards(guards: Iterable[str]) -> str:
    """Return the guards as a row has them; one that is only there to say that there is a condition is left out."""
    return " & ".join(filter(None, guards))


def is_conditional(guards: Iterable[str]) -> bool:
    """Return whether code under these guards may be left out while the module is imported."""
    return any(not guard.startswith(_PAST) for guard in guards)


def list_caught_names(handlers: Iterable[ast.ExceptHandler]) -> list[str]:
    """Return the exceptions that handlers catch, as written; `BaseException` for one that names none."""
    names = []
    for handler in handlers:
        types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type] if handler.type else []
        names += [dotted_name(item) for item in types] or ["BaseException"]
    return names


def is_type_checking(test: ast.expr) -> bool:
    """Return whether a condition is `TYPE_CHECKING`."""
    return dotted_name(test).rpartition(".")[2] == "TYPE_CHECKING"


_DEFAULT_LIMIT = 30
"""A longer default value is shown as `...`."""

_PLAIN_DECORATORS = frozenset({"staticmethod", "classmethod", "override"})
"""Decorators that leave what a function returns as it is."""


def render_call(call: ast.Call) -> str:
    """Return `(1,a,b)` for a call with one positional argument and the keywords a and b."""
    positional = len([argument for argument in call.args if not isinstance(argument, ast.Starred)])
    unpacked = any(isinstance(argument, ast.Starred) for argument in call.args) or any(
        keyword.arg is None for keyword in call.keywords
    )
    names = [keyword.arg for keyword in call.keywords if keyword.arg]
    return f"({','.join([str(positional), *names, *(['*'] if unpacked else [])])})"


def render_parameters(arguments: ast.arguments) -> str:
    """Return the parameters without annotations, long defaults as `...`: `q, k, *, causal=False, **kwargs`."""
    parts: list[str] = []
    positional = [*arguments.posonlyargs, *arguments.args]
    without_default = len(positional) - len(arguments.defaults)
    for place, argument in enumerate(positional):
        default = arguments.defaults[place - without_default] if place >= without_default else None
        parts.append(argument.arg + _render_default(default))
        if arguments.posonlyargs and place == len(arguments.posonlyargs) - 1:
            parts.append("/")
    if arguments.vararg:
        parts.append(f"*{arguments.vararg.arg}")
    elif arguments.kwonlyargs:
        parts.append("*")
    parts += [
        argument.arg + _render_default(default)
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    if arguments.kwarg:
        parts.append(f"**{arguments.kwarg.arg}")
    return ",".join(parts)


def _render_default(default: ast.expr | None) -> str:
    if default is None:
        return ""
    text = ast.unparse(default) if isinstance(default, ast.Constant | ast.Name | ast.Attribute | ast.UnaryOp) else "..."
    return f"={text}" if len(text) <= _DEFAULT_LIMIT and fits_row(text) and "," not in text else "=..."


def find_called_import(node: ast.stmt) -> str | None:
    """Return the module that a statement imports by a call: `__import__("pkg_resources").declare_namespace(x)`."""
    part: ast.AST | None = getattr(node, "value", None)
    while isinstance(part, ast.Call | ast.Attribute):
        match part:
            case ast.Call(func=ast.Name(id="__import__"), args=[ast.Constant(value=str(module)), *_]):
                return module
            case ast.Call(func=func, args=[ast.Constant(value=str(module))]) if _is_import_module(func, module):
                return module
        part = part.func if isinstance(part, ast.Call) else part.value
    return None


def _is_import_module(func: ast.expr, module: str) -> bool:
    return dotted_name(func).rpartition(".")[2] == "import_module" and not module.startswith(".")


def find_unpacked_call(node: ast.AST) -> tuple[ast.Call, str] | None:
    """Return the call and `=4` for `a, b, c, d = f(x)`; `None` for any other statement."""
    match node:
        case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Call() as call) if len(names) > 1:
            starred = any(isinstance(name, ast.Starred) for name in names)
            return call, f"={len(names) - starred}{'*' if starred else ''}"
    return None


def fits_unpacking(unpacked: str, count: int) -> bool:
    """Return whether `count` values can be unpacked as `4`, or as `3*`, which takes three or more."""
    return count >= int(unpacked[:-1]) if unpacked.endswith("*") else count == int(unpacked)


def find_tuple_sizes(function: Function) -> list[int]:
    """Return how many values the `return`s of a function give, each number once and sorted.

    Empty when the source does not show it for each of them, when one is not a tuple, and for generators, coroutines
    and decorated functions.
    """
    if isinstance(function, ast.AsyncFunctionDef):
        return []
    if any(not isinstance(item, ast.Name) or item.id not in _PLAIN_DECORATORS for item in function.decorator_list):
        return []
    sizes = set()
    for node in _own_nodes(function.body):
        match node:
            case ast.Yield() | ast.YieldFrom():
                return []
            case ast.Return(value=ast.Tuple(elts=items)) if not any(isinstance(item, ast.Starred) for item in items):
                sizes.add(len(items))
            case ast.Return():
                return []
    return sorted(sizes)


def _own_nodes(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield every node of a function, without those of functions and classes inside it."""
    todo = list(body)
    while todo:
        node = todo.pop()
        if not isinstance(node, Function | ast.Lambda | ast.ClassDef):
            yield node
            todo.extend(ast.iter_child_nodes(node))


def list_own_calls(function: Function) -> Iterator[tuple[str, ast.Call]]:
    """Yield method and call of each `self.method(...)` that a method makes under no `if` and no `try`."""
    own = next((argument.arg for argument in [*function.args.posonlyargs, *function.args.args]), "")
    todo: list[ast.AST] = list(function.body)
    while todo:
        node = todo.pop()
        if isinstance(
            node, ast.If | ast.Try | ast.IfExp | ast.BoolOp | ast.Match | ast.ClassDef | Function | ast.Lambda
        ):
            continue
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)) if name == own:
                yield method, node
        todo.extend(ast.iter_child_nodes(node))


def find_inherited_call(call: ast.Call, own: str) -> tuple[str, bool] | None:
    """Return the method and whether it is called by `super()`, for `super().method(...)` and `self.method(...)`.

    `own` is the method's name for its object. `None` for any other call.
    """
    match call.func:
        case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=method):
            return method, True
        case ast.Attribute(value=ast.Name(id=name), attr=method) if own and name == own:
            return method, False
    return None
