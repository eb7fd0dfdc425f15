"""A reproduction in the environment of a machine that sees no registry: `knowngood reproduce INCIDENT --in here`.

    python scripts/reproduce_offline.py fetch INCIDENT SOURCES                          # where there is a registry
    PYTHONPATH=src:... python3 scripts/reproduce_offline.py run INCIDENT SOURCES OUT    # there

`fetch` leaves in the folder SOURCES the files of published releases that the sides unpack; `run` runs every side with
the Python at hand and writes OUT/incidents/INCIDENT/<time>-<digest>.json. That needs packaging, pydantic and PyYAML.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from knowngood.reproducing import reproduce, reproductions


def fetch(incident: str, sources: str) -> None:
    """Everything that any side unpacks."""
    from knowngood.reproducing.sources import unpack

    definition = reproductions.load(incident).definition
    for side in definition.sides:
        for pin, globs in definition.unpacked(side).items():
            for name, content in unpack(pin, globs, definition.python[0]).items():
                path = Path(sources, pin, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)


def run(incident: str, sources: str, out: str) -> None:
    """Every side, in this environment."""
    from knowngood.incidents.files import read
    from knowngood.reproducing.here import Here

    def unpacked(pin: str, _globs: Sequence[str], _python: str) -> dict[str, bytes]:
        root = Path(sources, pin)
        return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}

    case = reproductions.load(incident)
    known = {item.id: item for item in read()}
    sides = case.definition.chosen(None)
    found = reproduce.reproduce(case, known, Here(), unpacked, sides=sides, say=lambda text: print(text, flush=True))
    print(reproductions.store(found, Path(out)), found["outcome"])
    for side in found["sides"]:
        print(f"{side['side']}: {side['outcome']}: {reproductions.told(side)}")


{"fetch": fetch, "run": run}[sys.argv[1]](*sys.argv[2:])
