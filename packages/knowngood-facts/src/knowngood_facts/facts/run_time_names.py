"""Finds names that a module gets while it runs, beside what its statements define, import and assign. Pure."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from knowngood_facts.facts.python_source import dotted_name, string_constants

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_SIGNS = ("globals()", "locals()", "vars(", "sys.modules", "sys.meta_path", "exec(", "global ")
"""Texts without which a source has nothing of this kind."""

_MODULE_NAME = re.compile(r"\w+(\.[\w*]+)+")

_LOOKED_AT = re.compile(r"\(\?[=!][^)]*\)")
_GROUP = re.compile(r"\([^)]*\)")
"""Of a pattern in a source: what it looks ahead for, and a group."""

_READERS = frozenset(
    {"getattr", "hasattr", "dir", "getmembers", "getsource", "getfile", "len", "list", "dict", "set", "sorted", "eval"}
)
"""Functions that take a module or its names and add none."""


@dataclass(kw_only=True)
class RunTimeNames:
    """What a module binds while it runs."""

    names: set[str] = field(default_factory=set)
    """The names that the source shows."""
    is_open: bool = False
    """Whether there are names that the source does not show."""
    stand_in: str = ""
    """The class of the object that takes the module's place in `sys.modules`, as written; empty for none."""
    modules: set[str] = field(default_factory=set)
    """The modules of its package that it may put into `sys.modules`, or that a finder of its own answers for; `*`
    stands for what is filled in."""


def find_run_time_names(tree: ast.Module, source: str, module: str) -> RunTimeNames:
    """Return what `globals()`, `sys.modules`, `exec` and `global` bind, anywhere in a module.

    A source that puts modules other than itself into `sys.modules` may put each there of which it has the name.
    """
    run_time = RunTimeNames()
    if not any(sign in source for sign in _SIGNS):
        return run_time
    aliases = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and _is_own_module(node.value, ())
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node, is_inner in _walk_with_places(tree):
        match node:
            case ast.Global(names=names):
                run_time.names.update(names)
            case ast.Assign(targets=[target], value=value) if _is_own_module(target, ()):
                run_time.is_open = True
                run_time.stand_in = dotted_name(value.func) if isinstance(value, ast.Call) else ""
                run_time.names.update(_list_table_names(value))
            case ast.Subscript(value=value, slice=key, ctx=ast.Store()) if _is_namespace(
                value, aliases, is_inner=is_inner
            ):
                _take_key(run_time, key)
            case ast.Subscript(value=value, ctx=ast.Store()) if dotted_name(value) == "sys.modules":
                run_time.modules.update(() if _is_own_module(node, ()) else _list_module_names(tree, module))
            case ast.Attribute(value=value, attr=name, ctx=ast.Store()) if _is_own_module(value, aliases):
                run_time.is_open |= name == "__class__"
                run_time.names.add(name)
            case ast.Call(func=ast.Attribute(value=path, attr="append" | "insert")) if (
                dotted_name(path) == "sys.meta_path"
            ):
                run_time.modules.update(_list_found_names(tree, module))
            case ast.Call():
                _take_call(run_time, node, aliases, is_inner=is_inner)
    return run_time


def _walk_with_places(tree: ast.AST) -> Iterator[tuple[ast.AST, bool]]:
    """Yield every node, and whether it is inside a function or a class, whose names are not the module's."""
    todo = [(tree, False)]
    while todo:
        node, is_inner = todo.pop()
        yield node, is_inner
        is_inner |= isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef)
        todo += [(child, is_inner) for child in ast.iter_child_nodes(node)]


def _list_table_names(value: ast.AST) -> Iterator[str]:
    """Yield the names in the tables that a call gets, as in `Lazy(..., extra_objects={"__version__": __version__})`."""
    for table in ast.walk(value):
        if isinstance(table, ast.Dict):
            yield from filter(str.isidentifier, string_constants(table))


