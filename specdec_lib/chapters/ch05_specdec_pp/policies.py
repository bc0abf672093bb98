"""Chapter 5: SpecDec++, its policies for stopping, its heads, and the seconds of whole generations.

Policies are played on recorded outputs: rows of an output, a policy and a training seed of its head. Settings are chosen on one
half of a set's prompts and compared on the other, by rates and ratios of the rows (:mod:`specdec_lib.experiments.runs.results`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, permutations
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specdec_lib.chapters.ch05_specdec_pp.draft_passes import DraftPass, HeadPredictions, Tally, draft_along_all, play
from specdec_lib.chapters.ch05_specdec_pp.stopping_theory import true_rejection
from specdec_lib.decoding.clock import clock_of
from specdec_lib.decoding.contract import Capture, Drafter
from specdec_lib.decoding.generate import generate
from specdec_lib.decoding.results import Generation
from specdec_lib.decoding.sampling import Sampling, distribution
from specdec_lib.decoding.served_models import decoder_config
from specdec_lib.decoding.target import Target
from specdec_lib.decoding.tree import DraftTree
from specdec_lib.drafters import stopping
from specdec_lib.drafters.stopping import Round, StoppingRule
from specdec_lib.experiments.checks.rounding import Judge
from specdec_lib.experiments.data.prompt import Prompt, render
from specdec_lib.experiments.data.published_sets.files import MissingData
from specdec_lib.experiments.data.tasks import load_task
from specdec_lib.experiments.runs import recorded_runs, results
from specdec_lib.experiments.runs.all_cores import on_all_cores
from specdec_lib.experiments.runs.recorded_runs import Recording, Runs
from specdec_lib.experiments.runs.recordings import record_once
from specdec_lib.experiments.runs.results import ratio
from specdec_lib.experiments.statistics.intervals import Interval, bootstrap_interval, ratio_of_means
from specdec_lib.experiments.workbench import companions
from specdec_lib.heads.acceptance import AcceptanceHead
from specdec_lib.models.fingerprint import fingerprint

# Policies --------------------------------------------------------------------------------------------------------

#: Fixed draft lengths that the paper chose the best of (section 4.1).
PAPER_LENGTHS = (2, 4, 6, 8, 10, 12, 14)
#: Mean over outputs of the speed-up over plain decoding: as Table 1 has it, each output counts alike.
MEAN_SPEED = ("speed", "outputs")


class Oracle(StoppingRule):
    """Stop just before the first token that will be rejected (SpecDec++, section 2.1); greedy decoding in hindsight.

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
    compared as, ``heads`` what it asks, one per training seed, ``least`` the fewest tokens of a draft."""

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


def baselines() -> list[Policy]:
    """Policies without a head, at all settings that are tried; ``fixed K`` at :data:`PAPER_LENGTHS`, ``any fixed K`` at
    every length up to 20."""
    thresholds = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
    transient = lambda passed: stopping.Heuristic(5, transient=True)  # noqa: E731
    return [
        *_each("fixed K", "K", PAPER_LENGTHS, stopping.FixedLength),
        *_each("any fixed K", "K", range(1, 21), stopping.FixedLength),
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
    """A recorded output and the draft model's pass along it."""

    recording: Recording
    passed: DraftPass

    @property
    def about(self) -> dict[str, Any]:
        """What tells its rows from those of other outputs, and whether it ends in a loop."""
        sampling = self.recording.trace.sampling
        return {
            "task": self.recording.task,
            "prompt": self.recording.prompt.id,
            "turn": self.recording.turn,
            "seed": sampling.seed,
            "temperature": sampling.temperature,
            "looped": self.recording.looped,
        }


