"""With which releases of a package the code under a guard runs, by running its shortened source by hand. Pure."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from knowngood_facts.facts.guard_sources import CallerSources, decode_guard_source
from knowngood_facts.facts.guard_values import (
    SOMETHING,
    UNKNOWN,
    CallerFunction,
    GuardError,
    GuardFrame,
    GuardReturn,
    InstalledRelease,
    LibraryName,
    PythonRelease,
    StatementRunner,
    call_builtin,
    call_method,
    compare_values,
    merge_values,
    parse_version_value,
    read_version_part,
)
from knowngood_facts.facts.python_source import dotted_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from knowngood_facts.facts.atlas_lookup import AtlasLookup

_DEPTH = 10
"""How many functions call one another."""

_PARSERS = frozenset({"parse", "Version", "parse_version", "LooseVersion", "StrictVersion", "digit_version"})
_METADATA = frozenset({"version", "get_version", "metadata", "distribution", "get_distribution"})
_CONSTANTS: Mapping[str, Any] = {
    "sys.version_info": PythonRelease(),
    "sys.platform": "linux",
    "os.environ": (),
    "os.name": "posix",
    "TYPE_CHECKING": False,
    "typing.TYPE_CHECKING": False,
}
_RELIABLE = frozenset({"torch", "importlib", "os", "sys", "packaging", "platform", "functools", "warnings", "logging"})
"""Top-level modules whose import does not fail."""


class GuardAnswer(Enum):
    """What a condition is beside one release."""

    TRUE = "true"
    FALSE = "false"
    OPEN = "open"
    """Something else decides: a GPU, a third package, a value."""
    RAISES = "raises"
    """Neither branch runs, since the condition itself fails."""


@lru_cache(maxsize=4096)
def _parse_source(text: str) -> tuple[ast.stmt, ...]:
    return tuple(ast.parse(decode_guard_source(text)).body)


class GuardProgram:
    """Answers conditions of the caller's modules beside the releases of one other package."""

    def __init__(self, sources: CallerSources, callee: AtlasLookup) -> None:
        self.installed = InstalledRelease(callee)
        self._sources = sources
        self._globals: dict[str, Any] = {}
        self._depth = 0
        self._expressions: dict[type[ast.expr], Callable[[Any, GuardFrame], Any]] = {
            ast.Constant: lambda node, _: node.value,
            ast.Name: self._read_name,
            ast.Attribute: self._read_attribute,
            ast.UnaryOp: self._negate,
            ast.BoolOp: self._join,
            ast.Compare: self._compare,
            ast.IfExp: self._choose,
            ast.Tuple: self._read_items,
            ast.List: self._read_items,
            ast.Set: self._read_set,
            ast.Subscript: self._read_item,
            ast.Call: self._call,
        }
        self._runner = StatementRunner(self._evaluate, self._import)

    def answer(self, condition: ast.expr, module: str, place: int) -> GuardAnswer:
        """Return what a condition in a module is beside the other package's release at a place."""
        self.installed.select_release(place)
        self._globals.clear()
        try:
            value = self._evaluate(condition, GuardFrame(module))
        except GuardError:
            return GuardAnswer.RAISES
        if value is UNKNOWN:
            return GuardAnswer.OPEN
        return GuardAnswer.TRUE if value else GuardAnswer.FALSE

    def _evaluate(self, node: ast.expr, frame: GuardFrame) -> Any:
        evaluate = self._expressions.get(type(node))
        return evaluate(node, frame) if evaluate else UNKNOWN

    def _read_name(self, node: ast.Name, frame: GuardFrame) -> Any:
        if node.id in frame.names:
            return frame.names[node.id]
        if node.id in _CONSTANTS:
            return _CONSTANTS[node.id]
        return self._read_global(frame.module, node.id)

    def _read_global(self, module: str, name: str) -> Any:
        """The value of a variable or function of a module, wherever it is defined."""
        home = self._sources.find_home(module, name)
        if home is None:
            return self.installed.guess_flag(name)
        place, _, path = home.partition(":")
        if place.partition(".")[0] == self.installed.root:
            return self.installed.read_name(f"{place}.{path}" if path else place)
        if not self._sources.is_own(place):
            return self.installed.guess_flag(path or place)
        if home not in self._globals:
            self._globals[home] = UNKNOWN  # while it is computed, it does not depend on itself
            self._globals[home] = self._compute_global(home, place, path)
        return self._globals[home]

    def _compute_global(self, home: str, module: str, name: str) -> Any:
        text = self._sources.find_source(home)
        frame = GuardFrame(module)
        try:
            self._runner.execute(_parse_source(text) if text else (), frame)
        except (GuardError, GuardReturn):
            return UNKNOWN
        return frame.names.get(name, UNKNOWN)

    def _read_attribute(self, node: ast.Attribute, frame: GuardFrame) -> Any:
        dotted = dotted_name(node)
        if dotted in _CONSTANTS:
            return _CONSTANTS[dotted]
        whole = self._evaluate(node.value, frame)
        if isinstance(whole, LibraryName):
            return self.installed.read_name(f"{whole.path}.{node.attr}")
        if isinstance(whole, Version):
            return read_version_part(whole, node.attr)
        if dotted and self._sources.is_own(dotted):
            return self._read_global(dotted.rpartition(".")[0], node.attr)
        if whole is UNKNOWN and dotted == f"{self.installed.root}.__version__":
            return self.installed.read_release()  # imported by the function around the guard
        return UNKNOWN

    def _negate(self, node: ast.UnaryOp, frame: GuardFrame) -> Any:
        value = self._evaluate(node.operand, frame)
        return not value if isinstance(node.op, ast.Not) and value is not UNKNOWN else UNKNOWN

    def _join(self, node: ast.BoolOp, frame: GuardFrame) -> Any:
        """`a and b` and `a or b`: an undecided part matters only where no other part decides."""
        is_and = isinstance(node.op, ast.And)
        last: Any = is_and
        is_open = False
        for value in node.values:
            last = self._evaluate(value, frame)
            if last is UNKNOWN:
                is_open = True
            elif bool(last) is not is_and:
                return last
        return UNKNOWN if is_open else last

    def _compare(self, node: ast.Compare, frame: GuardFrame) -> Any:
        values = [self._evaluate(part, frame) for part in (node.left, *node.comparators)]
        answers = [compare_values(values[at], op, values[at + 1]) for at, op in enumerate(node.ops)]
        if False in answers:
            return False
        return UNKNOWN if UNKNOWN in answers else True

    def _choose(self, node: ast.IfExp, frame: GuardFrame) -> Any:
        decision = self._evaluate(node.test, frame)
        if decision is not UNKNOWN:
            return self._evaluate(node.body if decision else node.orelse, frame)
        return merge_values([self._evaluate(node.body, frame), self._evaluate(node.orelse, frame)])

    def _read_items(self, node: ast.Tuple | ast.List, frame: GuardFrame) -> tuple[Any, ...]:
        return tuple(self._evaluate(item, frame) for item in node.elts)

    def _read_set(self, node: ast.Set, frame: GuardFrame) -> Any:
        items = [self._evaluate(item, frame) for item in node.elts]
        return UNKNOWN if UNKNOWN in items else frozenset(items)

    def _read_item(self, node: ast.Subscript, frame: GuardFrame) -> Any:
        if dotted_name(node.value).endswith("environ"):
            raise GuardError
        whole, place = self._evaluate(node.value, frame), self._evaluate(node.slice, frame)
        try:
            return whole[place] if isinstance(whole, tuple | str) else UNKNOWN
        except (TypeError, IndexError):
            return UNKNOWN

    def _call(self, call: ast.Call, frame: GuardFrame) -> Any:
        arguments = [self._evaluate(argument, frame) for argument in call.args]
        keywords = {keyword.arg or "**": self._evaluate(keyword.value, frame) for keyword in call.keywords}
        if "**" in keywords or any(isinstance(argument, ast.Starred) for argument in call.args):
            return UNKNOWN
        for answer in (self._ask_system, self._ask_installed):
            value = answer(call, arguments, frame)
            if value is not NotImplemented:
                return value
        compared = self.installed.compare_shape(arguments)
        return self._call_value(call, arguments, keywords, frame) if compared is UNKNOWN else compared

    @staticmethod
    def _ask_system(call: ast.Call, arguments: Sequence[Any], _: GuardFrame) -> Any:
        """Answer what asks for the environment, the platform or a type; `NotImplemented` for any other call."""
        dotted = dotted_name(call.func)
        match arguments:
            case [str(), *rest] if dotted.endswith(("environ.get", "getenv")):
                return rest[0] if rest else None
            case [] if dotted == "platform.system":
                return "Linux"
            case [value, _] if dotted == "isinstance" and value is not UNKNOWN and dotted_name(call.args[1]) == "str":
                return isinstance(value, str)
        return NotImplemented

    def _ask_installed(self, call: ast.Call, arguments: Sequence[Any], frame: GuardFrame) -> Any:
        """Answer what asks for the installed package; `NotImplemented` for any other call."""
        name = dotted_name(call.func).rpartition(".")[2]
        match name, arguments:
            case "find_spec", [str(target)] if not target.startswith("."):
                return self.installed.find_spec(target)
            case _, [str(target)] if name in _METADATA and self.installed.is_named(target):
                return self.installed.read_release() if name.endswith("version") else SOMETHING
            case "getattr", [LibraryName(path=path), str(target), *_] if path == self.installed.root:
                return self.installed.read_name(f"{path}.{target}")
            case "hasattr", [LibraryName(path=path), str(target)]:
                return self.installed.has_name(f"{path}.{target}")
            case (("import_module" | "__import__"), [str(target)]):
                return self._import_module(target, frame)
        is_parser = len(arguments) == 1 and not call.keywords and self._is_parser(call.func, frame)
        return parse_version_value(arguments[0]) if is_parser else NotImplemented

    def _call_value(
        self, call: ast.Call, arguments: Sequence[Any], keywords: Mapping[str, Any], frame: GuardFrame
    ) -> Any:
        """Call a function of the caller, a method of a plain value, or one that only its name tells about."""
        name = dotted_name(call.func).rpartition(".")[2]
        value = self._call_plain(call, arguments, frame)
        function = self._evaluate(call.func, frame) if value is UNKNOWN else None
        match function:
            case None:
                return value
            case LibraryName():
                self.installed.note_question(name)
                return UNKNOWN
            case CallerFunction():
                value = self._run(function, arguments, keywords)
                if value is not UNKNOWN:
                    return value
            case _ if self._is_outside(call.func, frame):
                return self.installed.answer_by_name(name, arguments, keywords)
        return self.installed.refine_by_name(name, arguments, keywords)

    def _call_plain(self, call: ast.Call, arguments: Sequence[Any], frame: GuardFrame) -> Any:
        """Call a method of a plain value, or a built-in function."""
        if isinstance(call.func, ast.Attribute):
            return call_method(self._evaluate(call.func.value, frame), call.func.attr, arguments)
        return call_builtin(dotted_name(call.func), arguments)

    def _is_parser(self, function: ast.expr, frame: GuardFrame) -> bool:
        """Whether a function makes a version of a text, also under another name in this module."""
        dotted = dotted_name(function)
        if dotted.rpartition(".")[2] in _PARSERS:
            return True
        home = self._sources.find_home(frame.module, dotted) if dotted and "." not in dotted else None
        return home is not None and home.partition(":")[2] in _PARSERS

    def _is_outside(self, function: ast.expr, frame: GuardFrame) -> bool:
        """Whether a function is not one of the caller's own, whose source would have told."""
        root = dotted_name(function).partition(".")[0]
        home = self._sources.find_home(frame.module, root) if root else None
        return home is None or not self._sources.is_own(home.partition(":")[0])

    def _run(self, function: CallerFunction, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        frame = GuardFrame(function.module)
        if self._depth >= _DEPTH or not self._bind(function.node.args, arguments, keywords, frame):
            return UNKNOWN
        self._depth += 1
        try:
            self._runner.execute(function.node.body, frame)
            value: Any = None
        except GuardReturn as signal:
            value = signal.value
        finally:
            self._depth -= 1
        return merge_values([*frame.maybe, value])

    def _bind(
        self, parameters: ast.arguments, arguments: Sequence[Any], keywords: Mapping[str, Any], frame: GuardFrame
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
        frame.names |= {name: self._evaluate(default, GuardFrame(frame.module)) for name, default in defaults.items()}
        frame.names |= {one.arg: value for one, value in zip(positional, arguments, strict=False)} | dict(keywords)
        return True

    def _import(self, node: ast.Import | ast.ImportFrom, frame: GuardFrame) -> None:
        base = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
        for alias in node.names:
            local = alias.asname or alias.name.partition(".")[0]
            if isinstance(node, ast.ImportFrom) and (node.level or self._sources.is_own(base)):
                frame.names[local] = self._read_global(frame.module, local)
                continue
            value = self._import_module(f"{base}.{alias.name}" if base else alias.name, frame)
            is_whole = isinstance(value, LibraryName) and not base and not alias.asname
            frame.names[local] = LibraryName(local) if is_whole else value

    def _import_module(self, path: str, frame: GuardFrame) -> Any:
        root = path.partition(".")[0]
        if root != self.installed.root:
            frame.may_raise |= root not in _RELIABLE
            return UNKNOWN
        self.installed.asks_package = True
        value = self.installed.read_name(path)
        frame.may_raise |= value is UNKNOWN
        return value


_CATCHES = re.compile(
    r"try [\w.,]*\b(?:ImportError|ModuleNotFoundError|Exception|BaseException|AttributeError|TypeError)\b"
)
_HANDLES_IMPORT = re.compile(r"except [\w.,]*\b(?:ImportError|Exception|BaseException)\b[\w.,]* of (?P<tried>\S+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Answers:
    """What a condition is beside the callee's releases, as bits."""

    true: int
    false: int
    open: int
    asks_package: bool
    """Whether that depends on the callee."""
    is_guess: bool
    """Whether the name of a function told it, and not a source."""


class RunningCode:
    """Decides the guards in one caller's modules."""

    def __init__(self, caller: AtlasLookup) -> None:
        self._caller = caller
        self._sources = CallerSources(caller)
        self._answers: dict[tuple[str, tuple[str | None, ...], str], list[tuple[int, _Answers]]] = {}
        self._known: dict[tuple[str, str, bool, str], list[tuple[int, int]]] = {}

    def find_releases(
        self, guard: str, module: str, callers: int, callee: AtlasLookup, *, at_import: bool
    ) -> Iterator[tuple[int, int]]:
        """Yield sets of the caller's releases, each with the callee's for which code under a guard runs in them.

        `guard` is that of an `AtlasUse` in a module; `at_import` says that importing the module runs it. Code whose
        failure is caught counts as not running.
        """
        if not guard:
            yield callers, callee.every
            return
        if _CATCHES.search(guard):
            return
        known = self._known.setdefault((guard, module, at_import, callee.file.package), [])
        covered = 0
        for group, running in known:
            covered |= group
            if group & callers and running:
                yield group & callers, running
        while todo := callers & ~covered:
            self._sources.select_release((todo & -todo).bit_length() - 1, self._caller.every & ~covered)
            running = self._decide_guard(guard, module, callee, at_import=at_import)
            group = self._sources.same
            known.append((group, running))
            covered |= group
            if running:
                yield group & callers, running

    def _decide_guard(self, guard: str, module: str, callee: AtlasLookup, *, at_import: bool) -> int:
        """The callee's releases for which the code runs in the caller's release that is selected."""
        running = callee.every
        for part in guard.split(" & "):
            word, _, text = part.partition(" ")
            match word:
                case "except":
                    running &= _find_failing_imports(part, callee)
                case "if" | "unless" | "past":
                    running &= self._decide_condition(word, text, module, callee, at_import=at_import)
        return running

    def _decide_condition(self, word: str, text: str, module: str, callee: AtlasLookup, *, at_import: bool) -> int:
        """The releases for which code under one condition runs; after `past`, where the condition was not true."""
        condition = _parse_condition(text)
        if condition is None:
            return callee.every if word == "past" else 0
        answers = self._find_answers(text, condition, module, callee)
        match word:
            case "if" if not at_import and answers.asks_package:
                return answers.true | answers.open
            case "if":
                return answers.true
            case "unless":  # whether a package that is installed counts as available may depend on the GPU too
                return 0 if answers.is_guess else answers.false
        return answers.false | answers.open

    def _find_answers(self, text: str, condition: ast.expr, module: str, callee: AtlasLookup) -> _Answers:
        """Answer a condition in a module, once for all modules in which its names mean the same."""
        homes = tuple(self._sources.find_home(module, name) for name in _list_names(text))
        known = self._answers.setdefault((text, homes, callee.file.package), [])
        for group, answers in known:
            if self._sources.is_among(group):
                self._sources.same &= group
                return answers
        outer, self._sources.same = self._sources.same, self._caller.every
        answers = _answer_condition(GuardProgram(self._sources, callee), condition, module, callee)
        known.append((self._sources.same, answers))
        self._sources.same &= outer
        return answers


def _answer_condition(program: GuardProgram, condition: ast.expr, module: str, callee: AtlasLookup) -> _Answers:
    """Answer beside every release of the callee; beside one when the answer did not depend on which it is."""
    masks = dict.fromkeys(GuardAnswer, 0)
    for place in range(len(callee.file.releases)):
        answer = program.answer(condition, module, place)
        if not program.installed.asks_release:
            masks[answer] = callee.every
            break
        masks[answer] |= 1 << place
    return _Answers(
        true=masks[GuardAnswer.TRUE],
        false=masks[GuardAnswer.FALSE],
        open=masks[GuardAnswer.OPEN],
        asks_package=program.installed.asks_package,
        is_guess=program.installed.is_guess,
    )


@lru_cache(maxsize=4096)
def _list_names(text: str) -> tuple[str, ...]:
    """The names in a condition."""
    return tuple(sorted({node.id for node in ast.walk(ast.parse(text, mode="eval")) if isinstance(node, ast.Name)}))


@lru_cache(maxsize=4096)
def _parse_condition(text: str) -> ast.expr | None:
    """The condition's syntax; `None` for one that was cut, since conditions are stored up to a length."""
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError):
        return None


def _find_failing_imports(part: str, callee: AtlasLookup) -> int:
    """The releases without one of the names whose import brings the program into this `except`."""
    match = _HANDLES_IMPORT.match(part)
    failing = 0
    for target in match["tried"].split(",") if match else ():
        if re.split(r"[.:]", target, maxsplit=1)[0] == callee.file.root:
            presence = callee.find_name(target.replace(":", "."))
            failing |= callee.every & ~presence.present & ~presence.unclear
    return failing
