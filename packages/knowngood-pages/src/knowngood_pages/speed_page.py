"""docs/speed.md and its plots: what the runs of the speed suite measured. Nothing is shown that was not measured."""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Callable, Sequence
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
is fastest in the cell that they choose.

"No mask but the kernel's own" is `model(input_ids, attention_mask={"full_attention": None}, ...)`, right only for rows
without padding that are not packed: under torch.compile transformers gives SDPA a mask of all pairs of tokens, which
takes time and memory; without it the kernel is told that it is causal. "A chunked loss" is
[losses.py](../smoke_tests/speed_tests/losses.py), which keeps the logits of 2,048 tokens at a time."""
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

_Draw = Callable[["Axes", Sequence[SpeedPoint]], tuple[float, float]]
"""Draws the median runs of points and returns the width and height of the plot in inches."""
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
                files[f"speed/{name}-{number}.svg"] = render_plot(
                    draw, list(map(speed_runs.median_point, good.values()))
                )
                lines += [f"![{title}](speed/{name}-{number}.svg)", ""]
        lines += ["| " + " | ".join(_COLUMNS) + " |", "|---" * len(_COLUMNS) + "|"]
        for name, same in by_name.items():
            shown = good.get(name, same)
            note = "; ".join(faults[shown[0].file + name]) if name not in good else ""
            lines.append("| " + " | ".join(_row(shown, note)) + " |")
        lines += ["", f"Runs: {', '.join(sorted({f'`{one.file}`' for same in by_name.values() for one in same}))}."]
    return {**files, "speed.md": "\n".join([*lines, ""])} if groups else {}


def _row(same: Sequence[SpeedPoint], note: str) -> list[str]:
    """Return the cells of a row: of the median run, and how far apart the runs are where there are several."""
    point = speed_runs.median_point(same)
    values, speeds = point.values, sorted(one.tokens_a_second for one in same)
    text = f"{point.tokens_a_second:,.0f}"
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


def _label(point: SpeedPoint) -> str:
    """Return the setting and the words of a point's id, which take less room than its way."""
    return " ".join([point.setting, *point.words])


def _draw_tokens(axes: Axes, points: Sequence[SpeedPoint]) -> tuple[float, float]:
    """Draw a bar for each point of the shape with the most points."""
    shapes = [point.shape for point in points]
    shape = max(dict.fromkeys(shapes), key=shapes.count)
    shown = sorted((point for point in points if point.shape == shape), key=lambda point: point.tokens_a_second)
    labels = [f"{_label(point)}, {point.name.split('/')[2]}" for point in shown]
    bars = axes.barh(labels, [point.tokens_a_second / 1000 for point in shown], color="#4292c6")
    axes.bar_label(bars, fmt="%.1f", padding=3, fontsize=8)
    axes.tick_params(axis="y", labelsize=8)
    axes.margins(x=0.1)
    axes.set_xlabel(f"{shape}: thousand tokens a second")
    return 9, 1 + 0.28 * len(shown)


def _draw_memory(axes: Axes, points: Sequence[SpeedPoint]) -> tuple[float, float]:
    """Draw the most memory that was allocated against tokens a second, a colour for each shape and size of a step."""
    groups: dict[str, list[SpeedPoint]] = defaultdict(list)
    for point in points:
        groups[f"{point.shape} {point.name.split('/')[2]}"].append(point)
    for label, same in groups.items():
        xs = [point.tokens_a_second / 1000 for point in same]
        ys = [point.values["peak_bytes"] / _GIB for point in same]
        axes.scatter(xs, ys, s=18, label=label)
        for x, y, point in zip(xs, ys, same, strict=True):
            axes.annotate(_label(point), (x, y), xytext=(3, 3), textcoords="offset points", fontsize=6, rotation=35)
    axes.margins(x=0.2, y=0.2)
    axes.set_xlabel("thousand tokens a second")
    axes.set_ylabel("GiB")
    axes.legend(fontsize=7)
    return 9, 6


def render_plot(draw: _Draw, points: Sequence[SpeedPoint]) -> str:
    """Return a plot as SVG with its text as text; the same bytes every time, from the same release of matplotlib."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "knowngood", "font.family": "DejaVu Sans"}):
        figure = Figure(layout="constrained")
        figure.set_size_inches(*draw(figure.subplots(), points))
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"
