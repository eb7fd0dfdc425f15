"""Judge a pair of releases under a contract: it works, breaks, refuses, or is not called, with the message. Pure."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from knowngood.facts import call_shape, contract_callee, python_source
from knowngood.facts.contract import Contract, ContractUse, ExpressionForm
from knowngood.facts.contract_table import SILENT_PREFIX, PairOutcome, PairVerdict
from knowngood.index.artefact import UnreadableError

if TYPE_CHECKING:
    from knowngood.core import yaml_document
    from knowngood.core.errors import InputProblem
    from knowngood.facts.call_shape import CallShape
    from knowngood.facts.contract_caller import CallerRelease, CallerUse
    from knowngood.facts.release_source import ReleaseSource

WORKS = PairVerdict(outcome=PairOutcome.WORKS)


@dataclass(frozen=True, kw_only=True)
class PairJudge:
    """Judges pairs of releases under one contract."""

    contract: Contract
    _binding_errors: dict[tuple[int, str, CallShape], str | None] = field(default_factory=dict)
    """The error of a call with a definition that was judged before; the trees live as long as this object."""

    def judge(self, caller: CallerRelease, release: ReleaseSource) -> PairVerdict:
        """Return what happens when this caller is used with this release of the callee."""
        try:
            return self._judge(caller, release)
        except UnreadableError as error:
            return PairVerdict(outcome=PairOutcome.UNKNOWN, text=str(error))
        except Exception as error:  # noqa: BLE001 - a source can be strange in any way; the other pairs are still judged
            text = f"the source could not be understood: {type(error).__name__}: {error}"
            return PairVerdict(outcome=PairOutcome.UNKNOWN, text=text)

    def _judge(self, caller: CallerRelease, release: ReleaseSource) -> PairVerdict:  # noqa: C901, PLR0911 - in order
        if caller.release.artefact is None or release.artefact is None:
            raise UnreadableError("the release has no file that can be read")
        if (absent := self._judge_without_use(caller)) is not None:
            return absent
        reached = self.contract.reached_by
        if caller.bounds is not None and not caller.bounds.contains(release.version):
            written = ",".join(sorted(map(str, caller.bounds), reverse=True))
            return PairVerdict(outcome=PairOutcome.REFUSES, text=f"takes {release.package} {written} only")
        if reached is not None:
            if reached.unless and caller.holds(reached.unless, release.version):
                return _not_called(f"{reached.unless} is set")
            if not self._defines(release, reached.name):
                return _not_called(SILENT_PREFIX + reached.otherwise)
        caller_uses = [caller.find_use(place, release.version) for place in range(len(self.contract.uses))]
        if not any(caller_uses):
            return _not_called("it is not called with this version")
        answer = WORKS
        for use, caller_use in zip(self.contract.uses, caller_uses, strict=True):
            if caller_use is not None:
                verdict = self._judge_use(use, caller_use, release)
                if verdict.outcome is not PairOutcome.WORKS:
                    return verdict
                answer = verdict if verdict.text else answer
        return answer

    def _judge_without_use(self, caller: CallerRelease) -> PairVerdict | None:
        """Return the verdict for a caller that does not use the callee in any version; `None` when it uses it."""
        reached = self.contract.reached_by
        if caller.path is None:
            return _not_called(f"this release has no {self.contract.caller.files[-1]}")
        if reached is not None and not caller.names_reached_class():
            return _not_called(f"{reached.name} is not named in this release")
        if caller.has_use:
            return None
        if caller.mentions:
            raise UnreadableError("a call by this name is there, and cannot be followed to the callee")
        return _not_called("this release has no such use")

    def has_symbol(self, use: ContractUse, release: ReleaseSource) -> bool:
        """Return whether a release has what the use names: the symbol, the attribute, the module, or the raise."""
        expression = use.expressions[0]
        if expression.form is ExpressionForm.IMPORT:
            if expression.module in use.absent:
                return True
            path = release.module(expression.module)
            tree = release.tree(path) if path else None
            return tree is not None and (not expression.name or contract_callee.defines_name(tree, expression.name))
        path = release.first(use.files or self.contract.callee.files)
        tree = release.tree(path) if path else None
        if path is None or tree is None:
            return False
        if use.raises:
            return any(contract_callee.find_raises(tree, symbol, use) for symbol in use.symbols)
        if expression.form is ExpressionForm.ATTRIBUTE:
            attribute = expression.name.rsplit(".", 1)[-1]
            owners = [name for name in use.symbols if contract_callee.find_class(tree, name)]
            return any(contract_callee.has_attribute(release, path, owner, attribute) for owner in owners)
        return any(contract_callee.find_definition(tree, symbol) is not None for symbol in use.symbols)

    def _defines(self, release: ReleaseSource, name: str) -> bool:
        trees = [tree for path in self.contract.callee.files if (tree := release.tree(path))]
        return any(contract_callee.find_class(tree, name) for tree in trees)

    def _judge_use(self, use: ContractUse, caller_use: CallerUse, release: ReleaseSource) -> PairVerdict:
        if caller_use.refusals:
            return PairVerdict(outcome=PairOutcome.REFUSES, text=caller_use.refusals[0])
        if caller_use.expression.form is ExpressionForm.IMPORT:
            failure = self._find_import_error(use, caller_use, release)
            outcome = PairOutcome.REFUSES if caller_use.caught else PairOutcome.BREAKS
            return PairVerdict(outcome=outcome, text=failure) if failure else WORKS
        path = release.first(use.files or self.contract.callee.files)
        tree = release.tree(path) if path else None
        if path is None or tree is None:
            module = (use.files or self.contract.callee.files)[0]
            return _breaks(f"ModuleNotFoundError: No module named '{module_of_path(module)}'")
        if use.raises:
            return self._judge_raise(use, caller_use, tree)
        if caller_use.expression.form is ExpressionForm.ATTRIBUTE:
            return self._judge_member(use.symbols, caller_use.expression.name.rsplit(".", 1)[-1], release, path)
        return self._judge_call(use, caller_use, release, path)

    def _find_import_error(self, use: ContractUse, caller_use: CallerUse, release: ReleaseSource) -> str | None:
        """Return the text of the exception that an import raises, or `None` when it works."""
        module, name = caller_use.expression.module, caller_use.expression.name
        path = release.module(module)
        if path is None:
            return f"ModuleNotFoundError: No module named '{_first_missing(release, module)}'"
        top = module.partition(".")[0]
        needed = release.needs(top) if use.absent else {}  # the whole package is read for it
        for foreign in (*needed.get(top, ()), *needed.get(module, ())):
            if foreign in use.absent or foreign.startswith(f"{top}."):
                return f"ModuleNotFoundError: No module named '{foreign}'"
        tree = release.tree(path)
        if (
            name
            and tree is not None
            and not contract_callee.defines_name(tree, name)
            and release.module(f"{module}.{name}") is None
        ):
            return f"ImportError: cannot import name '{name}' from '{module}'"
        return None

    def _judge_raise(self, use: ContractUse, caller_use: CallerUse, tree: ast.Module) -> PairVerdict:
        sites = [site for symbol in use.symbols for site in contract_callee.find_raises(tree, symbol, use)]
        if not sites:
            return WORKS
        if caller_use.spared:
            return PairVerdict(
                outcome=PairOutcome.WORKS,
                text=f"{caller_use.spared}, which spares it the {use.raises} of {use.symbols[0]}",
            )
        return _breaks(sites[0].text)

    def _judge_member(self, owners: tuple[str, ...], attribute: str, release: ReleaseSource, path: str) -> PairVerdict:
        tree = release.tree(path)
        owner = next((name for name in owners if tree and contract_callee.find_class(tree, name)), None)
        if owner is None:
            return _breaks(f"ImportError: cannot import name '{owners[0]}' from '{module_of_path(path)}'")
        if contract_callee.has_attribute(release, path, owner, attribute):
            return WORKS
        return _breaks(f"AttributeError: '{owner}' object has no attribute '{attribute}'")

    def _judge_call(self, use: ContractUse, caller_use: CallerUse, release: ReleaseSource, path: str) -> PairVerdict:
        tree = release.tree(path)
        assert tree is not None  # noqa: S101 - the path is one that the release has
        symbol = next((name for name in use.symbols if contract_callee.find_definition(tree, name)), None)
        if symbol is None:
            owner, _, method = use.symbols[0].rpartition(".")
            if owner:
                return self._judge_member((owner,), method, release, path)
            return _breaks(f"ImportError: cannot import name '{use.symbols[0]}' from '{module_of_path(path)}'")
        node = contract_callee.find_definition(tree, symbol)
        if not isinstance(node, python_source.Function):
            node, symbol = contract_callee.find_definition(tree, f"{symbol}.__init__"), f"{symbol}.__init__"
        if not isinstance(node, python_source.Function):
            raise UnreadableError(f"{symbol} is not defined in {path}: its arguments are not known")
        unsure = False
        for shape in caller_use.shapes:
            key = (id(node), symbol, shape)
            if key not in self._binding_errors:
                sizes = python_source.count_returned_values(node, tree) if shape.unpacked else []
                accepted = drop_deprecated_keywords(shape, node)
                self._binding_errors[key] = call_shape.find_binding_error(
                    accepted, node, symbol
                ) or call_shape.find_unpacking_error(shape, sizes)
            text = self._binding_errors[key]
            if text:
                return _breaks(text)
            unsure |= shape.positional is None or shape.more
        if unsure:
            raise UnreadableError(f"not all arguments of {caller_use.expression.text} can be read from the source")
        return WORKS


def drop_deprecated_keywords(shape: CallShape, node: python_source.Function) -> CallShape:
    """Return the call without the keywords that a decorator `deprecate_kwarg("old", ...)` removes before it."""
    old = {
        text
        for decorator in node.decorator_list
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func).endswith("deprecate_kwarg")
        for text in list(python_source.string_constants(decorator))[:1]
    }
    return replace(shape, keywords=tuple(word for word in shape.keywords if word not in old))


def module_of_path(path: str) -> str:
    """Return the dotted module name of a file in a package."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _first_missing(release: ReleaseSource, module: str) -> str:
    parts = module.split(".")
    names = (".".join(parts[:count]) for count in range(1, len(parts) + 1))
    return next((name for name in names if release.module(name) is None), module)


