"""What drafting costs in units of a pass over one token, measured by decoding for real."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from transformers import PreTrainedModel

from specdec_lib.decoding.contract import Drafter
from specdec_lib.decoding.generate import generate
from specdec_lib.decoding.results import Step
from specdec_lib.drafters.draft_model import AdaptiveDraftModel
from specdec_lib.drafters.one_tree import OneTree
from specdec_lib.drafters.pass_prices import MERGING, PassPrices


def drafting_prices(
    model: PreTrainedModel,
    alone: Mapping[str, Drafter],
    sources: Mapping[str, Drafter],
    prompt: Sequence[int],
    new_tokens: int,
    widths: Mapping[int, float],
) -> tuple[float, dict[str, float]]:
    """Price a step's own work and drafting after a prompt: what :class:`~specdec_lib.drafters.pass_prices.PassPrices` calls
    ``step`` and ``drafting``, from medians over the steps.

    Parameters
    ----------
    model : PreTrainedModel
    alone : mapping of str to Drafter
        Drafters that are timed by themselves, by name; a draft model is paid by the token and left out.
    sources : mapping of str to Drafter
        One tree's, by name. What its step takes beyond its sources' times is the price of merging.
    prompt : sequence of int
    new_tokens : int
    widths : mapping of int to float
        Milliseconds of a pass by its width, which the prices are in units of and one tree is sized by.
    """

    def price(drafter: Drafter | None, part: Callable[[Step], float]) -> float:
        for count in (min(8, new_tokens), new_tokens):  # the first steps of a process compile
            if drafter is not None:
                drafter.reset()  # what it learned from the answer before would be another drafter's price
            # No end token: all drafters decode as far.
            run = generate(model, list(prompt), drafter, max_new_tokens=count, eos_token_id=[])
        return 1e3 * float(np.median([part(step) for step in run.steps])) / widths[1]

    step = price(None, lambda step: step.commit_seconds + step.host_seconds)
    timed = {name: each for name, each in {**alone, **sources}.items() if not isinstance(each, AdaptiveDraftModel)}
    prices = {name: price(drafter, lambda step: step.draft_seconds) for name, drafter in timed.items()}
    merged = {name: drafter for name, drafter in sources.items() if name in timed}
    if merged:
        spent = price(OneTree(merged, PassPrices(widths)), lambda step: step.draft_seconds)
        prices[MERGING] = max(0.0, spent - sum(prices[name] for name in merged))
    return step, prices
