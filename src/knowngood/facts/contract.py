"""The data of a contract: what the caller uses of the callee, and where. `contract_definition` reads its file. Pure."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from packaging.version import Version


class ExpressionForm(StrEnum):
    """The three forms that an expression of a contract can have."""

    CALL = "call"
    ATTRIBUTE = "attribute"
    IMPORT = "import"


@dataclass(frozen=True, kw_only=True)
class Expression:
    """A use of the callee, as the caller's source has it."""

    text: str
    form: ExpressionForm
    name: str
    """The dotted name that is called or read; for an import the imported name, or empty when it is the module."""
    module: str = ""


@dataclass(frozen=True, kw_only=True)
class ContractSide:
    """One of the two packages of a contract."""

    package: str
    files: tuple[str, ...]
    floor: Version | None = None
    """The oldest release of interest, for packages without a floor in matrix.yaml."""


@dataclass(frozen=True, kw_only=True)
class ContractUse:
    """One use of the callee by the caller."""

    expressions: tuple[Expression, ...]
    symbols: tuple[str, ...]
    inside: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    """The callee's files, where they are not those of the contract."""
    absent: tuple[str, ...] = ()
    """Modules that no artefact of the callee contains: importing them fails."""
    raises: str = ""
    saying: str = ""
    under: tuple[str, ...] = ()
    """Names of which one must be in the condition around the `raise`."""
    spared_by: tuple[Mapping[str, str], ...] = ()
    """What the caller can do so that the condition does not hold: pass an argument, or assign a value."""


@dataclass(frozen=True, kw_only=True)
class VersionGate:
    """The caller's own bounds on the callee's version, by the names of its variables."""

    files: tuple[str, ...]
    minimum: tuple[str, ...] = ()
    maximum: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ReachCondition:
    """The caller reaches its uses only when the callee has a class of this name, which the caller's file names too."""

    files: tuple[str, ...]
    name: str
    unless: str = ""
    otherwise: str


@dataclass(frozen=True, kw_only=True)
class Contract:
    """How one package uses another, to be judged for every pair of their releases."""

    id: str
    title: str
    caller: ContractSide
    callee: ContractSide
    uses: tuple[ContractUse, ...]
    gate: VersionGate | None = None
    reached_by: ReachCondition | None = None
    version: tuple[str, ...] = ()
    """The caller's names for the callee's version."""
    given: Mapping[str, str] = field(default_factory=dict)
    """Values of the caller's variables that the contract assumes."""

    @property
    def files_read(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The files that the contract names of the caller, and of the callee."""
        sections = (self.gate, self.reached_by)
        caller = [*self.caller.files, *(path for one in sections if one is not None for path in one.files)]
        callee = [*self.callee.files, *(path for use in self.uses for path in use.files)]
        return tuple(dict.fromkeys(caller)), tuple(dict.fromkeys(callee))


def parse_expression(text: str) -> Expression:
    """Parse an expression of a contract; `ValueError` with the reason when it has none of the three forms."""
    forms = "a contract's expression is a call `name(...)`, an attribute `self.name` or an import"
    try:
        body = ast.parse(text.strip()).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError(f"{text!r} does not parse as Python; {forms}") from None
    match body:
        case [ast.ImportFrom(module=str(module), names=[ast.alias(name=name)], level=0)] if name != "*":
            return Expression(text=text, form=ExpressionForm.IMPORT, name=name, module=module)
        case [ast.Import(names=[ast.alias(name=module)])]:
            return Expression(text=text, form=ExpressionForm.IMPORT, name="", module=module)
        case [ast.Expr(value=ast.Call(func=func, args=[ast.Constant(value=value)], keywords=[]))] if value is Ellipsis:
            return Expression(text=text, form=ExpressionForm.CALL, name=ast.unparse(func))
        case [ast.Expr(value=ast.Attribute() as attribute)]:
            return Expression(text=text, form=ExpressionForm.ATTRIBUTE, name=ast.unparse(attribute))
    raise ValueError(f"{text!r} is not understood; {forms}")
