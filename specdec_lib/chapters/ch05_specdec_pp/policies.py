"""Policies for stopping, played on recorded outputs: a frame with a row an output and policy.

Settings are chosen on every second prompt of a set and compared on the others, by rates and ratios of the frame
(:mod:`specdec_lib.experiments.results`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import pandas as pd

from specdec_lib.chapters.ch05_specdec_pp.draft_pass import DraftPass, Judged, Tally, play
from specdec_lib.drafters import stopping
from specdec_lib.drafters.stopping import Round, StoppingRule
from specdec_lib.experiments.all_cores import on_all_cores
from specdec_lib.experiments.recorded_runs import Recording
from specdec_lib.experiments.results import ratio
from specdec_lib.experiments.statistics import Interval
from specdec_lib.heads.acceptance import AcceptanceHead

#: Fixed draft lengths that the paper chose the best of (section 4.1).
PAPER_LENGTHS = (2, 4, 6, 8, 10, 12, 14)
#: Mean over outputs of the speed-up over plain decoding: as Table 1 has it, each output counts alike.
SPEED = ("speed", "outputs")
VERIFICATION, DISCARD = ("passes", "tokens"), ("discarded", "tokens")


class Oracle(StoppingRule):
    """Stop just before the first token that will be refused (SpecDec++, section 2.1); greedy decoding in hindsight.

    Needs a drafter that may draft nothing (``min_tokens=0``). ``agreement`` says for each new token, from ``prompt_length`` on,
    whether it is the draft model's first choice.
    """

    def __init__(self, agreement: Sequence[bool], prompt_length: int):
        self.agreement, self.prompt_length = agreement, prompt_length

    def stop(self, drafted: Round) -> bool:
        place = drafted.position + drafted.count - self.prompt_length
        return place >= len(self.agreement) or not self.agreement[place]


@dataclass(frozen=True)
class Policy:
    """One rule with one setting, made afresh for each output (only the oracle looks at it); ``family`` is what it is
    compared as, ``heads`` what it asks, one a training seed, ``least`` the fewest tokens of a draft."""

    family: str
    setting: str
    make: Callable[[DraftPass], StoppingRule] = field(compare=False)
    heads: tuple[AcceptanceHead, ...] = field(default=(), repr=False)
    least: int = 1

    @property
    def name(self) -> str:
        """Family and setting."""
        return f"{self.family}, {self.setting}" if self.setting else self.family


def _each(family: str, name: str, values: Iterable[float], rule: Callable[..., StoppingRule], **kwargs) -> list[Policy]:
    return [Policy(family, f"{name} = {v:g}", lambda passed, v=v: rule(v), **kwargs) for v in values]


def baselines(longest: int = 20) -> list[Policy]:
    """Policies without a head, at all settings that are tried; ``fixed K`` at :data:`PAPER_LENGTHS`, ``any fixed K`` at
    every length up to ``longest``."""
    thresholds = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
    transient = lambda passed: stopping.Heuristic(5, transient=True)  # noqa: E731
    return [
        *_each("fixed K", "K", [k for k in PAPER_LENGTHS if k <= longest], stopping.FixedLength),
        *_each("any fixed K", "K", range(1, longest + 1), stopping.FixedLength),
        Policy("heuristic", "from 5", transient),
        *_each("confidence", "threshold", thresholds, stopping.Confidence),
        *_each("fitted confidence", "from", [0.4], stopping.FittedConfidence),
        *_each("cumulative confidence", "h", [*thresholds, 0.95, 0.99], stopping.CumulativeConfidence),
        *_each("entropy", "threshold", [0.25, 0.5, 1, 1.5, 2, 3, 4], stopping.Entropy),
        Policy("oracle", "", lambda passed: Oracle(passed.agreement, len(passed.trace.prompt)), least=0),
    ]


def with_heads(
    family: str, heads: Sequence[AcceptanceHead], thresholds: Sequence[float], check_newest: bool = False
) -> list[Policy]:
    """SpecDec++ with one head of several training seeds at each threshold h, drafting two tokens at least (with
    ``check_newest``, one)."""
    rule = lambda h: stopping.PredictedRejection(h, check_newest)  # noqa: E731
    return _each(family, "h", thresholds, rule, heads=tuple(heads), least=1 if check_newest else 2)


class Output(NamedTuple):
    """A recorded output, the draft model's pass along it, and the set of prompts that it counts with."""

    set: str
    recording: Recording
    passed: DraftPass

    @property
    def prompt(self) -> str:
        """Name of the prompt among all sets."""
        return f"{self.recording.task}: {self.recording.prompt.id}"


