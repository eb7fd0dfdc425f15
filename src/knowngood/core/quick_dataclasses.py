"""`dataclass` with the same meaning as the standard library's, made in a fraction of the time.

    from knowngood.core.quick_dataclasses import dataclass

The standard library writes the methods of each class as text and compiles that when the module is imported: 0.6 ms a
class, of which a command that starts fast needs sixty. Here the methods are closures over the fields. What is made is a
dataclass all the same: `fields`, `replace` and `asdict` work. Modules that `check` and `pick` import at their start use
this; there is no reason to use it elsewhere.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass  # noqa: PLC0414 - for type checkers it is that one
else:

    def dataclass(
        cls: type | None = None, /, *, frozen: bool = False, kw_only: bool = False, slots: bool = False, eq: bool = True
    ) -> Any:
        """Return a class as a dataclass, or with options only what makes one of a class.

        The options are those of the standard library's `dataclass`; the others of that are not supported.
        """

        def make(one: type) -> type:
            if any(map(dataclasses.is_dataclass, one.__mro__[1:])):  # its base decides with it what is made
                return dataclasses.dataclass(frozen=frozen, kw_only=kw_only, slots=slots, eq=eq)(one)
            made = dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=kw_only, slots=slots)(one)
            made.__dataclass_params__.frozen = frozen  # a class that inherits from it must be as frozen
            fields = dataclasses.fields(made)
            methods: dict[str, Callable[..., Any]] = {"__init__": _initializer(made, fields), "__repr__": _represent}
            if eq:
                methods["__eq__"] = _equal
                hashed = tuple(field.name for field in fields if field.compare)
                methods["__hash__"] = (lambda self: hash(_values(self, hashed))) if frozen else None
            if frozen:
                methods |= {"__setattr__": _refuse_change, "__delattr__": _refuse_change}
            for name, method in methods.items():
                if name not in one.__dict__ or (name == "__hash__" and one.__dict__[name] is None):
                    setattr(made, name, method)
            return made

        return make if cls is None else make(cls)


def _initializer(cls: type, fields: tuple[Field[Any], ...]) -> Callable[..., None]:
    """Return the `__init__` of a class with these fields."""
    names = frozenset(field.name for field in fields)
    positional = tuple(field.name for field in fields if not field.kw_only)
    defaults = {field.name: _default_of(field) for field in fields}
    finish = getattr(cls, "__post_init__", None)
    put = object.__setattr__

    def initialize(self: Any, *arguments: Any, **values: Any) -> None:
        if arguments:
            _add_arguments(values, positional, arguments)
        for name in names - values.keys():
            values[name] = defaults[name]()
        if len(values) != len(names):
            raise TypeError(f"{cls.__name__} has no field {', '.join(values.keys() - names)}")
        for name, value in values.items():
            put(self, name, value)
        if finish is not None:
            finish(self)

    return initialize


def _default_of(field: Field[Any]) -> Callable[[], Any]:
    if field.default_factory is not MISSING:
        return field.default_factory
    if field.default is not MISSING:
        return lambda: field.default

    def refuse() -> Any:
        raise TypeError(f"the field {field.name} has no value")

    return refuse


def _add_arguments(values: dict[str, Any], positional: tuple[str, ...], arguments: tuple[Any, ...]) -> None:
    """Add the values that are given without a name."""
    if len(arguments) > len(positional) or values.keys() & set(positional[: len(arguments)]):
        raise TypeError(f"{len(arguments)} values are given without a name, for {', '.join(positional) or 'none'}")
    values.update(zip(positional, arguments, strict=False))


def _values(value: Any, names: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(getattr(value, name) for name in names)


def _represent(self: Any) -> str:
    parts = (f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self) if field.repr)
    return f"{type(self).__qualname__}({', '.join(parts)})"


def _equal(self: Any, other: Any) -> Any:
    if type(self) is not type(other):
        return NotImplemented
    names = tuple(field.name for field in dataclasses.fields(self) if field.compare)
    return _values(self, names) == _values(other, names)


def _refuse_change(self: Any, name: str, *_: Any) -> None:
    raise FrozenInstanceError(f"{type(self).__name__} is frozen: {name} cannot change")
