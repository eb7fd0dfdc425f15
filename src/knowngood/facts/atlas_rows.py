"""The rows of the atlas: what one Python module offers, and what it uses of other packages. Pure.

A module becomes `AtlasRow`s: the module itself, the names that it defines, imports or exports lazily, the bases,
methods and attributes of its classes, the parameters of its functions, and the string keys of its tables. What it
imports from other packages becomes `AtlasUse`s, with the guards around each: a `try`, an `if`, a function.
`module_rows` makes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

DETAIL_LIMIT = 400
"""Longer details are cut or left out, in characters."""


class RowKind(StrEnum):
    """What a row of the atlas says."""

    MODULE = "m"
    """The module is there; the flags of the detail: `p` a package, `g` with `__getattr__`, `x` it did not parse."""
    CLASS = "c"
    """A class; the detail has its bases as written, separated by commas."""
    FUNCTION = "f"
    """A function or method; the detail is its signature."""
    PROPERTY = "p"
    """A property or another descriptor made by a decorator."""
    VALUE = "v"
    """A variable of the module or the class."""
    ATTRIBUTE = "a"
    """An attribute that a method assigns to `self`."""
    IMPORT = "i"
    """A name that is imported; the detail is the module, or `module:name`, with `?` behind it under `if` or `try`."""
    STAR = "s"
    """Everything public of another module; the detail is that module, with `?` as for an import."""
    EXPORT = "e"
    """A name that the module lists in `__all__`, whether or not it defines it; the detail is empty."""
    LAZY = "z"
    """A name that the module exports lazily; the detail is the module that has it."""
    LAZY_FOLDER = "d"
    """Everything that the modules below this folder list in `__all__` is exported lazily; the detail is the module."""
    KEY = "k"
    """A string key of a table or a value of an enumeration, as `TABLE[key]`."""
    WORDS = "w"
    """The deprecation's own words: the decorator as written."""
    CALL = "q"
    """A call of its own method that a class makes; the path is the method, the detail is the call's shape."""
    RETURNS = "r"
    """Of a function that returns tuples only: how many values they have, as `4,5`."""
    SOURCE = "t"
    """Of a function or variable that tells what is installed: its shortened source (see `guard_sources`)."""


@dataclass(frozen=True, slots=True, order=True)
class AtlasRow:
    """One thing that a module has."""

    path: str
    """The name inside the module: empty for the module itself, `Class.method`, `TABLE[key]`."""
    kind: RowKind
    detail: str = ""


@dataclass(frozen=True, slots=True, order=True)
class AtlasUse:
    """One use of another package by a module."""

    target: str
    """`module:name` as imported, or a module; with a call's shape after a space (see `call_rows`). `super:Class.method`
    is a method that a class of this module calls of its bases."""
    place: str
    """The function or class in which it stands, or empty when importing the module runs it."""
    guard: str
    """The guards around it, separated by ` & `: `try ImportError`, `if is_peft_available()`; empty without one.
    `except ImportError of a:b,c` is a handler that runs where one of these imports fails; `past x` is code behind an
    `if x` that raises or returns. Inside functions, conditions that ask neither for a version nor for whether something
    is there are left out."""


@dataclass(frozen=True, slots=True)
class ModuleRows:
    """What was read from one module."""

    rows: tuple[AtlasRow, ...]
    uses: tuple[AtlasUse, ...]


def fits_row(text: str) -> bool:
    """Return whether a text can stand in a row: it is printable and not too long."""
    return text.isprintable() and len(text) <= DETAIL_LIMIT
