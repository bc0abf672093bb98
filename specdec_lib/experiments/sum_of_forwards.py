"""Time of speculative decoding as a sum over forwards: SpecDec++ (Huang et al. 2024), section 2.

With N tokens emitted after the prefill, N_draft forwards of the draft model, N_target of the target and
N_discarded drafted tokens refused, each round emits what is accepted and one token more, so N_draft +
N_target = N + N_discarded. A last round without a token of the target's own breaks that by one: it ended with
an accepted end token, or its surplus was cut at the length limit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


def expected_tokens(alpha: float, length: int) -> float:
    """Tokens a round if each draft token were accepted with probability ``alpha``, whatever the others.

    (1 - alpha^(K+1)) / (1 - alpha): Leviathan et al. 2023, equation 1.
    """
    return float(length + 1) if alpha == 1 else (1 - alpha ** (length + 1)) / (1 - alpha)


def total_time(draft_seconds: float, target_seconds: float, n_draft: float, n_target: float) -> float:
    """Time of all forwards, equation 2.1: t_draft N_draft + t_target N_target."""
    return draft_seconds * n_draft + target_seconds * n_target


def total_time_of_waste(
    draft_seconds: float, target_seconds: float, n: float, n_discarded: float, n_target: float
) -> float:
    """The same by what is lost, equation 2.2: T_0 + t_draft N_discarded + (t_target - t_draft) N_target.

    T_0 = t_draft N. Equal to :func:`total_time` where N_draft + N_target = N + N_discarded.
    """
    return draft_seconds * (n + n_discarded) + (target_seconds - draft_seconds) * n_target


def latency(draft_seconds: float, target_seconds: float, discard_rate: float, verification_rate: float) -> float:
    """Time a token as the forwards add up, equation 2.3, from discarded tokens and target forwards per emitted token; 1
    over it is the throughput."""
    return total_time_of_waste(draft_seconds, target_seconds, 1.0, discard_rate, verification_rate)


def oracle_calls(agreement: np.ndarray) -> int:
    """Target calls of an oracle that drafts exactly as far as the target will agree.

    Let S be the set of positions where the draft's greedy token is not the target's. The oracle needs one
    call more than S has members (Lemma 2.1). The lemma counts one too many if the last position is in S: the
    correction of the call before is then the last token, and the calls are as many as S has members.

    Parameters
    ----------
    agreement : bool array, shape (n,)
        One entry for each token the oracle has to produce.
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

    The fit of equation 2.1 takes the columns N_draft and N_target. Its first coefficient is the time that one
    more drafted token costs, wherever it is spent: the draft model's forward, and the wider forward of the
    target.

    Parameters
    ----------
    forwards : array, shape (runs, kinds)
    seconds : array, shape (runs,)

    Returns
    -------
    ForwardFit

    Raises
    ------
    ValueError
        If the shapes do not fit, there are fewer runs than kinds, or the counts of the kinds are
        proportional, as when all runs have one draft length and nothing is refused.
    """
    forwards, seconds = np.asarray(forwards, dtype=np.float64), np.asarray(seconds, dtype=np.float64)
    if forwards.ndim != 2 or seconds.shape != forwards.shape[:1]:
        raise ValueError(
            f"forwards has shape {forwards.shape} and seconds {seconds.shape}; expected (runs, kinds) and (runs,)"
        )
    found, _, rank, _ = np.linalg.lstsq(forwards, seconds, rcond=None)
    if rank < forwards.shape[1]:
        raise ValueError(
            f"{len(seconds)} runs do not tell {forwards.shape[1]} kinds of forwards apart; expected "
            "runs of several draft lengths"
        )
    missed = float(((seconds - forwards @ found) ** 2).sum())
    spread = float(((seconds - seconds.mean()) ** 2).sum())
    return ForwardFit(tuple(found.tolist()), 1 - missed / spread if spread else float("nan"))


def relative_errors(predicted: np.ndarray, measured: np.ndarray) -> np.ndarray:
    """How far predictions lie from measurements, as shares of the measurements: float array, none below 0."""
    measured = np.asarray(measured, dtype=np.float64)
    return np.abs(np.asarray(predicted, dtype=np.float64) - measured) / np.abs(measured)
