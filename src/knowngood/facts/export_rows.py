"""The rows of a module's own variables: their names, tables, `__all__` and what is exported lazily. Pure."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from knowngood.facts.atlas_file import AtlasRow, RowKind, fits_row
from knowngood.facts.python_source import dotted_name, list_assigned_names, string_constants

if TYPE_CHECKING:
    from collections.abc import Iterator

_TABLE_LIMIT = 3000
"""A table with more keys is data, not a registry."""

_LAZY_TABLES = frozenset({"_import_structure", "_SUBMOD_ATTRS"})
"""Tables from a submodule to the names that it exports lazily: of most packages, and of huggingface_hub."""


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
