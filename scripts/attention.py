"""Writes docs/attention.md and its charts from evidence/; with --check, says whether they are stale (exit 1).

python scripts/attention.py [--check]
"""

from __future__ import annotations

import sys
from pathlib import Path

from knowngood import attention, barchart, evidence

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"


def main(*arguments: str) -> int:
    """Render, then write or compare."""
    runs = [run for run in map(evidence.load, sorted((ROOT / "evidence").glob("*/*.json"))) if not isinstance(run, str)]
    measured = attention.speeds(attention.matrix(runs))
    lengths = sorted({length for figures in measured.values() for length in figures})
    series = [f"{length:,} tokens a sequence" for length in lengths]
    files = {
        f"attention/{name}.svg": barchart.chart(
            title,
            unit,
            {
                setting: [figures[length][index] / scale if length in figures else None for length in lengths]
                for setting, figures in measured.items()
            },
            series,
        )
        for name, title, unit, index, scale in (
            ("time", "Median time of a training step of 8,192 tokens", "ms", 0, 1.0),
            ("memory", "Peak GPU memory of a training step of 8,192 tokens", "GB", 1, 1e9),
        )
    }
    charts = {"Time of a step": "attention/time.svg", "Peak memory": "attention/memory.svg"}
    files["attention.md"] = attention.page(runs, charts)
    stale = [name for name, text in files.items() if not (DOCS / name).exists() or (DOCS / name).read_text() != text]
    if "--check" in arguments:
        print("\n".join(f"docs/{name} is stale: run scripts/attention.py" for name in stale))
        return 1 if stale else 0
    for name, text in files.items():
        (DOCS / name).parent.mkdir(parents=True, exist_ok=True)
        (DOCS / name).write_text(text)
    return 0


sys.exit(main(*sys.argv[1:]))
