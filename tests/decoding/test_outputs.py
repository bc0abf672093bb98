"""What a drafter is shown of the target's outputs, and auxiliary tokens, against full forwards of transformers."""

import random

import numpy as np
import pytest
import torch

from specdec_lib import AuxiliaryTokens, Capture, DraftTree, Runtime, Sampling, generate
from specdec_lib.decoding.served_models import windows
from specdec_lib.decoding.target import Target
from tests.chaos import Chaos, everything
from tests.families import CONTEXT, SERVED, VOCABULARY, prompt, uncached

K = 4
WIDTHS = (1, 2, 4, 8, 16, 32)


class Witness(Chaos):
    """Chaos that keeps all it is shown."""

    def __init__(self, text, seed=0, k=K, **options):
        super().__init__(text, seed, capture=Capture(topk=k), **options)
        self.seen: list[tuple] = []

    def start(self, context):
        super().start(context)
        self.context = context

    def verified(self, tree, path, outputs):
        self.seen.append((len(self.context.tokens), tree, path, outputs))


def assert_most_likely(tokens: np.ndarray, logprobs: np.ndarray, expected: torch.Tensor) -> None:
    """One row is the top of ``expected``; of nearly equal tokens either may come first."""
    k = len(tokens)
    assert len(set(tokens.tolist())) == k and tokens.dtype == np.int64 and logprobs.dtype == np.float32
    at = expected[torch.from_numpy(tokens)]
    torch.testing.assert_close(torch.from_numpy(logprobs), at, rtol=0, atol=2e-4)
    torch.testing.assert_close(at, expected.topk(k).values, rtol=0, atol=2e-4)


@pytest.mark.core_cases(4)
@pytest.mark.parametrize("how", ["eager", "static"])
@pytest.mark.parametrize("family", SERVED)
def test_the_most_likely_tokens_are_those_of_a_full_forward_over_each_path(library, family, how):
    model, start = library[family], prompt(1, 20)
    static = how == "static"
    sampling = Sampling(0.8, top_k=5, seed=3) if static else Sampling()
    plain = generate(model, start, None, sampling, 16).tokens
    drafter = Witness(start + plain, 3)
    run = generate(model, start, drafter, sampling, 16, runtime=Runtime(model, 40, widths=WIDTHS) if static else None)
    assert run.tokens == plain
    assert len(drafter.seen) == len(run.steps), "the last pass too"
    done, rejected = 20, 0
    for (length, tree, path, outputs), step in zip(drafter.seen, run.steps, strict=True):
        assert (tree, path) == (step.tree, step.path)
        text = (start + plain)[: done + 1]
        assert outputs.root == text[-1] and length == len(text) + len(step.tokens)
        assert outputs.tokens.shape == outputs.logprobs.shape == (len(tree) + 1, K)
        assert outputs.auxiliary_tokens.shape == outputs.auxiliary_logprobs.shape == (0, K)
        for node in range(-1, len(tree)):
            after = uncached(model, text + [tree.tokens[n] for n in tree.path(node)])[0][-1].log_softmax(-1)
            assert_most_likely(outputs.tokens[node + 1], outputs.logprobs[node + 1], after)
            rejected += node >= 0 and node not in path
        done += len(step.tokens)
    assert rejected > 10


def test_no_more_than_the_vocabulary_is_asked_for(llama):
    assert generate(llama, [3, 4], Witness([], k=VOCABULARY, branches=0, depth=0), max_new_tokens=1).tokens
    with pytest.raises(ValueError, match=f"topk is 97 and the model's vocabulary has {VOCABULARY}"):
        generate(llama, [3, 4], Witness([], k=97))


TREES = (DraftTree([5, 6, 7, 8, 9, 10], [-1, -1, 0, 1, 3, 2]), DraftTree.chain([5, 6, 7]), DraftTree.chain([]))


