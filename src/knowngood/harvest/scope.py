"""What surrounds a walk through a caller's function: its imports, what the contract assumes, the callee's version."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from knowngood.harvest import written
from knowngood.harvest.abstract import UNKNOWN, Constant, Reference, State, Value
from knowngood.harvest.release import imported_names
from knowngood.harvest.versions import decided, last_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from knowngood.contracts.model import Expression
    from knowngood.harvest.caller import Caller

_GIVEN: Mapping[str, Any] = {"true": True, "false": False, "none": None}


@dataclass(frozen=True, kw_only=True)
class Scope:
    """The scope of a walk in one file of the caller."""

    caller: Caller
    path: str
    version: Version

    def lookup(self, node: ast.Name | ast.Attribute, state: Mapping[str, Value]) -> Value:
        text, last = written.dotted(node), last_name(node)
        given = self.caller.contract.given
        for name in (text, last, last.lstrip("_")):
            if name in given:
                return Constant(_GIVEN.get(given[name].lower(), given[name]))
        flag = self.caller.holds(last, self.version)
        if flag is not None:
            return Constant(flag)
        if text in state:
            return state[text]
        imported = self.caller.release.imports(self.path).get(text)
        return Reference(self._resolved(imported)) if imported else UNKNOWN

    def imported(self, node: ast.Import | ast.ImportFrom) -> State:
        return {name: Reference(self._resolved([to])) for name, to in imported_names(node, self.path).items()}

    @property
    def _tops(self) -> set[str]:
        """The callee's import packages."""
        return {path.partition("/")[0] for path in self.caller.contract.callee.files}

    def _resolved(self, targets: Sequence[str]) -> str:
        return self.caller.release.resolved(targets, self._tops)

    def compared(self, node: ast.Compare) -> bool | None:
        return decided(node, self.caller.contract.version, self.version)

    def matcher(self, expression: Expression) -> Any:
        """Whether a called name is the expression's: by where it was imported from, else as it is written."""
        tops = self._tops
        wanted = expression.name.rsplit(".", 1)[-1]

        def matches(func: ast.expr, value: Value) -> bool:
            if isinstance(value, Reference):
                module, _, name = value.name.rpartition(".")
                return name == wanted and module.partition(".")[0] in tops
            return (written.dotted(func) or ast.unparse(func)) == expression.name

        return matches
