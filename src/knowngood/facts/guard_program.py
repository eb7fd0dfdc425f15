"""What a guard of one package says beside one release of another, by running its shortened source by hand. Pure.

`is_torchao_available()` is followed into the caller's own sources (`guard_sources`), through re-exports and helper
functions. The other package counts as installed in the given release, torch as installed in some release, environment
variables as not set. What depends on anything else, such as a GPU or a third package, is `UNKNOWN`.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from knowngood.facts.atlas_lookup import AtlasLookup
from knowngood.facts.atlas_rows import RowKind
from knowngood.facts.guard_sources import decode_guard_source
from knowngood.facts.python_source import dotted_name

_DEPTH = 10
"""How many functions call one another."""

_PARSERS = frozenset({"parse", "Version", "parse_version", "LooseVersion", "StrictVersion", "digit_version"})
COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "==": operator.eq,
    "!=": operator.ne,
}
_OPERATORS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.GtE: operator.ge,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.Lt: operator.lt,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.In: lambda one, many: one in many,
    ast.NotIn: lambda one, many: one not in many,
}
_METHODS = {
    str: {"upper", "lower", "strip", "split", "startswith", "endswith", "replace", "rpartition", "partition", "join"},
    dict: {"get", "keys", "values"},
    frozenset: {"union"},
}
_BUILTINS: dict[str, Callable[..., Any]] = {
    "bool": bool,
    "str": str,
    "len": len,
    "tuple": tuple,
    "any": any,
    "all": all,
}
_OLDEST_PYTHON, _NEWEST_PYTHON = (3, 10), (3, 13)
_ASKS = re.compile(r"available|installed|exists|has|have|support|import", re.IGNORECASE)
_ASKING_WORDS = re.compile(
    r"^(?:is|has|have|can|use|import|imported|importable|available|installed|exists|support|supports|supported|package"
    r"|library|module|or|newer|\d*)$"
)
"""Words of a name beside the package's own that ask for nothing else than whether it is there."""


class GuardAnswer(Enum):
    """What a condition is beside one release."""

    TRUE = "true"
    FALSE = "false"
    OPEN = "open"
    """Something else decides: a GPU, a third package, a value."""
    RAISES = "raises"
    """Neither branch runs, since the condition itself fails."""


class _Unknown:
    """What the sources and the one release do not decide."""

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN = _Unknown()


class _Something:
    """A value of which only this is known: it is there, and true."""


_SOMETHING = _Something()


@dataclass(frozen=True, slots=True)
class _Library:
    """An imported module of the callee, or a name inside it."""

    path: str


@dataclass(frozen=True, slots=True)
class _Routine:
    """A function of the caller."""

    module: str
    node: ast.FunctionDef


class _RaisedError(Exception):
    """The guard's code raises here."""


class _ReturnSignal(Exception):
    """A function returns here."""

    def __init__(self, value: object) -> None:
        self.value = value


@dataclass
class _Frame:
    """A function, or the statements that bind a variable of a module, while they run."""

    module: str
    names: dict[str, Any] = field(default_factory=dict)
    maybe: list[Any] = field(default_factory=list)
    """What was returned under a condition that is not decided."""
    may_raise: bool = False


@lru_cache(maxsize=4096)
def _parse_source(text: str) -> tuple[ast.stmt, ...]:
    return tuple(ast.parse(decode_guard_source(text)).body)