def _breaks(text: str) -> PairVerdict:
    return PairVerdict(outcome=PairOutcome.BREAKS, text=text)


def _not_called(text: str) -> PairVerdict:
    return PairVerdict(outcome=PairOutcome.NOT_CALLED, text=text)


@dataclass
class ContractCoverage:
    """What at least one release has: a name that no release has is an error in the contract and not in a release."""

    callers: set[int] = field(default_factory=set)
    symbols: set[int] = field(default_factory=set)
    caller_files: bool = False
    callee_files: bool = False
    reasons: dict[str, int] = field(default_factory=dict)

    def judge_pair(self, caller: CallerRelease, release: ReleaseSource, judge: PairJudge) -> PairVerdict:
        """Judge a pair and record which names of the contract it has."""
        verdict = judge.judge(caller, release)
        try:
            self._record(caller, release, judge)
        except Exception as error:  # noqa: BLE001 - the verdict has the reason
            self.reasons[str(error)] = self.reasons.get(str(error), 0) + 1
        return verdict

    def _record(self, caller: CallerRelease, release: ReleaseSource, judge: PairJudge) -> None:
        self.caller_files |= caller.path is not None
        for place, use in enumerate(judge.contract.uses):
            if place not in self.callers and caller.has_use and caller.find_use(place, release.version):
                self.callers.add(place)
            if place not in self.symbols and judge.has_symbol(use, release):
                self.symbols.add(place)
        if not self.callee_files:
            self.callee_files = release.first(judge.contract.callee.files) is not None

    def problems(self, contract: Contract, source: yaml_document.YamlDocument) -> list[InputProblem]:
        """Return what no release at all has, as errors in the contract: a table without breaks would hide them."""
        if self.reasons and not self.caller_files:
            raise UnreadableError(f"no release of {contract.caller.package} could be read: {min(self.reasons)}")
        for key, is_there, side in (
            ("caller", self.caller_files, contract.caller),
            ("callee", self.callee_files, contract.callee),
        ):
            if not is_there:
                files = " or ".join(side.files)
                return [source.problem((key, "file"), f"no release of {side.package} has {files}; is the path right?")]
        problems = []
        for place, use in enumerate(contract.uses):
            path = ("uses", place)
            if place not in self.callers:
                where = f" in {' or '.join(use.inside)}" if use.inside else ""
                text = f"no release of {contract.caller.package} has {use.expressions[0].text}{where}"
                problems.append(source.problem((*path, "expression"), text))
            elif place not in self.symbols:
                what = f"a raise of {use.raises} with {use.saying!r}" if use.raises else use.symbols[0]
                text = f"no release of {contract.callee.package} has {what}; is the name right?"
                problems.append(source.problem((*path, "symbol"), text))
        return problems
