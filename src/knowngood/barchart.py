"""A grouped bar chart as SVG, from numbers alone: the same bytes every time. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

COLOURS = ("#9ecae1", "#4292c6", "#08519c")
BAR, GAP, LABELS, WIDTH = 12, 10, 120, 760


def chart(title: str, unit: str, groups: Mapping[str, Sequence[float | None]], series: Sequence[str]) -> str:
    """Horizontal bars: one group a row of `groups`, one bar a member of `series`; `None` is out of memory."""
    top = max((value for values in groups.values() for value in values if value is not None), default=1.0)
    height = 60 + len(groups) * (len(series) * BAR + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"',
        ' font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="10" y="20" font-size="14" fill="#222">{escape(title)}</text>',
    ]
    for number, name in enumerate(series):
        x = LABELS + number * 170
        parts.append(f'<rect x="{x}" y="30" width="10" height="9" fill="{COLOURS[number % 3]}"/>')
        parts.append(f'<text x="{x + 15}" y="39" fill="#222">{escape(name)}</text>')
    y = 52
    for group, values in groups.items():
        middle = y + len(series) * BAR / 2 + 4
        parts.append(f'<text x="{LABELS - 8}" y="{middle:.0f}" text-anchor="end" fill="#222">{escape(group)}</text>')
        for number, value in enumerate(values):
            width = 0.0 if value is None else value / top * (WIDTH - LABELS - 100)
            label = "out of memory" if value is None else f"{value:,.1f} {unit}"
            parts.append(
                f'<rect x="{LABELS}" y="{y}" width="{width:.1f}" height="{BAR - 2}" fill="{COLOURS[number % 3]}"/>'
            )
            parts.append(f'<text x="{LABELS + width + 5:.1f}" y="{y + 9}" fill="#444">{escape(label)}</text>')
            y += BAR
        y += GAP
    return "\n".join([*parts, "</svg>", ""])
