"""What retrieval is measured by: matches, neighbours that are looked up once, recorded text of other models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from specdec_lib.datastores.dense import DenseIndex
from specdec_lib.datastores.suffix_array import Match
from specdec_lib.datastores.tokens import tokenizer_vocabulary
from specdec_lib.decoding.contract import LAST, Context, WrappedDrafter
from specdec_lib.decoding.loop import Limits, Trace
from specdec_lib.decoding.sampling import Sampling
from specdec_lib.decoding.tree import DraftTree
from specdec_lib.drafters import Rest
from specdec_lib.experiments.data.prompt import Prompt
from specdec_lib.experiments.data.published_sets.replies import Reply
from specdec_lib.experiments.runs.recorded_runs import Recording, replay_all


class KeepsMatches(WrappedDrafter):
    """REST that keeps the match behind each of its proposals in ``matches``."""

    def __init__(self, drafter: Rest):
        super().__init__(drafter)
        self.matches: list[Match] = []

    def propose(self, context: Context, limit: int) -> DraftTree:
        tree = super().propose(context, limit)
        self.matches.append(self.drafter.last)
        return tree


def match_lengths(recordings: Sequence[Recording], drafter: Rest) -> Counter[int]:
    """How often the longest matching suffix has each length in tokens, over the steps of replays (REST, figure 13).

    A length below ``drafter.min_ngram`` gave no draft; one of ``drafter.max_ngram`` may be longer in truth.
    """
    counting = KeepsMatches(drafter)
    replay_all(recordings, counting)
    return Counter(match.length for match in counting.matches)


class CachedNeighbours:
    """A dense index that has looked up every state of some recordings at once, to replay many drafters on them.

    The neighbours of a state do not depend on how many drafts are made of them, or how long. Of the recordings the target's
    last hidden states are needed; a search for at most ``neighbours`` is answered.
    """

    def __init__(self, index: DenseIndex, recordings: Sequence[Recording], neighbours: int = 50):
        self.store, self.path, self.width, self.neighbours = index.store, index.path, index.width, neighbours
        self._found: dict[bytes, tuple[np.ndarray, np.ndarray]] = {}
        states = [r.trace.hidden[LAST][len(r.trace.prompt) - 1 :].float().numpy() for r in recordings]
        if states:
            # At once: a search of a few states at a time reads the whole index as often.
            every = np.concatenate(states)
            for state, scores, positions in zip(every, *index.search(every, neighbours), strict=True):
                self._found[state.tobytes()] = scores, positions

    def search(self, states: np.ndarray | torch.Tensor, k: int) -> tuple[np.ndarray, np.ndarray]:
        """As :meth:`specdec_lib.datastores.dense.DenseIndex.search`; a KeyError for a state that is not one of the recordings'."""
        if k > self.neighbours:
            raise ValueError(f"k is {k}, but {self.neighbours} neighbours are remembered; remember more")
        rows = states.float().numpy() if isinstance(states, torch.Tensor) else np.asarray(states, np.float32)
        found = [self._found[state.tobytes()] for state in rows]
        return tuple(np.stack(parts)[:, :k] for parts in zip(*found, strict=True))


_lookups: dict[tuple[str, int, tuple[int, ...]], tuple[CachedNeighbours, Sequence[Recording]]] = {}
#: Look-ups kept at most; one of a few hundred outputs takes some tens of megabytes.
LOOKUPS = 16


def cached_neighbours(index: DenseIndex, recordings: Sequence[Recording], neighbours: int = 50) -> CachedNeighbours:
    """A :class:`CachedNeighbours` index, made once for the same index and recordings as long as it is among the last
    :data:`LOOKUPS` that were asked for."""
    key = (str(index.path), neighbours, tuple(map(id, recordings)))
    # The recordings are kept along with what was found for them: their ids belong to no others meanwhile.
    made = _lookups.pop(key, None) or (CachedNeighbours(index, recordings, neighbours), list(recordings))
    _lookups[key] = made
    while len(_lookups) > LOOKUPS:
        _lookups.pop(next(iter(_lookups)))
    return made[0]


def record_replies(
    replies: Sequence[Reply], tokenizer: PreTrainedTokenizerBase, max_new_tokens: int = 100_000
) -> list[Recording]:
    """Recordings of what other models wrote, in tokens of ``tokenizer`` and cut to ``max_new_tokens``, to replay
    drafters on.

    They stand for greedy runs of those models except for the cut into tokens: tokens per forward compare only with
    those of the same tokenizer, characters per forward with those of any.
    """
    vocabulary = tokenizer_vocabulary(tokenizer)
    found = []
    for reply in replies:
        prompt, both = (
            tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"] for text in (reply.prompt, reply.text)
        )
        tokens = both[:max_new_tokens]
        if len(tokens) < 2:
            continue
        trace = Trace(prompt, tokens, Sampling(), vocabulary, Limits(len(tokens)), "length")
        found.append(Recording(Prompt(reply.id, reply.model, (reply.prompt,), chat=False), 0, trace))
    return found
