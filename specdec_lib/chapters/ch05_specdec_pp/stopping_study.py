"""Many stopping policies on the same recorded prompts: settings chosen on one half, compared on the other."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from specdec_lib.chapters.ch05_specdec_pp.draft_pass import (
    DraftPass,
    Judged,
    Tally,
    play,
    rates,
    throughputs,
)
from specdec_lib.drafters import stopping
from specdec_lib.drafters.stopping import StoppingRule
from specdec_lib.experiments.all_cores import on_all_cores
from specdec_lib.experiments.statistics import Interval, pooled_rate, ratio_of_means
from specdec_lib.heads.acceptance import AcceptanceHead

#: Fixed draft lengths that the paper chose the best of (section 4.1).
PAPER_LENGTHS = (2, 4, 6, 8, 10, 12, 14)


@dataclass(frozen=True)
class Policy:
    """One rule with one setting, made afresh for each pass (only the oracle looks at the pass); ``family`` is what it
    is compared as, ``least`` the fewest tokens of a draft."""

    family: str
    setting: str
    make: Callable[[DraftPass], StoppingRule] = field(compare=False)
    head: AcceptanceHead | None = field(default=None, compare=False)
    least: int = 1


def _each(family: str, name: str, values: Iterable[float], rule: Callable[..., StoppingRule], **kwargs) -> list[Policy]:
    return [Policy(family, f"{name} = {v:g}", lambda passed, v=v: rule(v), **kwargs) for v in values]


def baselines(longest: int = 20) -> dict[str, list[Policy]]:
    """Policies without a head, by family, each with the settings it is tried at.

    ``fixed K`` is tried at :data:`PAPER_LENGTHS`, ``any fixed K`` at every length.

    Parameters
    ----------
    longest : int
        Largest fixed length.
    """
    thresholds = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
    transient = lambda passed: stopping.Heuristic(5, transient=True)  # noqa: E731
    return {
        "fixed K": _each("fixed K", "K", [k for k in PAPER_LENGTHS if k <= longest], stopping.FixedLength),
        "any fixed K": _each("any fixed K", "K", range(1, longest + 1), stopping.FixedLength),
        "heuristic": [Policy("heuristic", "from 5", transient)],
        "confidence": _each("confidence", "threshold", thresholds, stopping.Confidence),
        "fitted confidence": _each("fitted confidence", "from", [0.4], stopping.FittedConfidence),
        "cumulative confidence": _each(
            "cumulative confidence", "h", [*thresholds, 0.95, 0.99], stopping.CumulativeConfidence
        ),
        "entropy": _each("entropy", "threshold", [0.25, 0.5, 1, 1.5, 2, 3, 4], stopping.Entropy),
    }


def with_head(
    family: str,
    head: AcceptanceHead,
    thresholds: Sequence[float],
    check_newest: bool = False,
) -> list[Policy]:
    """SpecDec++ with one head at each threshold h, drafting two tokens at least (with ``check_newest``,
    one)."""
    return _each(
        family,
        "h",
        thresholds,
        lambda h: stopping.PredictedRejection(h, check_newest),
        head=head,
        least=1 if check_newest else 2,
    )


def with_heads(policy: Policy, heads: Sequence[AcceptanceHead]) -> list[Policy]:
    """The same setting with other heads, such as those of further training seeds."""
    return [replace(policy, head=head) for head in heads]


ORACLE = Policy("oracle", "", lambda passed: stopping.Oracle(passed.agreement, len(passed.trace.prompt)), least=0)


def below(points: np.ndarray, curve: np.ndarray) -> float:
    """Share of points below a curve of discard against verification rate, among those whose verification rate the curve
    reaches; NaN where there is none."""
    line = curve[np.argsort(curve[:, 0])]
    inside = points[(points[:, 0] >= line[0, 0]) & (points[:, 0] <= line[-1, 0])]
    if not len(inside):
        return float("nan")
    return float((inside[:, 1] < np.interp(inside[:, 0], *line.T)).mean())


def matched(points: np.ndarray, curve: np.ndarray) -> float:
    """Share of the points of a curve that some point has no higher rate than in either of two rates.

    Parameters
    ----------
    points, curve : float array, shape (n, 2)
        Verification and discard rate.
    """
    below_or_at = (points[:, None] <= curve[None]).all(axis=-1)
    return float(below_or_at.any(axis=0).mean())


class Study:
    """Policies played on recorded prompts, each policy once.

    Parameters
    ----------
    passes : sequence of DraftPass
    groups : sequence of str
        What each is an output of.
    longest : int
        Most tokens of a draft.
    prompts : sequence, optional
        Which prompt each is an answer to, where a prompt has several outputs; intervals are over prompts.
    """

    def __init__(
        self,
        passes: Sequence[DraftPass],
        groups: Sequence[str],
        longest: int = 20,
        prompts: Sequence[Hashable] | None = None,
    ):
        self.prompts = list(range(len(passes)) if prompts is None else prompts)
        if not len(passes) == len(groups) == len(self.prompts) or not passes:
            raise ValueError(
                f"{len(passes)} passes, {len(groups)} groups and {len(self.prompts)} prompts; expected one group and "
                "one prompt for each pass"
            )
        self.passes, self.longest, self.groups = list(passes), longest, np.array(groups)
        self._played: dict[tuple, list[Tally | None]] = {}
        self._judged: dict[AcceptanceHead, dict[int, Judged]] = {}

    @property
    def tuning(self) -> np.ndarray:
        """Every second prompt of each group, with all its outputs: where settings are chosen. bool, shape (n,)."""
        order: dict[str, dict[Hashable, int]] = {}
        for name, prompt in zip(self.groups.tolist(), self.prompts, strict=True):
            own = order.setdefault(name, {})
            own.setdefault(prompt, len(own))
        place = [order[name][prompt] for name, prompt in zip(self.groups.tolist(), self.prompts, strict=True)]
        return np.array(place) % 2 == 0

    def judged(self, head: AcceptanceHead) -> list[Judged]:
        """The passes with what ``head`` says about them."""
        return [self._shown(place, head) for place in range(len(self.passes))]

    def _shown(self, place: int, head: AcceptanceHead | None) -> DraftPass | Judged:
        """A pass, with what ``head`` says about it."""
        if head is None:
            return self.passes[place]
        judged = self._judged.setdefault(head, {})
        if place not in judged:
            judged[place] = Judged.of(self.passes[place], head)
        return judged[place]

    def play(self, policy: Policy, keep: np.ndarray | None = None) -> list[Tally | None]:
        """Counts of each prompt under a policy.

        Parameters
        ----------
        policy : Policy
        keep : bool array, optional
            Prompts that counts are wanted of; of the others there may be None.
        """
        played = self._played_under(policy)
        for place in range(len(self.passes)) if keep is None else np.flatnonzero(keep).tolist():
            if played[place] is None:
                played[place] = self._play(place, policy)
        return played

    def play_all(self, policies: Sequence[Policy]) -> None:
        """Play many policies on all prompts, on all cores; later calls find them played."""
        found = on_all_cores(
            [
                lambda place=place: [self._play(place, policy) for policy in policies]
                for place in range(len(self.passes))
            ]
        )
        for place, tallies in enumerate(found):
            for policy, tally in zip(policies, tallies, strict=True):
                self._played_under(policy)[place] = tally

    def _played_under(self, policy: Policy) -> list[Tally | None]:
        key = (policy.family, policy.setting, policy.head, policy.least)
        return self._played.setdefault(key, [None] * len(self.passes))

    def _play(self, place: int, policy: Policy) -> Tally:
        rule = policy.make(self.passes[place])
        return play(self._shown(place, policy.head), rule, policy.least, self.longest)

    def tallies(self, policy: Policy, keep: np.ndarray) -> list[Tally]:
        """Those of the prompts that are kept and emit a token after the prefill."""
        return [t for t, kept in zip(self.play(policy, keep), keep, strict=True) if kept and t.tokens]

    def rates(self, policies: Sequence[Policy], keep: np.ndarray) -> np.ndarray:
        """Verification and discard rate of each policy over the kept prompts together, shape (policies,
        2)."""
        return np.array([rates(self.tallies(policy, keep)) for policy in policies])

    def rate_intervals(self, policies: Sequence[Policy], keep: np.ndarray) -> list[tuple[Interval, Interval]]:
        """Verification and discard rate of each policy over the kept prompts, with intervals over these."""
        made = []
        for policy in policies:
            played = zip(self.prompts, self.play(policy, keep), keep, strict=True)
            own = [(prompt, tally) for prompt, tally, kept in played if kept and tally.tokens]
            names, tokens = [prompt for prompt, _ in own], [tally.tokens for _, tally in own]
            verified = pooled_rate(([tally.calls for _, tally in own], tokens), names)
            made.append((verified, pooled_rate(([t.drafted - t.accepted for _, t in own], tokens), names)))
        return made

    def throughput(self, policy: Policy, keep: np.ndarray, times: tuple[float, float]) -> np.ndarray:
        """Tokens per second of each kept prompt, for the seconds of one pass of draft and target."""
        return throughputs(self.tallies(policy, keep), *times)

    def best(self, policies: Sequence[Policy], keep: np.ndarray, times: tuple[float, float]) -> Policy:
        """The policy of the highest mean throughput over the kept prompts."""
        return max(policies, key=lambda policy: self.throughput(policy, keep, times).mean())

    def chosen(
        self,
        families: Mapping[str, Sequence[Policy]],
        keep: np.ndarray,
        times: tuple[float, float],
    ) -> dict[str, Policy]:
        """For each family the setting that is best on the tuning half of the kept prompts."""
        return {name: self.best(own, keep & self.tuning, times) for name, own in families.items()}

    def _runs(
        self, policies: Sequence[Policy], keep: np.ndarray, times: tuple[float, float]
    ) -> tuple[np.ndarray, list[Hashable]]:
        """Throughputs of several policies on the kept prompts, one policy after the other, and the prompts' names."""
        values = np.concatenate([self.throughput(policy, keep, times) for policy in policies])
        names = [
            prompt
            for policy in policies
            for prompt, tally, kept in zip(self.prompts, self.play(policy, keep), keep, strict=True)
            if kept and tally.tokens
        ]
        return values, names

    def speedup(
        self, policies: Policy | Sequence[Policy], keep: np.ndarray, times: tuple[float, float], alone: float
    ) -> Interval:
        """Mean throughput of a policy on the kept prompts over that of plain decoding, with its 95 % interval.

        Parameters
        ----------
        policies : Policy, or several
            Several, one for each training seed of a head, count as runs of the same prompts.
        keep : bool array
        times : pair of float
            Seconds of one pass of draft and target.
        alone : float
            Seconds of a pass of the target in plain decoding.
        """
        values, names = self._runs([policies] if isinstance(policies, Policy) else policies, keep, times)
        return pooled_rate((values * alone, np.ones(len(values))), names)

    def against(
        self,
        ours: Policy | Sequence[Policy],
        theirs: Policy | Sequence[Policy],
        keep: np.ndarray,
        times: tuple[float, float],
    ) -> Interval:
        """Ratio of mean throughputs on the kept prompts that settings were not chosen on, and its 95 %
        interval; several of ``ours`` as in :meth:`speedup`, with one of ``theirs`` or one for each."""
        ours, test = [ours] if isinstance(ours, Policy) else list(ours), keep & ~self.tuning
        theirs = [theirs] * len(ours) if isinstance(theirs, Policy) else list(theirs)
        values, names = self._runs(ours, test, times)
        return ratio_of_means(values, self._runs(theirs, test, times)[0], names)
