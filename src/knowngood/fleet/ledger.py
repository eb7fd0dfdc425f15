"""A ledger of nodes: what each of them made of which image, and which ones fail what others pass. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, ValidationError

SCHEMA = "knowngood/fleet-nodes/1"
KEPT = 5_000
"""Results; the oldest go."""


class Seen(BaseModel):
    """What a node made of an image or an environment, once."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    node: str
    """The engine's name of it."""
    cell: str
    content: str
    good: bool
    text: str
    when: str


class Ledger(BaseModel):
    """Results in the order in which they came."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    results: tuple[Seen, ...] = ()

    def with_(self, seen: Seen) -> Ledger:
        """The ledger with one more result, which counts once however often it is delivered."""
        if seen in self.results:
            return self
        return Ledger(results=(*self.results, seen)[-KEPT:])

    def suspects(self) -> dict[str, str]:
        """Nodes to avoid, and why: the last that they did with what another node passes was to fail it."""
        passed: dict[str, set[str]] = {}
        for item in self.results:
            if item.good:
                passed.setdefault(item.content, set()).add(item.node)
        found: dict[str, str] = {}
        for item in self.results:
            others = sorted(passed.get(item.content, set()) - {item.node})
            if item.good:
                found.pop(item.node, None)
            elif others:
                found[item.node] = f"{item.cell} failed on it ({item.text}) and passed on {', '.join(others[:3])}"
        return found

    def text(self) -> str:
        """The file: for people first what follows, then what it follows from."""
        document = {
            "schema": SCHEMA,
            "read-me": "What nodes made of images. A node under `avoided` gets no job; to trust it again, "
            "take it out of `results`, or remove this file.",
            "avoided": self.suspects(),
            "results": [item.model_dump() for item in self.results],
        }
        return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def parse(text: str) -> Ledger | None:
    """The ledger of a file; `None` when that cannot be read."""
    try:
        stored: Mapping[str, object] = json.loads(text)
        return Ledger.model_validate({"results": stored["results"]}) if stored["schema"] == SCHEMA else None
    except (ValueError, KeyError, TypeError, ValidationError):
        return None
