"""Reads the rows of one Python module from its syntax tree, without importing it. Pure."""

from __future__ import annotations

import ast
import sys
from typing import TYPE_CHECKING

from knowngood_facts.facts.atlas_file import DETAIL_LIMIT, AtlasRow, AtlasUse, ModuleRows, RowKind, fits_row
from knowngood_facts.facts.guard_sources import list_guard_sources
from knowngood_facts.facts.python_source import (
    Function,
    dotted_name,
    flatten_body,
    list_assigned_names,
    list_bound_names,
    list_own_attributes,
    string_constants,
)
from knowngood_facts.facts.run_time_names import find_run_time_names
from knowngood_facts.facts.use_collector import (
    UseCollector,
    add_condition,
    add_exit,
    find_called_import,
    find_tuple_sizes,
    is_conditional,
    is_type_checking,
    join_guards,
    list_caught_names,
    list_own_calls,
    open_try,
    open_with,
    render_call,
    render_parameters,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


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
    flags += "g" if reader.take_run_time_names(tree, source) else ""
    rows = {AtlasRow("", RowKind.MODULE, flags), *reader.rows}
    return ModuleRows(tuple(sorted(rows)), tuple(sorted(reader.collector.uses)))


class _ModuleReader:
    """Walks the statements of one module; functions are entered only for the uses in them."""

    def __init__(self, module: str, source: str, *, is_package: bool, callees: frozenset[str]) -> None:
        self.module = module
        self.is_package = is_package
        self.callees = callees if any(name in source for name in callees) else frozenset[str]()
        self.rows: set[AtlasRow] = set()
        self.collector = UseCollector(postpones_annotations="from __future__ import annotations" in source)
        self._defines_structure = "define_import_structure" in source

    def take_run_time_names(self, tree: ast.Module, source: str) -> bool:
        """Read what the module binds while it runs; return whether it may have names that its rows do not show.

        A module with a table of lazy exports has those of the table, whoever answers for them, unless it has a
        `__getattr__` of its own. The class of what takes such a module's place may know more (`_take_patterns`).
        """
        run_time = find_run_time_names(tree, source, self.module)
        self.rows.update(AtlasRow(f"sys.modules[{name}]", RowKind.KEY) for name in run_time.modules)
        self.rows.update(AtlasRow(name, RowKind.VALUE) for name in run_time.names)
        is_lazy = any(row.kind in {RowKind.LAZY, RowKind.LAZY_FOLDER} for row in self.rows)
        if is_lazy and run_time.stand_in:
            self.rows.add(AtlasRow("__getattr__", RowKind.VALUE, run_time.stand_in))
        kinds = {row.kind for row in self.rows if row.path == "__getattr__"}
        return RowKind.FUNCTION in kinds or (not is_lazy and (run_time.is_open or bool(kinds)))

    def visit_body(self, body: Iterable[ast.stmt], place: str, guards: Sequence[str]) -> Sequence[str]:
        """Read statements: of the module itself when `place` is empty, else of the function with that name.

        Return the guards at their end: an `if` that always leaves guards what follows it.
        """
        for node in body:
            if not place:
                self._take_bindings(node, guards)
            match node:
                case ast.If(test=test) if is_type_checking(test):
                    self.visit_body(node.orelse, place, guards)
                case ast.If():
                    self.collector.take_uses(node.test, place, guards)
                    self.visit_body(node.body, place, add_condition(guards, node.test, "if", place))
                    self.visit_body(node.orelse, place, add_condition(guards, node.test, "unless", place))
                    guards = add_exit(guards, node, place)
                case ast.Try() | ast.TryStar():
                    self._visit_try(node, place, guards)
                case ast.With() | ast.AsyncWith() | ast.For() | ast.AsyncFor() | ast.While() | ast.Match():
                    headers = _headers(node)
                    for header in headers:
                        self.collector.take_uses(header, place, guards)
                    inner = (*guards, "") if isinstance(node, ast.Match) else open_with(guards, headers)
                    self.visit_body(_list_inner_statements(node), place, inner)
                case ast.Import() | ast.ImportFrom():
                    self._take_import(node, place, guards)
                case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                    self._take_definition(node, place, guards)
                case _:
                    self._take_statement(node, place, guards)
        return guards

    def _take_bindings(self, node: ast.stmt, guards: Sequence[str]) -> None:
        """Take the names that a statement of the module itself binds, without those inside its body, or deletes."""
        if isinstance(node, ast.Delete) and not guards:
            gone = {target.id for target in node.targets if isinstance(target, ast.Name)}
            self.rows -= {row for row in self.rows if row.path in gone and row.kind in _DELETED}
        self.rows.update(AtlasRow(name, RowKind.VALUE) for name in list_bound_names(node) if name not in _TABLES)

    def _take_statement(self, node: ast.stmt, place: str, guards: Sequence[str]) -> None:
        if not place:
            self.rows.update(list_statement_rows(node, self.module))
            if self._defines_structure:
                package = self.module if self.is_package else self.module.rpartition(".")[0]
                self.rows.update(list_lazy_folders(node, package))
        self.collector.take_statement(node, place, guards)
        module = find_called_import(node)
        if module and module.partition(".")[0] in self.callees:
            self.collector.uses.add(AtlasUse(module, place, join_guards(guards)))

    def _take_definition(
        self, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, place: str, guards: Sequence[str]
    ) -> None:
        if place:
            self.visit_body(node.body, place, guards)
        elif isinstance(node, ast.ClassDef):
            self._take_class(node, "", guards)
        else:
            self._take_function(node, "", guards)

    def _visit_try(self, node: ast.Try | ast.TryStar, place: str, guards: Sequence[str]) -> None:
        inner = open_try(guards, node)
        passed = self.visit_body(node.body, place, inner)[len(inner) :]
        caught, tried = ",".join(list_caught_names(node.handlers)), ",".join(self._imported_targets(node.body))
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

    def _take_import(self, node: ast.Import | ast.ImportFrom, place: str, guards: Sequence[str]) -> None:
        mark = "?" if is_conditional(guards) else ""
        base = self._absolute(node) if isinstance(node, ast.ImportFrom) else ""
        for alias in node.names:
            if alias.name == "*":
                if not place:
                    self.rows.add(AtlasRow("*", RowKind.STAR, base + mark))
                continue
            local = alias.asname or (alias.name if base else alias.name.partition(".")[0])
            target = f"{base}:{alias.name}" if base else alias.name
            bound = target if base or alias.asname else local
            top = target.partition(":")[0].partition(".")[0]
            if not place and top != "__future__":
                detail = "" if top in sys.stdlib_module_names else bound + mark
                self.rows.add(AtlasRow(local, RowKind.IMPORT, detail))
            if top in self.callees:
                self.collector.take_import(target, local, bound, place, guards)

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
            self.collector.take_uses(base, "", guards)
        self._take_decorators(node, path, guards)
        outer, self.collector.owner = self.collector.owner, self.collector.read_class(node, path)
        items = list(flatten_body(node.body))
        methods = {item.name for item in items if isinstance(item, Function)}
        for item in items:
            if isinstance(item, Function):
                self._take_function(item, f"{path}.", guards)
                self._take_own_calls(item, path, methods)
                self.rows.update(AtlasRow(f"{path}.{name}", RowKind.ATTRIBUTE) for name, _ in list_own_attributes(item))
            elif isinstance(item, ast.ClassDef):
                self._take_class(item, f"{path}.", guards)
            else:
                self._take_class_statement(item, path, is_enumeration="Enum" in bases)
                self.collector.take_statement(item, "", guards)
        self.collector.owner = outer

    def _take_class_statement(self, node: ast.stmt, path: str, *, is_enumeration: bool) -> None:
        for name, value in list_assigned_names(node):
            self.rows.add(AtlasRow(f"{path}.{name}", RowKind.VALUE))
            self.rows.update(list_table_rows(f"{path}.{name}", value))
            if is_enumeration and isinstance(value, ast.Constant) and isinstance(value.value, str):
                self.rows.add(AtlasRow(f"{path}[{value.value}]", RowKind.KEY))

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
        if prefix and node.name == "__getattr__":
            self.rows.update(AtlasRow(f"{path}[{pattern}]", RowKind.KEY) for pattern in _list_patterns(node))
        self.collector.take_definition(node, guards)
        if self.callees:
            own = next((one.arg for one in node.args.args), "") if self.collector.owner else ""
            self.collector.object_name = own
            self.visit_body(node.body, path, guards)
            self.collector.object_name = ""

    def _take_decorators(
        self, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, path: str, guards: Sequence[str]
    ) -> None:
        for decorator in node.decorator_list:
            self.collector.take_uses(decorator, "", guards)
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            if "deprecat" in dotted_name(called).lower():
                words = " ".join(ast.unparse(decorator).split())[:DETAIL_LIMIT]
                self.rows.add(AtlasRow(path, RowKind.WORDS, words))


_Block = ast.With | ast.AsyncWith | ast.For | ast.AsyncFor | ast.While | ast.Match


def _list_inner_statements(node: _Block) -> list[ast.stmt]:
    if isinstance(node, ast.Match):
        return [statement for case in node.cases for statement in case.body]
    return [*node.body, *getattr(node, "orelse", [])]


def _headers(node: _Block) -> list[ast.expr]:
    """The expressions of a statement before its body."""
    match node:
        case ast.With() | ast.AsyncWith():
            return [item.context_expr for item in node.items]
        case ast.For() | ast.AsyncFor():
            return [node.iter]
        case ast.Match():
            return [node.subject]
    return [node.test]


_DELETED = frozenset({RowKind.VALUE, RowKind.IMPORT, RowKind.KEY, RowKind.FUNCTION})
"""The rows of a name that `del` takes away."""

_LAZY_TABLES = frozenset({"_import_structure", "_SUBMOD_ATTRS"})
"""Tables from a submodule to the names that it exports lazily: of most packages, and of huggingface_hub."""

_TABLES = frozenset({"__all__", *_LAZY_TABLES})

_TABLE_LIMIT = 3000
"""A table with more keys is data, not a registry."""


def list_statement_rows(node: ast.stmt, module: str) -> Iterator[AtlasRow]:
    """Yield what a statement of a module itself assigns and exports."""
    for name, value in list_assigned_names(node):
        if name == "__all__":
            yield from _list_exports(value)
        elif name in _LAZY_TABLES:
            yield from _list_import_structure(value, module)
        else:
            yield AtlasRow(name, RowKind.VALUE)
            yield from list_table_rows(name, value)
    match node:
        case ast.AugAssign(target=ast.Name(id="__all__"), value=value):
            yield from _list_exports(value)
        case ast.Assign(
            targets=[ast.Subscript(value=ast.Name(id="_import_structure"), slice=ast.Constant(value=str(part)))],
            value=value,
        ):
            yield from _list_lazy_names(part, value, module)
        case ast.Expr(
            value=ast.Call(
                func=ast.Attribute(
                    value=ast.Subscript(value=ast.Name(id="_import_structure"), slice=ast.Constant(value=str(part))),
                    attr="extend" | "append",
                ),
                args=[value],
            )
        ):
            yield from _list_lazy_names(part, value, module)
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="__all__")), args=[value])):
            yield from _list_exports(value)


