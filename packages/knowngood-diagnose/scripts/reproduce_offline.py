"""Run a reproduction on a machine that cannot reach a registry, as `knowngood reproduce INCIDENT --in here` does.

    python reproduce_offline.py fetch INCIDENT SOURCES                          # on a machine with a registry
    PYTHONPATH=src:... python3 reproduce_offline.py run INCIDENT SOURCES OUT    # on the machine without

`fetch` writes the files of published releases that the sides unpack into the folder SOURCES. `run` runs every side with
the Python that starts it and writes OUT/incidents/INCIDENT/<time>-<digest>.json; it needs packaging, pydantic and
PyYAML.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from knowngood_diagnose.reproductions import reproduction, reproduction_run

if TYPE_CHECKING:
    from collections.abc import Sequence


def fetch(incident: str, sources: str) -> None:
    """Write the files that any side unpacks into the folder `sources`."""
    from knowngood_diagnose.reproductions.local_places import unpack_release

    definition = reproduction.load_reproduction(incident).definition
    for side in definition.sides:
        for pin, globs in definition.side(side).sources.items():
            for name, content in unpack_release(pin, globs, definition.python[0]).items():
                path = Path(sources, pin, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)


def run(incident: str, sources: str, out: str) -> None:
    """Run every side in this environment, store the evidence below `out` and print what the sides did."""
    from knowngood_diagnose.reproductions.local_places import CurrentEnvironment
    from knowngood_facts.compat.rule_files import load_incidents

    def read_sources(pin: str, _globs: Sequence[str], _python: str) -> dict[str, bytes]:
        root = Path(sources, pin)
        return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}

    case = reproduction.load_reproduction(incident)
    known = {item.id: item for item in load_incidents()}
    sides = case.definition.choose_sides(None)
    document = reproduction_run.reproduce_failure(
        case, known, CurrentEnvironment(), read_sources, sides=sides, notify=lambda text: print(text, flush=True)
    )
    print(reproduction_run.store_reproduction(document, Path(out)), document["outcome"])
    for side in document["sides"]:
        print(f"{side['side']}: {side['outcome']}: {reproduction_run.describe_side(side)}")


{"fetch": fetch, "run": run}[sys.argv[1]](*sys.argv[2:])
