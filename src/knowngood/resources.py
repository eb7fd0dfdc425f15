"""Where the data files are: the checkout that this program runs from, else the folder in the wheel."""

from __future__ import annotations

from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


@cache
def root() -> Path:
    """The folder that holds `facts/`, `matrix.yaml`, `incidents/` and the other data.

    From a checkout (`src/knowngood` with `facts/` or `matrix.yaml` beside `src`) that is the checkout;
    installed from a wheel it is `knowngood/_data`.
    """
    checkout = _PACKAGE.parent.parent
    if _PACKAGE.parent.name == "src" and any((checkout / name).exists() for name in ("matrix.yaml", "facts")):
        return checkout
    return _PACKAGE / "_data"
