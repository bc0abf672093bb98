"""Many prompts decoded together, and made exact: a batch writes guesses, and each prompt alone verifies its own.

A batch reads the weights once for all its rows, so it writes several times as many tokens a second as single prompts do. Its
rounding differs from a single prompt's, so its tokens are only drafts here: :func:`specdec_lib.generate` verifies them, some
tens in a pass, and what it emits is what it emits without them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from transformers import DynamicCache, PreTrainedModel

from specdec_lib.decoding.contract import Context, Drafter
from specdec_lib.decoding.generate import generate
from specdec_lib.decoding.results import Generation
from specdec_lib.decoding.sampling import Sampling, invert_cdfs, unchecked_distribution
from specdec_lib.decoding.tree import DraftTree

#: Share of a batch that is still being written when the others leave it.
_ALIVE = 0.8


@torch.inference_mode()
def write(
    model: PreTrainedModel,
    contexts: Sequence[Sequence[int]],
    choose: Callable[[torch.Tensor, list[int], int], torch.Tensor],
    longest: int,
    end: int,
) -> list[list[int]]:
    """Continue token lists together, at most ``longest`` tokens each, until each says ``end``; the shorter are padded on the
    left.

    ``choose(logits, rows, step)`` gives the next tokens, int64 of shape (n,), for float32 logits of shape (n, vocabulary) of
    these rows of ``contexts``.
    """
    width, device = max(map(len, contexts)), model.device
    ids = torch.full((len(contexts), width), end)
    mask = torch.zeros(len(contexts), width, dtype=torch.long)
    for row, context in enumerate(contexts):
        ids[row, width - len(context) :] = torch.tensor(context)
        mask[row, width - len(context) :] = 1
    ids, mask = ids.to(device), mask.to(device)
    outputs: list[list[int]] = [[] for _ in contexts]
    alive, on = torch.arange(len(contexts)), torch.ones(len(contexts), dtype=torch.bool)
    cache = DynamicCache(config=model.config)
    for step in range(longest):
        places = (mask.cumsum(1) - 1).clamp_min(0)[:, -ids.shape[1] :]
        out = model(
            ids, attention_mask=mask, position_ids=places, past_key_values=cache, use_cache=True, logits_to_keep=1
        )
        chosen = choose(out.logits[:, -1].float(), alive.tolist(), step)
        for row, token in zip(alive.tolist(), chosen.tolist(), strict=True):
            outputs[row].append(token)
        on &= chosen.cpu() != end
        ids, mask = chosen[:, None], torch.cat([mask, mask.new_ones(len(mask), 1)], 1)
        if on.sum() <= _ALIVE * len(on):
            kept = on.nonzero()[:, 0].to(device)
            alive, ids, mask, on = alive[on], ids[kept], mask[kept], on[on]
            cache.batch_select_indices(kept)
        if not len(alive):
            break
    return [tokens[: tokens.index(end) + 1] if end in tokens else tokens for tokens in outputs]


class Known(Drafter):
    """Drafts what is believed to be the output, ``length`` tokens at a time, as long as it was."""

    def __init__(self, tokens: Sequence[int], length: int = 24):
        self.tokens, self.length = list(tokens), length

    def propose(self, context: Context, limit: int) -> DraftTree:
        written = context.tokens[context.prompt_length :]
        if written != self.tokens[: len(written)]:
            return DraftTree.chain([])
        return DraftTree.chain(self.tokens[len(written) :][: min(self.length, limit)])


def guesses(
    model: PreTrainedModel,
    contexts: Sequence[Sequence[int]],
    sampling: Sequence[Sampling],
    max_new_tokens: int,
    end: int,
) -> list[list[int]]:
    """What a batch writes after each context: the output of plain decoding, up to rounding. As for :func:`decode_together`."""
    own = [each.for_prompt(context) for each, context in zip(sampling, contexts, strict=True)]

    def choose(logits: torch.Tensor, rows: list[int], step: int) -> torch.Tensor:
        if own[0].greedy:
            return logits.argmax(-1)
        uniforms = [own[row].uniform(len(contexts[row]) + step) for row in rows]
        return invert_cdfs(unchecked_distribution(logits, own[0]), uniforms)

    return write(model, contexts, choose, max_new_tokens, end)


def decode_together(
    model: PreTrainedModel,
    contexts: Sequence[Sequence[int]],
    sampling: Sequence[Sampling],
    max_new_tokens: int,
    end: int,
) -> list[Generation]:
    """Each context's output, as plain decoding writes it with the context's own sampling; these differ in their seeds alone."""
    return [
        generate(model, list(context), Known(guess), each, max_new_tokens, [end])
        for context, guess, each in zip(
            contexts, guesses(model, contexts, sampling, max_new_tokens, end), sampling, strict=True
        )
    ]
