"""Tables and figures of chapter 7: every system behind one verifier, as a reader sees it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from specdec_lib import methods
from specdec_lib.chapters.ch07_other_systems import head_losses, published_rows, systems
from specdec_lib.experiments.statistics import Interval
from specdec_lib.report.display import charts, ratio_charts, speedup_charts
from specdec_lib.report.display.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Rows = Sequence[Mapping[str, Any]]


def slug(row: Mapping[str, Any]) -> str:
    """What stands for a system in one shape in the names of recorded values."""
    return methods.slug(row["method"]) + ("" if row["shape"] == systems.PUBLISHED else "_sized")


def prices_chart(curve: Mapping[int, Interval]) -> Figure:
    """Draw the price of the target's pass by its width."""
    return charts.panels(
        {"": {"plain": (list(curve), list(curve.values()))}}, "tokens of the pass", "price of the pass"
    )


def widths_chart(rows: Rows) -> Figure:
    """Draw the composed speed-up of every system at each width that it was allowed.

    Parameters
    ----------
    rows : sequence of mapping
        Of :func:`specdec_lib.chapters.ch07_other_systems.systems.best_widths`.
    """
    cases: dict[str, dict[str, Interval]] = {}
    for row in rows:
        cases.setdefault(row["method"], {})[f"{row['width']} tokens"] = row["speedup"]
    return ratio_charts.ratios(cases, "composed speed-up over plain decoding", logarithmic=True)


def systems_table(rows: Rows, name: str, caption: str) -> Table:
    """Tokens per pass, width and composed speed-ups of all systems, one row a system and shape."""
    columns = {
        "method": "System",
        "shape": "Shape",
        "own": "Speed-up, this machine",
        "large": "Speed-up, 7B on an A100",
    }
    columns |= {"tokens_per_pass": "Tokens per pass", "width": "Mean width"}
    measured = methods.how_measured(list(dict.fromkeys(row["method"] for row in rows)))
    formats = dict.fromkeys(("tokens_per_pass", "own", "large"), ".2f") | {"width": ".1f"}
    return Table(pd.DataFrame(rows), name, f"{caption} {measured}", columns, formats)


def speedups_chart(rows: Rows) -> Figure:
    """Draw the composed speed-up of every system in each of its shapes, at the prices of this machine."""
    cases: dict[str, dict[str, Interval]] = {}
    for row in rows:
        cases.setdefault(row["method"], {})[row["shape"]] = row["own"]
    return ratio_charts.ratios(cases, "composed speed-up over plain decoding", logarithmic=True)


def tasks_map(by_task: Mapping[str, Mapping[str, Interval]]) -> Figure:
    """Draw a map of composed speed-ups, by task and system, with their intervals."""
    rows = [
        {"task": task, "method": name, "speedup": speedup}
        for task, found in by_task.items()
        for name, speedup in found.items()
    ]
    names = list(dict.fromkeys(row["method"] for row in rows))
    return speedup_charts.which_method(rows, names, list(by_task), upright=True)


def published_table(
    paper: Sequence[dict[str, Any]],
    tables: Sequence[int],
    here: Mapping[str, Mapping[str, Interval]],
    name: str,
    caption: str,
) -> Table:
    """The published range of each task with our composed speed-up, one row a system of some of the paper's tables."""
    rows = published_rows.with_ours(paper, tables, here)
    ours = [key for key in rows[0] if key.endswith(", here")]
    columns = {key: key.capitalize() for key in rows[0] if key != "method"}
    return Table(pd.DataFrame(rows), name, caption, columns, dict.fromkeys(ours, ".2f"))


def orders_chart(rows: Rows) -> Figure:
    """Draw the speed-up of each system over that of the next one, published and composed here."""
    cases = {
        f"{row['first']} over {row['second']}, {row['where']}": {
            "published": Interval(row["published"], math.nan, math.nan),
            "here": row["ratio"],
        }
        for row in rows
    }
    return ratio_charts.ratios(cases, "ratio of speed-ups", logarithmic=True)


def orders_table(rows: Rows) -> Table:
    """The numbers of that figure."""
    return Table(
        pd.DataFrame(rows),
        "tab-other-pairs",
        "The numbers of the figure: speed-up of the first system over that of the second, published and composed here.",
        {"first": "First", "second": "Second", "published": "Published", "ratio": "Here", "where": "Prompts"},
        {"published": ".2f", "ratio": ".2f"},
    )


def losses_chart(losses: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Draw how often heads trained with each loss were right, by depth."""
    return charts.panels(head_losses.curves(losses), "depth", "share right", integers=True)
