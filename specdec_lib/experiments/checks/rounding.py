"""Tell a mismatch that rounding explains from an error.

Speculative decoding computes the target's logits in blocks of several tokens, plain decoding one token at a time; the two
differ by rounding. If two logits differ by less than this error, the outputs may diverge. A mismatch counts as explained by
rounding only if it is shown to be one of these:

- the target is run once more on the text before the mismatch, in the run's own type and in double precision;
  the largest difference of the two is the rounding error at that very place;
- greedy: the double-precision logits of both tokens lie within ``SLACK`` rounding errors of the largest one;
- sampled: the uniform number lies within ``SLACK`` rounding errors of the interval of the cumulative
  distribution that belongs to each of the two tokens, the distribution's nucleus being cut anywhere within
  that error of ``top_p``; of tokens that tie with the least likely one inside, within that error, any may be inside.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from dataclasses import replace as altered
from typing import Any

import torch
from transformers import PreTrainedModel

from specdec_lib.decoding.forward import last_logits_argument
from specdec_lib.decoding.sampling import Sampling, distribution
from specdec_lib.decoding.served_models import input_device
from specdec_lib.experiments.checks.comparison import first_divergence

#: Rounding errors by which a choice may be missed: one on either side of the comparison, and room for blocks
#: whose rounding is worse than that of the single pass it is measured on.
SLACK = 8.0


@dataclass(frozen=True)
class Mismatch:
    """Where an output first leaves that of plain decoding: ``position`` among the new tokens, and the token ids of both, -1 for
    an end.

    ``margin``, in double precision: greedy the largest minus the second-largest logit, sampled the distance of the uniform
    number to the nearest boundary of the cumulative distribution. In its unit, ``distance`` is by how much the choice had to be
    missed to give both tokens (infinite at an end) and ``rounding`` the rounding error at this place; ``explained`` if
    ``distance`` is at most :data:`SLACK` times that.
    """

    prompt: str
    method: str
    sampling: dict[str, Any]
    position: int
    expected: int
    got: int
    margin: float
    distance: float
    rounding: float
    explained: bool


def _to_interval(probabilities: torch.Tensor, inside: torch.Tensor, slack: float, token: int, uniform: float) -> float:
    """Distance of ``uniform`` to the part of a cumulative distribution that belongs to ``token``.

    Only the tokens ``inside`` have a probability. Of those that tie with the least likely one of them, within ``slack``,
    as many are inside, but any: rounding decides which, and so how many of them stand before the token.
    """
    edge = float(probabilities[inside].min())
    tied = (probabilities - edge).abs() <= slack
    if not (inside[token] or tied[token]):
        return math.inf
    others = int((inside & tied).sum()) - bool(tied[token])  # that have to be inside as well as the token
    known = int((inside & tied)[:token].sum())  # of them, how many stand before it in the exact distribution
    below, above = int(tied[:token].sum()), int(tied[token + 1 :].sum())
    total, own = float(probabilities[inside].sum()), float(probabilities[token])
    start = float(probabilities[:token][inside[:token]].sum())
    distances = []
    for before in range(max(0, others - above), min(others, below) + 1):
        low = (start + (before - known) * edge) / total
        distances.append(max(low - uniform, uniform - low - own / total, 0.0))
    return min(distances)


def margin(logits: torch.Tensor, sampling: Sampling, position: int) -> float:
    """By how much a choice from logits of shape (vocabulary,) is clear, ``position`` being that of the chosen token.

    Greedy: largest minus second-largest logit. Sampled, ``sampling`` bound to its prompt: distance of the uniform number
    to the nearest boundary of the cumulative distribution, in probability.
    """
    if sampling.greedy:
        first, second = logits.double().topk(2).values.tolist()
        return first - second
    boundaries = distribution(logits, sampling).cumsum(-1)
    # The distribution's own ends are no boundary between tokens.
    inner = boundaries[(boundaries > 0) & (boundaries < 1 - 1e-12)]
    return float((inner - sampling.uniform(position)).abs().min()) if len(inner) else 1.0


def explain(
    exact: torch.Tensor, rounded: torch.Tensor, sampling: Sampling, position: int, tokens: tuple[int, int]
) -> tuple[float, float]:
    """How far a choice of two ``tokens`` was missed, and the rounding error there, in logits (greedy) or probability (sampled).

    ``exact`` and ``rounded`` are the target's logits, shape (vocabulary,), in double precision and in the run's type.
    ``sampling`` is bound to its prompt, and ``position`` is the chosen token's in prompt and output together.
    """
    exact, rounded = exact.double(), rounded.double()
    if sampling.greedy:
        return float(exact.max() - exact[list(tokens)].min()), float((exact - rounded).abs().max())
    unfiltered = Sampling(sampling.temperature)
    everything = distribution(exact, unfiltered)
    # Half the sum of differences bounds the error of every cumulative probability.
    rounding = float((everything - distribution(rounded, unfiltered)).abs().sum()) / 2
    uniform, slack = sampling.uniform(position), SLACK * rounding
    cuts = (
        {min(1.0, max(1e-12, sampling.top_p + shift)) for shift in (-slack, 0.0, slack)}
        if sampling.top_p < 1
        else {1.0}
    )
    insides = [distribution(exact, altered(sampling, top_p=cut)) > 0 for cut in cuts]
    nearest = [min(_to_interval(everything, inside, slack, token, uniform) for inside in insides) for token in tokens]
    return max(nearest), rounding


class Judge:
    """Tells mismatches that rounding explains from errors; ``model`` is the target, in the type of the run."""

    def __init__(self, model: PreTrainedModel):
        self.model = model
        self._exact: PreTrainedModel | None = None

    @torch.inference_mode()
    def _logits(self, model: PreTrainedModel, tokens: Sequence[int]) -> torch.Tensor:
        ids = torch.tensor([tokens], device=input_device(model))
        return model(ids, use_cache=False, **last_logits_argument(model, 1)).logits[0, -1].double().cpu()

    def __call__(
        self,
        prompt: Sequence[int],
        expected: Sequence[int],
        got: Sequence[int],
        sampling: Sampling,
        name: str = "",
        method: str = "",
    ) -> Mismatch | None:
        """The first mismatch of two outputs of ``prompt``; None if they are equal."""
        place = first_divergence(expected, got)
        if place is None:
            return None
        if self._exact is None:
            self._exact = copy.deepcopy(self.model).double()
        before = [*prompt, *expected[:place]]
        exact, rounded = self._logits(self._exact, before), self._logits(self.model, before)
        pair = tuple(tokens[place] if place < len(tokens) else -1 for tokens in (expected, got))
        distance, rounding = math.inf, math.nan
        bound = sampling.for_prompt(prompt)
        if -1 not in pair:
            distance, rounding = explain(exact, rounded, bound, len(before), pair)
        return Mismatch(
            name,
            method,
            asdict(sampling),
            place,
            *pair,
            margin(exact, bound, len(before)),
            distance,
            rounding,
            distance <= SLACK * rounding,
        )