class CallerSources:
    """The guards' sources of one caller, looked up for one of its releases at a time."""

    def __init__(self, caller: AtlasLookup) -> None:
        self.caller = caller
        self.place = 0
        """The release that is read, as its place in the list."""
        self.same = caller.every
        """The releases in which all that was looked up is the same."""
        self._sources: dict[str, dict[str, list[tuple[str, int]]]] = {}
        self._homes: dict[str, dict[str, int]] = {}

    def select_release(self, place: int, among: int) -> None:
        """Read the release at a place; `same` begins with the releases in `among`."""
        self.place, self.same = place, among

    def find_home(self, module: str, name: str) -> str | None:
        """Return `module:name` of what a name in a module is, or `None` when the release lacks it."""
        dotted = f"{module}.{name}"
        if dotted not in self._homes:
            self._homes[dotted] = self.caller.find_name(dotted).homes
        return self._choose([(home, mask) for home, mask in self._homes[dotted].items()])

    def find_source(self, home: str) -> str | None:
        """Return the escaped source of `module:name`, or `None` when the atlas has none."""
        module, _, name = home.partition(":")
        if module not in self._sources:
            table = self._sources[module] = dict[str, list[tuple[str, int]]]()
            for path, kind, detail, mask in self.caller.file.rows(module):
                if kind == RowKind.SOURCE:
                    table.setdefault(path, []).append((detail, mask))
        return self._choose(self._sources[module].get(name, ()))

    def _choose(self, rows: Iterable[tuple[str, int]]) -> str | None:
        bit, others = 1 << self.place, 0
        for text, mask in rows:
            if mask & bit:
                self.same &= mask
                return text
            others |= mask
        self.same &= ~others
        return None


