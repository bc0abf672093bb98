"""The theory of SpecDec++ (Huang et al. 2024, section 3) on pairs of Markov chains, where every probability is known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch

from specdec_lib.decoding.acceptance import residual

# Chains ------------------------------------------------------------------------------------------------------------
#
# Small target and draft models over a few tokens. A context is the last ``order`` tokens, written as a number in base
# ``vocabulary``, the newest token last.


@dataclass(frozen=True, eq=False)
class ChainPair:
    """A target p and a draft q, both Markov chains of the same order over the same tokens.

    ``target`` and ``draft`` are float arrays of shape (contexts, vocabulary) whose rows are the distributions of the next
    token; contexts = vocabulary ** order.
    """

    target: np.ndarray
    draft: np.ndarray

    def __post_init__(self) -> None:
        for name in ("target", "draft"):
            rows = np.asarray(getattr(self, name), dtype=np.float64)
            object.__setattr__(self, name, rows)
            if rows.ndim != 2 or rows.shape != np.shape(self.target):
                raise ValueError(f"{name} has shape {rows.shape}; expected (contexts, vocabulary), the same for both")
            if not (np.isfinite(rows).all() and (rows >= 0).all() and np.allclose(rows.sum(1), 1, atol=1e-9)):
                raise ValueError(f"a row of {name} is no distribution; expected shares that add up to 1")
        if self.vocabulary**self.order != self.contexts:
            raise ValueError(
                f"{self.contexts} contexts over {self.vocabulary} tokens; expected a power of the vocabulary"
            )

    @property
    def contexts(self) -> int:
        """Number of contexts."""
        return self.target.shape[0]

    @property
    def vocabulary(self) -> int:
        """Number of tokens."""
        return self.target.shape[1]

    @property
    def order(self) -> int:
        """Tokens of a context; 0 where every context is alike."""
        return 0 if self.contexts == 1 else round(np.log(self.contexts) / np.log(max(self.vocabulary, 2)))

    @cached_property
    def following(self) -> np.ndarray:
        """Context after each token: int64, shape (contexts, vocabulary)."""
        pairs = np.arange(self.contexts)[:, None] * self.vocabulary + np.arange(self.vocabulary)
        return pairs % self.contexts

    @cached_property
    def acceptance(self) -> np.ndarray:
        """Probability that a drafted token is kept, min(1, p/q): shape (contexts, vocabulary).

        1 where q is 0: such a token is never drafted.
        """
        drawn = self.draft > 0
        return np.where(drawn, np.minimum(1.0, self.target / np.where(drawn, self.draft, 1.0)), 1.0)

    @cached_property
    def rejection_rate(self) -> np.ndarray:
        """Probability that the next drafted token is rejected, 1 - sum of min(p, q): shape (contexts,)."""
        return 1.0 - np.minimum(self.target, self.draft).sum(1)

    @cached_property
    def residual(self) -> np.ndarray:
        """Distribution of the token that replaces a rejected one: shape (contexts, vocabulary)."""
        rows = zip(torch.from_numpy(self.target), torch.from_numpy(self.draft), strict=True)
        return np.stack([residual(p, q).numpy() for p, q in rows])

    def after(self, rows: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Mean of a function of the next context when the next token is drawn from ``rows``: shape (contexts, ...)."""
        return np.einsum("cv,cv...->c...", rows, values[self.following])

    @cached_property
    def stationary(self) -> np.ndarray:
        """Share of positions of a long text of the target that have each context: shape (contexts,)."""
        return stationary(self.after(self.target, np.eye(self.contexts)))


def stationary(transitions: np.ndarray) -> np.ndarray:
    """Stationary distribution of a Markov chain whose rows add up to 1; ValueError if it has parts that it never
    leaves, and so more than one."""
    states = len(transitions)
    equations = np.vstack([(transitions.T - np.eye(states)), np.ones(states)])
    wanted = np.append(np.zeros(states), 1.0)
    share, _, rank, _ = np.linalg.lstsq(equations, wanted, rcond=None)
    if rank < states:
        raise ValueError(
            "the chain has several parts that it never leaves; expected one: give every token some probability"
        )
    return share


