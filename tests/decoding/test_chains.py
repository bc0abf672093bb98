"""Models some of whose layers keep one state of the whole text: chains change nothing, whatever is rejected; trees are refused."""

import random

import pytest
import torch

from specdec_lib import Context, Drafter, DraftTree, Runtime, Sampling, UnsupportedModel, generate
from specdec_lib.decoding.loop import Limits, ModelVerifier, decode
from specdec_lib.decoding.sampling import choose
from specdec_lib.decoding.target import Target
from specdec_lib.drafters import DraftModel, PromptLookup, PromptLookupHidden
from specdec_lib.experiments.checks.rounding import margin
from tests.families import CHAINS, VOCABULARY, prompt, uncached

NEW = 40


class Wrong(Drafter):
    """Chains that begin as the true continuation does and end with other tokens."""

    def __init__(self, text):
        self.text, self.random = text, random.Random(0)

    def propose(self, context: Context, limit: int) -> DraftTree:
        done, right = len(context.tokens), self.random.randint(0, 5)
        return DraftTree.chain(self.text[done : done + right] + [self.random.randrange(90) for _ in range(3)])


class Branches(Drafter):
    """Trees of two branches."""

    def propose(self, context: Context, limit: int) -> DraftTree:
        return DraftTree.from_drafts([[5], [6]])


class Uncached:
    """A target that computes the logits after a chain by one forward of transformers over the whole text."""

    def __init__(self, model):
        self.model, self.text = model, []

    def extend(self, tokens):
        self.text += tokens
        return uncached(self.model, self.text)[0][-1]

    def verify(self, root, tree):
        self.block = tree.block(root)
        return uncached(self.model, self.text + self.block)[0][len(self.text) :]

    def commit(self, path):
        self.text += self.block[: len(path) + 1]


DRAFTERS = {
    "plain": lambda library, text: None,
    "PLD": lambda library, text: PromptLookup(2, 6),
    "PLD+": lambda library, text: PromptLookupHidden(1),
    "draft model": lambda library, text: DraftModel(library["llama-gqa"], 4),
    "wrong": lambda library, text: Wrong(text),
}


@pytest.fixture(scope="module", params=CHAINS)
def family(request):
    return request.param


@pytest.fixture(
    scope="module", params=[Sampling(), Sampling(temperature=0.8, top_p=0.9, seed=3)], ids=["greedy", "sampled"]
)
def decoded(request, library, family):
    """A prompt and what follows it, each token chosen by a forward of transformers over the whole text, without a cache; no
    choice is within rounding."""
    model, sampling = library[family], request.param
    for seed in range(20):
        start, least = prompt(seed, 20), float("inf")
        bound, text = sampling.for_prompt(start), list(start)
        while len(text) < len(start) + NEW:
            row = uncached(model, text)[0][-1]
            least = min(least, margin(row, bound, len(text)))
            text.append(choose(row, bound, len(text)))
        if least > 1e-4:
            return sampling, start, text[len(start) :]
    raise AssertionError("20 prompts in a row had a choice within 1e-4")


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_output_is_what_transformers_gives_without_a_cache(library, family, decoded, drafter):
    sampling, start, expected = decoded
    make = DRAFTERS[drafter]
    run = generate(library[family], start, make(library, start + expected), sampling, NEW)
    if drafter == "draft model" and not sampling.greedy:  # drawn from the draft too: the same draws decide here
        bound = sampling.for_prompt(start)
        context = Context(list(start), len(start), VOCABULARY, bound)
        verifier = ModelVerifier(target=Uncached(library[family]), sampling=bound)
        expected = decode(verifier, make(library, start), context, Limits(NEW)).tokens
    assert run.tokens == expected
    if sampling.greedy:
        theirs = library[family].generate(torch.tensor([start]), do_sample=False, max_new_tokens=NEW)
        assert run.tokens == theirs[0, len(start) :].tolist()
    if drafter == "wrong":
        assert sum(0 < step.accepted < step.drafted for step in run.steps) > 2, "few drafts were accepted in part"


def test_states_after_a_part_was_kept_are_those_of_the_kept_tokens_alone(library, family):
    model, text = library[family], prompt(2, 9)
    with torch.inference_mode(), Target(model, 60, capacity=10) as target:
        target.extend(text)
        for draft, count in (([3, 4, 5], 0), ([6, 7], 1), ([8], 1), ([5, 6, 7], 2)):
            got = target.verify(11, DraftTree.chain(draft))
            expected = uncached(model, [*text, 11, *draft])[0][len(text) :]
            torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4)
            target.commit(range(count))
            text += [11, *draft[:count]]
            assert target.length == len(text)


def test_what_is_no_chain_is_refused_in_words(library, family):
    model, start = library[family], prompt(1, 20)
    for call, words in (
        (
            lambda: generate(model, start, Branches(), max_new_tokens=30),
            "the drafter proposes trees; use",
        ),
        (lambda: Runtime(model, 64), "leave the runtime out"),
        (lambda: DraftModel(model), "draft with a model that has attention alone"),
    ):
        with pytest.raises(
            UnsupportedModel, match=f"{type(model).__name__} has layers with one state of the whole text.*{words}"
        ):
            call()
