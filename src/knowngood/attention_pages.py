"""The files of docs/attention: the page and its charts, from evidence. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from knowngood import attention, barchart
from knowngood.evidence import Evidence

_CHARTS = (
    ("time", "Median time of a training step of 8,192 tokens", "ms", 0, 1.0),
    ("memory", "Peak GPU memory of a training step of 8,192 tokens", "GB", 1, 1e9),
)
_TITLES = {"Time of a step": "attention/time.svg", "Peak memory": "attention/memory.svg"}


def files(runs: Sequence[Evidence]) -> dict[str, str]:
    """Each file's path under docs/ and its text; nothing where no run had a GPU."""
    found = attention.matrix(runs)
    if not found:
        return {}
    measured = attention.speeds(found)
    lengths = sorted({length for figures in measured.values() for length in figures})
    series = [f"{length:,} tokens a sequence" for length in lengths]
    written = {
        f"attention/{name}.svg": barchart.chart(
            title,
            unit,
            {
                setting: [figures[length][index] / scale if length in figures else None for length in lengths]
                for setting, figures in measured.items()
            },
            series,
        )
        for name, title, unit, index, scale in _CHARTS
    }
    return {**written, "attention.md": attention.page(runs, _TITLES)}
