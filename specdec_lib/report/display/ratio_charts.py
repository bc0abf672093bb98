"""Ratios with their intervals: one row a case, one mark a series."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from specdec_lib.experiments.statistics import Interval
from specdec_lib.report.display import figures

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKS = "os^D"
#: Ticks of a logarithmic axis, from coarse to fine.
_TICKS = (
    tuple(2.0**power for power in range(-6, 8)),
    (0.125, 0.2, 0.33, 0.5, 0.7, 1, 1.4, 2, 3, 4, 6, 8, 12, 16),
    (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 1.75, 2, 2.5, 3),
)


def logarithmic_axis(ax: Axes) -> None:
    """Make the x axis logarithmic, with ticks at plain numbers: as coarse ones as leave three within the limits."""
    ax.set_xscale("log", base=2)
    low, high = ax.get_xlim()
    within = [[tick for tick in ticks if low <= tick <= high] for ticks in _TICKS]
    chosen = next((ticks for ticks in within if len(ticks) > 2), max(within, key=len))
    ax.set_xticks(chosen, [f"{tick:g}" for tick in chosen])
    ax.set_xticks([], minor=True)


def ratios(
    cases: Mapping[str, Mapping[str, Interval | None]], xlabel: str, reference: float = 1.0, logarithmic: bool = False
) -> Figure:
    """Draw ratios as points with their intervals as whiskers, and an upright line where there is no difference.

    Parameters
    ----------
    cases : mapping
        By case, from the top down: by series the ratio; None and a value that is no number are left out.
    xlabel : str
    reference : float
        Where the upright line stands.
    logarithmic : bool
        The scale of the ratios.
    """

    series = list(dict.fromkeys(name for row in cases.values() for name in row))
    figure, ax = figures.new(7.2, 1.3 + 0.42 * len(cases))
    ax.axvline(reference, color="#444444", linestyle="--", linewidth=1)
    for place, name in enumerate(series):
        shift = (place - (len(series) - 1) / 2) * 0.8 / max(len(series), 1)
        color = figures.PALETTE[place % len(figures.PALETTE)]
        drawn = [(i + shift, row[name]) for i, row in enumerate(cases.values()) if row.get(name) is not None]
        drawn = [(y, value) for y, value in drawn if value.value == value.value]
        ax.plot(
            [value.value for _, value in drawn],
            [y for y, _ in drawn],
            linestyle="",
            marker=_MARKS[place % len(_MARKS)],
            color=color,
            label=name,
        )
        for y, value in drawn:
            if value.known:
                ax.hlines(y, value.low, value.high, color=color, linewidth=1.4)
    ax.set_yticks(range(len(cases)), list(cases))
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    if logarithmic:
        logarithmic_axis(ax)
    ax.set_xlabel(xlabel)
    if len(series) > 1:
        figures.legend_below(figure, *ax.get_legend_handles_labels())
    return figure
