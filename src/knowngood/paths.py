"""Where knowngood keeps what can be made again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """The cache folder: $KNOWNGOOD_CACHE, else $XDG_CACHE_HOME/knowngood, else ~/.cache/knowngood."""
    if own := os.environ.get("KNOWNGOOD_CACHE"):
        return Path(own).absolute()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared).absolute() / "knowngood"
    return Path.home() / ".cache" / "knowngood"
