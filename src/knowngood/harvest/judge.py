"""One pair of releases under a contract: works, breaks, refuses, or is not called, and the words that are said."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from knowngood.contracts.model import Contract, Form, Use
from knowngood.contracts.table import SILENT, Outcome, Verdict
from knowngood.harvest import binding, callee, source
from knowngood.harvest.index import Unreadable

if TYPE_CHECKING:
    import ast

    from knowngood.harvest.caller import Asked, Caller
    from knowngood.harvest.release import Release
    from knowngood.harvest.shape import Shape

WORKS = Verdict(outcome=Outcome.WORKS)


@dataclass(frozen=True, kw_only=True)
class Judge:
    """Judges pairs under one contract."""

    contract: Contract
    _bound: dict[tuple[int, str, Shape], str | None] = field(default_factory=dict)
    """What was said of a call and a definition before; the trees live as long as this."""

    def pair(self, caller: Caller, release: Release) -> Verdict:
        """What happens when this caller meets this release of the callee."""
        try:
            return self._pair(caller, release)
        except Unreadable as error:
            return Verdict(outcome=Outcome.UNKNOWN, text=str(error))
        except Exception as error:  # noqa: BLE001 - a source can be strange in any way; the other pairs are still judged
            said = f"the source could not be understood: {type(error).__name__}: {error}"
            return Verdict(outcome=Outcome.UNKNOWN, text=said)

    def _pair(self, caller: Caller, release: Release) -> Verdict:  # noqa: C901, PLR0911 - in order
        if caller.release.artefact is None or release.artefact is None:
            raise Unreadable("the release has no file that can be read")
        if (absent := self._absent(caller)) is not None:
            return absent
        reached = self.contract.reached_by
        if caller.bounds is not None and not caller.bounds.contains(release.version):
            written = ",".join(sorted(map(str, caller.bounds), reverse=True))
            return Verdict(outcome=Outcome.REFUSES, text=f"takes {release.package} {written} only")
        if reached is not None:
            if reached.unless and caller.holds(reached.unless, release.version):
                return _not_called(f"{reached.unless} is set")
            if not self._defines(release, reached.name):
                return _not_called(SILENT + reached.otherwise)
        asked = [caller.asks(place, release.version) for place in range(len(self.contract.uses))]
        if not any(asked):
            return _not_called("it is not called with this version")
        answer = WORKS
        for use, one in zip(self.contract.uses, asked, strict=True):
            if one is not None:
                verdict = self._use(use, one, release)
                if verdict.outcome is not Outcome.WORKS:
                    return verdict
                answer = verdict if verdict.text else answer
        return answer

    def _absent(self, caller: Caller) -> Verdict | None:
        """What is said of a caller that has no use of the callee, whatever the callee's version."""
        reached = self.contract.reached_by
        if caller.path is None:
            return _not_called(f"this release has no {self.contract.caller.files[-1]}")
        if reached is not None and not caller.names():
            return _not_called(f"{reached.name} is not named in this release")
        if caller.has_use:
            return None
        if caller.mentions:
            raise Unreadable("a call by this name is there, and cannot be followed to the callee")
        return _not_called("this release has no such use")

    def has_symbol(self, use: Use, release: Release) -> bool:
        """Whether a release has what the use names: the symbol, the attribute, the module, or the raise."""
        expression = use.expressions[0]
        if expression.form is Form.IMPORT:
            if expression.module in use.absent:
                return True
            path = release.module(expression.module)
            tree = release.tree(path) if path else None
            return tree is not None and (not expression.name or callee.defines(tree, expression.name))
        path = release.first(use.files or self.contract.callee.files)
        tree = release.tree(path) if path else None
        if path is None or tree is None:
            return False
        if use.raises:
            return any(callee.raised(tree, symbol, use) for symbol in use.symbols)
        if expression.form is Form.ATTRIBUTE:
            attribute = expression.name.rsplit(".", 1)[-1]
            owners = [name for name in use.symbols if callee.class_of(tree, name)]
            return any(callee.has_attribute(release, path, owner, attribute) for owner in owners)
        return any(callee.definition(tree, symbol) is not None for symbol in use.symbols)

    def _defines(self, release: Release, name: str) -> bool:
        trees = [tree for path in self.contract.callee.files if (tree := release.tree(path))]
        return any(callee.class_of(tree, name) for tree in trees)

    def _use(self, use: Use, asked: Asked, release: Release) -> Verdict:
        if asked.refusals:
            return Verdict(outcome=Outcome.REFUSES, text=asked.refusals[0])
        if asked.expression.form is Form.IMPORT:
            failure = self._import(use, asked, release)
            outcome = Outcome.REFUSES if asked.caught else Outcome.BREAKS
            return Verdict(outcome=outcome, text=failure) if failure else WORKS
        path = release.first(use.files or self.contract.callee.files)
        tree = release.tree(path) if path else None
        if path is None or tree is None:
            module = (use.files or self.contract.callee.files)[0]
            return _breaks(f"ModuleNotFoundError: No module named '{dotted(module)}'")
        if use.raises:
            return self._raises(use, asked, tree)
        if asked.expression.form is Form.ATTRIBUTE:
            return self._attribute(use.symbols, asked.expression.name.rsplit(".", 1)[-1], release, path)
        return self._call(use, asked, release, path)

    def _import(self, use: Use, asked: Asked, release: Release) -> str | None:
        """The exception of an import; `None` when it works."""
        module, name = asked.expression.module, asked.expression.name
        path = release.module(module)
        if path is None:
            return f"ModuleNotFoundError: No module named '{_first_missing(release, module)}'"
        top = module.partition(".")[0]
        needed = release.needs(top) if use.absent else {}  # the whole package is read for it
        for foreign in (*needed.get(top, ()), *needed.get(module, ())):
            if foreign in use.absent or foreign.startswith(f"{top}."):
                return f"ModuleNotFoundError: No module named '{foreign}'"
        tree = release.tree(path)
        if name and tree is not None and not callee.defines(tree, name) and release.module(f"{module}.{name}") is None:
            return f"ImportError: cannot import name '{name}' from '{module}'"
        return None

    def _raises(self, use: Use, asked: Asked, tree: ast.Module) -> Verdict:
        found = [one for symbol in use.symbols for one in callee.raised(tree, symbol, use)]
        if not found:
            return WORKS
        if asked.spared:
            return Verdict(
                outcome=Outcome.WORKS, text=f"{asked.spared}, which spares it the {use.raises} of {use.symbols[0]}"
            )
        return _breaks(found[0].text)

    def _attribute(self, owners: tuple[str, ...], attribute: str, release: Release, path: str) -> Verdict:
        tree = release.tree(path)
        owner = next((name for name in owners if tree and callee.class_of(tree, name)), None)
        if owner is None:
            return _breaks(f"ImportError: cannot import name '{owners[0]}' from '{dotted(path)}'")
        if callee.has_attribute(release, path, owner, attribute):
            return WORKS
        return _breaks(f"AttributeError: '{owner}' object has no attribute '{attribute}'")

    def _call(self, use: Use, asked: Asked, release: Release, path: str) -> Verdict:
        tree = release.tree(path)
        assert tree is not None  # noqa: S101 - the path is one that the release has
        symbol = next((name for name in use.symbols if callee.definition(tree, name)), None)
        if symbol is None:
            owner, _, method = use.symbols[0].rpartition(".")
            if owner:
                return self._attribute((owner,), method, release, path)
            return _breaks(f"ImportError: cannot import name '{use.symbols[0]}' from '{dotted(path)}'")
        node = callee.definition(tree, symbol)
        if not isinstance(node, source.Function):
            node, symbol = callee.definition(tree, f"{symbol}.__init__"), f"{symbol}.__init__"
        if not isinstance(node, source.Function):
            raise Unreadable(f"{symbol} is not defined in {path}: its arguments are not known")
        unsure = False
        for shape in asked.shapes:
            key = (id(node), symbol, shape)
            if key not in self._bound:
                sizes = source.returned(node, tree) if shape.unpacked else []
                accepted = without_deprecated(shape, node)
                self._bound[key] = binding.unbound(accepted, node, symbol) or binding.unpacked(shape, sizes)
            text = self._bound[key]
            if text:
                return _breaks(text)
            unsure |= shape.positional is None or shape.more
        if unsure:
            raise Unreadable(f"not all arguments of {asked.expression.text} can be read from the source")
        return WORKS


def without_deprecated(shape: Shape, node: source.Function) -> Shape:
    """The call without the keywords that a decorator `deprecate_kwarg("old", ...)` takes out before."""
    import ast
    from dataclasses import replace

    old = {
        text
        for decorator in node.decorator_list
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func).endswith("deprecate_kwarg")
        for text in list(source.strings(decorator))[:1]
    }
    return replace(shape, keywords=tuple(word for word in shape.keywords if word not in old))


def dotted(path: str) -> str:
    """The module of a file."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _first_missing(release: Release, module: str) -> str:
    parts = module.split(".")
    names = (".".join(parts[:count]) for count in range(1, len(parts) + 1))
    return next((name for name in names if release.module(name) is None), module)


def _breaks(text: str) -> Verdict:
    return Verdict(outcome=Outcome.BREAKS, text=text)


def _not_called(text: str) -> Verdict:
    return Verdict(outcome=Outcome.NOT_CALLED, text=text)