class GuardProgram:
    """Answers conditions of the caller's modules beside one release of the callee."""

    def __init__(self, sources: CallerSources, callee: AtlasLookup) -> None:
        self._sources = sources
        self._callee = callee
        self._place = 0
        self._values: dict[str, Any] = {}
        self._depth = 0
        self.asks_release = False
        """Whether an answer depended on which release of the callee it is."""
        self.asks_callee = False
        """Whether an answer depended on whether the callee is installed, or in which release."""
        self.is_guess = False
        """Whether an answer came from the name of a function whose source is not the caller's."""

    def answer(self, condition: ast.expr, module: str, place: int) -> GuardAnswer:
        """Return what a condition in a module is beside the callee's release at a place."""
        self._place = place
        self._values.clear()
        try:
            value = self._evaluate(condition, _Frame(module))
        except _RaisedError:
            return GuardAnswer.RAISES
        if value is UNKNOWN:
            return GuardAnswer.OPEN
        return GuardAnswer.TRUE if value else GuardAnswer.FALSE

    # Names

    def _look_up(self, name: str, frame: _Frame) -> Any:
        if name in frame.names:
            return frame.names[name]
        if name in {"True", "False", "None", "TYPE_CHECKING"}:
            return {"True": True, "None": None}.get(name, False)
        return self._read_global(frame.module, name)

    def _read_global(self, module: str, name: str) -> Any:
        """The value of a variable or function of a module, wherever it is defined."""
        home = self._sources.find_home(module, name)
        if home is None:
            return self._guess(name)
        place, _, path = home.partition(":")
        if place.partition(".")[0] != self._sources.caller.file.root:
            return self._import_name(place, path)
        if home in self._values:
            return self._values[home]
        text = self._sources.find_source(home)
        if text is None:
            return UNKNOWN
        self._values[home] = UNKNOWN  # while it is computed, it does not depend on itself
        frame = _Frame(place)
        try:
            for node in _parse_source(text):
                self._execute([node], frame)
        except (_RaisedError, _ReturnSignal):
            return UNKNOWN
        self._values[home] = frame.names.get(path, UNKNOWN)
        return self._values[home]

    def _import_name(self, module: str, name: str) -> Any:
        if module.partition(".")[0] == self._callee.file.root:
            return self._read_library(f"{module}.{name}" if name else module)
        return self._guess(name or module)

    def _read_library(self, path: str) -> Any:
        """A name of the callee: there, an error where it is certainly not, or unknown."""
        if "." not in path:
            return _Library(path)
        if path.endswith(".__version__") and path.count(".") == 1:
            return self._release()
        presence = self._callee.find_name(path)
        if presence.present != self._callee.every:
            self.asks_release = True
        if presence.present >> self._place & 1:
            return _Library(path)
        if presence.unclear >> self._place & 1 or not presence.present:
            return UNKNOWN
        raise _RaisedError

    def _release(self) -> str:
        self.asks_callee = self.asks_release = True
        return self._callee.file.releases[self._place]

    def _guess(self, name: str) -> Any:
        """What is not in the caller's sources: a flag of another package that is named after the callee is true."""
        if self._asks_only_for_callee(name):
            self.asks_callee = self.is_guess = True
            return True
        return UNKNOWN

    def _names_callee(self, name: str) -> bool:
        """Whether the callee's name is in that of a function, as words of its own: `is_lib_available`."""
        return bool(re.search(rf"(?:^|_){re.escape(self._callee.file.root.lower())}(?:_|$)", name.lower()))

    def _asks_only_for_callee(self, name: str) -> bool:
        words = f"_{name.lower()}_".replace(f"_{self._callee.file.root.lower()}_", "_").split("_")
        return self._names_callee(name) and bool(_ASKS.search(name)) and all(map(_ASKING_WORDS.match, words))

    # Expressions

    def _evaluate(self, node: ast.expr, frame: _Frame) -> Any:  # noqa: C901, PLR0911, PLR0912 - one case for each kind
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return self._look_up(name, frame)
            case ast.Attribute():
                return self._read_attribute(node, frame)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                value = self._evaluate(operand, frame)
                return UNKNOWN if value is UNKNOWN else not value
            case ast.BoolOp(op=op, values=values):
                return self._evaluate_chain(values, isinstance(op, ast.And), frame)
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self._compare(self._evaluate(left, frame), op, self._evaluate(right, frame))
            case ast.Compare(left=left, ops=ops, comparators=rights):
                values = [self._evaluate(part, frame) for part in (left, *rights)]
                answers = [self._compare(values[at], op, values[at + 1]) for at, op in enumerate(ops)]
                return False if False in answers else UNKNOWN if UNKNOWN in answers else True
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self._choose(test, body, orelse, frame)
            case ast.Tuple(elts=elts) | ast.List(elts=elts):
                return tuple(self._evaluate(item, frame) for item in elts)
            case ast.Set(elts=elts):
                items = [self._evaluate(item, frame) for item in elts]
                return UNKNOWN if UNKNOWN in items else frozenset(items)
            case ast.Subscript(value=value, slice=index):
                return self._subscript(value, index, frame)
            case ast.Call():
                return self._call(node, frame)
            case ast.NamedExpr(target=target, value=value):
                frame.names[target.id] = self._evaluate(value, frame)
                return frame.names[target.id]
        return UNKNOWN

    def _evaluate_chain(self, values: Sequence[ast.expr], is_and: bool, frame: _Frame) -> Any:
        """`a and b` and `a or b`: an undecided part matters only where no other part decides."""
        last: Any = is_and
        unknown = False
        for value in values:
            last = self._evaluate(value, frame)
            if last is UNKNOWN:
                unknown = True
            elif bool(last) is not is_and:
                return last
        return UNKNOWN if unknown else last

    def _choose(self, test: ast.expr, body: ast.expr, orelse: ast.expr, frame: _Frame) -> Any:
        decision = self._evaluate(test, frame)
        if decision is not UNKNOWN:
            return self._evaluate(body if decision else orelse, frame)
        return _merge([self._evaluate(body, frame), self._evaluate(orelse, frame)])

    def _compare(self, left: Any, op: ast.cmpop, right: Any) -> Any:
        if left is UNKNOWN or right is UNKNOWN:
            return UNKNOWN
        if isinstance(op, ast.Is | ast.IsNot):
            if isinstance(left, _Library | _Something | _Routine) or isinstance(
                right, _Library | _Something | _Routine
            ):
                return isinstance(op, ast.IsNot) if left is None or right is None else UNKNOWN
            return (left is right) is isinstance(op, ast.Is)
        if isinstance(left, _PythonRelease):
            return left.compare(op, right)
        try:
            return _OPERATORS[type(op)](left, right)
        except (TypeError, KeyError):
            return UNKNOWN

    def _subscript(self, value: ast.expr, index: ast.expr, frame: _Frame) -> Any:
        if dotted_name(value).endswith("environ"):
            raise _RaisedError
        whole, place = self._evaluate(value, frame), self._evaluate(index, frame)
        try:
            return whole[place] if isinstance(whole, tuple | str) else UNKNOWN
        except (TypeError, IndexError):
            return UNKNOWN

    def _read_attribute(self, node: ast.Attribute, frame: _Frame) -> Any:
        dotted = dotted_name(node)
        match dotted:
            case "sys.version_info":
                return _PythonRelease()
            case "sys.platform":
                return "linux"
            case "os.environ":
                return ()
            case "os.name":
                return "posix"
        if dotted.endswith(".TYPE_CHECKING"):
            return False
        whole = self._evaluate(node.value, frame)
        if isinstance(whole, _Library):
            return self._read_library(f"{whole.path}.{node.attr}")
        if isinstance(whole, Version) and node.attr in {"base_version", "release", "major", "minor", "micro"}:
            return getattr(whole, node.attr)
        if dotted.partition(".")[0] == self._sources.caller.file.root and isinstance(
            node.value, ast.Name | ast.Attribute
        ):
            return self._read_global(dotted.rpartition(".")[0], node.attr)
        if whole is UNKNOWN and dotted == f"{self._callee.file.root}.__version__":
            return self._release()  # imported by the function around the guard
        return UNKNOWN

    # Calls

    def _call(self, call: ast.Call, frame: _Frame) -> Any:
        dotted = dotted_name(call.func)
        name = dotted.rpartition(".")[2]
        arguments = [self._evaluate(argument, frame) for argument in call.args if not isinstance(argument, ast.Starred)]
        if len(arguments) < len(call.args) or any(keyword.arg is None for keyword in call.keywords):
            return UNKNOWN
        keywords = {keyword.arg or "": self._evaluate(keyword.value, frame) for keyword in call.keywords}
        match name, arguments:
            case "find_spec", [str(target)] if not target.startswith("."):
                return self._find_spec(target)
            case (("version" | "get_version" | "metadata" | "distribution" | "get_distribution"), [str(target)]) if (
                self._is_callee(target)
            ):
                return self._release() if name.endswith("version") else _SOMETHING
            case (("get" | "getenv"), [str(), *rest]) if "environ" in dotted or name == "getenv":
                return rest[0] if rest else keywords.get("default")
            case "hasattr", [_Library(path=path), str(target)]:
                return self._has_attribute(path, target)
            case "getattr", [_Library(path=path), "__version__", *_] if "." not in path:
                return self._release()
            case (("import_module" | "__import__"), [str(target)]):
                return self._import_module(target, frame)
            case "system", [] if dotted == "platform.system":
                return "Linux"
            case "isinstance", [value, _] if value is not UNKNOWN and dotted_name(call.args[1]) == "str":
                return isinstance(value, str)
            case _, [argument] if not keywords and self._is_parser(call.func, frame):
                return _parse_version(argument)
        if (answer := self._compare_asked(arguments)) is not None:
            return answer
        return self._call_value(call, name, arguments, keywords, frame)

    def _call_value(
        self, call: ast.Call, name: str, arguments: list[Any], keywords: dict[str, Any], frame: _Frame
    ) -> Any:
        """Call a function of the caller, a method of a plain value, or one that only its name tells about."""
        if isinstance(call.func, ast.Attribute):
            whole = self._evaluate(call.func.value, frame)
            for kind, methods in _METHODS.items():
                if isinstance(whole, kind) and name in methods and UNKNOWN not in arguments:
                    return _apply(getattr(whole, name), arguments)
        function = self._evaluate(call.func, frame)
        if isinstance(function, _Routine):
            value = self._run(function, arguments, keywords)
            return self._ask_by_name(name, arguments, keywords) if value is UNKNOWN and arguments else value
        if isinstance(call.func, ast.Name) and name in _BUILTINS and UNKNOWN not in arguments:
            return _apply(_BUILTINS[name], arguments)
        if isinstance(function, _Library) and _ASKS.search(name):  # torch.cuda.is_available()
            self.asks_callee = True
        if function is True or (function is UNKNOWN and self._is_outside(call.func, frame)):
            return self._ask_by_name(name, arguments, keywords)
        return UNKNOWN

    def _is_parser(self, function: ast.expr, frame: _Frame) -> bool:
        """Whether a function makes a version of a text, also under another name in this module."""
        dotted = dotted_name(function)
        if dotted.rpartition(".")[2] in _PARSERS:
            return True
        home = self._sources.find_home(frame.module, dotted) if dotted and "." not in dotted else None
        return home is not None and home.partition(":")[2] in _PARSERS

    def _is_outside(self, function: ast.expr, frame: _Frame) -> bool:
        """Whether a function is not one of the caller's own, whose source would have told."""
        root = dotted_name(function).partition(".")[0]
        home = self._sources.find_home(frame.module, root) if root else None
        return home is None or home.partition(":")[0].partition(".")[0] != self._sources.caller.file.root

    def _ask_by_name(self, name: str, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        """Answer `is_lib_available("1.2")`, `is_installed("lib")` and their kin of other packages by their names."""
        texts = [item for item in arguments if not self._is_callee(item)]
        name = name.lower()
        is_named = len(texts) < len(arguments)
        if not is_named and not self._names_callee(name):
            if arguments in (["torch"], []) and re.fullmatch(r"_?is_(?:package|torch)_available", name):
                return True
            return UNKNOWN
        self.asks_callee = True
        if texts == [] and keywords.get("return_version") is True:
            return True, self._release()
        if keywords or not all(isinstance(text, str) for text in texts):
            return UNKNOWN
        match texts:
            case [] if (is_named and _ASKS.search(name)) or self._asks_only_for_callee(name):
                self.is_guess = True
                return True
            case [str(sign), str(literal)] if sign in COMPARISONS:
                return self._compare_release(sign, literal)
            case [str(least)] if re.search(r"available|_ge$|gte|equal|min", name):
                return self._compare_release(">=", least)
            case [str(least)] if "greater" in name:  # at the release itself the name does not tell
                above, at_least = self._compare_release(">", least), self._compare_release(">=", least)
                return UNKNOWN if above is not at_least else above
        return UNKNOWN

    def _compare_asked(self, arguments: Sequence[Any]) -> Any:
        """Answer `compare_versions("lib", ">=", "1.2")`, also with a release in the name's place; `None` otherwise."""
        match arguments:
            case [Version() as release, str(sign), (str() | Version()) as other] if sign in COMPARISONS:
                wanted = _parse_version(other)
                return UNKNOWN if wanted is UNKNOWN else COMPARISONS[sign](release, wanted)
            case [str(package), str(sign), str(literal)] if sign in COMPARISONS and self._is_callee(package):
                return self._compare_release(sign, literal)
        return None

    def _compare_release(self, sign: str, literal: str) -> Any:
        release, wanted = _parse_version(self._release()), _parse_version(literal)
        return UNKNOWN if UNKNOWN in {release, wanted} else COMPARISONS[sign](release, wanted)

    def _find_spec(self, target: str) -> Any:
        root = target.partition(".")[0]
        if root == self._callee.file.root:
            self.asks_callee = True
            try:
                module = self._read_library(target)
            except _RaisedError:
                return None
            return module if module is UNKNOWN else _SOMETHING
        return _SOMETHING if target == "torch" else UNKNOWN

    def _has_attribute(self, path: str, name: str) -> Any:
        try:
            value = self._read_library(f"{path}.{name}")
        except _RaisedError:
            return False
        return value if value is UNKNOWN else True

    def _is_callee(self, text: object) -> bool:
        names = {self._callee.file.package, canonicalize_name(self._callee.file.root)}
        return isinstance(text, str) and canonicalize_name(text) in names

    def _run(self, routine: _Routine, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        if self._depth >= _DEPTH:
            return UNKNOWN
        frame = _Frame(routine.module)
        if not self._bind(routine.node.args, arguments, keywords, frame):
            return UNKNOWN
        self._depth += 1
        try:
            self._execute(routine.node.body, frame)
            value: Any = None
        except _ReturnSignal as signal:
            value = signal.value
        finally:
            self._depth -= 1
        return _merge([*frame.maybe, value])

    def _bind(
        self, parameters: ast.arguments, arguments: Sequence[Any], keywords: Mapping[str, Any], frame: _Frame
    ) -> bool:
        """Give the parameters their values; `False` when the call has another shape."""
        positional = [*parameters.posonlyargs, *parameters.args]
        if len(arguments) > len(positional):
            return False
        defaults = dict(zip((one.arg for one in reversed(positional)), reversed(parameters.defaults), strict=False))
        defaults |= {
            one.arg: default
            for one, default in zip(parameters.kwonlyargs, parameters.kw_defaults, strict=True)
            if default is not None
        }
        frame.names |= {name: self._evaluate(default, _Frame(frame.module)) for name, default in defaults.items()}
        frame.names |= {one.arg: value for one, value in zip(positional, arguments, strict=False)} | dict(keywords)
        return True

    # Statements

    def _execute(self, body: Iterable[ast.stmt], frame: _Frame) -> None:
        for node in body:
            match node:
                case ast.Return(value=value):
                    raise _ReturnSignal(self._evaluate(value, frame) if value else None)
                case ast.Raise():
                    raise _RaisedError
                case ast.Assign(targets=targets, value=value):
                    result = self._evaluate(value, frame)
                    for target in targets:
                        _assign(target, result, frame)
                case ast.If(test=test, body=inner, orelse=orelse):
                    self._branch(self._evaluate(test, frame), inner, orelse, frame)
                case ast.Try():
                    self._try(node, frame)
                case ast.With(body=inner):
                    self._execute(inner, frame)
                case ast.Import() | ast.ImportFrom():
                    self._import(node, frame)
                case ast.FunctionDef(name=name):
                    frame.names[name] = _Routine(frame.module, node)
                case ast.Pass() | ast.Global():
                    pass
                case _:
                    frame.maybe.append(UNKNOWN)
                    for part in ast.walk(node):
                        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                            frame.names[part.id] = UNKNOWN

    def _branch(self, decision: Any, body: Sequence[ast.stmt], orelse: Sequence[ast.stmt], frame: _Frame) -> None:
        if decision is not UNKNOWN:
            self._execute(body if decision else orelse, frame)
            return
        self._merge_ways([body, orelse], frame)

    def _merge_ways(self, ways: Sequence[Sequence[ast.stmt]], frame: _Frame) -> None:
        """Run several ways of which one is taken, and keep of the variables what all of them give."""
        before = dict(frame.names)
        ends: list[dict[str, Any]] = []
        leaving: list[_ReturnSignal | _RaisedError] = []
        for body in ways:
            frame.names = dict(before)
            try:
                self._execute(body, frame)
                ends.append(frame.names)
            except (_ReturnSignal, _RaisedError) as signal:
                leaving.append(signal)
        if not ends:
            values = [signal.value if isinstance(signal, _ReturnSignal) else False for signal in leaving]
            raise _ReturnSignal(_merge(values))
        frame.maybe += [signal.value if isinstance(signal, _ReturnSignal) else False for signal in leaving]
        frame.names = {name: _merge([end.get(name, UNKNOWN) for end in ends]) for end in ends for name in end}

    def _try(self, node: ast.Try, frame: _Frame) -> None:
        outer, frame.may_raise = frame.may_raise, False
        before = dict(frame.names)
        try:
            self._execute(node.body, frame)
        except _RaisedError:
            frame.names = before | dict.fromkeys(frame.names.keys() - before.keys(), UNKNOWN)
            frame.may_raise = outer
            if not node.handlers:
                raise
            self._execute(node.handlers[0].body, frame)
            return
        except _ReturnSignal as signal:
            if not frame.may_raise or not node.handlers:
                raise
            frame.maybe.append(signal.value)
            frame.names = before
            self._execute(node.handlers[0].body, frame)
            return
        raised, frame.may_raise = frame.may_raise, outer
        if raised and node.handlers:
            self._merge_ways([node.orelse, node.handlers[0].body], frame)
        else:
            self._execute(node.orelse, frame)
        self._execute(node.finalbody, frame)

    def _import(self, node: ast.Import | ast.ImportFrom, frame: _Frame) -> None:
        base = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
        for alias in node.names:
            local = alias.asname or alias.name.partition(".")[0]
            if isinstance(node, ast.ImportFrom) and (
                node.level or base.partition(".")[0] == self._sources.caller.file.root
            ):
                frame.names.pop(local, None)
                frame.names[local] = self._read_global(frame.module, local)
                continue
            path = f"{base}.{alias.name}" if base else alias.name
            value = self._import_module(path, frame)
            if isinstance(value, _Library) and not base and not alias.asname:
                value = _Library(local)
            frame.names[local] = value

    def _import_module(self, path: str, frame: _Frame) -> Any:
        root = path.partition(".")[0]
        if root == self._callee.file.root:
            self.asks_callee = True
            value = self._read_library(path)
            frame.may_raise |= value is UNKNOWN
            return value
        frame.may_raise |= root not in {"torch", "importlib", "os", "sys", "packaging", "platform", "functools"}
        return UNKNOWN


@dataclass(frozen=True, slots=True)
class _PythonRelease:
    """`sys.version_info` of the Pythons that are in use."""

    def compare(self, op: ast.cmpop, other: object) -> Any:
        """Compare with a tuple; `UNKNOWN` where the oldest and the newest give different answers."""
        if not isinstance(other, tuple) or type(op) not in _OPERATORS:
            return UNKNOWN
        try:
            answers = {_OPERATORS[type(op)](release, other) for release in (_OLDEST_PYTHON, _NEWEST_PYTHON)}
        except TypeError:
            return UNKNOWN
        return answers.pop() if len(answers) == 1 else UNKNOWN


def _assign(target: ast.expr, value: Any, frame: _Frame) -> None:
    match target:
        case ast.Name(id=name):
            frame.names[name] = value
        case ast.Tuple(elts=items):
            values = value if isinstance(value, tuple) and len(value) == len(items) else (UNKNOWN,) * len(items)
            for item, part in zip(items, values, strict=True):
                _assign(item, part, frame)


def _merge(values: Sequence[Any]) -> Any:
    """The one value, or the one truth, that all have."""
    if any(value is UNKNOWN for value in values):
        return UNKNOWN
    first = values[0]
    if all(type(value) is type(first) and value == first for value in values):
        return first
    truths = {bool(value) for value in values}
    return truths.pop() if len(truths) == 1 else UNKNOWN


def _apply(function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    try:
        return function(*arguments)
    except (TypeError, ValueError, KeyError):
        return UNKNOWN


def _parse_version(text: object) -> Any:
    if isinstance(text, Version):
        return text
    try:
        return Version(text) if isinstance(text, str) else UNKNOWN
    except InvalidVersion:
        return UNKNOWN
