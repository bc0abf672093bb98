"""Time of speculative decoding as a sum over forwards: SpecDec++ (Huang et al. 2024), section 2.

With N tokens emitted after the prefill, N_draft forwards of the draft model, N_target of the target and
N_discarded drafted tokens refused, each round emits what is accepted and one token more, so N_draft +
N_target = N + N_discarded. A last round without a token of the target's own breaks that by one: it ended with
an accepted end token, or its surplus was cut at the length limit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


def latency(draft_seconds: float, target_seconds: float, discard_rate: float, verification_rate: float) -> float:
    """Time a token as the forwards add up, equation 2.3, from discarded tokens and target forwards per emitted token; 1
    over it is the throughput."""
    return draft_seconds * (1 + discard_rate) + (target_seconds - draft_seconds) * verification_rate


def oracle_calls(agreement: np.ndarray) -> int:
    """Target calls of an oracle that drafts exactly as far as the target will agree.

    Where the greedy tokens differ (``agreement`` is false) a call ends, and one more ends the text (Lemma 2.1); the lemma
    counts one too many if they differ in the last token, which the call before then gives.
    """
    agreement = np.asarray(agreement, dtype=bool)
    if agreement.size == 0:
        return 0
    return int((~agreement).sum()) + int(agreement[-1])


class ForwardFit(NamedTuple):
    """Seconds of a forward of each kind by least squares, and the share of the variance of the times that the fit
    explains (NaN if they are all equal)."""

    seconds: tuple[float, ...]
    r_squared: float


def fit_forward_times(forwards: np.ndarray, seconds: np.ndarray) -> ForwardFit:
    """Regress the time of whole runs on their numbers of forwards, without an intercept (section 4.2).

    ``forwards`` has one row a run and one column a kind; the fit of equation 2.1 takes N_draft and N_target. Its first
    coefficient is the time that one more drafted token costs, wherever it is spent: the draft model's forward, and the
    wider forward of the target. ValueError if the runs do not tell the kinds apart.
    """
    forwards, seconds = np.asarray(forwards, dtype=np.float64), np.asarray(seconds, dtype=np.float64)
    if forwards.ndim != 2 or seconds.shape != forwards.shape[:1]:
        raise ValueError(
            f"forwards has shape {forwards.shape} and seconds {seconds.shape}; expected (runs, kinds) and (runs,)"
        )
    fitted, _, rank, _ = np.linalg.lstsq(forwards, seconds, rcond=None)
    if rank < forwards.shape[1]:
        raise ValueError(
            f"{len(seconds)} runs do not tell {forwards.shape[1]} kinds of forwards apart; expected "
            "runs of several draft lengths"
        )
    missed = float(((seconds - forwards @ fitted) ** 2).sum())
    spread = float(((seconds - seconds.mean()) ** 2).sum())
    return ForwardFit(tuple(fitted.tolist()), 1 - missed / spread if spread else float("nan"))
