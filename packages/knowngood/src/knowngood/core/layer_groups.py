"""The names of layer groups: those of matrix.yaml, and of the compiled part that a group is split into. Pure."""

from __future__ import annotations

_COMPILED_SUFFIX = "-compiled"


def compiled_group_name(group: str) -> str:
    """Return the name for the compiled wheels of a group that also has wheels for every processor."""
    return f"{group}{_COMPILED_SUFFIX}"


def validate_group_name(group: str) -> str:
    """Return the name of a group in matrix.yaml.

    Raises `ValueError` for one that the compiled wheels of another group may get.
    """
    if group.endswith(_COMPILED_SUFFIX):
        other = group.removesuffix(_COMPILED_SUFFIX)
        raise ValueError(
            f"{group!r}: the ending {_COMPILED_SUFFIX} is for the compiled wheels of a group, which get a layer apart; "
            f"two layers would be called {group!r} beside a group {other!r}, so take another name"
        )
    return group
