"""The best that some sources could have done on a recorded text, had it been known at each step what would be accepted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specdec_lib.decoding.contract import Context, Drafter
from specdec_lib.decoding.replay import Trace
from specdec_lib.drafters.pass_prices import PassPrices


def acceptable(trace: Trace, sources: Sequence[Drafter]) -> np.ndarray:
    """At each new token: how many of the tokens after it the longest draft of any source has right, int64 array.

    The sources are asked at every position, each with what it would know there of this text alone; a source that learns from
    passes is asked as it stands after none.
    """
    longest = np.zeros(len(trace.tokens), np.int64)
    for source in sources:
        source.reset()
        context = Context(
            [*trace.prompt, trace.tokens[0]],
            len(trace.prompt),
            trace.vocabulary,
            trace.sampling.for_prompt(trace.prompt),
        )
        context.hidden = lambda layer, context=context: trace.hidden[layer][: len(context.tokens) - 1]
        places = [trace.heads.index(head) for head in source.capture.heads]
        context.attention = lambda context=context, places=places: trace.attention[
            len(context.tokens) - 1 - len(trace.prompt)
        ][places]
        source.start(context)
        for place in range(len(trace.tokens) - 1):
            coming = trace.tokens[place + 1 :]
            draft = source.propose(context, len(coming))
            node, right = -1, 0
            for token in coming:
                node = draft.child(node, token)
                if node is None:
                    break
                right += 1
            longest[place] = max(longest[place], right)
            context.tokens.append(trace.tokens[place + 1])
        source.finish()
    return longest


def costs_to_go(longest: np.ndarray, prices: PassPrices) -> np.ndarray:
    """After each token the least price of emitting all that follow, given what is acceptable there, float64 array.

    With V(i) the price of all that comes after token i, V(i) = min over n <= a_i of c(n + 1) + V(i + 1 + n): a pass over the
    root and the n right tokens emits n + 1. What the step costs beside the pass is added for each step.
    """
    count = len(longest)
    curve = prices.curve(int(longest.max(initial=0)) + 1) + prices.step
    cost = np.zeros(count)
    for place in range(count - 2, -1, -1):
        most = min(int(longest[place]), count - 2 - place)
        cost[place] = (curve[: most + 1] + cost[place + 1 : place + 2 + most]).min()
    return cost


def least_cost(longest: np.ndarray, prices: PassPrices) -> float:
    """The least price of emitting all tokens after the first (:func:`costs_to_go`)."""
    return float(costs_to_go(longest, prices)[0])
