"""Data as a script, which a page can load from a file too (no request is made, which `file://` would refuse). Pure."""

from __future__ import annotations

import json
from typing import Any

_ESCAPES = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}


def data(name: str, value: Any) -> str:
    """`knowngood.NAME = VALUE` such that no text in it can end the script element or begin another."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":")).translate(_ESCAPES)
    return f"(globalThis.knowngood ??= {{}})[{json.dumps(name)}]={text};\n"
