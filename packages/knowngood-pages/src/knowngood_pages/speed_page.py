"""docs/speed.md and its plots: what the runs of the speed suite measured. Nothing is shown that was not measured."""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from knowngood.core.cell import Cell, parse_cell
from knowngood.evidence import speed_runs
from knowngood.evidence.cell_answer import CellAnswer
from knowngood.evidence.speed_runs import SpeedPoint
from knowngood_pages.attention_page import EVIDENCE_BANNER

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_GIB = 2**30
_INTRODUCTION = """# How fast training is

Steps of models of real sizes with random weights in bf16, fused AdamW, no gradient checkpointing unless it is named.
[smoke_tests/speed_tests/README.md](../smoke_tests/speed_tests/README.md) says how a point is measured and how
operations are counted. A point is in the plots only where the suite has seen its setting train in that cell, clocks did
not fall, nobody else used the card, rounds agreed and the kernel was the right one; otherwise the table says why not.
`knowngood bench` measures, `knowngood doctor --speed` compares a machine with these nodes, `pick` and `run` name what
is fastest in the cell that they choose."""
_COLUMNS = (
    "way",
    "shape",
    "tokens x rows",
    "tokens/s",
    "of limit",
    "of product",
    "memory",
    "first step",
    "kernel",
    "note",
)

_ByName = Mapping[str, Sequence[SpeedPoint]]
"""The points of one card and cell by their ids: one of each run."""
_Draw = Callable[["Axes", _ByName], tuple[float, float]]
"""Draws these points and returns the width and height of the plot in inches."""
_Group = tuple[str, str]
"""The card and the cell."""


def render_speed_files(points: Sequence[SpeedPoint], answer: Callable[[Cell], CellAnswer]) -> dict[str, str]:
    """Return the page and its plots, as texts by path under docs/; nothing without a point that was on a GPU."""
    groups: dict[_Group, dict[str, list[SpeedPoint]]] = defaultdict(lambda: defaultdict(list))
    for point in points:
        if point.run.report["environment"].get("sm"):
            groups[point.gpu, point.run.cell][point.name].append(point)
    files: dict[str, str] = {}
    lines = [EVIDENCE_BANNER, "", _INTRODUCTION]
    for number, ((gpu, cell), by_name) in enumerate(sorted(groups.items()), start=1):
        faults = {
            point.file + name: speed_runs.find_faults(point, answer(parse_cell(cell)))
            for name, same in by_name.items()
            for point in same
        }
        good = {name: [one for one in same if not faults[one.file + name]] for name, same in by_name.items()}
        good = {name: same for name, same in good.items() if same}
        lines += ["", f"## {gpu}", "", f"`{cell}`", ""]
        if advice := speed_runs.advise_on_speed(
            [one for same in good.values() for one in same], parse_cell(cell), answer
        ):
            lines += [f"{advice[0].upper()}{advice[1:]}.", ""]
        for name, title, draw in (
            ("tokens", "Tokens a second", _draw_tokens),
            ("memory", "Memory against speed", _draw_memory),
        ):
            if good:
                files[f"speed/{name}-{number}.svg"] = render_plot(draw, good)
                lines += [f"![{title}](speed/{name}-{number}.svg)", ""]
        lines += ["| " + " | ".join(_COLUMNS) + " |", "|---" * len(_COLUMNS) + "|"]
        for name, same in by_name.items():
            shown = good.get(name, same)
            note = "; ".join(faults[shown[0].file + name]) if name not in good else ""
            lines.append("| " + " | ".join(_row(shown, note)) + " |")
        lines += ["", f"Runs: {', '.join(sorted({f'`{one.file}`' for same in by_name.values() for one in same}))}."]
    return {**files, "speed.md": "\n".join([*lines, ""])} if groups else {}


def _row(same: Sequence[SpeedPoint], note: str) -> list[str]:
    """Return the cells of a row: the medians of the runs, and how far apart they are where there are several."""
    point, values = same[0], same[0].values
    speeds = sorted(one.tokens_a_second for one in same)
    text = f"{speeds[len(speeds) // 2]:,.0f}"
    if len(speeds) > 1:
        text += f" ({len(speeds)} runs: {speeds[0]:,.0f} to {speeds[-1]:,.0f})"
    share = values["share_of_limit"]
    return [
        point.way,
        point.shape,
        point.name.split("/")[2],
        text,
        f"{share:.1%}" if share else "-",
        f"{values['share_of_product']:.1%}",
        f"{values['peak_bytes'] / _GIB:.1f} GiB",
        f"{values['first_step_seconds']:.1f} s",
        ", ".join(values["families"]) or "none",
        note,
    ]


def _draw_tokens(axes: Axes, good: _ByName) -> tuple[float, float]:
    """Draw a bar for each way and length of the shape with the most points."""
    shapes = [same[0].shape for same in good.values()]
    shape = max(dict.fromkeys(shapes), key=shapes.count)
    rows = sorted(
        (
            (same[0].way, same[0].name.split("/")[2], same[0].tokens_a_second / 1000)
            for same in good.values()
            if same[0].shape == shape
        ),
        key=lambda row: row[2],
    )
    bars = axes.barh([f"{way}, {size}" for way, size, _ in rows], [value for *_, value in rows], color="#4292c6")
    axes.bar_label(bars, fmt="%.1f", padding=3, fontsize=8)
    axes.set_xlabel("thousand tokens a second")
    axes.set_title(shape, loc="left", fontsize=10)
    return 9, 1 + 0.28 * len(rows)


def _draw_memory(axes: Axes, good: _ByName) -> tuple[float, float]:
    """Draw the most memory that was allocated against tokens a second, a colour for each shape and size of a step."""
    groups: dict[str, list[SpeedPoint]] = defaultdict(list)
    for same in good.values():
        groups[" ".join(same[0].name.split("/")[::2][:2])].append(same[0])
    for label, points in groups.items():
        xs = [point.tokens_a_second / 1000 for point in points]
        ys = [point.values["peak_bytes"] / _GIB for point in points]
        axes.scatter(xs, ys, s=18, label=label)
        for x, y, point in zip(xs, ys, points, strict=True):
            axes.annotate(point.way, (x, y), xytext=(3, 3), textcoords="offset points", fontsize=6)
    axes.set_xlabel("thousand tokens a second")
    axes.set_ylabel("GiB")
    axes.legend(fontsize=7)
    return 9, 6


def render_plot(draw: _Draw, good: _ByName) -> str:
    """Return a plot as SVG with its text as text; the same bytes every time, from the same release of matplotlib."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "knowngood", "font.family": "DejaVu Sans"}):
        figure = Figure(layout="constrained")
        figure.set_size_inches(*draw(figure.subplots(), good))
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"