def random_pair(rng: np.random.Generator, vocabulary: int, order: int = 1, looseness: float = 1.0) -> ChainPair:
    """Draw a target, and a draft that follows it closely in some contexts and loosely in others.

    The target's rows are drawn from a Dirichlet distribution, in which it is rather sure. The draft
    mixes in an independent row, with a weight of each context's own, uniform in [0, ``looseness``].
    """
    contexts = vocabulary**order
    own, other = rng.dirichlet(np.full(vocabulary, 0.5), (2, contexts))
    # A thousandth of the uniform law keeps every token possible, so that a long text meets every context.
    target = 0.999 * own + 0.001 / vocabulary
    weight = looseness * rng.random((contexts, 1))
    return ChainPair(target, (1 - weight) * target + weight * other)


# Rounds of drafting: states, and both actions in them (section 3.1) ------------------------------------------------
#
# A state is a prefix and the candidates Y_1, ..., Y_k drafted since. Whatever is decided, Y_{k+1} is drawn
# first; *stop* then verifies all k+1 candidates, the newest unchecked, and *continue* goes on to k+1.
# Discarding a candidate costs c1, a verification c2. The costs are delayed: which candidates are rejected shows
# only at the verification. But given the candidates, their acceptance is independent of the decisions, with
# known probability. The expected costs of a state therefore depend on the candidates by two things alone: the
# context they end in, and ``alive``, the probability that all of them are accepted (1 - alive is the P of
# Theorem 3.1). What happens after a rejection is settled when the rejected candidate is drawn, so its expected
# cost is counted there.

#: By level k: whether each state stops. The last level always does.
Policy = list[np.ndarray]
#: Digits in which two probabilities of one state agree; more would tell rounding errors apart.
DIGITS = 12
#: States of one level beyond which the enumeration is refused.
MOST_STATES = 500_000


class Costs(NamedTuple):
    """Costs in any one unit: c1 = t_draft of a discarded candidate, c2 = t_target - t_draft of a verification."""

    discard: float
    verify: float

    @classmethod
    def of_times(cls, draft: float, target: float) -> Costs:
        """Costs from the times of one pass of the draft model and of the target (equation 2.2)."""
        if not 0 < draft < target:
            raise ValueError(
                f"draft {draft!r}, target {target!r}: expected times above 0, the draft's below the target's"
            )
        return cls(draft, target - draft)


@dataclass(frozen=True, eq=False)
class Rounds:
    """All states that a round of drafting can reach, level by level; build with :meth:`of`.

    By level k and state: ``contexts`` at the end of the k candidates (level 0 holds every context once, in order); ``alive``,
    the probability that they are all accepted; ``children``, the states of level k+1 after each token, 0 after one that the
    draft never draws (one level less).
    """

    pair: ChainPair
    contexts: list[np.ndarray]
    alive: list[np.ndarray]
    children: list[np.ndarray]

    @classmethod
    def of(cls, pair: ChainPair, longest: int) -> Rounds:
        """List the states of rounds of at most ``longest`` candidates."""
        if longest < 1:
            raise ValueError(f"longest is {longest!r}; expected at least one candidate a round")
        contexts, alive, children = [np.arange(pair.contexts)], [np.ones(pair.contexts)], []
        for level in range(1, longest):
            if len(contexts[-1]) > MOST_STATES:
                raise ValueError(
                    f"after {level - 1} candidates there are {len(contexts[-1]):,} states, more than "
                    f"{MOST_STATES:,}; choose longest = {level - 1} or a smaller pair"
                )
            after = pair.following[contexts[-1]]
            kept = alive[-1][:, None] * pair.acceptance[contexts[-1]]
            drawn = pair.draft[contexts[-1]] > 0
            keys = np.stack([after[drawn], np.round(kept[drawn], DIGITS)], axis=1)
            _, first, index = np.unique(keys, axis=0, return_index=True, return_inverse=True)
            child = np.zeros(after.shape, dtype=np.int64)
            child[drawn] = index.reshape(-1)
            children.append(child)
            contexts.append(after[drawn][first])
            alive.append(kept[drawn][first])
        return cls(pair, contexts, alive, children)

    @property
    def longest(self) -> int:
        """Most candidates of a round."""
        return len(self.contexts)

    @cached_property
    def states(self) -> int:
        """Number of states."""
        return sum(map(len, self.contexts))

    def fixed(self, length: int) -> Policy:
        """The policy of ``length`` candidates in every round."""
        return [np.full(len(c), k >= min(length, self.longest) - 1) for k, c in enumerate(self.contexts)]

    def threshold(self, threshold: float) -> Policy:
        """Stop when the probability that a candidate is rejected exceeds ``threshold`` (Algorithm 2)."""
        stops = [1.0 - alive > threshold for alive in self.alive]
        return [*stops[:-1], np.ones_like(stops[-1])]


