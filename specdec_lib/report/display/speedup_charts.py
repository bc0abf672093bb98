"""A map of speed-ups: which method for which task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from specdec_lib.experiments.statistics import Interval
from specdec_lib.report import plots


def which_method(
    rows: Sequence[Mapping[str, Any]], methods: Sequence[str], tasks: Sequence[str], upright: bool = False
) -> Figure:
    """Draw the speed-up of every method on every task as a map: blue is faster than plain decoding, red slower.

    ``rows`` have ``method``, ``task`` and ``speedup``; methods are columns, or rows if ``upright``. The best of each task is
    starred where it is above 1. An interval stands below its number; then the best is starred only if its interval lies above
    1.
    """
    import numpy as np

    value = {(row["task"], row["method"]): row["speedup"] for row in rows}
    cells = [[value[task, method] for method in methods] for task in tasks]
    best = [max(plots.points(row)) for row in cells]
    if upright:
        cells = [list(column) for column in zip(*cells, strict=True)]
    across, down = (tasks, methods) if upright else (methods, tasks)
    grid = np.array([plots.points(row) for row in cells])
    # White at 1 and as dark at a half as at two: the same in dark mode, where lightness is turned round.
    steps = np.log2(grid)
    reach = max(1.0, np.abs(steps).max())
    figure, ax = plots.new(plots.WIDEST, 1.2 + 0.45 * len(down))
    ax.imshow(steps, cmap="RdBu", vmin=-reach, vmax=reach, aspect="auto")
    ax.grid(visible=False)
    for i in range(len(down)):
        for j in range(len(across)):
            cell = cells[i][j]
            interval = isinstance(cell, Interval) and cell.known
            starred = grid[i, j] == best[j if upright else i] and (cell.low if interval else grid[i, j]) > 1
            text = f"{grid[i, j]:.2f}" + (" ★" if starred else "")
            text += f"\n{cell.low:.2f}–{cell.high:.2f}" if interval else ""
            ax.text(
                j, i, text, ha="center", va="center", color="white" if abs(steps[i, j]) > 0.6 * reach else "black",
                fontweight="bold" if starred else "normal", fontsize=8,
            )  # fmt: skip
    ax.set_xticks(range(len(across)), across, rotation=20, ha="right")
    ax.set_yticks(range(len(down)), down)
    return figure