@pytest.mark.parametrize("how", ["eager", "static", "too wide"])
@pytest.mark.parametrize("family", SERVED)
def test_auxiliary_tokens_see_what_their_mask_says_and_change_nothing(library, family, how):
    model, start, rng = library[family], prompt(2, 11), random.Random(4)
    capture, widths = everything(library, family), {"static": WIDTHS, "too wide": (1, 2)}.get(how)
    for tree in TREES:
        tokens, depths = ([rng.randrange(most) for _ in range(7)] for most in (VOCABULARY, 9))
        visible = np.random.default_rng(len(tree)).random((7, 8 + len(tree))) < 0.5
        riding, shown = tree.annotated(auxiliary=AuxiliaryTokens(tokens, depths, visible)), []
        for each in (tree, riding):
            runtime = None if widths is None else Runtime(model, 40, widths=widths)
            with torch.inference_mode(), Target(model, 40, capture, runtime=runtime) as target:
                target.extend(start)
                logits = target.verify(33, each).clone()
                path = tree.path(len(tree) - 1)
                target.commit(path)
                assert target.length == len(start) + 1 + len(path)
                rows = [target.attention().clone()] if capture.heads else []
                states = [target.hidden(layer).clone() for layer in capture.layers]
                after = target.verify(34, DraftTree.chain([3])).clone()
            shown.append([logits[: len(tree) + 1], after, *rows, *states])
        assert riding.width == len(logits) == len(tree) + 8
        for alone, with_auxiliary_tokens in zip(*shown, strict=True):
            torch.testing.assert_close(with_auxiliary_tokens, alone, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(logits, naive(model, start, 33, riding), rtol=1e-3, atol=1e-3)


def naive(model, text: list[int], root: int, tree: DraftTree) -> torch.Tensor:
    """One forward without a cache, its mask written out entry by entry."""
    riding, n, p = tree.auxiliary, len(tree), len(tree.auxiliary)
    size = len(text) + 1 + n + p
    mask = torch.zeros((size, size), dtype=torch.bool)
    for i in range(len(text)):
        mask[i, : i + 1] = True
    mask[len(text) :, : len(text)] = True
    for node in range(-1, n):
        for other in [-1, *tree.path(node)]:
            mask[len(text) + 1 + node, len(text) + 1 + other] = True
    mask[len(text) + 1 + n :, len(text) :] = torch.from_numpy(riding.visible)
    depths = [len(tree.path(node)) for node in range(n)]
    positions = [*range(len(text)), *(len(text) + d for d in [0, *depths, *riding.depths])]
    at = torch.tensor(positions)

    def given(window: int | None) -> torch.Tensor:
        # A sliding window goes by position, wherever a token lies in the block.
        seen = mask if window is None else mask & (at[:, None] - at[None, :] < window)
        additive = torch.zeros((1, 1, size, size)).masked_fill(~seen, torch.finfo(torch.float32).min)
        return additive if model.config._attn_implementation == "eager" else seen[None, None]

    kinds = {kind: given(window) for kind, window in windows(model).items()}
    given_masks = kinds if len(kinds) > 1 else next(iter(kinds.values()))
    with torch.inference_mode():
        ids = torch.tensor([[*text, root, *tree.tokens, *riding.tokens]])
        out = model(ids, attention_mask=given_masks, position_ids=torch.tensor([positions]), use_cache=False)
    return out.logits[0, len(text) :]


@pytest.mark.parametrize("how", ["eager", "static"])
def test_positions_of_auxiliary_tokens_after_the_models_last_one_count_as_the_last(library, how):
    model, start = library["gpt2"], prompt(2, CONTEXT - 3)  # learned positions: one more would be an error
    far, last = (
        DraftTree.chain([4]).annotated(auxiliary=AuxiliaryTokens([7, 8], depths, np.ones((2, 4), bool)))
        for depths in ([500, 2], [2, 2])
    )
    logits = []
    for tree in (far, last):
        runtime = Runtime(model, CONTEXT, widths=WIDTHS) if how == "static" else None
        with torch.inference_mode(), Target(model, CONTEXT, runtime=runtime) as target:
            target.extend(start)
            logits.append(target.verify(3, tree).clone())
    assert torch.equal(*logits)
