"""When to stop drafting: one rule, one class.

A rule sees what has been drafted in this round, before anything of it is verified. Every token drawn is submitted, so no rule
biases the output. Let F_i be what is known once y_1 .. y_i are drawn. Whether y_i is drawn is a function of F_{i-1}. Where it
is, and those before it are accepted, it comes from q_i, and acceptance with probability min(1, p_i/q_i) or a draw from the
residual gives a token distributed as p_i (Leviathan et al. 2023, appendix A.1). Where it is not, the target draws from p_i
itself.

The same does not hold for a rule that looks at y_i and then withdraws it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from specdec_lib.decoding.checks import whole_number

#: What a rule may ask a drafter to compute for each token.
QUANTITIES = ("confidence", "entropy", "acceptance")


@dataclass
class Round:
    """What has been drafted since the last verification.

    Examples
    --------
    >>> from specdec_lib.drafters.stopping import Confidence, Round
    >>> Confidence(threshold=0.4).stop(Round(position=12, count=2, confidence=[0.9, 0.3]))
    True
    """

    #: Absolute position of the first drafted token.
    position: int
    count: int = 0
    #: Probability of each token under the distribution it was chosen by (at temperature 1 where decoding is greedy), and the
    #: entropy of that distribution, in nats; of length ``count``.
    confidence: list[float] = field(default_factory=list)
    entropy: list[float] = field(default_factory=list)
    #: Predicted probability of acceptance of each token, given that those before it are accepted; of length ``count - 1``, or
    #: ``count`` where the rule checks the newest token.
    acceptance: list[float] = field(default_factory=list)


class StoppingRule(ABC):
    """Decides after each drafted token whether to stop; a rule overrides :meth:`stop` and what else it needs.

    ``needs`` says which of :data:`QUANTITIES` are computed. With ``check_newest`` the acceptance includes that of the token
    drafted last; the draft model's pass over it is lost if drafting stops there.

    Examples
    --------
    >>> from specdec_lib import generate
    >>> from specdec_lib.drafters import AdaptiveDraftModel
    >>> from specdec_lib.drafters.stopping import StoppingRule
    >>> class Unsure(StoppingRule):
    ...     needs = ("confidence",)
    ...     def stop(self, drafted):
    ...         return sum(chance < 0.5 for chance in drafted.confidence) == 2
    >>> run = generate(model, prompt, AdaptiveDraftModel(draft, Unsure()), max_new_tokens=24)
    >>> [step.drafted for step in run.steps]
    [3, 2, 2, 3, 6, 4, 2, 1]
    """

    needs: tuple[str, ...] = ()
    check_newest = False

    def reset(self) -> None:
        """Forget everything learned in earlier generations."""

    def start(self) -> None:
        """A generation begins."""

    @abstractmethod
    def stop(self, drafted: Round) -> bool:
        """Whether to verify what has been drafted instead of drafting another token."""

    def verified(self, drafted: Round, accepted: int) -> None:
        """How many tokens of the last round were accepted."""


def _probability(name: str, value: float) -> float:
    if not 0.0 < value < 1.0:
        raise ValueError(f"{name} is {value!r}; expected a probability strictly between 0 and 1")
    return float(value)


class FixedLength(StoppingRule):
    """Always draft the same number of tokens (Leviathan et al. 2023).

    Parameters
    ----------
    num_tokens : int

    Examples
    --------
    >>> from specdec_lib.drafters.stopping import FixedLength, Round
    >>> rule = FixedLength(num_tokens=4)
    >>> [rule.stop(Round(position=12, count=count)) for count in (3, 4)]
    [False, True]
    """

    def __init__(self, num_tokens: int):
        self.num_tokens = whole_number("num_tokens", num_tokens, 1)

    def stop(self, drafted: Round) -> bool:
        return drafted.count >= self.num_tokens


class Heuristic(StoppingRule):
    """A length that grows by 2 after a round accepted whole and shrinks by 1 after any other (transformers).

    Parameters
    ----------
    num_tokens : int
        Length at the start.
    transient : bool
        Whether each generation starts with it again.

    Examples
    --------
    >>> from specdec_lib.drafters.stopping import Heuristic, Round
    >>> rule = Heuristic(num_tokens=5)
    >>> rule.verified(Round(position=12, count=5), accepted=5)
    >>> rule.length
    7
    """

    def __init__(self, num_tokens: int = 5, transient: bool = False):
        self.initial = self.length = whole_number("num_tokens", num_tokens, 1)
        self.transient = transient

    def reset(self) -> None:
        self.length = self.initial

    def start(self) -> None:
        if self.transient:
            self.reset()

    def stop(self, drafted: Round) -> bool:
        return drafted.count >= self.length

    def verified(self, drafted: Round, accepted: int) -> None:
        self.length = self.length + 2 if accepted == drafted.count else max(1, self.length - 1)


class Confidence(StoppingRule):
    """Stop after the first token whose probability is below a threshold (Kim et al. 2023; transformers).

    Parameters
    ----------
    threshold : float
        Strictly between 0 and 1.

    Examples
    --------
    >>> from specdec_lib.drafters.stopping import Confidence, Round
    >>> rule = Confidence(threshold=0.4)
    >>> [rule.stop(Round(12, 1, confidence=[chance])) for chance in (0.5, 0.3)]
    [False, True]
    """

    needs = ("confidence",)

    def __init__(self, threshold: float = 0.4):
        self.threshold = _probability("threshold", threshold)

    def stop(self, drafted: Round) -> bool:
        return bool(drafted.confidence) and drafted.confidence[-1] < self.threshold


def fitted_threshold(confidence: Sequence[float], accepted: Sequence[bool]) -> float | None:
    """The threshold that would have told accepted tokens from rejected ones at least cost.

    Rejected tokens at or above it cost 1 in all, accepted ones below it 3, as in transformers.

    Parameters
    ----------
    confidence : sequence of float, length n
    accepted : sequence of bool, length n

    Returns
    -------
    float or None
        The largest among equals; None with five tokens or fewer, or with tokens of one kind.

    Examples
    --------
    >>> from specdec_lib.drafters.stopping import fitted_threshold
    >>> fitted_threshold([0.9, 0.8, 0.7, 0.3, 0.2, 0.1], [True, True, True, False, False, False])
    0.7
    """
    scores, kept = np.asarray(confidence, float), np.asarray(accepted, bool)
    if len(scores) <= 5 or kept.all() or not kept.any():
        return None
    thresholds = np.unique(scores)[::-1]
    ordered = [np.sort(scores[kept]), np.sort(scores[~kept])]
    missed = np.searchsorted(ordered[0], thresholds, "left") / len(ordered[0])
    passed = 1 - np.searchsorted(ordered[1], thresholds, "left") / len(ordered[1])
    return float(thresholds[np.argmin(np.round(passed + 3 * missed, 12))])


class FittedConfidence(Confidence):
    """A confidence threshold fitted again after each round to what was accepted so far (transformers).

    Of each round the accepted tokens and the first rejected one count.

    Parameters
    ----------
    threshold : float
        With which each generation begins, strictly between 0 and 1.

    Examples
    --------
    >>> from specdec_lib.drafters.stopping import FittedConfidence, Round
    >>> rule = FittedConfidence(threshold=0.4)
    >>> rule.start()
    >>> rule.verified(Round(12, 7, confidence=[0.9, 0.9, 0.8, 0.8, 0.7, 0.6, 0.2]), accepted=6)
    >>> rule.threshold
    0.6
    """

    def __init__(self, threshold: float = 0.4):
        super().__init__(threshold)
        self.initial = self.threshold

    def start(self) -> None:
        self.threshold = self.initial
        self._confidence: list[float] = []
        self._accepted: list[bool] = []

    def verified(self, drafted: Round, accepted: int) -> None:
        judged = min(accepted + 1, drafted.count)
        self._confidence += drafted.confidence[:judged]
        self._accepted += [True] * accepted + [False] * (judged - accepted)
        found = fitted_threshold(self._confidence, self._accepted)
        if found is not None:
            self.threshold = found


class CumulativeConfidence(StoppingRule):
    """Stop once the product of the confidences, the newest included, is below ``1 - threshold`` (Xu et al. 2023).

    Parameters
    ----------
    threshold : float
        Strictly between 0 and 1.

    Examples
    --------
    >>> from specdec_lib.drafters.stopping import CumulativeConfidence, Round
    >>> rule = CumulativeConfidence(threshold=0.7)
    >>> [rule.stop(Round(12, 2, confidence=[0.6, chance])) for chance in (0.6, 0.4)]
    [False, True]
    """

    needs = ("confidence",)

    def __init__(self, threshold: float = 0.7):
        self.threshold = _probability("threshold", threshold)

    def stop(self, drafted: Round) -> bool:
        return 1.0 - math.prod(drafted.confidence) > self.threshold


class Entropy(StoppingRule):
    """Stop after the first token drawn from a distribution of an entropy above a threshold.

    The bound of AdaEDL (Agrawal et al. 2024) with a constant threshold: 1 - sqrt(gamma H) < lambda is H > (1 - lambda)^2 /
    gamma.

    Parameters
    ----------
    threshold : float
        In nats, finite and above 0.

    Examples
    --------
    >>> from specdec_lib.drafters.stopping import Entropy, Round
    >>> rule = Entropy(threshold=1.0)
    >>> [rule.stop(Round(12, 1, entropy=[nats])) for nats in (0.5, 1.5)]
    [False, True]
    """

    needs = ("entropy",)

    def __init__(self, threshold: float = 1.0):
        if not 0.0 < threshold < math.inf:
            raise ValueError(f"threshold is {threshold!r}; expected an entropy in nats, a finite number above 0")
        self.threshold = float(threshold)

    def stop(self, drafted: Round) -> bool:
        return bool(drafted.entropy) and drafted.entropy[-1] > self.threshold


class PredictedRejection(StoppingRule):
    """Stop once the predicted probability of a rejected token exceeds a threshold (SpecDec++, section 3.2).

    The product runs over the tokens whose states the draft model has computed: after drawing y_i these are y_1 .. y_{i-1}, as
    in Algorithm 2 and section 3.1.

    Parameters
    ----------
    threshold : float
        h, strictly between 0 and 1.
    check_newest : bool
        Whether the product includes y_i, as the text of section 3.2 has it.

    Examples
    --------
    >>> from specdec_lib.drafters.stopping import PredictedRejection, Round
    >>> rule = PredictedRejection(threshold=0.7)
    >>> [rule.stop(Round(12, 3, acceptance=[0.6, chance])) for chance in (0.6, 0.4)]
    [False, True]
    """

    needs = ("acceptance",)

    def __init__(self, threshold: float = 0.7, check_newest: bool = False):
        self.threshold, self.check_newest = _probability("threshold", threshold), check_newest

    def stop(self, drafted: Round) -> bool:
        return 1.0 - math.prod(drafted.acceptance) > self.threshold
