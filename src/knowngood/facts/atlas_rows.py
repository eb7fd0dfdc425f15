"""What one Python module offers and what it uses, read from its syntax tree without importing it. Pure.

A module becomes `AtlasRow`s: the module itself, the names that it defines, imports or exports lazily, the bases,
methods and attributes of its classes, the parameters of its functions, and the string keys of its tables. What it
imports from other packages becomes `AtlasUse`s, with the guards around each: a `try`, an `if`, a function.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from knowngood.facts.call_rows import (
    find_inherited_call,
    find_tuple_sizes,
    find_unpacked_call,
    list_own_calls,
    render_call,
)
from knowngood.facts.guard_sources import list_guard_sources
from knowngood.facts.python_source import Function, dotted_name, string_constants

_TABLE_LIMIT = 3000
"""A table with more keys is data, not a registry."""

_DETAIL_LIMIT = 400
"""Longer signatures are cut, in characters."""

_CONDITION_LIMIT = 300
"""Longer conditions are cut, in characters."""

_AVAILABILITY = re.compile(
    r"version|signature|available|installed|greater|hasattr|find_spec|import|_HAS|HAS_|has_|is_torch|supports?_"
    r"|['\"]\d+\.\d+",
    re.IGNORECASE,
)

_DEFAULT_LIMIT = 30
"""A longer default value is shown as `...`."""


_PAST = "past"
"""The word of a guard for code behind an `if` whose body always leaves: it runs where the condition was false."""

_LEAVING = ast.Raise | ast.Return | ast.Continue | ast.Break

_BLOCKS = ast.stmt | ast.ExceptHandler | ast.match_case
"""The nodes below which a statement can stand."""


class RowKind(StrEnum):
    """What a row of the atlas says."""

    MODULE = "m"
    """The module is there; the flags of the detail: `p` a package, `g` with `__getattr__`, `x` it did not parse."""
    CLASS = "c"
    """A class; the detail has its bases as written, separated by commas."""
    FUNCTION = "f"
    """A function or method; the detail is its signature."""
    PROPERTY = "p"
    """A property or another descriptor made by a decorator."""
    VALUE = "v"
    """A variable of the module or the class."""
    ATTRIBUTE = "a"
    """An attribute that a method assigns to `self`."""
    IMPORT = "i"
    """A name that is imported; the detail is the module, or `module:name`, with `?` behind it under `if` or `try`."""
    STAR = "s"
    """Everything public of another module; the detail is that module, with `?` as for an import."""
    EXPORT = "e"
    """A name that the module lists in `__all__`, whether or not it defines it; the detail is empty."""
    LAZY = "z"
    """A name that the module exports lazily; the detail is the module that has it."""
    LAZY_FOLDER = "d"
    """Everything that the modules below this folder list in `__all__` is exported lazily; the detail is the module."""
    KEY = "k"
    """A string key of a table or a value of an enumeration, as `TABLE[key]`."""
    WORDS = "w"
    """The deprecation's own words: the decorator as written."""
    CALL = "q"
    """A call of its own method that a class makes; the path is the method, the detail is the call's shape."""
    RETURNS = "r"
    """Of a function that returns tuples only: how many values they have, as `4,5`."""
    SOURCE = "t"
    """Of a function or variable that tells what is installed: its shortened source (see `guard_sources`)."""


@dataclass(frozen=True, slots=True, order=True)
class AtlasRow:
    """One thing that a module has."""

    path: str
    """The name inside the module: empty for the module itself, `Class.method`, `TABLE[key]`."""
    kind: RowKind
    detail: str = ""


@dataclass(frozen=True, slots=True, order=True)
class AtlasUse:
    """One use of another package by a module."""

    target: str
    """`module:name` as imported, or a module; with a call's shape after a space (see `call_rows`). `super:Class.method`
    is a method that a class of this module calls of its bases."""
    place: str
    """The function or class in which it stands, or empty when importing the module runs it."""
    guard: str
    """The guards around it, separated by ` & `: `try ImportError`, `if is_peft_available()`; empty without one.
    `except ImportError of a:b,c` is a handler that runs where one of these imports fails; `past x` is code behind an
    `if x` that raises or returns. Inside functions, conditions that ask neither for a version nor for whether something
    is there are left out."""


