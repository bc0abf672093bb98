"""PLD+ (Somasundaram et al. 2025, section 4): rank earlier occurrences by what the model has computed.

Let x_t be the last emitted token; its own states are not computed yet. Candidates are the positions j < t with x_j = x_t.
Variant (h) takes the one whose preceding hidden state is nearest to the current one, argmax cos(H_{j-1}, H_{t-1}); variant (a)
the one that chosen heads attended to when x_t was chosen, argmax max over heads of A_{t-1, j}. The draft is what followed it.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence

import torch

from specdec_lib.decoding.checks import one_of, whole_number
from specdec_lib.decoding.contract import Capture, Context, Drafter, Evidence
from specdec_lib.decoding.tree import EMPTY, DraftTree
from specdec_lib.drafters.prompt_lookup import match_before


class _RankedLookup(Drafter):
    """Candidates of PLD+ and the draft that follows the best; variants say how good a candidate is."""

    #: Position that the last draft was copied from; of how many candidates, and how far ahead of the next best it was.
    source: int | None
    candidates: int
    margin: float

    def __init__(self, num_tokens: int, generated: bool):
        self.num_tokens, self.generated = whole_number("num_tokens", num_tokens, 1), generated
        self.source, self.candidates, self.margin, self._score = None, 0, 0.0, None
        self._places: dict[int, list[int]] = {}
        self._indexed = 0

    def start(self, context: Context) -> None:
        self._places, self._indexed, self.source = {}, 0, None

    def propose(self, context: Context, limit: int) -> DraftTree:
        self.source = None
        tokens, last = context.tokens, len(context.tokens) - 1
        end = last if self.generated else min(last, context.prompt_length)
        for place in range(self._indexed, end):
            self._places.setdefault(tokens[place], []).append(place)
        self._indexed = max(self._indexed, end)
        candidates = self._candidates(self._places.get(tokens[last], []))
        self.candidates, self.margin, self._score = len(candidates), 0.0, None
        if not candidates:
            return EMPTY
        best = self._best(context, candidates)
        if best is None:
            return EMPTY
        self.source = best + 1
        return DraftTree.chain(tokens[best + 1 : best + 1 + min(self.num_tokens, limit)], copied_from=best + 1)

    def _candidates(self, places: list[int]) -> list[int]:
        return places

    def evidence(self, context: Context) -> Evidence:
        match = match_before(context.tokens, self.source)
        return Evidence(match, candidates=math.log1p(self.candidates), margin=self.margin)

    def score(self, context: Context) -> float:
        """How good the place is that the last draft was copied from, 0 without a draft."""
        return 0.0 if self.source is None else self._score_of(context, self.source - 1)

    def _score_of(self, context: Context, best: int) -> float:
        if self._score is None:
            self._score = float(self._scores(context, [best])[0])
        return self._score

    def _best(self, context: Context, candidates: list[int]) -> int | None:
        """The candidate to copy from, the first among equals; None for no draft."""
        if len(candidates) == 1:
            return candidates[0]
        scores = self._scores(context, candidates)
        self._score, second = scores.topk(2).values.tolist()
        self.margin = self._score - second
        return candidates[int(scores.argmax())]

    @abstractmethod
    def _scores(self, context: Context, candidates: list[int]) -> torch.Tensor:
        """How good each candidate is, higher is better."""


class PromptLookupHidden(_RankedLookup):
    """PLD+ (h): the occurrence whose preceding hidden state is nearest to the current one (equation 3).

    Parameters
    ----------
    layer : int
        Whose states are compared: 0 are the embeddings, ``i`` the output of block ``i``. The paper uses 9 for Vicuna-7B.
    num_tokens : int
        Tokens drafted (K); the paper uses 70.
    threshold : float, optional
        Appendix B.3: candidates whose cosine is below it are left out; where none is left there is no draft.
    average : int
        Appendix B.2: compare means of this many states instead of single ones. 1 is no averaging.
    average_over : {"trailing", "printed"}
        ``"trailing"``: the ``average`` states up to the position, which the text means. ``"printed"``: the first ``average``
        states of the sequence, as the formula reads; all candidates are then equally near and the first one is taken.
    generated : bool
        Whether occurrences in the output count as well as those in the prompt.

    Notes
    -----
    Both variants read the position before the last token; the paper's figure 1 and its section 4.2 differ by one. The column of
    equation 2, which the paper leaves out, is the occurrence j itself. The first occurrence wins among equals.

    Examples
    --------
    >>> from specdec_lib import generate
    >>> from specdec_lib.drafters import PromptLookupHidden
    >>> run = generate(model, prompt, PromptLookupHidden(layer=2, num_tokens=10), max_new_tokens=24)
    >>> round(run.stats["tokens_per_forward"], 2)
    4.6
    """

    def __init__(
        self,
        layer: int,
        num_tokens: int = 70,
        *,
        threshold: float | None = None,
        average: int = 1,
        average_over: str = "trailing",
        generated: bool = True,
    ):
        super().__init__(num_tokens, generated)
        if threshold is not None and not -1.0 <= threshold <= 1.0:
            raise ValueError(f"threshold is {threshold}; expected a cosine, -1 to 1, or None")
        self.layer = whole_number("layer", layer, 0, "0 for the embeddings or the number of a block")
        self.threshold, self.average = threshold, whole_number("average", average, 1)
        self.average_over = one_of("average_over", average_over, ("trailing", "printed"))
        self.capture = Capture(layers=(self.layer,))

    def _candidates(self, places: list[int]) -> list[int]:
        # The first token has no state before it.
        return places[1:] if places and places[0] == 0 else places

    def _means(self, states: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        if self.average == 1:
            return states[ends]
        if self.average_over == "printed":
            return states[: self.average].float().mean(0).expand(len(ends), -1)
        offsets = ends[:, None] - torch.arange(self.average, device=ends.device)
        inside = (offsets >= 0)[..., None]
        return (states[offsets.clamp_min(0)].float() * inside).sum(1) / inside.sum(1)

    def _best(self, context: Context, candidates: list[int]) -> int | None:
        best = super()._best(context, candidates)
        return best if self.threshold is None or self._score_of(context, best) >= self.threshold - 1e-6 else None

    def evidence(self, context: Context) -> Evidence:
        return super().evidence(context)._replace(similarity=(self.score(context),))

    def _scores(self, context: Context, candidates: list[int]) -> torch.Tensor:
        states = context.hidden(self.layer)
        ends = torch.tensor([*(j - 1 for j in candidates), len(states) - 1], device=states.device)
        means = self._means(states, ends).float()
        return torch.nn.functional.cosine_similarity(means[:-1], means[-1:], dim=-1)


class PromptLookupAttention(_RankedLookup):
    """PLD+ (a): the occurrence that induction heads attended to (equation 2, with the column it leaves out).

    Parameters
    ----------
    heads : sequence of (int, int)
        (block, head) pairs, both from 0; :mod:`specdec_lib.heads.induction` finds them, and the paper uses 50.
    num_tokens, generated
        As for :class:`PromptLookupHidden`.
    aggregate : {"max", "sum"}
        Over heads; the maximum is the paper's choice (figure 3).

    Examples
    --------
    >>> from specdec_lib import generate
    >>> from specdec_lib.drafters import PromptLookupAttention
    >>> drafter = PromptLookupAttention([(2, 0), (2, 1)], num_tokens=10)
    >>> run = generate(model, prompt, drafter, max_new_tokens=24)
    >>> round(run.stats["tokens_per_forward"], 2)
    3.83
    """

    def __init__(
        self, heads: Sequence[tuple[int, int]], num_tokens: int = 70, *, aggregate: str = "max", generated: bool = True
    ):
        super().__init__(num_tokens, generated)
        chosen = tuple((whole_number("block", block), whole_number("head", head)) for block, head in heads)
        if not chosen or len(set(chosen)) != len(chosen):
            raise ValueError(f"heads is {list(heads)!r}; expected one or more different (block, head) pairs, from 0")
        self.heads, self.aggregate = chosen, one_of("aggregate", aggregate, ("max", "sum"))
        self.capture = Capture(heads=chosen)

    def evidence(self, context: Context) -> Evidence:
        attention = math.log(max(self.score(context), 1e-3)) if self.candidates else 0.0
        return super().evidence(context)._replace(attention=attention)

    def _scores(self, context: Context, candidates: list[int]) -> torch.Tensor:
        rows = context.attention()
        columns = rows[:, torch.tensor(candidates, device=rows.device)].float()
        return columns.amax(0) if self.aggregate == "max" else columns.sum(0)