def _take_call(run_time: RunTimeNames, call: ast.Call, aliases: set[str], *, is_inner: bool) -> None:
    match call:
        case ast.Call(func=ast.Name(id="setattr"), args=[module, key, _]) if _is_own_module(module, aliases):
            _take_key(run_time, key)
        case ast.Call(func=ast.Attribute(value=own, attr="setdefault" | "update" as method), args=args) if (
            _is_namespace(own, aliases, is_inner=is_inner)
        ):
            given = args[:1] if method == "setdefault" else [key for table in args for key in _list_keys(table)]
            for item in given:
                _take_key(run_time, item)
            for keyword in call.keywords:
                run_time.names.update([keyword.arg] if keyword.arg else [])
                run_time.is_open |= keyword.arg is None
        case ast.Call(func=ast.Name(id="exec"), args=[_]):
            run_time.is_open |= not is_inner
        case ast.Call(func=func, args=args) if dotted_name(func).rpartition(".")[2] not in _READERS:
            run_time.is_open |= any(
                _is_namespace(one, aliases, is_inner=is_inner) or _is_own_module(one, aliases) for one in args
            )


def _list_keys(table: ast.expr) -> list[ast.expr | None]:
    return list(table.keys) if isinstance(table, ast.Dict) else [None]


def _list_module_names(tree: ast.Module, module: str) -> Iterator[str]:
    """Yield what is written in a module as the name of a module below the same top-level module."""
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)):
                name = text
            case ast.JoinedStr(values=[ast.FormattedValue(value=ast.Name(id="__name__")), *rest]):
                name = module + "".join(
                    getattr(part, "value", "*") if isinstance(part, ast.Constant) else "*" for part in rest
                )
            case ast.BinOp(left=ast.Name(id="__name__"), op=ast.Add(), right=ast.Constant(value=str(text))):
                name = module + text
            case _:
                continue
        if _MODULE_NAME.fullmatch(name) and name.partition(".")[0] == module.partition(".")[0]:
            yield name


def _list_found_names(tree: ast.Module, module: str) -> Iterator[str]:
    """Yield the submodules that a finder may make: keys of tables of names, and patterns that begin with its package.

    In a pattern the package is `{re.escape(__name__)}`, a call; a plain `{__name__}` is where a finder looks instead.
    """
    for node in ast.walk(tree):
        match node:
            case ast.Dict(keys=keys, values=values):
                texts = [
                    item.value
                    for item in (*keys, *values)
                    if isinstance(item, ast.Constant) and isinstance(item.value, str) and item.value.isidentifier()
                ]
                if len(texts) == 2 * len(keys):
                    yield from (f"{module}.{text}" for text in texts[: len(keys)])
            case ast.JoinedStr(values=[ast.FormattedValue(value=ast.Call(args=[ast.Name(id="__name__")])), *rest]):
                text = "".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in rest)
                name = module + _GROUP.sub("*", _LOOKED_AT.sub("", text)).replace("\\.", ".")
                if _MODULE_NAME.fullmatch(name):
                    yield name


def _take_key(run_time: RunTimeNames, key: ast.expr | None) -> None:
    if isinstance(key, ast.Constant) and isinstance(key.value, str):
        run_time.names.add(key.value)
    else:
        run_time.is_open = True


def _is_own_module(node: ast.expr, aliases: Collection[str]) -> bool:
    """Whether an expression is `sys.modules[__name__]`, or a name that stands for it."""
    match node:
        case ast.Subscript(value=value, slice=ast.Name(id="__name__")):
            return dotted_name(value).endswith("modules")
        case ast.Name(id=name):
            return name in aliases
    return False


def _is_namespace(node: ast.expr, aliases: set[str], *, is_inner: bool) -> bool:
    """Whether an expression is the dictionary of the module's names; `is_inner` as `_walk_with_places` says."""
    match node:
        case ast.Call(func=ast.Name(id="globals" | "locals" | "vars" as function), args=[]):
            return function == "globals" or not is_inner
        case ast.Call(func=ast.Name(id="vars"), args=[module]) | ast.Attribute(value=module, attr="__dict__"):
            return _is_own_module(module, aliases)
    return False
