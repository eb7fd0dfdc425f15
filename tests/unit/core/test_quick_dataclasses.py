"""`quick_dataclasses.dataclass` against the standard library's, on the same classes."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from knowngood.core import quick_dataclasses


def classes(make: Any) -> tuple[type[Any], type[Any]]:
    @make(frozen=True, kw_only=True)
    class Pin:
        """A class whose objects cannot be changed."""

        name: str
        tags: dict[str, int] = dataclasses.field(default_factory=dict)
        kept: int = dataclasses.field(default=0, repr=False, compare=False)

    @make(slots=True)
    class Step:
        """A class whose objects can be changed."""

        place: int
        mask: int = 7

    return Pin, Step


BOTH = (classes(dataclasses.dataclass), classes(quick_dataclasses.dataclass))


def outcome(work: Any) -> object:
    try:
        return work()
    except (TypeError, AttributeError) as error:
        return type(error)


@pytest.mark.parametrize(
    "work",
    [
        lambda pin, _: pin(name="a"),
        lambda pin, _: pin(name="a") == pin(name="a", kept=3),
        lambda pin, _: pin(name="a") == pin(name="b"),
        lambda pin, _: pin(name="a") == "a",
        lambda pin, _: pin(name="a").tags is pin(name="a").tags,
        lambda pin, _: pin(),
        lambda pin, _: pin("a"),
        lambda pin, _: pin(name="a", other=1),
        lambda pin, _: setattr(pin(name="a"), "name", "b"),
        lambda pin, _: delattr(pin(name="a"), "name"),
        lambda pin, _: dataclasses.replace(pin(name="a", kept=1), name="b"),
        lambda pin, _: dataclasses.asdict(pin(name="a")),
        lambda pin, _: hash(pin(name="a", tags=1)) == hash(pin(name="a", tags=1, kept=2)),
        lambda _, step: step(1),
        lambda _, step: step(1, mask=2),
        lambda _, step: step(1, 2, 3),
        lambda _, step: step(1, place=2),
        lambda _, step: hash(step(1)),
        lambda _, step: setattr(step(1), "mask", 3),
        lambda _, step: setattr(step(1), "nothing", 3),
        lambda _, step: [field.name for field in dataclasses.fields(step)],
    ],
)
def test_a_class_acts_as_one_of_the_standard_library(work: Any):
    standard, quick = (outcome(lambda both=both: work(*both)) for both in BOTH)
    assert (quick if isinstance(quick, (bool, type)) else repr(quick)) == (
        standard if isinstance(standard, (bool, type)) else repr(standard)
    )


def test_a_method_of_the_class_itself_is_kept():
    @quick_dataclasses.dataclass(frozen=True)
    class Named:
        """It writes itself in its own way."""

        name: str

        def __repr__(self) -> str:
            return "own"

    assert repr(Named("a")) == "own"


@pytest.mark.parametrize("make", [dataclasses.dataclass, quick_dataclasses.dataclass])
def test_a_frozen_class_has_frozen_heirs_only(make: Any):
    pin, _ = classes(quick_dataclasses.dataclass)

    @make(frozen=True, kw_only=True)
    class Heir(pin):
        """A class that inherits from a quick one and adds a field."""

        more: int

    heir = Heir(name="a", more=1)
    assert (heir.name, heir.tags, heir.more) == ("a", {}, 1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        heir.more = 2
    with pytest.raises(TypeError, match="cannot inherit non-frozen"):
        make(kw_only=True)(type("Loose", (pin,), {}))