def prompts_of_sets(sets: Mapping[str, str], count: int) -> list[Prompt]:
    """The first turns of up to ``count`` prompts of the task of each set; where its files are not on this machine those of the
    book's own task of the set's name."""
    found = []
    for name, task in sets.items():
        try:
            own = load_task(task, limit=count)
        except MissingData:
            own = load_task(name, limit=count)
        found += [replace(one, turns=one.turns[:1]) for one in own]
    return found


def outputs_of(
    target: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    draft: PreTrainedModel,
    prompts: Sequence[Prompt],
    sampling: Sampling | None,
    longest: int,
    together: int = 1,
) -> list[Output]:
    """Answers of more than one token, and the draft model's pass along each; a large draft model is faster if it runs along some
    ``together``."""
    recordings = record_once(target, tokenizer, prompts, sampling, longest)
    kept = [one for one in recordings if len(one.trace.tokens) > 1]
    traces = [one.trace for one in kept]
    groups = [traces[first : first + together] for first in range(0, len(traces), together)]
    passes = on_all_cores([partial(draft_along_all, group, draft, target=target) for group in groups])
    return list(map(Output, kept, chain.from_iterable(passes)))


def play_all(outputs: Sequence[Output], policies: Sequence[Policy]) -> pd.DataFrame:
    """Rows of every output under every policy, on all cores; a row per policy, head and output, in this order.

    :attr:`Output.about`; ``family``, ``method`` (family and setting); ``head``, the place of its training seed, 0 without one;
    ``tokens``, ``passes`` of the target, ``drafted``, ``accepted``, ``draft_passes``.
    """
    found = on_all_cores([partial(_played, one.passed, policies) for one in outputs])
    heads = [(policy, place) for policy in policies for place in range(max(len(policy.heads), 1))]
    rows = [
        one.about
        | {"family": policy.family, "method": policy.name, "head": place}
        | {"tokens": tally.tokens, "passes": tally.calls, "drafted": tally.drafted, "accepted": tally.accepted}
        | {"draft_passes": tally.passes}
        for (policy, place), tallies in zip(heads, zip(*found, strict=True), strict=True)
        for one, tally in zip(outputs, tallies, strict=True)
    ]
    return pd.DataFrame(rows)


def _played(passed: DraftPass, policies: Sequence[Policy]) -> list[Tally]:
    judged: dict[AcceptanceHead | None, DraftPass | HeadPredictions] = {None: passed}
    tallies = []
    for policy in policies:
        for head in policy.heads or (None,):
            if head not in judged:
                judged[head] = HeadPredictions.of(passed, head)
            tallies.append(play(judged[head], policy.make(passed), policy.least))
    return tallies


def in_sets(rows: pd.DataFrame, sets: Mapping[str, str]) -> pd.DataFrame:
    """Rows of :func:`play_all` with ``task`` the name of the set that a task stands for; ``tuning``, whether settings are chosen on
    the prompt (every second one of its set); ``discarded`` tokens; and ``outputs``, 1."""
    rows = rows.assign(task=rows.task.replace({task: name for name, task in sets.items()}))
    place = rows.groupby("task").prompt.transform(lambda prompts: pd.factorize(prompts)[0])
    return rows.assign(tuning=place % 2 == 0, discarded=rows.drafted - rows.accepted, outputs=1)


def with_speed(plays: pd.DataFrame, draft: float, target: float, alone: float) -> pd.DataFrame:
    """With the column ``speed``: the speed-up of each output over plain decoding by equation 2.1, for the seconds of a pass
    of the draft model, of the target, and of the target in plain decoding."""
    return plays.assign(speed=alone * plays.tokens / (draft * plays.draft_passes + target * plays.passes))


