"""Tables of the chapter on one tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from specdec_lib.chapters.ch08_one_tree import large_models, marks
from specdec_lib.chapters.ch08_one_tree.large_models import Replayed
from specdec_lib.drafters.pass_prices import PassPrices
from specdec_lib.report.display.tables import Table

Rows = Sequence[Mapping[str, Any]]


def calibration(errors: Rows) -> Table:
    """Calibration error of fitted and of shipped weights, one row a set and source."""
    return Table(
        pd.DataFrame(errors),
        "tab-tree-calibration",
        "Expected calibration error by source, of weights fitted on greedy answers to editing prompts, and of those that come with "
        "the pocket pair. SpecDec is the draft model.",
        {
            "set": "Judged on",
            "source": "Source",
            "nodes": "Nodes",
            "emitted": "Share emitted",
            "transferred": "Fitted on editing",
            "shipped": "Shipped weights",
        },
        {"emitted": ".2f", "transferred": ".3f", "shipped": ".3f"},
    )


def gains(rows: Rows, name: str, caption: str) -> Table:
    """One tree compared with the best single source, one row a price curve and task."""
    return Table(
        pd.DataFrame(rows),
        name,
        caption,
        {
            "prices": "Prices",
            "task": "Task",
            "ratio": "One tree over the best single source",
            "single": "That source",
            "size": "Its tokens",
            "speed": "One tree, speed-up",
            "share": "One tree's share",
            "share_single": "Its share of hindsight",
        },
        {"speed": ".2f", "ratio": ".2f", "share_single": ".0%", "share": ".0%"},
    )


def rungs(rows: Rows) -> Table:
    """One rung compared with another, one row a pair, kind of answers and price curve."""
    return Table(
        pd.DataFrame(rows),
        "tab-tree-rungs",
        "Speed of one rung over that of another, all tasks mixed, and the share of the hindsight bound that each reached. The "
        "bound is that of the rung's own sources; there is none for the draft model.",
        {
            "sampling": "Answers",
            "prices": "Prices",
            "ours": "Rung",
            "theirs": "Over",
            "ratio": "Ratio",
            "share": "First's share",
            "share_theirs": "Second's share",
        },
        {"ratio": ".2f", "share": ".0%", "share_theirs": ".0%"},
    )


def decided(rows: Rows, kept: marks.Kept | None) -> Table:
    """The marks with their verdicts and the ratio that decides each."""
    return Table(
        pd.DataFrame(rows),
        "tab-tree-marks",
        "The marks. Each asks about one or more ratios; the table has the one that decides." + marks.origin(kept),
        {
            "answers": "Answers",
            "prices": "Prices",
            "mark": "Mark",
            "verdict": "Verdict",
            "ratio": "Ratio that decides",
            "compared": "Task or rung",
        },
        {"ratio": ".2f"},
    )


def large(replayed: Replayed, prices: Sequence[PassPrices]) -> Table:
    """Recorded answers of large models, one row a set, price curve and method."""
    return Table(
        large_models.table(replayed, prices),
        "tab-tree-large",
        "Recorded answers of large models: speed-up, share of the hindsight bound, and one tree over the method.",
        {
            "set": "Answers",
            "prices": "Prices",
            "method": "Method",
            "speedup": "Speed-up",
            "ahead": "One tree over it",
            "share": "Share of the bound",
            "size": "Its tokens",
            "copied": "Copied",
        },
        {"copied": ".0%", "speedup": ".2f", "share": ".0%", "ahead": ".2f"},
    )
