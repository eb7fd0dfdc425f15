"""With which releases of a package the code under a guard runs. Pure.

At the import of a module only what runs for certain counts. Inside a function, code also counts whose condition asks
for the package and for something else that the sources do not decide, such as a GPU. Sets of releases are bit masks, as
in the atlas.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from knowngood.facts.guard_program import GuardAnswer, GuardProgram
from knowngood.facts.guard_sources import CallerSources

if TYPE_CHECKING:
    from collections.abc import Iterator

    from knowngood.facts.atlas_lookup import AtlasLookup

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