class PolicyComparison:
    """Policies at all settings on the same outputs; settings are chosen with a head's first training seed and compared with all.

    ``plays`` are rows of :func:`in_sets`. Their ``speed`` is for the seconds ``times`` of a pass, as :func:`with_speed` takes them.
    """

    def __init__(self, plays: pd.DataFrame, times: tuple[float, float, float]):
        self.plays, self.times = with_speed(plays, *times), times
        self.first = self.plays[self.plays["head"] == 0]
        self.seeds = plays["head"].max() + 1
        self.sets = list(dict.fromkeys(plays.task))

    def at(self, draft: float, target: float, alone: float | None = None) -> PolicyComparison:
        """The same plays at other seconds of a pass."""
        return PolicyComparison(self.plays, (draft, target, self.times[2] if alone is None else alone))

    def fastest(self, family: str | Collection[str], name: str | None = None) -> str:
        """The policy of a family, or of several, that is fastest on the prompts of a set (of all) on which settings are chosen."""
        families = [family] if isinstance(family, str) else family
        plays = self.first[self.first.tuning & self.first.family.isin(families)]
        plays = plays if name is None else plays[plays.task == name]
        return plays.groupby("method", sort=False).speed.mean().idxmax()

    def single(self, family: str) -> str:
        """The policy of a family that, on the set where it loses most, keeps most of that set's best mean speed; both are of the
        prompts on which settings are chosen."""
        plays = self.first[self.first.tuning & (self.first.family == family)]
        mean = plays.groupby(["method", "task"], sort=False).speed.mean()
        return (mean / mean.groupby("task").transform("max")).groupby("method", sort=False).min().idxmax()

    def rows(self, method: str, name: str | None = None) -> pd.DataFrame:
        """Rows of a policy on the other prompts of a set (of all), one for each training seed of its head; a policy without
        one, or with a single head, has the same row for each."""
        plays = self.plays[(self.plays.method == method) & ~self.plays.tuning]
        plays = plays if name is None else plays[plays.task == name]
        if plays["head"].nunique() < 2:
            plays = pd.concat([plays.assign(head=place) for place in range(self.seeds)])
        plays = plays.sort_values("head", kind="stable")
        return plays.assign(seed=plays.seed.astype(str) + ", head " + plays["head"].astype(str))

    def held_out_rows(self) -> pd.DataFrame:
        """Every family at the setting that is fastest on one half of each set, on the other half; ``method`` is the family."""
        return pd.concat(
            self.rows(self.fastest(family, name), name).assign(method=family)
            for name in self.sets
            for family in dict.fromkeys(self.plays.family)
        )

    def halves(self) -> tuple[PolicyComparison, PolicyComparison]:
        """Itself, and the comparison whose settings are chosen on the other half of the prompts."""
        return self, PolicyComparison(self.plays.assign(tuning=~self.plays.tuning), self.times)

    def crossed_rows(self, families: Mapping[str, str | Collection[str]]) -> pd.DataFrame:
        """Families, by the name that ``method`` gets, at the setting that is fastest on each half of each set, on the other half:
        all prompts count. Several families under one name are compared as one, of all their settings."""
        return pd.concat(
            half.rows(half.fastest(family, name), name).assign(method=method)
            for half in self.halves()
            for name in self.sets
            for method, family in families.items()
        )

    def over(self, ours: str, theirs: str, name: str | None = None) -> Interval:
        """Speed of one policy over that of another on the prompts of a set (of all) that settings were not chosen on."""
        pair = {"ours": ours, "theirs": theirs}
        rows = [self.rows(method, name).assign(method=side) for side, method in pair.items()]
        return ratio(pd.concat(rows), *pair, MEAN_SPEED)

    def kept(self, name: str, chosen: Callable[[PolicyComparison], str]) -> Interval:
        """Speed of a policy of SpecDec++ over that of a set's own best one.

        Both are chosen on each half of the prompts, and compared on the other half.
        """
        rows = [
            half.rows(method, name).assign(method=side)
            for half in self.halves()
            for side, method in {"ours": chosen(half), "best": half.fastest("SpecDec++", name)}.items()
        ]
        return ratio(pd.concat(rows), "ours", "best", MEAN_SPEED)

    def least_kept(self, chosen: Callable[[PolicyComparison], str]) -> Interval:
        """:meth:`kept` on the set where it is least."""
        return min(self.kept(name, chosen) for name in self.sets)

    def least_transferred(self) -> Interval:
        """:meth:`kept` of the best policies of other sets: of the pair of sets that loses most."""
        return min(
            self.kept(name, lambda half, other=other: half.fastest("SpecDec++", other))
            for other, name in permutations(self.sets, 2)
        )

    def front(self, name: str) -> Front:
        """The two rates of SpecDec++ compared with those of every fixed length, on a set."""
        own = self.plays[self.plays.task == name]
        counts = own.groupby(["family", "method", "prompt"])[["passes", "discarded", "tokens"]].sum()
        ours, theirs = (
            np.stack([sums.to_numpy() for _, sums in counts.loc[family].groupby("method")])
            for family in ("SpecDec++", "any fixed K")
        )

        def gaps(drawn: np.ndarray) -> np.ndarray:
            summed = (counts[:, drawn].sum(axis=1) for counts in (ours, theirs))
            return gaps_within(*(sums[:, :2] / sums[:, 2:] for sums in summed))

        def mean_gap(drawn: np.ndarray) -> float:
            found = gaps(drawn)
            return float(found.mean()) if len(found) else math.nan

        prompts = ours.shape[1]
        found = gaps(np.arange(prompts))
        share = float((found <= 1).mean()) if len(found) else math.nan
        return Front(share, len(found), bootstrap_interval(mean_gap, prompts)._replace(prompts=prompts))

    def rates(self) -> pd.DataFrame:
        """Verification rate (``passes``) and discard rate (``discarded``) of each policy, by set, family and method; those of a
        head are over all its training seeds."""
        counts = self.plays.groupby(["task", "family", "method"])[["passes", "discarded", "tokens"]].sum()
        return counts[["passes", "discarded"]].div(counts.tokens, axis=0)

    def by_length(self, column: str) -> np.ndarray:
        """A column of ``any fixed K``, shape (lengths, outputs)."""
        fixed = self.first[self.first.family == "any fixed K"]
        return np.stack([own[column].to_numpy() for _, own in fixed.groupby("method", sort=False)])