_LAZY_TABLES = frozenset({"_import_structure", "_SUBMOD_ATTRS"})
"""Tables from a submodule to the names that it exports lazily: of most packages, and of huggingface_hub."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _ClassContext:
    """The class whose methods are read."""

    path: str
    names: frozenset[str]
    """What it defines or assigns itself."""
    is_derived: bool
    """Whether it has a base of its package or of another."""
    is_watched: bool
    """Whether one of its bases is imported from a callee other than torch, whose classes keep their methods."""


@dataclass(frozen=True, slots=True)
class ModuleRows:
    """What was read from one module."""

    rows: tuple[AtlasRow, ...]
    uses: tuple[AtlasUse, ...]


def extract_module(source: str, module: str, *, is_package: bool, callees: frozenset[str]) -> ModuleRows:
    """Read the rows of a module, and its uses of the top-level modules in `callees`.

    A source that is not Python gives the row of the module with the flag `x`.
    """
    flags = "p" if is_package else ""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return ModuleRows((AtlasRow("", RowKind.MODULE, flags + "x"),), ())
    reader = _ModuleReader(module, source, is_package=is_package, callees=callees)
    reader.visit_body(tree.body, "", ())
    reader.rows.update(AtlasRow(name, RowKind.SOURCE, text) for name, text in list_guard_sources(tree))
    flags += "g" if AtlasRow("__getattr__", RowKind.FUNCTION, reader.signature("__getattr__")) in reader.rows else ""
    rows = {AtlasRow("", RowKind.MODULE, flags), *reader.rows}
    return ModuleRows(tuple(sorted(rows)), tuple(sorted(reader.uses)))


class _ModuleReader:
    """Walks the statements of one module; functions are entered only for the uses in them."""

    def __init__(self, module: str, source: str, *, is_package: bool, callees: frozenset[str]) -> None:
        self.module = module
        self.is_package = is_package
        self.callees = callees if any(name in source for name in callees) else frozenset[str]()
        self._defines_structure = "define_import_structure" in source
        self._postpones = "from __future__ import annotations" in source
        self.rows: set[AtlasRow] = set()
        self.uses: set[AtlasUse] = set()
        self._targets: dict[str, str] = {}
        """Local name -> what it was imported from, for names of other packages."""
        self._class: _ClassContext | None = None
        self._own = ""
        """The name that the method being read gives to its object."""

    def signature(self, name: str) -> str:
        """Return the signature of a function of the module, or an empty text."""
        return next((row.detail for row in self.rows if row.path == name and row.kind is RowKind.FUNCTION), "")

    def visit_body(self, body: Iterable[ast.stmt], place: str, guards: Sequence[str]) -> Sequence[str]:
        """Read statements: of the module itself when `place` is empty, else of the function with that name.

        Return the guards at their end: an `if` that always leaves guards what follows it.
        """
        for node in body:
            match node:
                case ast.If(test=test) if _is_type_checking(test):
                    self.visit_body(node.orelse, place, guards)
                case ast.If():
                    self._collect_uses(node.test, place, guards)
                    self.visit_body(node.body, place, _with_condition(guards, node.test, "if", place))
                    self.visit_body(node.orelse, place, _with_condition(guards, node.test, "unless", place))
                    if isinstance(node.body[-1], _LEAVING) and _AVAILABILITY.search(ast.unparse(node.test)):
                        guards = _with_condition(guards, node.test, _PAST, place)
                case ast.Try():
                    self._visit_try(node, place, guards)
                case ast.With() | ast.AsyncWith() | ast.For() | ast.AsyncFor() | ast.While():
                    headers = _headers(node)
                    for header in headers:
                        self._collect_uses(header, place, guards)
                    caught = _suppressed_names(headers)
                    inner = (*guards, f"try {caught}") if caught else guards
                    self.visit_body([*node.body, *getattr(node, "orelse", [])], place, inner)
                case ast.Import() | ast.ImportFrom():
                    self._take_import(node, place, guards)
                case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                    self._take_definition(node, place, guards)
                case _:
                    if not place:
                        self._take_statement(node)
                    self._collect_statement(node, place, guards)
        return guards

    def _collect_statement(self, node: ast.stmt, place: str, guards: Sequence[str]) -> None:
        """Record the uses in a simple statement; Python does not evaluate the annotations of local variables."""
        if isinstance(node, ast.AnnAssign):
            if not place and not self._postpones:
                self._collect_uses(node.annotation, place, guards)
            if node.value is not None:
                self._collect_uses(node.value, place, guards)
        else:
            self._collect_uses(node, place, guards)

    def _take_definition(
        self, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, place: str, guards: Sequence[str]
    ) -> None:
        if place:
            self.visit_body(node.body, place, guards)
        elif isinstance(node, ast.ClassDef):
            self._take_class(node, "", guards)
        else:
            self._take_function(node, "", guards)

    def _visit_try(self, node: ast.Try, place: str, guards: Sequence[str]) -> None:
        caught = ",".join(_caught_names(node.handlers))
        is_outer = not any(guard.startswith("try ") for guard in guards)
        kept = [one for one in node.handlers if not (is_outer and isinstance(one.body[-1], ast.Raise))]
        inner = (*guards, f"try {','.join(_caught_names(kept))}") if kept else guards
        passed = self.visit_body(node.body, place, inner)[len(inner) :]
        tried = ",".join(self._imported_targets(node.body))
        for handler in node.handlers:
            self.visit_body(handler.body, place, (*guards, f"except {caught}{tried and f' of {tried}'}"))
        self.visit_body(node.orelse, place, (*guards, *passed))
        self.visit_body(node.finalbody, place, guards)

    def _imported_targets(self, body: Iterable[ast.stmt]) -> Iterator[str]:
        """The imports from callees in the body of a `try` that has nothing but imports; nothing for any other body."""
        if all(isinstance(node, ast.Import | ast.ImportFrom) for node in body):
            for node in body:
                base = self._absolute(node) if isinstance(node, ast.ImportFrom) else ""
                for alias in getattr(node, "names", ()):
                    target = f"{base}:{alias.name}" if base else alias.name
                    if target.partition(":")[0].partition(".")[0] in self.callees:
                        yield target

    def _take_statement(self, node: ast.stmt) -> None:
        for name, value in _assigned_names(node):
            if name == "__all__":
                self._take_exports(value)
            elif name in _LAZY_TABLES:
                self._take_import_structure(value)
            else:
                self.rows.add(AtlasRow(name, RowKind.VALUE))
                self._take_table(name, value)
        match node:
            case ast.AugAssign(target=ast.Name(id="__all__"), value=value):
                self._take_exports(value)
            case ast.Assign(
                targets=[ast.Subscript(value=ast.Name(id="_import_structure"), slice=ast.Constant(value=str(part)))],
                value=value,
            ):
                self._take_lazy(part, value)
            case ast.Expr(
                value=ast.Call(
                    func=ast.Attribute(
                        value=ast.Subscript(
                            value=ast.Name(id="_import_structure"), slice=ast.Constant(value=str(part))
                        ),
                        attr="extend" | "append",
                    ),
                    args=[value],
                )
            ):
                self._take_lazy(part, value)
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="__all__")), args=[value])):
                self._take_exports(value)
        if self._defines_structure:
            self._find_lazy_folders(node)

    def _take_exports(self, value: ast.expr | None) -> None:
        if value is not None:
            self.rows.update(AtlasRow(name, RowKind.EXPORT) for name in string_constants(value) if name.isidentifier())

    def _take_import_structure(self, value: ast.expr | None) -> None:
        if isinstance(value, ast.Dict):
            for key, item in zip(value.keys, value.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    self._take_lazy(key.value, item)

    def _take_lazy(self, part: str, value: ast.expr) -> None:
        module = f"{self.module}.{part}"
        for name in string_constants(value):
            if name.isidentifier():
                self.rows.add(AtlasRow(name, RowKind.LAZY, module))

    def _find_lazy_folders(self, node: ast.stmt) -> None:
        """`define_import_structure(Path(__file__).parent / "models", prefix="models")`, or of the module's own file."""
        for call in ast.walk(node):
            if isinstance(call, ast.Call) and dotted_name(call.func).endswith("define_import_structure"):
                folder = next(iter(string_constants(call)), "")
                own = self.module if self.is_package else self.module.rpartition(".")[0]
                self.rows.add(AtlasRow("*", RowKind.LAZY_FOLDER, f"{own}.{folder}" if folder else own))

    def _take_table(self, name: str, value: ast.expr | None) -> None:
        keys = sorted(set(_table_keys(value)))
        if 0 < len(keys) <= _TABLE_LIMIT:
            self.rows.update(AtlasRow(f"{name}[{key}]", RowKind.KEY) for key in keys if _is_plain(key))

    def _take_import(self, node: ast.Import | ast.ImportFrom, place: str, guards: Sequence[str]) -> None:
        with_rows = not place
        guard = " & ".join(filter(None, guards))
        mark = "?" if any(not part.startswith(_PAST) for part in guards) else ""
        if isinstance(node, ast.Import):
            for alias in node.names:
                local = alias.asname or alias.name.partition(".")[0]
                if with_rows and not _is_standard(alias.name):
                    target = alias.name if alias.asname else local
                    self.rows.add(AtlasRow(local, RowKind.IMPORT, target + mark))
                if alias.name.partition(".")[0] in self.callees:
                    self.uses.add(AtlasUse(alias.name, place, guard))
                    self._targets[local] = alias.name if alias.asname else local
            return
        base = self._absolute(node)
        for alias in node.names:
            if alias.name == "*":
                if with_rows:
                    self.rows.add(AtlasRow("*", RowKind.STAR, base + mark))
                continue
            local = alias.asname or alias.name
            if with_rows and not _is_standard(base):
                self.rows.add(AtlasRow(local, RowKind.IMPORT, f"{base}:{alias.name}{mark}"))
            if base.partition(".")[0] in self.callees:
                self.uses.add(AtlasUse(f"{base}:{alias.name}", place, guard))
                self._targets[local] = f"{base}:{alias.name}"

    def _absolute(self, node: ast.ImportFrom) -> str:
        base = node.module or ""
        if not node.level:
            return base
        parents = self.module.split(".")
        kept = parents[: len(parents) - node.level + self.is_package]
        return ".".join([*kept, *([base] if base else [])])

    def _take_class(self, node: ast.ClassDef, prefix: str, guards: Sequence[str]) -> None:
        path = prefix + node.name
        bases = ",".join(
            dotted_name(base.value if isinstance(base, ast.Subscript) else base) or "?" for base in node.bases
        )
        self.rows.add(AtlasRow(path, RowKind.CLASS, bases))
        for base in node.bases:
            self._collect_uses(base, "", guards)
        self._take_decorators(node, path, guards)
        outer, self._class = self._class, self._read_context(node, path)
        methods = {item.name for item in _flat_body(node.body) if isinstance(item, Function)}
        for item in _flat_body(node.body):
            if isinstance(item, Function):
                self._take_function(item, f"{path}.", guards)
                self._take_own_calls(item, path, methods)
                self.rows.update(AtlasRow(f"{path}.{name}", RowKind.ATTRIBUTE) for name in _assigned_attributes(item))
            elif isinstance(item, ast.ClassDef):
                self._take_class(item, f"{path}.", guards)
            else:
                for name, value in _assigned_names(item):
                    self.rows.add(AtlasRow(f"{path}.{name}", RowKind.VALUE))
                    self._take_table(f"{path}.{name}", value)
                    if "Enum" in bases and isinstance(value, ast.Constant) and isinstance(value.value, str):
                        self.rows.add(AtlasRow(f"{path}[{value.value}]", RowKind.KEY))
                self._collect_statement(item, "", guards)
        self._class = outer

    def _read_context(self, node: ast.ClassDef, path: str) -> _ClassContext:
        names = set[str]()
        for item in _flat_body(node.body):
            if isinstance(item, ast.ClassDef | Function):
                names.add(item.name)
            if isinstance(item, Function):
                names |= _assigned_attributes(item)
            names |= {name for name, _ in _assigned_names(item)}
        targets = [self._resolve(base) for base in node.bases]
        return _ClassContext(
            path=path,
            names=frozenset(names),
            is_derived=any(dotted_name(base) not in {"", "object"} for base in node.bases),
            is_watched=any(target and target.partition(":")[0].partition(".")[0] != "torch" for target in targets),
        )

    def _take_own_calls(self, function: ast.FunctionDef | ast.AsyncFunctionDef, path: str, methods: set[str]) -> None:
        for name, call in list_own_calls(function):
            if name in methods and call.keywords:
                self.rows.add(AtlasRow(f"{path}.{name}", RowKind.CALL, render_call(call)))

    def _take_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, prefix: str, guards: Sequence[str]) -> None:
        path = prefix + node.name
        is_property = any(
            dotted_name(item).endswith(("property", ".setter", ".getter")) for item in node.decorator_list
        )
        if is_property:
            self.rows.add(AtlasRow(path, RowKind.PROPERTY))
        else:
            self.rows.add(AtlasRow(path, RowKind.FUNCTION, render_parameters(node.args)))
            if sizes := find_tuple_sizes(node):
                self.rows.add(AtlasRow(path, RowKind.RETURNS, ",".join(map(str, sizes))))
        self._take_decorators(node, path, guards)
        for part in self._evaluated_parts(node):
            self._collect_uses(part, "", guards)
        if self.callees:
            self._own = next((one.arg for one in node.args.args), "") if self._class else ""
            self.visit_body(node.body, path, guards)
            self._own = ""

    def _evaluated_parts(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.expr]:
        """The defaults, and the annotations where they are evaluated: what Python reads when it defines a function."""
        arguments = node.args
        yield from arguments.defaults
        yield from filter(None, arguments.kw_defaults)
        if not self._postpones:
            every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
            every += filter(None, (arguments.vararg, arguments.kwarg))
            yield from filter(None, (one.annotation for one in every))
            if node.returns is not None:
                yield node.returns

    def _take_decorators(
        self, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, path: str, guards: Sequence[str]
    ) -> None:
        for decorator in node.decorator_list:
            self._collect_uses(decorator, "", guards)
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            if "deprecat" in dotted_name(called).lower():
                words = " ".join(ast.unparse(decorator).split())[:_DETAIL_LIMIT]
                self.rows.add(AtlasRow(path, RowKind.WORDS, words))

    def _collect_uses(self, node: ast.AST, place: str, guards: Sequence[str]) -> None:
        """Record calls and attributes of names that were imported from the callees."""
        if not self._targets and not self._own:
            return
        guard = " & ".join(filter(None, guards))
        if (unpacked := find_unpacked_call(node)) and (target := self._resolve(unpacked[0].func)):
            self.uses.add(AtlasUse(f"{target} {render_call(unpacked[0])}{unpacked[1]}", place, guard))
        match node:
            case ast.BoolOp(op=op, values=values):
                for value in values:
                    self._collect_uses(value, place, guards)
                    guards = _with_condition(guards, value, "if" if isinstance(op, ast.And) else "unless", "inside")
                return
            case ast.IfExp(test=test, body=body, orelse=orelse):
                self._collect_uses(test, place, guards)
                self._collect_uses(body, place, _with_condition(guards, test, "if", "inside"))
                self._collect_uses(orelse, place, _with_condition(guards, test, "unless", "inside"))
                return
        todo = [node]
        while todo:
            part = todo.pop()
            if isinstance(part, ast.Name | ast.Constant):
                continue
            if isinstance(part, ast.BoolOp | ast.IfExp):
                self._collect_uses(part, place, guards)
                continue
            if isinstance(part, ast.Call) and part.keywords and (target := self._resolve(part.func)):
                self.uses.add(AtlasUse(f"{target} {render_call(part)}", place, guard))
            elif isinstance(part, ast.Call) and self._own and (method := self._inherited_method(part)):
                shape = f" {render_call(part)}" if part.keywords else ""
                self.uses.add(AtlasUse(f"super:{method}{shape}", place, guard))
            if isinstance(part, ast.Attribute):
                if target := self._resolve(part):
                    self.uses.add(AtlasUse(target, place, guard))
                    continue
                todo.append(part.value)
            else:
                todo.extend(ast.iter_child_nodes(part))

    def _inherited_method(self, call: ast.Call) -> str | None:
        """`Class.method` for a call of a method that the class does not define itself, or calls of its bases.

        Only with keywords, or where a base is of another package: of all others there are too many.
        """
        inherited = find_inherited_call(call, self._own)
        if inherited is None or self._class is None or not self._class.is_derived:
            return None
        method, by_super = inherited
        has_keyword = any(keyword.arg for keyword in call.keywords)
        if not by_super and method in self._class.names:
            return None
        is_wanted = has_keyword or not method.startswith("__") if self._class.is_watched else by_super and has_keyword
        return f"{self._class.path}.{method}" if is_wanted else None

    def _resolve(self, node: ast.expr) -> str | None:
        """`T.Trainer` for `import transformers as T` is `transformers:Trainer`."""
        root = node
        while isinstance(root, ast.Attribute):
            root = root.value
        if not isinstance(root, ast.Name) or (target := self._targets.get(root.id)) is None:
            return None
        rest = dotted_name(node).partition(".")[2]
        if not rest:
            return target
        return f"{target}.{rest}" if ":" in target else f"{target}:{rest}"


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
    return f"={text}" if len(text) <= _DEFAULT_LIMIT and _is_plain(text) and "," not in text else "=..."


