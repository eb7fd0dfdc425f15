"""Ways to damage a file: bytes flipped, cut, values of other types, nesting, huge numbers, keys given twice."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

from hypothesis import strategies as st

_TOKEN = re.compile(rb"[A-Za-z0-9_.+-]+|[^\sA-Za-z0-9]")
_TOKENS = [
    b"",
    b"null",
    b"true",
    b"-1",
    b"0",
    b"1e999",
    b"NaN",
    b"9" * 400,
    b"1" + b"0" * 5000,
    b"1." * 2500 + b"1",
    b"[",
    b"]",
    b"{",
    b"}",
    b"[" * 3000,
    b'{"a":' * 3000,
    b"- " * 3000,
    b'""',
    b'"',
    b"&a [*a]",
    b"*a",
    b"!!python/object:os.system",
    b"!x",
    b"\x00",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\xed\xa0\x80",
    b"\\ud800",
    b"\t",
    b"\r",
    b"\n",
    "\u2028ü".encode(),
    b"%",
    b"..",
    b"../../etc/passwd",
    b"{0}",
    b"*",
]
_VALUES: list[Any] = [
    None, True, False, 0, -1, 10**30, 10**400, 1e308, "", "x", "9" * 5000, "\ud800", "\x00", "*", [], {}, [[]],
    [None], {"": {}}, {"x": [1]}, "1.0", "1!2.0", ">=1,<", "../..",
]  # fmt: skip


@st.composite
def damaged_bytes(draw: st.DrawFn, data: bytes) -> bytes:
    """Return `data` with one to three places damaged, in any way."""
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(["flip", "cut", "token", "token", "token", "twice", "drop", "swap", "whole"]))
        at = draw(st.integers(0, max(0, len(data) - 1)))
        if kind == "flip" and data:
            data = data[:at] + bytes([data[at] ^ (1 << draw(st.integers(0, 7)))]) + data[at + 1 :]
        elif kind == "cut":
            data = data[:at]
        elif kind == "token":
            match = _TOKEN.search(data, at)
            if match:
                data = data[: match.start()] + draw(st.sampled_from(_TOKENS)) + data[match.end() :]
        elif kind in ("twice", "drop", "swap"):
            lines = data.split(b"\n")
            place, other = (draw(st.integers(0, len(lines) - 1)) for _ in range(2))
            if kind == "twice":
                lines.insert(other, lines[place])
            elif kind == "drop":
                del lines[place]
            else:
                lines[place], lines[other] = lines[other], lines[place]
            data = b"\n".join(lines)
        elif draw(st.integers(0, 9)) == 0:
            data = draw(st.sampled_from([b"", b"[]", b"{}", b"null", b"5", b'"x"', b"\n", b"[" * 100_000, b"\x00"]))
    return data


@st.composite
def damaged_json(draw: st.DrawFn, data: bytes) -> bytes:
    """Return JSON that is well-formed (often), with one to three values or keys replaced."""
    if draw(st.integers(0, 3)) == 0:
        return draw(damaged_bytes(data))
    document = json.loads(data)
    for _ in range(draw(st.integers(1, 3))):
        parent, key = _draw_place(draw, document)
        if parent is None:
            continue
        kind = draw(st.sampled_from(["value", "value", "value", "drop", "add", "rename", "deep"]))
        if kind == "drop":
            del parent[key]
        elif kind == "deep":
            value: Any = parent[key]
            for _ in range(draw(st.sampled_from([2, 30, 100, 600]))):
                value = [value] if draw(st.booleans()) else {"a": value}
            parent[key] = value
        elif kind == "add" and isinstance(parent, dict):
            parent[draw(st.sampled_from(["x", "", "schema", "a.b", "\x00", "0"]))] = copy.deepcopy(
                draw(st.sampled_from(_VALUES))
            )
        elif kind == "rename" and isinstance(parent, dict):
            parent[draw(st.sampled_from(["x", "", "9" * 5000, "2.0.0", "1.x"]))] = parent.pop(key)
        else:
            parent[key] = copy.deepcopy(draw(st.sampled_from(_VALUES)))
    text = json.dumps(document, indent=draw(st.sampled_from([None, 1])))
    return text.encode()


def _draw_place(draw: st.DrawFn, document: Any) -> tuple[Any, Any]:
    """Return a container in the document and one of its keys; a walk from the top that stops by chance."""
    parent, key = None, None
    value = document
    while isinstance(value, dict | list) and value:
        parent = value
        key = draw(st.sampled_from(list(value) if isinstance(value, dict) else range(len(value))))
        value = value[key]
        if draw(st.integers(0, 4)) == 0:
            break
    return parent, key
