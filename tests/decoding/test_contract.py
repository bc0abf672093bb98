"""What a drafter declares, what is refused, and what a generation leaves."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from specdec_lib import Capture, Drafter, DraftTree, Passengers, Runtime, WrappedDrafter, generate, record, replay
from specdec_lib.decoding.cache import TreeCache
from specdec_lib.drafters import AdaptiveDraftModel, stopping
from tests.chaos import FACTORIES, Chaos, Perfect, Recycling, Silent
from tests.families import build, prompt


@dataclass(frozen=True)
class Twice(Drafter):
    """It cannot be changed, and leaves out what it can."""

    count: int = 2

    def propose(self, context, limit):
        return DraftTree.chain(context.tokens[-self.count :])


def test_what_a_subclass_leaves_out_has_a_default(llama):
    assert (Twice.capture, Twice.replays) == (Capture(), "any")
    plain, drafter = generate(llama, prompt(1, 9), max_new_tokens=12), Twice()
    for _ in range(2):
        run = generate(llama, prompt(1, 9), drafter, max_new_tokens=12)
        assert run.tokens == plain.tokens and any(step.drafted for step in run.steps)
        assert run.state is None
        drafter.reset()


def test_a_wrapped_drafter_is_passed_every_call(llama):
    class All(Chaos):
        replays = "greedy"

        def __getattribute__(self, name):
            if name in ("reset", "start", "propose", "verified", "finish"):
                calls.append(name)
            return super().__getattribute__(name)

    plain, told = generate(llama, prompt(1, 9), max_new_tokens=12).tokens, []
    for wrap in (lambda drafter: drafter, WrappedDrafter):
        calls: list[str] = []
        drafter = wrap(All(prompt(1, 9) + plain, capture=Capture((1,), topk=2)))
        assert (drafter.capture, drafter.replays) == (Capture((1,), topk=2), "greedy")
        drafter.reset()
        run = generate(llama, prompt(1, 9), drafter, max_new_tokens=12)
        assert run.tokens == plain and calls.count("verified") == len(run.steps)
        told.append(calls)
    assert told[0] == told[1] and set(told[0]) == {"reset", "start", "propose", "verified", "finish"}


def test_the_time_to_learn_from_a_pass_is_drafting_time(llama):
    class Slow(Silent):
        def verified(self, tree, path, outputs):
            time.sleep(0.004)

    run = generate(llama, [3, 4], Slow(), max_new_tokens=4, eos_token_id=[])
    assert all(0.004 <= step.draft_seconds < 1 for step in run.steps)
    assert all(step.commit_seconds + step.host_seconds + step.verify_seconds < 0.2 for step in run.steps)


# Trees


@pytest.mark.parametrize(
    "make",
    [
        lambda: DraftTree.chain([5, 6, 7, 8]),
        lambda: DraftTree.chain([5, 6, 7, 8], torch.full((4, 9), 1 / 9)),
        lambda: DraftTree([5, 6, 7, 8], [-1, -1, 0, 2]),
        lambda: DraftTree.from_drafts([[5, 6], [5, 7]], merge=False),
    ],
    ids=["chain", "drawn chain", "tree", "batch"],
)
def test_notes_of_a_tree_go_with_its_nodes(make):
    tree = make()
    visible = np.random.default_rng(0).random((3, 8)) < 0.5
    riding = Passengers([1, 2, 1], [9, 0, 4], visible)
    noted = tree.annotated(scores=[1, 0.5, 0.25, 0.125], sources=list("abcd"), passengers=riding)
    assert (tree.scores, tree.sources, tree.passengers, tree.width) == (None, None, None, 5)
    assert (noted.tokens, noted.parents, noted.children()) == (tree.tokens, tree.parents, tree.children())
    assert noted.probabilities is tree.probabilities and noted.is_chain == tree.is_chain
    assert noted != tree and noted == tree.annotated(
        scores=noted.scores, sources=noted.sources, passengers=noted.passengers
    )
    assert noted != noted.annotated(scores=[1, 0.5, 0.25, 0.1], sources=list("abcd"), passengers=noted.passengers)
    assert (noted.width, len(noted), noted.block(3)) == (8, 4, [3, *tree.tokens, 1, 2, 1])
    assert noted.block_depths == [0, *tree.depths, 9, 0, 4] and not noted.is_causal
    mask = noted.mask()
    assert np.array_equal(mask[:5, :5], tree.mask()) and not mask[:5, 5:].any() and np.array_equal(mask[5:], visible)
    for depth in range(4):
        cut, bare = noted.truncated(depth), tree.truncated(depth)
        kept = [node for node in range(4) if tree.depths[node] <= depth]
        assert (cut.tokens, cut.parents) == (bare.tokens, bare.parents)
        if depth < tree.depth:
            assert cut.scores == [noted.scores[node] for node in kept]
            assert cut.sources == ["abcd"[node] for node in kept]
            assert (cut.passengers.tokens, cut.passengers.depths) == ([1, 2, 1], [9, 0, 4])
            assert np.array_equal(cut.passengers.visible, visible[:, [0, *(n + 1 for n in kept), 5, 6, 7]])
        else:
            assert cut is noted


# Replay and state


def test_a_replay_from_an_equal_state_is_the_real_run(library, llama):
    """Of drafters that keep what they learn: the same prompts in the same order."""
    draft = library.draft("llama-gqa")
    traces = [record(llama, prompt(seed, 20), max_new_tokens=20) for seed in (3, 4, 3)]
    real, again = (AdaptiveDraftModel(draft, stopping.Heuristic(3)) for _ in range(2))
    steps = []
    for trace in traces:
        run, replayed = generate(llama, trace.prompt, real, max_new_tokens=20), replay(trace, again)
        assert [(s.tree, s.path) for s in run.steps] == [(s.tree, s.path) for s in replayed.steps]
        steps.append([(s.tree, s.path) for s in run.steps])
    assert steps[0] != steps[2], "it learned nothing"
    real.reset()
    run = generate(llama, traces[0].prompt, real, max_new_tokens=20)
    assert [(s.tree, s.path) for s in run.steps] == steps[0], "it remembers after reset()"


def test_what_was_learned_of_another_vocabulary_is_forgotten_before_the_next_generation():
    large, small, drafter = build("llama", vocab_size=200), build("llama"), Recycling()
    for model in (large, small, small, large):
        plain = generate(model, prompt(1, 9), max_new_tokens=20).tokens
        assert generate(model, prompt(1, 9), drafter, max_new_tokens=20).tokens == plain
        assert max(map(max, drafter.table.values())) < model.config.vocab_size
    assert generate(small, prompt(1, 9), WrappedDrafter(drafter), max_new_tokens=20).tokens


# Memory


@pytest.mark.core_cases(4)
@pytest.mark.parametrize("how", ["eager", "static"])
@pytest.mark.parametrize(
    "name", ["plain", "perfect", "chaos watching", "chaos riding", "recycling", "PLD+ (a)", "SpecDec", "holds"]
)
def test_no_cache_outlives_its_generation(library, llama, name, how):
    start = prompt(1, 9)
    text = start + generate(llama, start, max_new_tokens=6).tokens

    class Holds(Perfect):
        """Keeps what it is shown of each generation."""

        def start(self, context):
            self.held = [*getattr(self, "held", []), context]

    def once(drafter):
        runtime = Runtime(llama, 20, widths=(1, 8)) if how == "static" else None
        generate(llama, start, drafter, max_new_tokens=6, runtime=runtime)
        record(llama, start, max_new_tokens=3, capture=Capture((1,), ((0, 1),), 2))

    if name == "plain":
        drafter = None
    else:
        drafter = Holds(text) if name == "holds" else FACTORIES[name](library, "llama-gqa", text, 0)
    gc.collect()
    gc.disable()
    try:
        for _ in range(20):
            once(drafter)
        alive = sum(type(each) is TreeCache for each in gc.get_objects())
    finally:
        gc.enable()
    assert alive == 0