class Ending(NamedTuple):
    """Value of what follows a round, for each of D quantities: shape (levels, contexts, D).

    ``rejected``: the candidate drawn at level k, in a context, is the first rejected. ``accepted``: it is the last and all are
    accepted; by the context after it.
    """

    rejected: np.ndarray
    accepted: np.ndarray


def stop_value(rounds: Rounds, k: int, discard: np.ndarray, verify: np.ndarray, ending: Ending) -> np.ndarray:
    """Expected sum of *stop* in each state of level ``k``, for what a discarded candidate and a verification count:
    shape (states, D)."""
    pair, contexts = rounds.pair, rounds.contexts[k]
    kept = pair.after(pair.draft * pair.acceptance, ending.accepted[k])[contexts]
    return draw_value(rounds, k, discard, ending) + verify + rounds.alive[k][:, None] * kept


def draw_value(rounds: Rounds, k: int, discard: np.ndarray, ending: Ending) -> np.ndarray:
    """Expected sum of drawing Y_{k+1} alone: it is lost if one of the k+1 is rejected, and if it is the first of them, all
    that follows the round is counted too. Shape (states of level k, D)."""
    contexts, alive = rounds.contexts[k], rounds.alive[k][:, None]
    rejected_first = alive * rounds.pair.rejection_rate[contexts][:, None]
    return (1.0 - alive + rejected_first) * discard + rejected_first * ending.rejected[k, contexts]


def continue_value(rounds: Rounds, k: int, discard: np.ndarray, ending: Ending, following: np.ndarray) -> np.ndarray:
    """Expected sum of *continue* in each state of level ``k``, given that from each state of the next level: shape (states,
    D)."""
    drawn = rounds.pair.draft[rounds.contexts[k]]
    return draw_value(rounds, k, discard, ending) + np.einsum("sv,svd->sd", drawn, following[rounds.children[k]])


def follow(rounds: Rounds, stops: Policy, discard: np.ndarray, verify: np.ndarray, ending: Ending) -> list[np.ndarray]:
    """Expected sums to the end of the round under a policy, by backward induction: for each level, shape (states of
    level k, D)."""
    last = rounds.longest - 1
    values = [stop_value(rounds, last, discard, verify, ending)]
    for k in range(last - 1, -1, -1):
        stop = stop_value(rounds, k, discard, verify, ending)
        goes_on = continue_value(rounds, k, discard, ending, values[0])
        values.insert(0, np.where(stops[k][:, None], stop, goes_on))
    return values


class Decision(NamedTuple):
    """Expected cost of *stop* and of *continue* by level and state; the last level cannot continue and has infinity."""

    stop: list[np.ndarray]
    proceed: list[np.ndarray]

    @property
    def stops(self) -> Policy:
        """The policy that takes the cheaper action; equal costs stop."""
        # A difference of rounding errors must not change a policy for ever.
        return [s <= c + 1e-12 * (1 + abs(s)) for s, c in zip(self.stop, self.proceed, strict=True)]


