"""How wide the passes of runs were, how much was drafted, and what both cost once a price is known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specdec_lib.decoding.results import Generation, Step
from specdec_lib.drafters.pass_prices import PassPrices
from specdec_lib.experiments.statistics import Counts
from specdec_lib.methods import Method


def units(method: Method, step: Step) -> int:
    """What a step's drafting is priced by: the step itself, its drafted tokens or its levels (``Method.price``)."""
    return {"step": 1, "token": step.drafted, "level": step.tree.depth}[method.price]


def price_of(run: Generation, prices: PassPrices, asked: Sequence[str] = ()) -> float:
    """What a run's passes and steps cost, its prefill left out; with ``asked`` also what it costs to ask these sources at each
    step."""
    widths = np.array([step.width for step in run.steps], np.int64)
    if not len(widths):
        return 0.0
    curve = prices.curve(int(widths.max()))
    return float(curve[widths - 1].sum()) + prices.step_of(*asked) * len(widths)


def counted(runs: Sequence[Generation], prices: PassPrices, asked: Sequence[str] = ()) -> Counts:
    """Tokens after the first and price, run by run: what a rate in tokens per price of a pass over one token is made of."""
    return Counts([len(run.tokens) - 1 for run in runs], [price_of(run, prices, asked) for run in runs])