class Front(NamedTuple):
    """Of the fixed lengths within reach: the ``share`` that SpecDec++ matches in both rates, ``within``, how many they are, and
    their mean :func:`gaps_within` with its interval over prompts; NaN where none is within reach."""

    share: float
    within: int
    gap: Interval


def gaps_within(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Of policies as points of two rates, shape (policies, 2), where lower is better: for each of theirs within reach the worse of
    our two rates over theirs, of the one of ours that comes nearest. Up to 1 it is matched in both. Out of reach is one with a rate
    lower than that of all of ours."""
    theirs = theirs[(theirs >= ours.min(axis=0)).all(axis=1)]
    pairs = np.broadcast_arrays(ours[:, None], theirs)
    # A rate of zero is matched by zero alone.
    ratios = np.where(pairs[0] > 0, np.inf, 1.0)
    np.divide(*pairs, out=ratios, where=pairs[1] > 0)
    return ratios.max(axis=2).min(axis=0)


def best_length(speeds: np.ndarray, outputs: np.ndarray | slice = slice(None)) -> int:
    """The fixed length of the best mean speed on some outputs; ``speeds`` has the shape (lengths, outputs)."""
    return 1 + int(speeds[:, outputs].mean(axis=1).argmax())


# What acceptance heads know of the tokens that decoding meets, and their cost ------------------------------------


def shipped_heads(target: PreTrainedModel, draft: PreTrainedModel) -> tuple[list[AcceptanceHead], list[AcceptanceHead]]:
    """The acceptance heads that come with a pair, one per training seed: those of the paper, and those that see the draft model's
    probability too; ValueError for heads of another draft model."""
    folder = companions(target) / "head"
    heads = [AcceptanceHead.load(path) for path in sorted(folder.glob("acceptance*.safetensors"))]
    if not heads or any(head.draft != fingerprint(draft) for head in heads):
        raise ValueError(f"{folder} holds no heads of this draft model; train some with scripts/train_companions.py")
    return [head for head in heads if not head.sees_confidence], [head for head in heads if head.sees_confidence]


def coarse_heads(target: PreTrainedModel, draft: PreTrainedModel) -> dict[str, list[AcceptanceHead]]:
    """The acceptance heads of a :func:`~specdec_lib.experiments.coarser_draft.coarser` draft model by their kind,
    ``"acceptance"`` for the paper's settings, one per training seed; ValueError for heads of another draft model."""
    folder, found = companions(target) / "head-coarse", defaultdict(list)
    for path in sorted(folder.glob("*.safetensors")):
        found[path.stem.rpartition("-")[0]].append(AcceptanceHead.load(path))
    if not found or any(head.draft != fingerprint(draft) for heads in found.values() for head in heads):
        raise ValueError(
            f"{folder} holds no heads of this draft model; train some with scripts/train_companions.py --kind coarse-acceptance"
        )
    return dict(found)


def drafted_token_rows(outputs: Sequence[Output], heads: Mapping[str, AcceptanceHead]) -> pd.DataFrame:
    """Rows of the drafted tokens that decoding meets, of method ``"draft model"``: :attr:`Output.about`, ``place`` in the output,
    ``accepted`` (probability, 0 or 1 where decoding is greedy), ``confidence`` of the draft model, and by head the predicted
    acceptance, without the weight that its loss gave to rejections."""
    parts = []
    for one in outputs:
        found = one.passed.examples()
        said = {
            name: without_loss_weight(
                head.probability(found.states, found.confidence), head.story["training"]["reject_weight"]
            )
            for name, head in heads.items()
        }
        own = {"accepted": found.acceptance.double(), "confidence": found.confidence.double()} | said
        parts.append(pd.DataFrame(one.about | {"method": "draft model", "place": range(len(found.confidence))} | own))
    return pd.concat(parts, ignore_index=True)


def without_loss_weight(predicted: np.ndarray | torch.Tensor, reject_weight: float) -> np.ndarray:
    """Acceptance probabilities without the weight that the loss gives to rejections."""
    return 1 - true_rejection(1 - np.asarray(predicted, float), reject_weight)


@torch.inference_mode()
def head_cost(
    draft: PreTrainedModel, head: AcceptanceHead, prompt: Sequence[int], steps: int = 200, repeats: int = 5
) -> dict[str, Any]:
    """Time of a step of the draft model, of the head, and of keeping the state for it, medians in seconds.

    ``draft``: one token without capture; ``capture``: what keeping the state adds; ``head``: one call. ``share``: capture and
    head over a step of the draft model, from the medians of each repeat, with its interval over the repeats.
    """
    last = decoder_config(draft).num_hidden_layers
    score = head.scorer(draft.device)
    marks: dict[str, list[tuple]] = {"bare": [], "kept": [], "head": []}
    token = prompt[-1]
    with (
        Target(draft, 0, capacity=len(prompt) + repeats * steps + 64) as bare,
        Target(draft, 0, Capture((last,)), len(prompt) + repeats * steps + 64) as kept,
    ):
        clock = clock_of(bare.devices)
        for model in (bare, kept):
            model.extend(list(prompt))
        for _ in range(repeats * steps):
            for name, model in (("bare", bare), ("kept", kept)):
                began = clock.mark()
                model.extend([token])
                marks[name].append((began, clock.mark()))
            began = clock.mark()
            score(kept.last_hidden(last), 0.5)
            marks["head"].append((began, clock.mark()))
            for model in (bare, kept):
                model.truncate(len(prompt))
    clock.settle()
    spent = {
        name: np.array([clock.seconds(*pair) for pair in pairs]).reshape(repeats, -1) for name, pairs in marks.items()
    }
    middle = {name: float(np.median(own)) for name, own in spent.items()}
    bare, kept, scored = (np.median(spent[name], axis=1) for name in ("bare", "kept", "head"))
    return {
        "draft": middle["bare"],
        "capture": max(0.0, middle["kept"] - middle["bare"]),
        "head": middle["head"],
        "share": ratio_of_means(kept - bare + scored, bare),
    }


# Seconds of whole generations as a sum over passes (sections 2 and 4.2), and a pass alone and in turns -----------
#
# With N tokens emitted after the prefill, N_draft forwards of the draft model, N_target of the target and N_discarded drafted
# tokens rejected, each round emits what is accepted and one token more, so N_draft + N_target = N + N_discarded. A last round
# without a token of the target's own breaks that by one: it ended with an accepted end token, or its surplus was cut at the length
# limit.


def fastest_runs(repeats: Sequence[Runs]) -> list[Generation]:
    """Return the fastest repeat of each run: other work of the machine only ever adds time."""
    return [min(runs, key=lambda run: run.stats["seconds"]) for runs in zip(*repeats, strict=True)]


def forward_counts(runs: Runs) -> tuple[np.ndarray, np.ndarray]:
    """Return the data of the regression: N_draft and N_target of each run after the prefill, and its seconds."""
    counts = [(sum(step.drafted for step in run.steps), len(run.steps)) for run in runs]
    seconds = [run.stats["seconds"] - run.stats["prefill_seconds"] for run in runs]
    return np.array(counts, dtype=np.int64).reshape(-1, 2), np.array(seconds)


def seconds_by_width(runs: Runs) -> dict[int, float]:
    """Median time of a pass of the target by the tokens it runs over: the draft and the token before it."""
    seconds: dict[int, list[float]] = {}
    for run in runs:
        for step in run.steps:
            seconds.setdefault(step.width, []).append(step.verify_seconds)
    return {width: median(seconds[width]) for width in sorted(seconds)}


def latency(draft_seconds: float, target_seconds: float, discard_rate: float, verification_rate: float) -> float:
    """Time a token as the forwards add up, equation 2.3, from discarded tokens and target forwards per emitted token; 1
    over it is the throughput."""
    return draft_seconds * (1 + discard_rate) + (target_seconds - draft_seconds) * verification_rate


class Lemma(NamedTuple):
    """Of each output: the target calls that an oracle needs, those that Lemma 2.1 states, and whether the models differ in the last
    token; int and bool of shape (outputs,)."""

    needed: np.ndarray
    stated: np.ndarray
    last: np.ndarray

    @classmethod
    def of(cls, agreement: Sequence[np.ndarray]) -> Lemma:
        """Compare both on outputs, given whether the greedy tokens agree at each token; the prefill gives the first."""
        return cls(
            np.array([oracle_calls(agreed[1:]) for agreed in agreement]),
            np.array([1 + (~agreed[1:]).sum() for agreed in agreement]),
            np.array([not agreed[-1] for agreed in agreement]),
        )


def oracle_calls(agreement: np.ndarray) -> int:
    """Target calls of an oracle that drafts exactly as far as the target will agree.

    Where the greedy tokens differ (``agreement`` is false) a call ends, and one more ends the text (Lemma 2.1); the lemma
    counts one too many if they differ in the last token, which the call before then gives.
    """
    agreement = np.asarray(agreement, dtype=bool)
    if agreement.size == 0:
        return 0
    return int((~agreement).sum()) + int(agreement[-1])


class Fit(NamedTuple):
    """Seconds of a forward of each kind by least squares, and the share of the variance of the times that the fit explains (NaN
    if the runs all have the same time, or all the same forwards, which can explain none of it); each with an interval over the
    generations where :func:`fit_with_intervals` gives them."""

    seconds: Sequence[Any]
    r_squared: Any


def fit_forward_times(forwards: np.ndarray, seconds: np.ndarray) -> Fit:
    """Regress the time of whole runs on their numbers of forwards, without an intercept (section 4.2).

    ``forwards`` has one row per run and one column per kind; the fit of equation 2.1 takes N_draft and N_target. Its first
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
    determined = spread and np.ptp(forwards, axis=0).any()
    return Fit(tuple(fitted.tolist()), 1 - missed / spread if determined else float("nan"))


def fit_with_intervals(forwards: np.ndarray, seconds: np.ndarray) -> Fit:
    """:func:`fit_forward_times` with intervals; a sample that cannot tell the kinds
    of passes apart is left out."""
    kinds = forwards.shape[1]

    def fitted(drawn: np.ndarray) -> list[float]:
        try:
            found = fit_forward_times(forwards[drawn], seconds[drawn])
        except ValueError:
            return [float("nan")] * (kinds + 1)
        return [*found.seconds, found.r_squared]

    *times, r_squared = (
        bootstrap_interval(lambda drawn, place=place: fitted(drawn)[place], len(seconds)) for place in range(kinds + 1)
    )
    return Fit(times, r_squared)


def spread_share(sets: Sequence[tuple[np.ndarray, np.ndarray]]) -> Interval:
    """Standard deviation between two sets of prompts of the fitted time of the draft model's pass, over its mean; each set as
    :func:`forward_counts` gives it.

    The interval is that of the difference with its sign. The spread of a sample is never negative and noise only adds to it, so
    percentiles of the spread itself may all lie above the value.
    """

    def share(*drawn: np.ndarray) -> float:
        try:
            ours, theirs = (
                fit_forward_times(counts[own], seconds[own]).seconds[0]
                for (counts, seconds), own in zip(sets, drawn, strict=True)
            )
        except ValueError:
            return float("nan")
        return math.sqrt(2) * (ours - theirs) / (ours + theirs)

    apart = bootstrap_interval(share, [len(seconds) for _, seconds in sets])
    low, high = sorted((abs(apart.low), abs(apart.high)))
    return Interval(abs(apart.value), 0.0 if apart.low < 0 < apart.high else low, high)


@torch.inference_mode()
def alone_over_in_turns(
    model: PreTrainedModel, other: PreTrainedModel, width: int, other_width: int, context: int = 128, repeats: int = 200
) -> Interval:
    """Time of a pass over ``width`` tokens after one of the same model, over that after a pass of the other model over
    ``other_width`` tokens; the interval is over repeats."""
    marks: tuple[list, list] = [], []
    with (
        Target(model, context, Capture(), context + width) as ours,
        Target(other, context, Capture(), context + other_width) as theirs,
    ):
        clock = clock_of(ours.devices | theirs.devices)
        for target in (ours, theirs):
            target.extend([5] * context)
        own, foreign = DraftTree.chain([5] * (width - 1)), DraftTree.chain([5] * (other_width - 1))
        for _ in range(repeats + 2):
            theirs.verify(5, foreign)
            for kind in (1, 0):  # after the other model's pass, then after its own
                began = clock.mark()
                ours.verify(5, own)
                marks[kind].append((began, clock.mark()))
        clock.settle()
        alone, in_turns = ([clock.seconds(*pair) for pair in pairs[2:]] for pairs in marks)
    return ratio_of_means(alone, in_turns)


# Outputs decoded for real: their rounds, and whether sampled text follows the target's distribution -----------------


def decoded_rows(
    target: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    draft: PreTrainedModel,
    prompts: Sequence[Prompt],
    drafters: Mapping[str, Drafter],
    policies: Sequence[Policy],
    longest: int,
) -> pd.DataFrame:
    """Rows of real greedy runs; the drafters bear the names of the policies that they follow.

    ``unexplained``: whether the text is another one than plain decoding's and rounding does not explain it; ``apart``: whether the
    counts of an equal text are not those of :func:`play_all`.
    """
    outputs = outputs_of(target, tokenizer, draft, prompts, None, longest)
    recordings, judge = [one.recording for one in outputs], Judge(target)
    runs = recorded_runs.run_each_again(target, recordings, drafters)
    counts = ["passes", "drafted", "accepted"]
    counted = play_all(outputs, [policy for name in drafters for policy in policies if policy.name == name])
    counted = counted[counted["head"] == 0]
    rows = results.table(recordings, runs)
    verdicts = [
        judge(one.trace.prompt, one.trace.tokens, run.tokens, one.trace.sampling)
        for own in runs.values()
        for one, run in zip(recordings, own, strict=True)
    ]
    apart = (rows[counts].to_numpy() != counted[counts].to_numpy()).any(axis=1)
    return rows[["task", "prompt", "turn", "seed", "temperature", "method", "tokens", *counts]].assign(
        unexplained=[int(one is not None and not one.explained) for one in verdicts],
        apart=[int(different and one is None) for different, one in zip(apart, verdicts, strict=True)],
    )


def distribution_test_rows(
    target: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    drafters: Mapping[str, Drafter],
    samplings: Sequence[Sampling],
    longest: int,
) -> pd.DataFrame:
    """Rows of texts that were sampled with drafters: ``p_value`` of a test of whether each follows the target's distribution
    (:func:`probability_transform`)."""
    rows = []
    for prompt in prompts:
        ids = render(prompt, tokenizer)
        about = {"task": prompt.task, "prompt": prompt.id, "turn": 0}
        for name, drafter in drafters.items():
            for sampling in samplings:
                run = generate(target, ids, drafter, sampling, longest)
                p_value = uniform_p_value(np.array(probability_transform(target, ids, run.tokens, sampling, 0)))
                own = {"seed": sampling.seed, "temperature": sampling.temperature, "method": name}
                rows.append(about | own | {"tokens": len(run.tokens), "p_value": p_value})
    return pd.DataFrame(rows)


@torch.inference_mode()
def probability_transform(
    target: PreTrainedModel, prompt: Sequence[int], tokens: Sequence[int], sampling: Sampling, seed: int = 0
) -> np.ndarray:
    """Randomised probability integral transform of a sampled text: independent uniform numbers if it follows the target.

    Each token gives the probability of all tokens more likely than it, and a uniform share of its own (Rosenblatt 1952), drawn
    with ``seed``. A method that favours likely tokens gives numbers that are too small.
    """
    ids = torch.tensor([[*prompt, *tokens]], device=target.device)
    logits = target(ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
    rows = distribution(logits.float().cpu(), sampling)
    own = rows.gather(1, torch.tensor(list(tokens))[:, None])
    before = torch.where(rows > own, rows, 0.0).sum(-1).numpy()
    # Tokens of one probability have no order: they share their interval.
    tied = torch.where(rows == own, rows, 0.0).sum(-1).numpy()
    return before + tied * np.random.default_rng(seed).random(len(tokens))


def uniform_p_value(numbers: np.ndarray) -> float:
    """Probability that some tens or more of independent uniform numbers lie as far from uniform as these or further (Kolmogorov
    and Smirnov)."""
    n, ordered = len(numbers), np.sort(numbers)
    distance = max((np.arange(1, n + 1) / n - ordered).max(), (ordered - np.arange(n) / n).max())
    # Stephens (1970): with this argument the limit serves finite samples.
    x = (math.sqrt(n) + 0.12 + 0.11 / math.sqrt(n)) * distance
    if x < 0.2:
        return 1.0  # the series is 1 to ten places there, and converges slowly
    return float(min(1.0, max(0.0, 2 * sum((-1) ** (k - 1) * math.exp(-2 * (k * x) ** 2) for k in range(1, 101)))))