def compare(rounds: Rounds, costs: Costs, ending: Ending, stops: Policy | None = None) -> Decision:
    """Cost of *stop* and of *continue* in every state, when after *continue* a policy is followed, or the cheapest
    actions without one."""
    discard, verify = np.array([costs.discard]), np.array([costs.verify])
    last = rounds.longest - 1
    stop = [stop_value(rounds, k, discard, verify, ending)[:, 0] for k in range(last + 1)]
    proceed = [np.full(len(stop[last]), np.inf)]
    value = stop[last]
    for k in range(last - 1, -1, -1):
        proceed.insert(0, continue_value(rounds, k, discard, ending, value[:, None])[:, 0])
        ends = stop[k] <= proceed[0] if stops is None else stops[k]
        value = np.where(ends, stop[k], proceed[0])
    return Decision(stop, proceed)


# The best policy ---------------------------------------------------------------------------------------------------
#
# The paper adds up the costs of a whole response. Here a response is endless, and the cost per token is minimised, so no last
# round disturbs it.


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a policy does in the long run: by the context that a round begins in, its expected discarded candidates and emitted
    tokens, and the probability that the round after begins in each context."""

    discarded: np.ndarray
    tokens: np.ndarray
    next_context: np.ndarray

    @cached_property
    def starts(self) -> np.ndarray:
        """Share of rounds that begin in each context: shape (contexts,)."""
        return stationary(self.next_context)

    @property
    def verification_rate(self) -> float:
        """Verifications a token, N_target / N."""
        return float(1.0 / (self.starts @ self.tokens))

    @property
    def discard_rate(self) -> float:
        """Discarded candidates a token, N_discarded / N."""
        return float(self.starts @ self.discarded / (self.starts @ self.tokens))

    def cost(self, costs: Costs) -> float:
        """Cost a token, c1 N_discarded / N + c2 N_target / N; equation 2.3 without its first term."""
        return costs.discard * self.discard_rate + costs.verify * self.verification_rate

    def relative(self, costs: Costs) -> np.ndarray:
        """What a long response costs by its first context, less that of context 0: shape (contexts,)."""
        paid = costs.discard * self.discarded + costs.verify - self.cost(costs) * self.tokens
        equations = np.eye(len(paid)) - self.next_context
        equations[:, 0] = 0.0
        return np.append(0.0, np.linalg.lstsq(equations, paid, rcond=None)[0][1:])


def outcome(rounds: Rounds, stops: Policy) -> Outcome:
    """Work out what a policy does in the long run, all its quantities in one induction."""
    pair, levels = rounds.pair, np.arange(rounds.longest)
    where = np.eye(pair.contexts)
    counts = 2 + pair.contexts
    rejected, accepted = (np.zeros((rounds.longest, pair.contexts, counts)) for _ in range(2))
    # The candidates before the rejected one and its replacement; or all of them and one more of the target's.
    rejected[..., 1], accepted[..., 1] = levels[:, None] + 1, levels[:, None] + 2
    rejected[..., 2:], accepted[..., 2:] = pair.after(pair.residual, where), pair.after(pair.target, where)
    first = np.eye(counts)[0]
    sums = follow(rounds, stops, first, np.zeros(counts), Ending(rejected, accepted))[0]
    return Outcome(sums[:, 0], sums[:, 1], sums[:, 2:])


def endless(rounds: Rounds, relative: np.ndarray, rate: float) -> Ending:
    """What follows a round of an endless response, compared with a cost of ``rate`` for every token."""
    pair, tokens = rounds.pair, np.arange(rounds.longest)[:, None, None] + 1
    values = relative[:, None]
    return Ending(
        pair.after(pair.residual, values) - rate * tokens, pair.after(pair.target, values) - rate * (tokens + 1)
    )


class Solution(NamedTuple):
    """A policy of least cost a token, its outcome, and the costs of both actions when every later decision is the
    best."""

    stops: Policy
    outcome: Outcome
    decision: Decision


def solve(rounds: Rounds, costs: Costs) -> Solution:
    """Find the policy of least cost a token by policy iteration, which ends when no action changes or no change is
    cheaper."""
    stops, least = rounds.fixed(1), np.inf
    while True:
        played = outcome(rounds, stops)
        cost = played.cost(costs)
        decision = compare(rounds, costs, endless(rounds, played.relative(costs), cost))
        better = decision.stops
        # Actions that cost the same could change places for ever: no gain ends it too.
        if cost >= least * (1 - 1e-14) or all(map(np.array_equal, stops, better)):
            return Solution(stops, played, decision)
        stops, least = better, cost


def visits(rounds: Rounds, stops: Policy, starts: np.ndarray) -> list[np.ndarray]:
    """How often a round visits each state, on average, given the share of rounds that begin in each context."""
    reached = [starts]
    for k, child in enumerate(rounds.children):
        flow = (reached[-1] * ~stops[k])[:, None] * rounds.pair.draft[rounds.contexts[k]]
        reached.append(np.bincount(child.ravel(), flow.ravel(), minlength=len(rounds.contexts[k + 1])))
    return reached


def oracle_cost(pair: ChainPair, costs: Costs) -> float:
    """Least cost a token of anyone who knows which candidates will be rejected (section 2.1, for sampling).

    Nothing is discarded and the target runs once for every rejected token: c2 times the mean rejection rate along the
    target's text.
    """
    return float(costs.verify * pair.stationary @ pair.rejection_rate)


# Theorem 3.1, with its constant worked out -------------------------------------------------------------------------
#
# The theorem: let P be the probability that one of Y_1, ..., Y_k is rejected. If P is at least
# (c2 + Delta) / (c1 + c2 + Delta), *stop* costs no more than *continue* followed by the policy pi. The argument
# has two cases.
#
# - One of the k is rejected: whatever is drawn from here on is lost. *Continue* draws at least one candidate
#   more than *stop* and verifies once too, so *stop* saves at least c1.
# - None is: *continue* saves at most c2 + Delta. Delta is defined here as the least constant of which this is
#   true in every state, so that the threshold is the lowest that the argument gives; a larger one serves too.
#
# Weighing the two cases by P and 1 - P gives the threshold.


class Cases(NamedTuple):
    """Cost of *stop* less that of *continue* by level that may continue and state, if all candidates so far are accepted and
    if one is rejected."""

    accepted: list[np.ndarray]
    rejected: list[np.ndarray]


def cases(rounds: Rounds, costs: Costs, ending: Ending, stops: Policy) -> Cases:
    """Compare the actions given that Y_1, ..., Y_k are all accepted, and given that one is rejected; after *continue* the
    policy ``stops`` is followed."""
    pair = rounds.pair
    last = rounds.longest - 1
    accepted, rejected = [], []
    # Cost from here to the end of the round, in either case.
    lost = np.full(len(rounds.contexts[last]), costs.discard + costs.verify)
    kept = _stop_if_accepted(rounds, last, costs, ending)
    for k in range(last - 1, -1, -1):
        contexts, child = rounds.contexts[k], rounds.children[k]
        drawn, keeps = pair.draft[contexts], pair.acceptance[contexts]
        if_rejected = costs.discard + lost[child] + ending.rejected[k, contexts]
        on_lost = costs.discard + (drawn * lost[child]).sum(1)
        on_kept = (drawn * (keeps * kept[child] + (1 - keeps) * if_rejected)).sum(1)
        stop_lost = np.full(len(contexts), costs.discard + costs.verify)
        stop_kept = _stop_if_accepted(rounds, k, costs, ending)
        accepted.insert(0, stop_kept - on_kept)
        rejected.insert(0, stop_lost - on_lost)
        lost, kept = np.where(stops[k], stop_lost, on_lost), np.where(stops[k], stop_kept, on_kept)
    return Cases(accepted, rejected)


def _stop_if_accepted(rounds: Rounds, k: int, costs: Costs, ending: Ending) -> np.ndarray:
    """Cost of stopping at level k when its k candidates are all accepted."""
    pair, contexts = rounds.pair, rounds.contexts[k]
    kept = pair.after(pair.draft * pair.acceptance, ending.accepted[k])[contexts, 0]
    rejected = pair.rejection_rate[contexts] * (costs.discard + ending.rejected[k, contexts, 0])
    return costs.verify + kept + rejected


def delta(rounds: Rounds, costs: Costs, found: Cases) -> float:
    """The constant of Theorem 3.1: the least of which c2 + Delta bounds the saving of *continue*; minus infinity where no
    state may continue.

    States whose candidates cannot all be accepted are left out: there P is 1 and the theorem needs no constant.
    """
    savings = [
        saving[alive > 0].max(initial=-np.inf) for saving, alive in zip(found.accepted, rounds.alive, strict=False)
    ]
    return float(max(savings, default=-np.inf) - costs.verify)


def stopping_threshold(costs: Costs, delta: float) -> float:
    """(c2 + Delta) / (c1 + c2 + Delta); 0 where c2 + Delta is not above 0, so that *stop* is always right."""
    saving = costs.verify + delta
    return saving / (costs.discard + saving) if saving > 0 else 0.0


def true_rejection(estimate: float | np.ndarray, weight: float) -> float | np.ndarray:
    """The true probability of a rejection behind the estimate of a head whose loss weighs rejections more.

    Section 3.3: the weighted cross-entropy -(1 - r) log(1 - e) - w r log(e) is least at e = w r / (1 - r + w r), for a
    true probability r. Solved for r: e / (w - (w - 1) e).
    """
    return estimate / (weight - (weight - 1) * estimate)


#: Relative difference of two costs that counts.
TOLERANCE = 1e-9


def counterexamples(rounds: Rounds, decision: Decision, threshold: float) -> int:
    """States with P at or above a threshold in which *continue* is cheaper by more than :data:`TOLERANCE`."""
    return sum(
        int(np.sum((1.0 - alive >= threshold) & _continues(stop, proceed)))
        for alive, stop, proceed in zip(rounds.alive, decision.stop, decision.proceed, strict=False)
    )


class Frontier(NamedTuple):
    """By context, over states that may continue, the largest P at which *continue* is cheaper (-1 where it never is) and the
    smallest at which *stop* is (infinity where it never is)."""

    continues_to: np.ndarray
    stops_from: np.ndarray

    @property
    def needed(self) -> float:
        """The least threshold above which *stop* is right in every state."""
        return float(max(self.continues_to.max(), 0.0))

    @property
    def single(self) -> bool:
        """Whether one threshold on P separates the actions."""
        return bool(self.continues_to.max() < self.stops_from.min())


def frontier(rounds: Rounds, decision: Decision, levels: int | None = None) -> Frontier:
    """Find the frontier in each context, in the first ``levels`` only if given: close to the limit on the candidates there is
    less to continue for, and the frontier moves."""
    going, ending = np.full(rounds.pair.contexts, -1.0), np.full(rounds.pair.contexts, np.inf)
    shown = rounds.contexts[: rounds.longest - 1 if levels is None else levels]
    for contexts, alive, stop, proceed in zip(shown, rounds.alive, decision.stop, decision.proceed, strict=False):
        cheaper, dearer = (_continues(a, b) for a, b in ((stop, proceed), (proceed, stop)))
        np.maximum.at(going, contexts[cheaper], 1.0 - alive[cheaper])
        np.minimum.at(ending, contexts[dearer], 1.0 - alive[dearer])
    return Frontier(going, ending)


def _continues(stop: np.ndarray, proceed: np.ndarray) -> np.ndarray:
    return proceed < stop - TOLERANCE * (1 + abs(stop))


# Rules compared with the best policy, on one pair or on many random ones -------------------------------------------


def thresholds(rounds: Rounds, costs: Costs, values: Sequence[float]) -> dict[float, float]:
    """Cost a token of Algorithm 2 with the true acceptance probabilities, by threshold h."""
    return {h: outcome(rounds, rounds.threshold(h)).cost(costs) for h in values}


class Bound(NamedTuple):
    """Theorem 3.1 for one policy, compared with what the true costs of both actions say.

    The theorem says *stop* from P = ``threshold`` on; above ``needed`` it is in fact right in every state. ``single``: one
    threshold separates the states that stop from those that go on, in the first half of the levels, where the limit on the
    candidates is far. ``failures``: states in which the theorem says *stop* and *continue* is cheaper. ``certified``: share of
    the rounds that the policy ends below the limit in which the theorem says *stop*; NaN where it ends none.
    """

    delta: float
    threshold: float
    needed: float
    single: bool
    failures: int
    certified: float


def bound(rounds: Rounds, costs: Costs, solution: Solution) -> Bound:
    """Apply Theorem 3.1 to the best policy (:func:`solve`)."""
    played = solution.outcome
    ending = endless(rounds, played.relative(costs), played.cost(costs))
    constant = delta(rounds, costs, cases(rounds, costs, ending, solution.stops))
    limit = stopping_threshold(costs, constant)
    return Bound(
        constant,
        limit,
        frontier(rounds, solution.decision).needed,
        frontier(rounds, solution.decision, max(rounds.longest // 2, 1)).single,
        counterexamples(rounds, solution.decision, limit),
        certified(rounds, solution.stops, played.starts, limit),
    )


def certified(rounds: Rounds, stops: Policy, starts: np.ndarray, threshold: float) -> float:
    """Share of voluntary stops made in states with P at or above a threshold; NaN where there are none."""
    seen = visits(rounds, stops, starts)[:-1]
    ended = [times * stop for times, stop in zip(seen, stops, strict=False)]
    total = sum(times.sum() for times in ended)
    above = sum(times[1 - alive >= threshold].sum() for times, alive in zip(ended, rounds.alive, strict=False))
    return float(above / total) if total > 0 else float("nan")


def survey(instances: int, longest: int, values: Sequence[float]) -> Iterator[dict[str, float]]:
    """Compare the rules on random pairs with random costs; rounds have at most ``longest`` candidates, and h is one of
    ``values``.

    Yields ``cost_ratio`` (t_draft / t_target, log-uniform in [0.02, 0.5]); costs a token over those of the best policy, less 1:
    ``best_fixed``, ``best_threshold``, ``theorem_rule`` (h of Theorem 3.1), ``no_delta_rule`` (h = c2 / (c1 + c2)), ``oracle``
    (below 0); the fields of :class:`Bound`, ``delta`` over c2.
    """
    rng = np.random.default_rng(0)
    for _ in range(instances):
        rounds = Rounds.of(random_pair(rng, 3, looseness=0.5), longest)
        ratio = float(np.exp(rng.uniform(np.log(0.02), np.log(0.5))))
        costs = Costs.of_times(ratio, 1.0)
        solution = solve(rounds, costs)
        limits = bound(rounds, costs, solution)
        least = solution.outcome.cost(costs)
        rules = {"theorem_rule": limits.threshold, "no_delta_rule": stopping_threshold(costs, 0.0)}
        lengths = [outcome(rounds, rounds.fixed(k)).cost(costs) for k in range(1, longest + 1)]
        yield {
            "cost_ratio": ratio,
            "best_fixed": min(lengths) / least - 1,
            "best_threshold": min(thresholds(rounds, costs, values).values()) / least - 1,
            **{name: outcome(rounds, rounds.threshold(h)).cost(costs) / least - 1 for name, h in rules.items()},
            "oracle": oracle_cost(rounds.pair, costs) / least - 1,
            **limits._asdict(),
            "delta": limits.delta / costs.verify,
        }