def _list_patterns(function: ast.AST) -> Iterator[str]:
    """Yield `*Fast` for each `name.endswith("Fast")` in a `__getattr__`, and `Old*` for `name.startswith("Old")`."""
    for node in ast.walk(function):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(), attr="endswith"), args=[ast.Constant(value=str(text))]):
                yield f"*{text}"
            case ast.Call(
                func=ast.Attribute(value=ast.Name(), attr="startswith"), args=[ast.Constant(value=str(text))]
            ):
                yield f"{text}*"


def list_lazy_folders(node: ast.stmt, package: str) -> Iterator[AtlasRow]:
    """Yield the folder of `define_import_structure(Path(__file__).parent / "models", prefix="models")`.

    `package` is the module itself when it is a package, else the one that has it: the folder of the module's file.
    """
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and dotted_name(call.func).endswith("define_import_structure"):
            folder = next(iter(string_constants(call)), "")
            yield AtlasRow("*", RowKind.LAZY_FOLDER, f"{package}.{folder}" if folder else package)


def list_table_rows(name: str, value: ast.expr | None) -> Iterator[AtlasRow]:
    """Yield the string keys of a table that is assigned to a name."""
    keys = sorted(set(_table_keys(value)))
    if 0 < len(keys) <= _TABLE_LIMIT:
        yield from (AtlasRow(f"{name}[{key}]", RowKind.KEY) for key in keys if fits_row(key))


def _list_exports(value: ast.expr | None) -> Iterator[AtlasRow]:
    if value is not None:
        yield from (AtlasRow(name, RowKind.EXPORT) for name in string_constants(value) if name.isidentifier())


def _list_import_structure(value: ast.expr | None, module: str) -> Iterator[AtlasRow]:
    if isinstance(value, ast.Dict):
        for key, item in zip(value.keys, value.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield from _list_lazy_names(key.value, item, module)


def _list_lazy_names(part: str, value: ast.expr, module: str) -> Iterator[AtlasRow]:
    for name in string_constants(value):
        if name.isidentifier():
            yield AtlasRow(name, RowKind.LAZY, f"{module}.{part}")


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
