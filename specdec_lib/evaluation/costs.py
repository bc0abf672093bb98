"""What a draft costs and what it could save: the sums of SpecDec++ over recorded prompts.

Section and equation numbers are those of SpecDec++ (Huang et al. 2024).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from transformers import PreTrainedModel

from ..decoding.steps import Generation
from ..theory.costs import expected_tokens, latency, oracle_calls
from .metrics import greedy_agreement, pooled
from .suite import Recording, Runs, select


def unbalanced(run: Generation) -> int:
    """By how much N_draft + N_target differs from N + N_discarded (section 2).

    Each round emits its accepted tokens and one of the target's own, so the two sums are equal; but a run's
    last round has no token of the target's own when the accepted part ends with the end token. That round is
    allowed for, so anything but 0 is a fault of the counting.
    """
    drafted, accepted = sum(s.drafted for s in run.steps), sum(s.accepted for s in run.steps)
    emitted = len(run.tokens) - 1
    ended_inside = bool(run.steps) and len(run.steps[-1].tokens) == run.steps[-1].accepted
    return drafted + len(run.steps) - (emitted + drafted - accepted) - ended_inside


class ForwardTimes(NamedTuple):
    """Seconds of one forward of each model, medians over the repeats.

    Attributes
    ----------
    draft, target : float
        The draft model over one token; the target over one token.
    verify : float
        The target over a draft and the token before it, acceptance included.
    """

    draft: float
    target: float
    verify: float


def forward_times(plain: Sequence[Runs], drafted: Sequence[Runs]) -> ForwardTimes:
    """Times of the forwards from timed runs of plain decoding and of a draft model, one entry a repeat.

    Raises
    ------
    ValueError
        If no step was timed: the outputs were too short.
    """
    counts = [sum(step.drafted for run in runs for step in run.steps) for runs in drafted]
    if not all(counts):
        raise ValueError("no draft was verified in the timed runs; time longer outputs")
    target, verify = (
        [m["verify_seconds"] / m["calls"] for m in map(pooled, repeats)] for repeats in (plain, drafted)
    )
    draft = [pooled(runs)["draft_seconds"] / count for runs, count in zip(drafted, counts, strict=True)]
    return ForwardTimes(median(draft), median(target), median(verify))


def fastest(timed: Mapping[Any, Sequence[Runs]]) -> dict[Any, Runs]:
    """Of each run the repeat that took the least time: what else the machine does only ever adds to it.

    Parameters
    ----------
    timed : mapping
        By method: for each repeat its runs (:func:`specdec_lib.evaluation.suite.time_methods`).
    """
    return {
        method: [min(runs, key=lambda run: run.stats["seconds"]) for runs in zip(*repeats, strict=True)]
        for method, repeats in timed.items()
    }


def forward_counts(runs: Runs) -> tuple[np.ndarray, np.ndarray]:
    """What the regression of section 4.2 is fitted to: forwards and time of each run after the prefill.

    Returns
    -------
    forwards : int array, shape (runs, 2)
        N_draft, a forward for each drafted token, and N_target.
    seconds : float array, shape (runs,)
        Drafting, verification and commit.
    """
    counts = [(sum(step.drafted for step in run.steps), len(run.steps)) for run in runs]
    seconds = [run.stats["seconds"] - run.stats["prefill_seconds"] for run in runs]
    return np.array(counts, dtype=np.int64).reshape(-1, 2), np.array(seconds)


def seconds_by_width(runs: Runs) -> dict[int, float]:
    """Median time of a target forward, acceptance included, by the tokens it runs over.

    These are the draft and the token before it.
    """
    found: dict[int, list[float]] = {}
    for run in runs:
        for step in run.steps:
            found.setdefault(step.drafted + 1, []).append(step.verify_seconds)
    return {width: median(found[width]) for width in sorted(found)}


@dataclass(frozen=True)
class Hindsight:
    """Where a draft model and the recorded greedy outputs agree, and the calls of the oracle that knows it.

    Attributes
    ----------
    recordings : sequence of Recording
    agreement : list of bool array, shape (new tokens - 1,)
        :func:`specdec_lib.evaluation.metrics.greedy_agreement`; the first token comes from the prefill.
    """

    recordings: Sequence[Recording]
    agreement: list[np.ndarray]

    @classmethod
    def of(cls, recordings: Sequence[Recording], draft: PreTrainedModel) -> Hindsight:
        """Run the draft model once over each recording."""
        return cls(
            recordings, [greedy_agreement(draft, r.trace.prompt, r.trace.tokens)[1:] for r in recordings]
        )

    @cached_property
    def calls(self) -> list[int]:
        """Target forwards of the oracle after the prefill (Lemma 2.1), for each recording."""
        return [oracle_calls(agreed) for agreed in self.agreement]

    def beaten(self, runs: Runs) -> int:
        """How many runs needed fewer forwards than the oracle: none, or something is wrong."""
        return sum(len(run.steps) < calls for run, calls in zip(runs, self.calls, strict=True))

    def beside(
        self, sweep: Mapping[int, Runs], times: ForwardTimes, keep: Callable[[Recording], bool]
    ) -> dict[str, float]:
        """Compare the best fixed draft length with the oracle, by equation 2.3.

        Returns
        -------
        dict
            ``alpha``: share of tokens that are the draft's first choice; ``best``: K of lowest latency; at it
            ``tokens_per_forward``, ``expected`` (:func:`specdec_lib.theory.costs.expected_tokens` at alpha)
            and ``speedup``; ``oracle_tokens_per_forward`` and ``oracle_speedup``.
        """
        kept = [
            (agreed, calls)
            for agreed, calls, r in zip(self.agreement, self.calls, self.recordings, strict=True)
            if keep(r)
        ]
        emitted, share = sum(len(agreed) for agreed, _ in kept), float("nan")
        if emitted:
            share = sum(calls for _, calls in kept) / emitted
        found = {length: pooled(select(runs, self.recordings, keep)) for length, runs in sweep.items()}
        cost = {
            length: latency(times.draft, times.target, m["discard_rate"], m["verification_rate"])
            for length, m in found.items()
        }
        best = min(cost, key=cost.get)
        alpha = sum(int(agreed.sum()) for agreed, _ in kept) / emitted if emitted else float("nan")
        return {
            "alpha": alpha,
            "best": best,
            "tokens_per_forward": found[best]["tokens_per_forward"],
            "expected": expected_tokens(alpha, best),
            "speedup": times.target / cost[best],
            "oracle_tokens_per_forward": 1 / share,
            "oracle_speedup": times.target / latency(times.draft, times.target, 0.0, share),
        }
