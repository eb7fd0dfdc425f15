"""The values of a guard's code while it is run by hand, what it can ask of a release, and its statements. Pure."""

from __future__ import annotations

import ast
import operator
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from knowngood_facts.facts.atlas_lookup import AtlasLookup

SIGNS: Mapping[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "==": operator.eq,
    "!=": operator.ne,
}
"""The signs of comparisons of versions."""

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
_VERSION_PARTS = frozenset({"base_version", "release", "major", "minor", "micro"})
_OLDEST_PYTHON, _NEWEST_PYTHON = (3, 10), (3, 13)


class _Unknown:
    """What the sources and the one release do not decide."""

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN = _Unknown()


class _Something:
    """A value of which only this is known: it is there, and true."""


SOMETHING = _Something()


@dataclass(frozen=True, slots=True)
class LibraryName:
    """An imported module of the callee, or a name inside it."""

    path: str


@dataclass(frozen=True, slots=True)
class CallerFunction:
    """A function of the caller."""

    module: str
    node: ast.FunctionDef


@dataclass(frozen=True, slots=True)
class PythonRelease:
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


class GuardError(Exception):
    """The guard's code raises an exception here."""


@dataclass
class GuardFrame:
    """A function, or the statements that bind a variable of a module, while they run."""

    module: str
    names: dict[str, Any] = field(default_factory=dict)
    maybe: list[Any] = field(default_factory=list)
    """What was returned under a condition that is not decided."""
    may_raise: bool = False


def compare_values(left: Any, op: ast.cmpop, right: Any) -> Any:
    """Return the truth of `left op right`, or `UNKNOWN`."""
    if left is UNKNOWN or right is UNKNOWN:
        return UNKNOWN
    if isinstance(op, ast.Is | ast.IsNot):
        there = LibraryName | CallerFunction | _Something
        if isinstance(left, there) or isinstance(right, there):
            return isinstance(op, ast.IsNot) if left is None or right is None else UNKNOWN
        return (left is right) is isinstance(op, ast.Is)
    if isinstance(left, PythonRelease):
        return left.compare(op, right)
    try:
        return _OPERATORS[type(op)](left, right)
    except (TypeError, KeyError):
        return UNKNOWN


def merge_values(values: Sequence[Any]) -> Any:
    """Return the one value, or the one truth, that all have; else `UNKNOWN`."""
    if any(value is UNKNOWN for value in values):
        return UNKNOWN
    first = values[0]
    if all(type(value) is type(first) and value == first for value in values):
        return first
    truths = {bool(value) for value in values}
    return truths.pop() if len(truths) == 1 else UNKNOWN


def call_method(whole: Any, name: str, arguments: Sequence[Any]) -> Any:
    """Return what a method of a plain value gives, or `UNKNOWN` for any other method."""
    is_plain = any(isinstance(whole, kind) and name in methods for kind, methods in _METHODS.items())
    return _apply(getattr(whole, name), arguments) if is_plain else UNKNOWN


def call_builtin(name: str, arguments: Sequence[Any]) -> Any:
    """Return what a built-in function gives for plain values, or `UNKNOWN`."""
    return _apply(_BUILTINS[name], arguments) if name in _BUILTINS else UNKNOWN


