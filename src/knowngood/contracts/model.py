"""A contract, typed: what of the callee the caller uses, and where; `contracts.reading` tells its file. Pure."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from packaging.version import Version


class Form(StrEnum):
    """What an expression is."""

    CALL = "call"
    ATTRIBUTE = "attribute"
    IMPORT = "import"


@dataclass(frozen=True, kw_only=True)
class Expression:
    """What stands in the caller."""

    text: str
    form: Form
    name: str
    """The dotted name that is called or read; of an import, the name that is taken out of the module, or empty."""
    module: str = ""


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two packages."""

    package: str
    files: tuple[str, ...]
    floor: Version | None = None
    """The oldest release of interest, where matrix.yaml has no floor."""


@dataclass(frozen=True, kw_only=True)
class Use:
    """One use of the callee."""

    expressions: tuple[Expression, ...]
    symbols: tuple[str, ...]
    inside: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    """Of the callee, where it is not that of the contract."""
    absent: tuple[str, ...] = ()
    """Modules that no artefact of the callee contains: importing them fails."""
    raises: str = ""
    saying: str = ""
    under: tuple[str, ...] = ()
    """Names of which one must stand in the condition of the raise."""
    spared_by: tuple[Mapping[str, str], ...] = ()
    """What the caller does so that the condition does not hold: an argument it passes, a value it assigns."""


@dataclass(frozen=True, kw_only=True)
class Gate:
    """The caller's own bounds on the callee's version, by the names it gives them."""

    files: tuple[str, ...]
    minimum: tuple[str, ...] = ()
    maximum: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Reached:
    """The caller gets there only when the callee has a class of this name, which the caller's file names too."""

    files: tuple[str, ...]
    name: str
    unless: str = ""
    otherwise: str


@dataclass(frozen=True, kw_only=True)
class Contract:
    """One contract."""

    id: str
    title: str
    caller: Side
    callee: Side
    uses: tuple[Use, ...]
    gate: Gate | None = None
    reached_by: Reached | None = None
    version: tuple[str, ...] = ()
    """The caller's names for the callee's version."""
    given: Mapping[str, str] = field(default_factory=dict)
    """Values of the caller's variables that the question assumes."""

    @property
    def read(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The files that it names of the caller, and of the callee."""
        sections = (self.gate, self.reached_by)
        caller = [*self.caller.files, *(path for one in sections if one is not None for path in one.files)]
        callee = [*self.callee.files, *(path for use in self.uses for path in use.files)]
        return tuple(dict.fromkeys(caller)), tuple(dict.fromkeys(callee))


def expression(text: str) -> Expression:
    """What an expression asks; `ValueError` with the reason when it is none of the forms."""
    forms = "a contract's expression is a call `name(...)`, an attribute `self.name` or an import"
    try:
        body = ast.parse(text.strip()).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError(f"{text!r} does not parse as Python; {forms}") from None
    match body:
        case [ast.ImportFrom(module=str(module), names=[ast.alias(name=name)], level=0)] if name != "*":
            return Expression(text=text, form=Form.IMPORT, name=name, module=module)
        case [ast.Import(names=[ast.alias(name=module)])]:
            return Expression(text=text, form=Form.IMPORT, name="", module=module)
        case [ast.Expr(value=ast.Call(func=func, args=[ast.Constant(value=value)], keywords=[]))] if value is Ellipsis:
            return Expression(text=text, form=Form.CALL, name=ast.unparse(func))
        case [ast.Expr(value=ast.Attribute() as attribute)]:
            return Expression(text=text, form=Form.ATTRIBUTE, name=ast.unparse(attribute))
    raise ValueError(f"{text!r} is not understood; {forms}")
