"""Responses of a given length, by backward induction over the tokens left: another way to the costs of the endless ones."""

from collections.abc import Sequence

import numpy as np

from specdec_lib.chapters.ch05_specdec_pp.theory.rounds import Costs, Ending, Policy, Rounds, compare


def limited(rounds: Rounds, after: Sequence[np.ndarray]) -> tuple[Rounds, Ending]:
    """Rounds that begin ``len(after)`` tokens before the end and draft no more candidates than these, and what follows them;
    tokens beyond the end are dropped. ``after`` has the costs of responses of 0, 1, ... tokens."""
    pair, left = rounds.pair, len(after)
    most = min(rounds.longest, left)
    short = [after[max(left - 1 - k, 0)][:, None] for k in range(most)]
    long = [after[max(left - 2 - k, 0)][:, None] for k in range(most)]
    ending = Ending(
        np.stack([pair.after(pair.residual, v) for v in short]), np.stack([pair.after(pair.target, v) for v in long])
    )
    return Rounds(pair, rounds.contexts[:most], rounds.alive[:most], rounds.children[: most - 1]), ending


def finite_costs(rounds: Rounds, costs: Costs, tokens: int, stops: Policy | None = None) -> np.ndarray:
    """Expected cost of responses of 0 to ``tokens`` tokens by first context; without ``stops`` of the cheapest actions.

    If all candidates of the last round are accepted, the target's own token is one too many and is dropped: that round breaks
    N_draft + N_target = N + N_discarded by one.
    """
    after = [np.zeros(rounds.pair.contexts)]
    for _ in range(tokens):
        own, ending = limited(rounds, after)
        decision = compare(own, costs, ending, stops)
        if stops is None or len(decision.stop) == 1:
            value = np.minimum(decision.stop[0], decision.proceed[0])
        else:
            value = np.where(stops[0], decision.stop[0], decision.proceed[0])
        after.append(value)
    return np.stack(after)