def _headers(node: ast.With | ast.AsyncWith | ast.For | ast.AsyncFor | ast.While) -> list[ast.expr]:
    """The expressions of a statement before its body."""
    match node:
        case ast.With() | ast.AsyncWith():
            return [item.context_expr for item in node.items]
        case ast.For() | ast.AsyncFor():
            return [node.iter]
    return [node.test]


def _with_condition(guards: Sequence[str], test: ast.expr, word: str, place: str) -> tuple[str, ...]:
    """Add a condition to the guards; inside a function, only one that asks for a version or whether something is there."""
    text = " ".join(ast.unparse(test).split())
    if place and not _AVAILABILITY.search(text):
        return tuple(guards) if guards else ("",)
    return (*guards, f"{word} {text[:_CONDITION_LIMIT]}")


def _suppressed_names(headers: Iterable[ast.expr]) -> str:
    """`ImportError` for `with contextlib.suppress(ImportError)`."""
    return ",".join(
        dotted_name(argument)
        for header in headers
        if isinstance(header, ast.Call) and dotted_name(header.func).rpartition(".")[2] == "suppress"
        for argument in header.args
    )


def _assigned_names(node: ast.stmt) -> Iterator[tuple[str, ast.expr | None]]:
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                if isinstance(target, ast.Name):
                    yield target.id, value
                elif isinstance(target, ast.Tuple):
                    yield from ((item.id, None) for item in target.elts if isinstance(item, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name), value=value):
            yield name, value