def play_all(outputs: Sequence[Output], policies: Sequence[Policy]) -> pd.DataFrame:
    """Counts of every output under every policy, on all cores; a row a policy and output, in this order.

    ``task`` (the set), ``prompt``, ``turn``, ``seed``; ``tuning``, whether settings are chosen on its prompt (every second one
    of its set); ``family``, ``method`` (family and setting); ``tokens``, ``passes`` of the target, ``drafted``, ``accepted``,
    ``discarded``, ``draft_passes``; ``outputs``, 1.
    """
    prompts: dict[str, dict[str, int]] = {}
    for one in outputs:
        own = prompts.setdefault(one.set, {})
        own.setdefault(one.prompt, len(own))
    about = [
        {
            "task": one.set,
            "prompt": one.prompt,
            "turn": one.recording.turn,
            "seed": str(one.recording.trace.sampling.seed),
            "tuning": prompts[one.set][one.prompt] % 2 == 0,
        }
        for one in outputs
    ]
    found = on_all_cores([partial(_played, one.passed, policies) for one in outputs])
    rows = [
        own
        | {"family": policy.family, "method": policy.name, "outputs": 1}
        | {"tokens": tally.tokens, "passes": tally.calls, "drafted": tally.drafted, "accepted": tally.accepted}
        | {"discarded": tally.drafted - tally.accepted, "draft_passes": tally.passes}
        for policy, tallies in zip(policies, zip(*found, strict=True), strict=True)
        for own, tally in zip(about, tallies, strict=True)
    ]
    return pd.DataFrame(rows)


def _played(passed: DraftPass, policies: Sequence[Policy]) -> list[Tally]:
    judged: dict[AcceptanceHead | None, DraftPass | Judged] = {None: passed}
    tallies = []
    for policy in policies:
        head = policy.heads[0] if policy.heads else None
        if head not in judged:
            judged[head] = Judged.of(passed, head)
        tallies.append(play(judged[head], policy.make(passed), policy.least))
    return tallies


def timed(plays: pd.DataFrame, draft: float, target: float, alone: float) -> pd.DataFrame:
    """With the column ``speed``: the speed-up of each output over plain decoding by equation 2.1, for the seconds of a pass
    of the draft model, of the target, and of the target in plain decoding."""
    return plays.assign(speed=alone * plays.tokens / (draft * plays.draft_passes + target * plays.passes))


class Contest:
    """Policies at all settings on the same outputs; heads are chosen with their first training seed and compared with all.

    The ``speed`` in ``plays`` is for the seconds ``times`` of a pass, as :func:`timed` takes them.
    """

    def __init__(
        self,
        outputs: Sequence[Output],
        policies: Sequence[Policy],
        times: tuple[float, float, float],
        plays: pd.DataFrame | None = None,
    ):
        self.outputs, self.policies, self.times = outputs, policies, times
        self.seeds = max(len(policy.heads) or 1 for policy in policies)
        self.plays = timed(play_all(outputs, policies) if plays is None else plays, *times)
        self.sets = list(dict.fromkeys(one.set for one in outputs))
        self._known: dict[str, pd.DataFrame] = {}

    def at(self, draft: float, target: float, alone: float | None = None) -> Contest:
        """The same plays at other seconds of a pass."""
        times = (draft, target, self.times[2] if alone is None else alone)
        other = Contest(self.outputs, self.policies, times, self.plays)
        other._known = self._known
        return other

    def fastest(self, policies: str | Sequence[str], name: str | None = None) -> str:
        """The policy of a family, or of several by name, that is fastest on the prompts of a set (of all) on which
        settings are chosen."""
        plays = self.plays[self.plays.tuning]
        known = plays.family == policies if isinstance(policies, str) else plays.method.isin(list(policies))
        plays = plays[known] if name is None else plays[known & (plays.task == name)]
        return plays.groupby("method", sort=False).speed.mean().idxmax()

    def rows(self, method: str, name: str | None = None) -> pd.DataFrame:
        """Rows of a policy on the other prompts of a set (of all), once for each training seed of its head; a policy without
        one, or with a single head, has the same row for each."""
        if method not in self._known:
            self._known[method] = self._with_seeds(next(one for one in self.policies if one.name == method))
        plays = timed(self._known[method], *self.times)
        return plays if name is None else plays[plays.task == name]

    def _with_seeds(self, policy: Policy) -> pd.DataFrame:
        if len(policy.heads) < 2:
            own = self.plays[(self.plays.method == policy.name) & ~self.plays.tuning]
            copies = [own] * self.seeds
        else:
            again = [
                replace(policy, setting=f"{policy.setting}, {i}", heads=(head,)) for i, head in enumerate(policy.heads)
            ]
            plays = play_all(self.outputs, again)
            copies = [plays[(plays.method == one.name) & ~plays.tuning] for one in again]
        return pd.concat([own.assign(seed=own.seed + f", head {i}") for i, own in enumerate(copies)])

    def judged(self) -> pd.DataFrame:
        """Every family at the setting that is fastest on one half of each set, on the other half; ``method`` is the family."""
        families = list(dict.fromkeys(policy.family for policy in self.policies))
        return pd.concat(
            self.rows(self.fastest(family, name), name).assign(method=family)
            for name in self.sets
            for family in families
        )

    def over(self, ours: str, theirs: str, name: str | None = None) -> Interval:
        """Speed of one policy over that of another on the prompts of a set (of all) that settings were not chosen on."""
        pair = {"ours": ours, "theirs": theirs}
        rows = [self.rows(method, name).assign(method=side) for side, method in pair.items()]
        return ratio(pd.concat(rows), *pair, SPEED)
