"""What YAML texts mean, kept between processes: to parse them takes longer than to answer a question.

The cache is one file of the user's cache folder: digest of a text -> its data. A text that changed has another digest,
and so has every text for a changed parser, so nothing in it is ever out of date, and it can be deleted at any time. It
holds plain data only; what reads a file checks the data as if it had just been parsed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from knowngood.core import yaml_document
from knowngood.core.local_files import cache_folder, write_atomically


class YamlCache:
    """The data of YAML texts that were parsed before. One that is not used keeps and looks up nothing."""

    def __init__(self, *, used: bool = True) -> None:
        self._used = used
        self._path = cache_folder() / "yaml.json"
        self._known = self._read() if used else {}
        self._asked: dict[str, str] = {}
        self._salt = Path(yaml_document.__file__).read_bytes() if used else b""

    def _read(self) -> dict[str, str]:
        with contextlib.suppress(OSError, ValueError, RecursionError):
            known = json.loads(self._path.read_bytes())
            return known if isinstance(known, dict) else {}
        return {}

    def parse(self, text: str, file: str) -> Any:
        """Return the data in a text; `file` is its name for messages. Raises `InputError` as `parse_yaml_data` does."""
        if not self._used:
            return yaml_document.parse_yaml_data(text, file)
        digest = hashlib.sha256(self._salt + text.encode()).hexdigest()
        with contextlib.suppress(KeyError, TypeError, ValueError, RecursionError):
            self._asked[digest] = self._known[digest]
            return json.loads(self._known[digest])
        data = yaml_document.parse_yaml_data(text, file)
        self._asked[digest] = json.dumps(data, separators=(",", ":"))
        return data

    def save(self) -> None:
        """Write what was asked for, unless the file has just that; texts that nobody asks for are dropped."""
        if self._used and self._asked != self._known:
            with contextlib.suppress(OSError):
                write_atomically(self._path, json.dumps(self._asked, separators=(",", ":")))


ParseYaml = Callable[[str, str], Any]
"""Returns the data in a YAML text, which is the first argument; the second is its name for messages."""