def _assigned_attributes(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """The names of `self.NAME = ...` in a method."""
    own = next((argument.arg for argument in [*function.args.posonlyargs, *function.args.args]), "")
    names = set()
    todo: list[ast.AST] = list(function.body)
    while todo:
        node = todo.pop()
        match node:
            case ast.Assign(targets=targets):
                stores: list[ast.expr] = targets
            case ast.AnnAssign(target=target) | ast.AugAssign(target=target):
                stores = [target]
            case _:
                todo += [child for child in ast.iter_child_nodes(node) if isinstance(child, _BLOCKS)]
                continue
        for store in stores:
            for item in store.elts if isinstance(store, ast.Tuple) else [store]:
                if isinstance(item, ast.Attribute) and isinstance(item.value, ast.Name) and item.value.id == own:
                    names.add(item.attr)
    return names


def _flat_body(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a class, also those under `if` and `try`."""
    for node in body:
        if isinstance(node, ast.If | ast.Try | ast.With):
            yield from _flat_body(node.body)
            yield from _flat_body(getattr(node, "orelse", []))
            for handler in getattr(node, "handlers", []):
                yield from _flat_body(handler.body)
        else:
            yield node


def _table_keys(value: ast.expr | None) -> Iterator[str]:
    """The string keys of `{...}`, `OrderedDict([("key", ...)])` and `Mapping(..., {...})`."""
    match value:
        case ast.Dict(keys=keys):
            yield from (key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str))
        case ast.Call(args=arguments):
            for argument in arguments:
                if isinstance(argument, ast.List | ast.Tuple):
                    for item in argument.elts:
                        match item:
                            case ast.Tuple(elts=[ast.Constant(value=str(key)), *_]):
                                yield key
                else:
                    yield from _table_keys(argument)


def _caught_names(handlers: Iterable[ast.ExceptHandler]) -> list[str]:
    names = []
    for handler in handlers:
        types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type] if handler.type else []
        names += [dotted_name(item) for item in types] or ["BaseException"]
    return names


def _is_standard(module: str) -> bool:
    return module.partition(".")[0] in sys.stdlib_module_names


def _is_type_checking(test: ast.expr) -> bool:
    return dotted_name(test).rpartition(".")[2] == "TYPE_CHECKING"


def _is_plain(text: str) -> bool:
    return text.isprintable() and len(text) <= _DETAIL_LIMIT