def _apply(function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    if any(argument is UNKNOWN for argument in arguments):
        return UNKNOWN
    try:
        return function(*arguments)
    except (TypeError, ValueError):
        return UNKNOWN


def read_version_part(version: Version, name: str) -> Any:
    """Return an attribute of a version, such as `base_version`."""
    return getattr(version, name) if name in _VERSION_PARTS else UNKNOWN


def parse_version_value(text: object) -> Any:
    """Return the version in a text, or `UNKNOWN`; a version is returned as it is."""
    if isinstance(text, Version):
        return text
    try:
        return Version(text) if isinstance(text, str) else UNKNOWN
    except InvalidVersion:
        return UNKNOWN


class GuardReturn(Exception):  # noqa: N818 - it is no error
    """A function returns here."""

    def __init__(self, value: object) -> None:
        self.value = value


class StatementRunner:
    """Runs statements, one after another."""

    def __init__(
        self,
        evaluate: Callable[[ast.expr, GuardFrame], Any],
        load_import: Callable[[ast.Import | ast.ImportFrom, GuardFrame], None],
    ) -> None:
        self._evaluate = evaluate
        self._statements: dict[type[ast.stmt], Callable[[Any, GuardFrame], None]] = {
            ast.Return: self._return,
            ast.Raise: self._raise,
            ast.Assign: self._assign,
            ast.If: self._branch,
            ast.Try: self._try,
            ast.With: lambda node, frame: self.execute(node.body, frame),
            ast.Import: load_import,
            ast.ImportFrom: load_import,
            ast.FunctionDef: self._define,
            ast.Pass: lambda *_: None,
            ast.Global: lambda *_: None,
        }

    def execute(self, body: Iterable[ast.stmt], frame: GuardFrame) -> None:
        """Run statements; `GuardReturn` where they return, `GuardError` where they raise."""
        for node in body:
            execute = self._statements.get(type(node), _skip_statement)
            execute(node, frame)

    def _return(self, node: ast.Return, frame: GuardFrame) -> None:
        raise GuardReturn(self._evaluate(node.value, frame) if node.value else None)

    @staticmethod
    def _raise(*_: object) -> None:
        raise GuardError

    @staticmethod
    def _define(node: ast.FunctionDef, frame: GuardFrame) -> None:
        frame.names[node.name] = CallerFunction(frame.module, node)

    def _assign(self, node: ast.Assign, frame: GuardFrame) -> None:
        value = self._evaluate(node.value, frame)
        for target in node.targets:
            _assign_value(target, value, frame)

    def _branch(self, node: ast.If, frame: GuardFrame) -> None:
        decision = self._evaluate(node.test, frame)
        if decision is UNKNOWN:
            self._merge_ways([node.body, node.orelse], frame)
        else:
            self.execute(node.body if decision else node.orelse, frame)

    def _merge_ways(self, ways: Sequence[Sequence[ast.stmt]], frame: GuardFrame) -> None:
        """Run several ways of which one is taken, and keep of the variables what all of them give.

        A way that raises makes the guard fail or false, and both keep the guarded code from running.
        """
        before = dict(frame.names)
        ends: list[dict[str, Any]] = []
        values: list[Any] = []
        for body in ways:
            frame.names = dict(before)
            try:
                self.execute(body, frame)
                ends.append(frame.names)
            except GuardReturn as signal:
                values.append(signal.value)
            except GuardError:
                values.append(False)
        if not ends:
            raise GuardReturn(merge_values(values))
        frame.maybe += values
        frame.names = {name: merge_values([end.get(name, UNKNOWN) for end in ends]) for end in ends for name in end}

    def _try(self, node: ast.Try, frame: GuardFrame) -> None:
        """Run a `try`: its body, and the first handler where the body raises or may raise."""
        outer, frame.may_raise = frame.may_raise, False
        before = dict(frame.names)
        handler = node.handlers[0].body if node.handlers else None
        try:
            self.execute(node.body, frame)
        except GuardError:
            if handler is None:
                raise
            frame.names = before | dict.fromkeys(frame.names.keys() - before.keys(), UNKNOWN)
            frame.may_raise = outer
            self.execute(handler, frame)
        except GuardReturn as signal:
            if handler is None or not frame.may_raise:
                raise
            frame.maybe.append(signal.value)
            frame.names, frame.may_raise = before, outer
            self.execute(handler, frame)
        else:
            ways = [node.orelse, handler] if handler is not None and frame.may_raise else [node.orelse]
            frame.may_raise = outer
            if len(ways) > 1:
                self._merge_ways(ways, frame)
            else:
                self.execute(node.orelse, frame)
        self.execute(node.finalbody, frame)


def _skip_statement(node: ast.stmt, frame: GuardFrame) -> None:
    """A statement that is not followed, such as a loop: what it binds is unknown, and it may return."""
    for part in ast.walk(node):
        if isinstance(part, ast.Return | ast.Raise):
            frame.maybe.append(UNKNOWN)
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            frame.names[part.id] = UNKNOWN


def _assign_value(target: ast.expr, value: Any, frame: GuardFrame) -> None:
    match target:
        case ast.Name(id=name):
            frame.names[name] = value
        case ast.Tuple(elts=items):
            values = value if isinstance(value, tuple) and len(value) == len(items) else (UNKNOWN,) * len(items)
            for item, part in zip(items, values, strict=True):
                _assign_value(item, part, frame)


_ASKS = re.compile(r"available|installed|exists|has|have|support|import", re.IGNORECASE)
_ASKING_WORDS = re.compile(
    r"^(?:is|has|have|can|use|import|imported|importable|available|installed|exists|support|supports|supported|package"
    r"|library|module|or|newer|\d*)$"
)
"""Words of a name beside the package's own that ask for nothing else than whether it is there."""

_COMPARES = re.compile(r"version|greater|_ge$|gte|least|min", re.IGNORECASE)


class InstalledRelease:
    """The package of interest, installed in one release."""

    def __init__(self, package: AtlasLookup) -> None:
        self.package = package
        self.root = package.file.root
        self.asks_release = False
        """Whether an answer depended on which release it is."""
        self.asks_package = False
        """Whether an answer depended on whether the package is installed, or in which release."""
        self.is_guess = False
        """Whether an answer came from the name of a function whose source is not the caller's."""
        self._place = 0
        self._names = {package.file.package, canonicalize_name(self.root)}
        self._named = re.compile(rf"(?:^|_){re.escape(self.root.lower())}(?:_|$)")

    def select_release(self, place: int) -> None:
        """Answer for the release at a place from now on."""
        self._place = place

    def read_release(self) -> str:
        """Return the release as text."""
        self.asks_package = self.asks_release = True
        return self.package.file.releases[self._place]

    def read_name(self, path: str) -> Any:
        """Return a name of the package, or `UNKNOWN`; `GuardError` where the release certainly lacks it."""
        if "." not in path:
            return LibraryName(path)
        if path == f"{self.root}.__version__":
            return self.read_release()
        presence = self.package.find_name(path)
        if presence.present != self.package.every:
            self.asks_release = True
        if presence.present >> self._place & 1:
            return LibraryName(path)
        if presence.unclear >> self._place & 1 or not presence.present:
            return UNKNOWN
        raise GuardError

    def find_spec(self, target: str) -> Any:
        """Answer `importlib.util.find_spec`: `None` where the module is not there."""
        if target.partition(".")[0] != self.root:
            return SOMETHING if target == "torch" else UNKNOWN
        self.asks_package = True
        try:
            return UNKNOWN if self.read_name(target) is UNKNOWN else SOMETHING
        except GuardError:
            return None

    def has_name(self, path: str) -> Any:
        """Answer `hasattr`: whether the release has a name, or `UNKNOWN`."""
        try:
            return UNKNOWN if self.read_name(path) is UNKNOWN else True
        except GuardError:
            return False

    def is_named(self, text: object) -> bool:
        """Return whether a text is the package's name, or that of its module."""
        return isinstance(text, str) and canonicalize_name(text) in self._names

    def note_question(self, name: str) -> None:
        """Note that a function of the package itself was asked, such as `torch.cuda.is_available`."""
        self.asks_package |= bool(_ASKS.search(name))

    def guess_flag(self, name: str) -> Any:
        """Return `True` for a flag or function of another package that only asks for this one, else `UNKNOWN`."""
        words = f"_{name.lower()}_".replace(f"_{self.root.lower()}_", "_").split("_")
        if self._named.search(name.lower()) and _ASKS.search(name) and all(map(_ASKING_WORDS.match, words)):
            self.asks_package = self.is_guess = True
            return True
        return UNKNOWN

    def compare_release(self, sign: str, literal: str) -> Any:
        """Compare the release with a literal."""
        release, wanted = parse_version_value(self.read_release()), parse_version_value(literal)
        return UNKNOWN if UNKNOWN in {release, wanted} else SIGNS[sign](release, wanted)

    def compare_shape(self, arguments: Sequence[Any]) -> Any:
        """Answer `compare_versions("lib", ">=", "1.2")`, also with a release in the name's place; else `UNKNOWN`."""
        match arguments:
            case [Version() as release, str(sign), (str() | Version()) as other] if sign in SIGNS:
                wanted = parse_version_value(other)
                return UNKNOWN if wanted is UNKNOWN else SIGNS[sign](release, wanted)
            case [str(package), str(sign), str(literal)] if sign in SIGNS and self.is_named(package):
                return self.compare_release(sign, literal)
        return UNKNOWN

    def answer_by_name(self, name: str, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        """Answer `is_lib_available("1.2")`, `is_installed("lib")` and their kin by what they are called."""
        texts = [item for item in arguments if not self.is_named(item)]
        is_named = len(texts) < len(arguments)
        if not is_named and not self._named.search(name.lower()):
            asks_torch = list(arguments) in (["torch"], []) and re.fullmatch(r"_?is_(?:package|torch)_available", name)
            return True if asks_torch else UNKNOWN
        self.asks_package = True
        if not texts and keywords.get("return_version") is True:
            return True, self.read_release()
        if keywords or not all(isinstance(text, str) for text in texts):
            return UNKNOWN
        if texts:
            return self._compare_by_name(name.lower(), texts)
        if is_named and _ASKS.search(name):
            self.is_guess = True
            return True
        return self.guess_flag(name)

    def _compare_by_name(self, name: str, texts: Sequence[str]) -> Any:
        match texts:
            case [sign, literal] if sign in SIGNS:
                return self.compare_release(sign, literal)
            case [least] if re.search(r"available|_ge$|gte|equal|min", name):
                return self.compare_release(">=", least)
            case [least] if "greater" in name:  # at the release itself the name does not tell
                return merge_values([self.compare_release(">", least), self.compare_release(">=", least)])
        return UNKNOWN

    def refine_by_name(self, name: str, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        """Answer for a function whose source did not decide: by its name when that compares releases.

        One that asks whether something is there may ask for more, so it can only be false by its name.
        """
        answer = self.answer_by_name(name, arguments, keywords) if arguments else UNKNOWN
        return answer if answer is False or _COMPARES.search(name) else UNKNOWN
