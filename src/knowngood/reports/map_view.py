"""The map of all points as a text and as the data of its page. Pure."""

from __future__ import annotations

from collections import Counter
from typing import Any

from knowngood.compat.matrix_map import MAP_AXES, STATE_LETTERS, MatrixMap, PointState
from knowngood.core.formatting import format_table

STATE_MEANINGS = {
    PointState.SEEN_ON_GPU: "seen training on a GPU of this architecture",
    PointState.REFUSED: "possible by the rules, but refused or wrong in a run",
    PointState.SEEN_ON_CPU: "seen training on a CPU only: unseen on a GPU",
    PointState.IN_MATRIX: "in the matrix, not seen training",
    PointState.POSSIBLE: "possible by the rules, in no cell",
    PointState.EXCLUDED: "excluded by rules",
}
AXES_TEXT = (
    "every GPU architecture of matrix.yaml, the newest release of each minor release of torch and of transformers, and "
    "every attention setting"
)
"""What the axes of the map are."""


def map_page_data(matrix_map: MatrixMap) -> dict[str, Any]:
    """Return what the page of the map shows: counts, the grid of GPUs and settings, rules, the cover, and points."""
    return {
        "axes": matrix_map.values,
        "axes_text": AXES_TEXT,
        "points": len(matrix_map.states),
        "counts": _counts(matrix_map),
        "grid": _grid(matrix_map),
        "rules": matrix_map.rules,
        "cover": _cover_sentence(matrix_map),
        "states": matrix_map.state_grids(),
    }


def _counts(matrix_map: MatrixMap) -> list[tuple[str, int, str]]:
    """Return the letter, the number of points and the meaning of each state."""
    return [(STATE_LETTERS[state], matrix_map.counts[state], meaning) for state, meaning in STATE_MEANINGS.items()]


def render_map_text(matrix_map: MatrixMap) -> str:
    """Return the map as `knowngood cells --map` prints it, without the single points."""
    values = matrix_map.values
    sizes = [f"{len(values[name])} {name}" for name in MAP_AXES]
    counts = [f"{count:>9,}  {letter}  {meaning}" for letter, count, meaning in _counts(matrix_map)]
    grid = format_table(["possible", *values["attn"]], [[gpu, *row] for gpu, row in _grid(matrix_map).items()])
    rules = format_table(
        ["excluded by", "points", "by it alone"],
        [[rule, f"{count:,}", f"{alone:,}"] for rule, count, alone in matrix_map.rules],
    )
    return "\n".join(
        [
            f"{len(matrix_map.states):,} points: {' x '.join(sizes)}",
            *counts,
            "",
            grid,
            "(the number of possible points, with the letter of the best that is known of one of them)",
            "",
            rules,
            "",
            f"{_cover_sentence(matrix_map)} `--json` lists them, and the state of every point.",
        ]
    )


def _cover_sentence(matrix_map: MatrixMap) -> str:
    return (
        f"{len(matrix_map.cover):,} points would cover all {matrix_map.pairs:,} possible pairs of values. They are "
        f"chosen greedily; fewer than {matrix_map.least_cover:,} cannot do it. The cells of the matrix cover "
        f"{matrix_map.matrix_pairs:,} of these pairs."
    )


def _grid(matrix_map: MatrixMap) -> dict[str, list[str]]:
    """Return GPU -> for each attention setting the number of possible points, with the letter of the best state."""
    order = list(PointState)
    numbers = Counter((point[0], point[3]) for point in matrix_map.possible)
    best: dict[tuple[str, str], PointState] = {}
    for point in matrix_map.possible:
        key = point[0], point[3]
        best[key] = min(best.get(key, PointState.POSSIBLE), matrix_map.states[point], key=order.index)
    return {
        gpu: [_grid_cell(numbers[gpu, setting], best.get((gpu, setting))) for setting in matrix_map.values["attn"]]
        for gpu in matrix_map.values["gpu"]
    }


def _grid_cell(count: int, best: PointState | None) -> str:
    if best is None:
        return "-"
    return f"{count}" if best is PointState.POSSIBLE else f"{count} {STATE_LETTERS[best]}"
